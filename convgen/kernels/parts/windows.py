"""im2col whose threads have loops: over the taps of a window (Caffe's form), and over its channels as well (netcl's).

What a thread does not loop over is found from its index, as in the form without loops of `columns`.
"""

from __future__ import annotations

import math

from sympy import Expr, Integer

from convgen.ir.integer import floordiv, symbol
from convgen.ir.problem import ConvProblem, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.columns import (
    group_channel,
    head_of,
    lowered_element,
    lowered_of,
    matrix_formulas,
    thread_coordinates,
    units_of,
)
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import Kernel, Nest, Pointer, all_zero, element, fill, window_formulas
from convgen.kernels.parts.lowering import CONVERSIONS, Condition, Scope, all_hold, index_type, offset, window

#: Form -> a description of a thread's copies, and the dims besides the filter's that it loops over.
FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "taps": ("One thread per window of one channel, with a loop for each axis of the filter.", ()),
    "pixel": ("One thread per output pixel, with loops over its window's channels and taps.", ("g", "c", "c_in_group")),
}


def im2col(problem: ConvProblem, entry: str, buffer: str, sliced: bool, form: str) -> Kernel:
    """Fill problem.lowered from x.  A sliced kernel fills a run of rows, which are pixels."""
    x, lowered = problem.x, lowered_of(problem)
    comment, channels = FORMS[form]
    looped = {*problem.spatial.filter, *channels}
    constants = Constants(problem.result)
    scope = Scope(index_type(problem, (lowered.size,)), constants=constants)
    own = _without(lowered, looped)
    head = head_of(lowered) if sliced else 0
    at = all_zero(problem) | thread_coordinates(scope, own.dims, own.extents, head, "row" if sliced else "", sliced)
    nest = Nest(scope.take())
    tests = _loops(scope, problem, nest, at, [d for d in lowered.dims if d in looped])
    source = f"x[{offset(scope, x, at)}]"
    units, per_unit = units_of(own, head)
    target = _target(scope, lowered, at, head, per_unit)
    value = source
    if tests:
        nan = problem.padding is Padding.NAN
        padding = CONVERSIONS[lowered.dtype].nan if nan else f"{lowered.element.c_type}(0)"
        nest.add([f"// everything else is padding, {fill(problem)}", f"const bool inside = {all_hold(tests)};"])
        value = f"inside ? {source} : {padding}"
    nest.drop_unused(f"{target}\n{value}")
    return Kernel(
        "im2col/loops.cu.j2",
        entry,
        (
            f"im2col: {lowered_element(lowered)} = {element('x', x.dims)}, where",
            *matrix_formulas(lowered),
            *window_formulas(problem),
            comment,
        ),
        (Pointer("x", x.dtype, "x"), Pointer("lowered", lowered.dtype, buffer, written=True)),
        scope.index,
        units,
        per_unit,
        "row" if sliced else "",
        {"nest": nest, "target": f"lowered[{target}]", "value": value},
        constants=constants,
    )


def _without(lowered: Tensor, looped: set[str]) -> Tensor:
    """The dims that a thread's index counts."""
    kept = [(d, e) for d, e in zip(lowered.dims, lowered.extents, strict=True) if d not in looped]
    return lowered.over([d for d, _ in kept], [e for _, e in kept])


def _loops(scope: Scope, problem: ConvProblem, nest: Nest, at: dict[str, Expr], dims: list[str]) -> list[Condition]:
    """Opens loops over dims and names x's coordinates, each as far out as it is known; returns the conditions for being
    inside x."""
    axes = dict(zip(problem.spatial.filter, problem.spatial.input, strict=True))
    tests: list[Condition] = []

    def place(axis: str) -> None:
        at[axis], more = window(scope, problem, "x", axis, at)
        tests.extend(more)
        nest.add(scope.take())

    for tap, axis in axes.items():
        if tap not in dims:
            place(axis)
    for dim in dims:
        at[dim] = nest.loop(scope, dim, lowered_of(problem).extent(dim))
        if dim in axes:
            place(axes[dim])
    at |= group_channel(scope, problem, at)
    nest.add(scope.take())
    return tests


def _target(scope: Scope, lowered: Tensor, at: dict[str, Expr], head: int, per_unit: int) -> str:
    """C text of the element's offset; of a slice, from the slice's first row on."""
    if not head:
        return offset(scope, lowered, at)
    columns = lowered.over(lowered.dims[head:], lowered.extents[head:])
    row = scope.text(floordiv(symbol("index"), Integer(per_unit)) * math.prod(columns.extents))
    rest = offset(scope, columns, at)
    return row if rest == "0" else f"{row} + {rest}"
