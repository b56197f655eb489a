"""Padding as formulas: the pixel at a position beyond the input, and the positions of a pixel."""

from __future__ import annotations

from sympy import Expr, Integer

from convgen.ir.integer import circular, mod, reflect, replicate
from convgen.ir.problem import Padding

_PIXELS = {Padding.REFLECT: reflect, Padding.REPLICATE: replicate, Padding.CIRCULAR: circular}


def pixel_at(padding: Padding, position: Expr, extent: Expr) -> Expr:
    """The coordinate of the pixel that stands at a position of the padded axis, counted from x's first one."""
    return _PIXELS[padding](position, extent) if padding.repeats else position


def place_of(
    padding: Padding, pixel: Expr, place: Expr, extent: Expr, low: Expr
) -> tuple[Expr, tuple[Expr, int, Expr]]:
    """The position of a pixel's place, and (value, low, high) of the condition that the pixel stands there.

    Places 0, 1 and 2 of padding that mirrors or goes round lie before x, in x and behind it; place j of a replicated
    pixel lies j - low behind the pixel."""
    if padding is Padding.REPLICATE:
        position = pixel + place - low
        return position, (replicate(position, extent) - pixel, 0, Integer(1))
    if padding is Padding.CIRCULAR:
        position = pixel + (place - 1) * extent
    else:
        odd = mod(place, Integer(2))
        position = (2 * odd - 1) * pixel + (place - odd) * (extent - 1)
    return position, (position - (place - 1) * extent, 0, extent)
