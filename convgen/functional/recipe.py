"""Turns the shapes, strides and types of a call's arrays into a convolution and a view of each array.

Nothing here looks at data, so recipes are kept by their arguments: a call that was made before takes one look-up.
Memory layouts follow strides.  As in torch, the result's channels are last where the input or the filter says so, and
first where neither does and one of them says that (convgen.functional.layouts).  An input of another order passes it
on.  A slice of the channels of a channels_last array is taken as it lies where it is aligned; other arrays whose
elements do not follow one another are copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from convgen import plurals
from convgen.frontend.types import ACCUMULATOR_OF
from convgen.functional.arrays import WIDEST, channels_first, channels_last, is_packed, order_of
from convgen.functional.layouts import Given, result_order
from convgen.functional.parameters import (
    Amounts,
    Numbers,
    Pads,
    by_axis,
    cuts_of,
    output_extents,
    padding_of,
    paddings,
    transposed,
)
from convgen.functional.pointwise import Step, operands_of
from convgen.functional.spec import Convolution, Operand, TensorSpec
from convgen.ir.dtypes import DTYPES
from convgen.ir.problem import OPS, Op, Padding
from convgen.runtime.errors import WrongArguments, WrongLayout, WrongShape, WrongType

_KEPT = 4096
#: Element types of results that are not the type of what is read.
_RESULT_TYPES = {"s8": "s32", "e4m3": "f32", "e5m2": "f32"}


@dataclass(frozen=True)
class View:
    """How a kernel sees an array: at index 0 of the axes that `index` fixes, the others in the order of memory.

    `copied` says that the array has to be copied for that; `pitch` is that of a slice which need not be.
    """

    order: tuple[int, ...]
    copied: bool = False
    index: tuple[int | slice, ...] | None = None
    pitch: int | None = None


@dataclass(frozen=True)
class Recipe:
    """A call's convolution, a view for each of its arrays in the kernel's order, and the result's spec."""

    convolution: Convolution
    views: tuple[View, ...]
    result: TensorSpec

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        c = self.convolution
        return 0 if c.op in (Op.IM2COL, Op.COL2IM) else math.prod(c.y.shape) * math.prod(c.w.shape[1:])


@lru_cache(_KEPT)
def forward(
    x: Given, w: Given, operands: tuple[Given, ...], steps: tuple[Step, ...],
    stride: Numbers, padding: Amounts | str, dilation: Numbers, groups: int, strategy: str | None, mode: str = "zeros",
) -> Recipe:  # fmt: skip
    """y[n, k, ...] of x[n, c, ...] and w[k, c / groups, ...].  Raises WrongArguments, WrongShape, WrongType."""
    rank = _rank("input", x, "weight", w)
    steps_by_axis = by_axis("stride", stride, rank, 1), by_axis("dilation", dilation, rank, 1)
    pads = paddings(padding, w.shape[2:], *steps_by_axis)
    _check_channels(x.shape[1], w.shape, groups)
    return _forward(x, w, operands, steps, steps_by_axis[0], pads, steps_by_axis[1], groups, strategy, mode)


@lru_cache(_KEPT)
def forward_padded(
    x: Given, w: Given, operands: tuple[Given, ...], steps: tuple[Step, ...],
    stride: tuple[int, ...], pads: Pads, dilation: tuple[int, ...], groups: int, mode: str = "zeros",
    opening: tuple[Step, ...] = (),
) -> Recipe:  # fmt: skip
    """`forward` with (low, high) padding, after a prologue, whose operands come first.  Raises as `forward` does."""
    _rank("input", x, "weight", w)
    _check_channels(x.shape[1], w.shape, groups)
    return _forward(x, w, operands, steps, stride, pads, dilation, groups, None, mode, opening)


def _forward(
    x: Given, w: Given, operands: tuple[Given, ...], steps: tuple[Step, ...],
    stride: tuple[int, ...], pads: Pads, dilation: tuple[int, ...], groups: int, strategy: str | None, mode: str,
    opening: tuple[Step, ...] = (),
) -> Recipe:  # fmt: skip
    _check_read(x, w)
    fill = padding_of(mode, x.shape[2:], pads)
    view_x, view_w = _views(x, w)
    output = output_extents(x.shape[2:], w.shape[2:], stride, pads, dilation)
    y = TensorSpec(_RESULT_TYPES.get(x.dtype, x.dtype), (x.shape[0], w.shape[0], *output), result_order(x, w))
    specs = _spec(x, view_x), _spec(w, view_w)
    first = operands_of(opening)
    (before, read), (views, facts) = broadcast(operands[:first], x, x.shape), broadcast(operands[first:], x, y.shape)
    made = Convolution(Op.FPROP, *specs, y, stride, pads, dilation, groups, steps, facts, strategy, fill)
    return Recipe(replace(made, opening=opening, opening_operands=read), (view_x, view_w, *before, *views), y)


@lru_cache(_KEPT)
def transpose(
    y: Given, w: Given, operands: tuple[Given, ...], steps: tuple[Step, ...], stride: Numbers,
    padding: Numbers, output_padding: Numbers, groups: int, dilation: Numbers, strategy: str | None,
) -> Recipe:  # fmt: skip
    """The transposed convolution of y[n, k, ...] by w[k, c / groups, ...]: x[n, c, ...], by dgrad.

    Raises WrongArguments, WrongShape, WrongType.
    """
    rank = _rank("input", y, "weight", w)
    s, p = by_axis("stride", stride, rank, 1), by_axis("padding", padding, rank, 0)
    d, extra = by_axis("dilation", dilation, rank, 1), by_axis("output_padding", output_padding, rank, 0)
    return transpose_cut(y, w, operands, steps, s, cuts_of(p, extra, s, d), d, groups, strategy)


@lru_cache(_KEPT)
def transpose_cut(
    y: Given, w: Given, operands: tuple[Given, ...], steps: tuple[Step, ...],
    stride: tuple[int, ...], cuts: Pads, dilation: tuple[int, ...], groups: int, strategy: str | None = None,
) -> Recipe:  # fmt: skip
    """`transpose` without (low, high) pixels of each axis.  Raises WrongArguments, WrongShape, WrongType."""
    if y.shape[1] != w.shape[0]:
        raise WrongShape(f"input has {y.shape[1]} channels, and weight {w.shape} takes {w.shape[0]}, its first extent")
    extents, pads = transposed(y.shape[2:], w.shape[2:], stride, cuts, dilation)
    _check_groups(groups, y.shape[1])
    return _input(y, w, extents, operands, steps, stride, pads, dilation, groups, strategy)


@lru_cache(_KEPT)
def input_gradient(
    input_size: tuple[int, ...], w: Given, y: Given,
    stride: Numbers, padding: Amounts | str, dilation: Numbers, groups: int, strategy: str | None, mode: str = "zeros",
) -> Recipe:  # fmt: skip
    """The gradient for the input, from y's gradient.  Raises WrongArguments, WrongShape, WrongType."""
    rank = _rank("grad_output", y, "weight", w)
    s, d = by_axis("stride", stride, rank, 1), by_axis("dilation", dilation, rank, 1)
    pads = paddings(padding, w.shape[2:], s, d)
    _check_size("input_size", input_size, rank)
    _check_channels(input_size[1], w.shape, groups)
    _check_output(y.shape, (input_size[0], w.shape[0], *output_extents(input_size[2:], w.shape[2:], s, pads, d)))
    fill = padding_of(mode, input_size[2:], pads)
    return _input(y, w, input_size[2:], (), (), s, pads, d, groups, strategy, fill)


def _input(
    y: Given, w: Given, extents: tuple[int, ...], operands: tuple[Given, ...], steps: tuple[Step, ...],
    stride: tuple[int, ...], pads: Pads, dilation: tuple[int, ...], groups: int, strategy: str | None,
    fill: Padding = Padding.ZERO,
) -> Recipe:  # fmt: skip
    _check_read(y, w)
    view_y, view_w = _views(y, w)
    x = TensorSpec(_RESULT_TYPES.get(y.dtype, y.dtype), (y.shape[0], w.shape[1] * groups, *extents), result_order(y, w))
    views, facts = broadcast(operands, y, x.shape)
    specs = x, _spec(w, view_w), _spec(y, view_y)
    made = Convolution(Op.DGRAD, *specs, stride, pads, dilation, groups, steps, facts, strategy, fill)
    return Recipe(made, (view_y, view_w, *views), x)


@lru_cache(_KEPT)
def weight_gradient(
    x: Given, weight_size: tuple[int, ...], y: Given,
    stride: Numbers, padding: Amounts | str, dilation: Numbers, groups: int, strategy: str | None, mode: str = "zeros",
) -> Recipe:  # fmt: skip
    """The gradient for the filters, from y's gradient.  Raises WrongArguments, WrongShape, WrongType."""
    rank = _rank("input", x, "grad_output", y)
    s, d = by_axis("stride", stride, rank, 1), by_axis("dilation", dilation, rank, 1)
    _check_size("weight_size", weight_size, rank)
    pads = paddings(padding, weight_size[2:], s, d)
    _check_channels(x.shape[1], weight_size, groups)
    _check_output(y.shape, (x.shape[0], weight_size[0], *output_extents(x.shape[2:], weight_size[2:], s, pads, d)))
    _check_read(x, y)
    view_x, view_y = _views(x, y)
    w = TensorSpec(_RESULT_TYPES.get(x.dtype, x.dtype), weight_size, result_order(x, y))
    specs = _spec(x, view_x), w, _spec(y, view_y)
    fill = padding_of(mode, x.shape[2:], pads)
    made = Convolution(Op.WGRAD, *specs, s, pads, d, groups, strategy=strategy, fill=fill)
    return Recipe(made, (view_x, view_y), w)


@lru_cache(_KEPT)
def lower(
    x: Given, kernel_size: Numbers, dilation: Numbers, padding: Amounts, stride: Numbers, strategy: str | None,
    rows: bool = False,
) -> Recipe:  # fmt: skip
    """x[n, c, ...] unfolded to [n, c * taps, pixels]; with `rows`, to [n * pixels, c * taps].

    Raises WrongArguments, WrongShape."""
    rank = len(x.shape) - 2
    if rank not in (1, 2, 3):
        raise WrongShape(f"input has shape {x.shape}: expected batch, channels and 1 to 3 spatial axes")
    _check_read(x)
    view = _view(x, channels_last(rank))
    made = _lowering(Op.IM2COL, _spec(x, view), kernel_size, dilation, padding, stride, strategy, rows)
    return Recipe(made, (view,), _lowered(made))


@lru_cache(_KEPT)
def scatter(
    m: Given, output_size: Numbers, kernel_size: Numbers,
    dilation: Numbers, padding: Amounts, stride: Numbers, strategy: str | None,
) -> Recipe:  # fmt: skip
    """m[n, c * taps, pixels] folded to [n, c, *output_size], sums of copies; one number is the size along two axes.

    Raises WrongArguments, WrongShape, WrongType."""
    rank = len(output_size) if isinstance(output_size, Sequence) else 2
    if rank not in (1, 2, 3):
        raise WrongArguments(f"output_size is {output_size}: expected 1 to 3 extents")
    extents = by_axis("output_size", output_size, rank, 1)
    taps = math.prod(by_axis("kernel_size", kernel_size, rank, 1))
    if len(m.shape) != 3 or m.shape[1] % taps:
        raise WrongShape(f"input has shape {m.shape}: expected (batch, channels * {taps}, pixels)")
    shape = (m.shape[0], m.shape[1] // taps, *extents)
    return _scatter(m, shape, kernel_size, dilation, padding, stride, strategy, rows=False)


@lru_cache(_KEPT)
def scatter_rows(
    m: Given, shape: tuple[int, ...], kernel_size: Numbers, dilation: Numbers, padding: Numbers, stride: Numbers
) -> Recipe:
    """m[n * pixels, c * taps] folded to an array of the shape.  Raises WrongArguments, WrongShape."""
    return _scatter(m, shape, kernel_size, dilation, padding, stride, None, rows=True)


def _scatter(
    m: Given, shape: tuple[int, ...], kernel_size: Numbers,
    dilation: Numbers, padding: Amounts, stride: Numbers, strategy: str | None, rows: bool,
) -> Recipe:  # fmt: skip
    _check_read(m)
    x = TensorSpec(m.dtype, shape, channels_first(len(shape) - 2))
    made = _lowering(Op.COL2IM, x, kernel_size, dilation, padding, stride, strategy, rows)
    lowered = _lowered(made)
    if m.shape != lowered.shape:
        raise WrongShape(f"input has shape {m.shape}, and these parameters want {lowered.shape}")
    return Recipe(made, (View(lowered.order, not is_packed(m.shape, m.strides, lowered.order)),), x)


def _lowering(
    op: Op,
    x: TensorSpec,
    kernel_size: Numbers,
    dilation: Numbers,
    padding: Amounts,
    stride: Numbers,
    strategy: str | None,
    rows: bool,
) -> Convolution:
    rank = len(x.shape) - 2
    taps, d = by_axis("kernel_size", kernel_size, rank, 1), by_axis("dilation", dilation, rank, 1)
    s = by_axis("stride", stride, rank, 1)
    pads = paddings(padding, taps, s, d)
    pixels = output_extents(x.shape[2:], taps, s, pads, d)
    w = TensorSpec(x.dtype, (1, x.shape[1], *taps), channels_first(rank))
    y = TensorSpec(x.dtype, (x.shape[0], 1, *pixels), channels_first(rank))
    return Convolution(op, x, w, y, s, pads, d, strategy=strategy, windows_are_rows=rows)


def _lowered(made: Convolution) -> TensorSpec:
    """[n, c * taps, pixels], or [n * pixels, c * taps]."""
    n, columns = made.x.shape[0], made.x.shape[1] * math.prod(made.w.shape[2:])
    pixels = math.prod(made.y.shape[2:])
    shape = (n * pixels, columns) if made.windows_are_rows else (n, columns, pixels)
    return TensorSpec(made.x.dtype, shape, tuple(range(len(shape))))


# ---- layouts -----------------------------------------------------------------------------------


def _views(a: Given, b: Given) -> tuple[View, View]:
    """Views of the two tensors that a convolution reads, whose axes run in parallel."""
    order = result_order(a, b)
    return _view(a, order), _view(b, order)


def _view(given: Given, preferred: tuple[int, ...]) -> View:
    rank = len(given.shape) - 2
    order = order_of(given.shape, given.strides, preferred, channels_last(rank), channels_first(rank))
    if order is None and (pitch := given.pitch(channels_last(rank))):
        return View(channels_last(rank), pitch=pitch)
    return View(order or preferred, order is None)


def into(made: Recipe, out: Given) -> Recipe:
    """The same recipe with its result in an array that lies like this.  Raises WrongShape, WrongType, WrongLayout."""
    result = made.result
    if out.shape != result.shape:
        raise WrongShape(f"out has shape {out.shape}, and the result {result.shape}")
    if out.dtype != result.dtype:
        raise WrongType(f"out has elements of {out.dtype}, and the result of {result.dtype}")
    if (view := _view(out, result.order)).copied:
        raise WrongLayout(
            f"out has strides {out.strides}: it must be packed, or a slice of the channels of a channels_last array"
            f"\nhint: slices begin at multiples of {WIDEST} bytes, and so do their pixels"
        )
    result = replace(result, order=view.order, pitch=view.pitch)
    writes = {OPS[made.convolution.op].writes: result}
    return replace(made, convolution=replace(made.convolution, **writes), result=result)  # type: ignore[arg-type]


def _spec(given: Given, view: View) -> TensorSpec:
    return TensorSpec(given.dtype, given.shape, view.order, view.pitch)


def broadcast(operands: Sequence[Given], input: Given, result: Sequence[int]) -> tuple[list[View], tuple[Operand, ...]]:
    """Views of the epilogue's operands, which broadcast to the result.  Raises WrongShape, WrongType."""
    views, facts = [], []
    for given in operands:
        if given.dtype != input.dtype and "f64" in (given.dtype, input.dtype):
            _same_type(given, input)
        lead = len(result) - len(given.shape)
        if lead < 0 or any(e not in (1, r) for e, r in zip(given.shape, result[lead:], strict=True)):
            raise WrongShape(f"{given.name} has shape {given.shape}, which does not broadcast to the result's {result}")
        kept = [i for i, (e, s) in enumerate(zip(given.shape, given.strides, strict=True)) if e != 1 and s != 0]
        shape, strides = [given.shape[i] for i in kept], [given.strides[i] for i in kept]
        order = order_of(shape, strides, tuple(range(len(kept))))
        index = tuple(slice(None) if i in kept else 0 for i in range(len(given.shape)))
        last = tuple(sorted(range(len(kept)), key=lambda i: kept[i] + lead == 1))  # the channels
        pitch = None
        if order is None and kept and kept[last[-1]] + lead == 1:
            pitch = Given(tuple(shape), tuple(strides), given.dtype, given.aligned).pitch(last)
        order = last if pitch else order
        views.append(View(order or tuple(range(len(kept))), order is None, index, pitch))
        facts.append(Operand(given.dtype, tuple(lead + kept[i] for i in views[-1].order), pitch))
    return views, tuple(facts)


# ---- checks ------------------------------------------------------------------------------------


def _rank(name: str, a: Given, other: str, b: Given) -> int:
    """The number of spatial axes.  Raises WrongShape."""
    rank = len(b.shape) - 2
    if rank not in (1, 2, 3) or len(a.shape) != len(b.shape):
        raise WrongShape(f"{name} has shape {a.shape} and {other} {b.shape}: expected two axes and 1 to 3 spatial ones")
    return rank


def _check_read(first: Given, *others: Given) -> None:
    """Whether an operator can read these together.  Raises WrongType."""
    for other in others:
        _same_type(first, other)
    if first.dtype not in ACCUMULATOR_OF:
        served = ", ".join(DTYPES[name].numpy for name in ACCUMULATOR_OF)
        raise WrongType(
            f"{first.name} has elements of {DTYPES[first.dtype].numpy}, which only operands and results have"
            f"\nhint: convert {first.name} to one of {served}"
        )


def _same_type(a: Given, b: Given) -> None:
    if a.dtype != b.dtype:
        raise WrongType(f"{a.name} has elements of {a.dtype}, {b.name} of {b.dtype}: expected one type")


def _check_groups(groups: int, channels: int) -> None:
    if groups < 1 or channels % groups:
        raise WrongArguments(f"groups is {groups}, which does not divide {channels} channels")


def _check_channels(c: int, weight: Sequence[int], groups: int) -> None:
    _check_groups(groups, c)
    _check_groups(groups, weight[0])
    if weight[1] * groups != c:
        raise WrongShape(
            f"input has {c} channels in {plurals.counted(groups, 'group')}, and weight {tuple(weight)} takes "
            f"{weight[1]} per group: expected {c // groups}"
        )


def _check_size(name: str, size: Sequence[int], rank: int) -> None:
    if len(size) != rank + 2:
        raise WrongShape(f"{name} is {tuple(size)}: expected {rank + 2} extents")
    if min(size[1:]) < 1 or size[0] < (name == "weight_size"):
        raise WrongShape(f"{name} is {tuple(size)}: expected extents of at least 1")


def _check_output(given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if given != expected:
        raise WrongShape(f"grad_output has shape {given}, and the convolution's output has {expected}")
