"""torch's parameters of a convolution, checked: numbers by axis, padding, output padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, SupportsIndex, cast

from convgen.ir import size
from convgen.ir.problem import SPATIAL, Padding
from convgen.runtime.errors import WrongArguments, WrongShape

Numbers = SupportsIndex | Sequence[SupportsIndex]
#: Numbers, or (low, high) of each axis.
Amounts = Numbers | Sequence[Sequence[SupportsIndex]]
#: What padding is made of, by torch's names.
MODES = {
    "zeros": Padding.ZERO,
    "reflect": Padding.REFLECT,
    "replicate": Padding.REPLICATE,
    "circular": Padding.CIRCULAR,
}
_MOST = 2**31 - 1  # of any size in the language
#: (low, high) of each spatial axis.
Pads = tuple[tuple[int, int], ...]


def plain(name: str, given: object) -> Any:
    """A number, text or None as it is, the numbers of a sequence as a tuple; of a sequence of sequences, as tuples.

    Raises WrongArguments."""
    if isinstance(given, (bool, float)):  # True and 1.0 equal 1, and would find in caches what was made for that
        raise WrongArguments(f"{name} is {given!r}: expected a whole number")
    if given is None or isinstance(given, (int, str)):  # a union would be a graph break for torch 2.9
        return given
    if (number := size.whole(given)) is not None:
        return number
    try:
        parts = list(given) if not isinstance(given, Mapping | Set) else None  # type: ignore[call-overload]
    except TypeError:
        parts = None
    if parts is None:
        raise WrongArguments(f"{name} is of type {type(given).__name__}: expected whole numbers")
    return tuple(plain(name, part) for part in parts)


def whole(name: str, given: object) -> int:
    """A whole number of any kind, such as NumPy's.  Raises WrongArguments."""
    found = plain(name, given)
    if not isinstance(found, int):
        raise WrongArguments(f"{name} is {found!r}: expected a whole number")
    return found


def text(name: str, given: object) -> Any:
    """Raises WrongArguments for what is neither text nor None."""
    if given is not None and not isinstance(given, str):
        raise WrongArguments(f"{name} is of type {type(given).__name__}: expected text")
    return given


def by_axis(name: str, given: Numbers, rank: int, least: int) -> tuple[int, ...]:
    """A number for every spatial axis.  Raises WrongArguments."""
    try:
        parts: tuple[object, ...] = (given,) if isinstance(given, SupportsIndex) else tuple(given)
    except TypeError:
        parts = (None,)
    values = tuple([number for number in map(size.whole, parts) if number is not None])
    if len(values) < len(parts):
        raise WrongArguments(f"{name} is {given!r}: expected a whole number, or one per axis")
    values = values * rank if len(values) == 1 else values
    if len(values) != rank:
        raise WrongArguments(f"{name} is {given!r}: expected one number or {rank}")
    if min(values) < least:
        raise WrongArguments(f"{name} is {given!r}: expected at least {least}")
    if max(values) > _MOST:
        raise WrongArguments(f"{name} is {given!r}: expected at most {_MOST}")
    return values


def paddings(given: Amounts | str, filter: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pads:
    """(low, high) of each axis.  "same" puts an odd pixel at the high end, as torch does.  Raises WrongArguments."""
    rank = len(filter)
    if not isinstance(given, str):
        return _pairs(given, rank) or tuple((p, p) for p in by_axis("padding", cast(Numbers, given), rank, 0))
    if given == "valid":
        return ((0, 0),) * rank
    if given != "same":
        raise WrongArguments(f'padding is {given!r}: expected numbers, "same" or "valid"')
    if any(s != 1 for s in stride):
        raise WrongArguments(f'padding "same" needs a stride of 1, but stride is {tuple(stride)}')
    totals = [d * (r - 1) for r, d in zip(filter, dilation, strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


def _pairs(given: Amounts, rank: int) -> Pads:
    """(low, high) of each axis, if given in this form; else ()."""
    pairs = [p for p in given if isinstance(p, Sequence)] if isinstance(given, Sequence) else []
    if not pairs:
        return ()
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs) or len(cast(Pads, given)) != rank:
        raise WrongArguments(f"padding is {given!r}: expected a number, or (low, high) of {rank} axes")
    lows, highs = (by_axis("padding", [pair[side] for pair in pairs], rank, 0) for side in (0, 1))
    return tuple(zip(lows, highs, strict=True))


def _name(i: int, axes: Sequence[int]) -> str:
    """The name of spatial axis `i` of so many: D, H or W."""
    return SPATIAL[len(axes)].input[i].upper()


def padding_of(mode: str, input: Sequence[int], pads: Pads) -> Padding:
    """The padding mode, by torch's name.  Raises WrongArguments, and WrongShape where it is too much."""
    if not isinstance(mode, str) or mode not in MODES:
        raise WrongArguments(f"padding_mode is {mode!r}: expected {', '.join(map(repr, MODES))}")
    for i, (extent, amounts) in enumerate(zip(input, pads, strict=True)):
        most = {"reflect": extent - 1, "circular": extent}.get(mode, max(amounts))
        if max(amounts) > most:
            raise WrongShape(
                f"axis {_name(i, input)}: padding {max(amounts)} by {mode!r} of {extent} pixels: "
                f"expected at most {most}"
            )
    return MODES[mode]


def output_extents(
    input: Sequence[int], filter: Sequence[int], stride: Sequence[int], pad: Pads, dilation: Sequence[int]
) -> tuple[int, ...]:
    """Spatial extents of a convolution's output.  Raises WrongShape where the window does not fit."""
    found = []
    for i, (extent, taps, step, (low, high), gap) in enumerate(zip(input, filter, stride, pad, dilation, strict=True)):
        window = gap * (taps - 1) + 1
        if extent + low + high < window:
            raise WrongShape(
                f"axis {_name(i, input)}: the window spans {window} pixels, and the padded input has "
                f"{extent + low + high}"
            )
        found.append((extent + low + high - window) // step + 1)
    return tuple(found)


def cuts_of(
    padding: Sequence[int], output_padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Pads:
    """The pixels (low, high) that torch's transposed convolution cuts off each axis.  Raises WrongArguments."""
    for i, (extra, s, d) in enumerate(zip(output_padding, stride, dilation, strict=True)):
        if extra >= max(s, d):
            raise WrongArguments(
                f"output_padding is {extra} on axis {_name(i, stride)}: expected less than stride {s} or dilation {d}"
            )
    return tuple((p, p - extra) for p, extra in zip(padding, output_padding, strict=True))


def transposed(
    output: Sequence[int],
    filter: Sequence[int],
    stride: Sequence[int],
    cuts: Pads,
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], Pads]:
    """The input extents, and the padding, of the convolution whose gradient a transposed convolution is.

    `output` is what that convolution makes and the transposed one reads; `cuts` are the pixels that the transposed one
    lacks at each end of an axis, the high end less its output padding.  Output padding below the stride is the part of
    the padded input behind the last window; more of it takes the place of padding at the high end.  Raises
    WrongArguments, WrongShape.
    """
    extents, pads = [], []
    for i, (p, r, s, (pad, cut), d) in enumerate(zip(output, filter, stride, cuts, dilation, strict=True)):
        extra = pad - cut
        high = pad if 0 <= extra < s else max(cut, 0)
        extent = (p - 1) * s - pad - cut + d * (r - 1) + 1
        if extent + pad + high - d * (r - 1) - 1 - (p - 1) * s >= s:
            raise WrongArguments(
                f"output_padding {extra} on axis {_name(i, output)} adds pixels that no convolution of stride {s}, "
                f"padding {pad} and dilation {d} reads\nhint: an output_padding below {s} is possible; of the rest, "
                "append pixels that are the bias, or 0 without one"
            )
        if extent < 1:
            raise WrongShape(f"axis {_name(i, output)}: the result would have {extent} pixels")
        extents.append(extent)
        pads.append((pad, high))
    return tuple(extents), tuple(pads)
