"""The operators that torch sees: convgen::conv, which autograd differentiates, and convgen::fused_conv, for inference.

    conv_input(grad_output, weight, input_size, ...)      gradients of conv, by convgen where it is faster
    conv_weight(input, grad_output, weight_size, ...)
    conv_weight_bias(input, grad_output, weight_size, ...)    and of the bias, in one pass over grad_output
    conv(input, weight, bias, stride, padding, dilation, groups, padding_mode="zeros")
    fused_conv(input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode="zeros",
               transposed=False, prologue="")
    fused_conv_into(out, input, weight, ...)    the same into a tensor, such as a slice of another's channels
    copy_into(out, input)    aten's copy_, which Inductor would make a copy of all that `out` is a slice of
    interleaved(parts, steps, size, stride)    parts that lie at every steps[i]-th pixel of axis i: one for each phase

`padding` is a number an axis, or the lows of all axes and then the highs; `padding_mode` as of torch.nn.Conv2d.  A
transposed convolution has weights (c, k / groups, ...), and lacks the padding at the ends of its result; output padding
is taken from the highs, which may become negative.
`epilogue` is a chain of steps (convgen.functional.pointwise), whose operands broadcast to the result; so is `prologue`,
which each element of the input goes through first, and whose operands, the first, broadcast to the input.  On a GPU
both launch convgen's kernel where it serves; elsewhere they are aten's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.functional.arrays import WIDEST
from convgen.ir.problem import Op
from convgen.torch import aten
from convgen.torch.asked import Gradient, WithBias, bias_gradient, empty_in_order, in_order, made_in_order, order_of
from convgen.torch.choices import Choices
from convgen.torch.launch import launched, served
from convgen.torch.network.inductor import tell_briefly
from convgen.torch.network.lowerings import phases
from convgen.torch.network.report import Report

Tensor = Any

GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups, str padding_mode='zeros'"
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_FUSED = f"Tensor[] operands, str epilogue, {GEOMETRY}, bool transposed=False, str prologue=''"
library = torch.library.Library("convgen", "DEF")
tell_briefly(library.ns)
library.define(f"conv(Tensor input, Tensor weight, Tensor? bias, {GEOMETRY}) -> Tensor", tags=TAGS)
library.define(f"fused_conv(Tensor input, Tensor weight, {_FUSED}) -> Tensor", tags=TAGS)
library.define(f"fused_conv_into(Tensor(a!) out, Tensor input, Tensor weight, {_FUSED}) -> ()", tags=TAGS)
for _arguments in (
    "conv_input(Tensor grad_output, Tensor weight, SymInt[] input_size",
    "conv_weight(Tensor input, Tensor grad_output, SymInt[] weight_size",
):
    library.define(f"{_arguments}, {GEOMETRY}) -> Tensor", tags=TAGS)
library.define(
    f"conv_weight_bias(Tensor input, Tensor grad_output, SymInt[] weight_size, {GEOMETRY}) -> (Tensor, Tensor)",
    tags=TAGS,
)
_LIES_ANYHOW = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
library.define("copy_into(Tensor(a!) out, Tensor input) -> ()", tags=_LIES_ANYHOW)
library.define("interleaved(Tensor[] parts, int[] steps, int[] size, int[] stride) -> Tensor", tags=_LIES_ANYHOW)


def _fused_on_gpu(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *geometry: Any
) -> Tensor:  # fmt: skip
    made = launched(served(input, weight, operands, epilogue, *geometry).launch, input, weight, operands)
    return _fused_by_aten(input, weight, operands, epilogue, *geometry) if made is None else made


def _fused_by_aten(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *geometry: Any
) -> Tensor:  # fmt: skip
    made = aten.fused(input, weight, operands, epilogue, *geometry)
    made = made_in_order(made, order_of(input, weight))
    return made.clone(memory_format=torch.preserve_format) if made is input else made


def _into_on_gpu(
    out: Tensor, input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *geometry: Any
) -> None:
    arguments = input, weight, operands, epilogue, *geometry
    if launched(served(*arguments, out=out).launch, input, weight, operands, out) is None:
        out.copy_(_fused_by_aten(*arguments))


def _into_by_aten(out: Tensor, *arguments: Any) -> None:
    out.copy_(_fused_by_aten(*arguments))


def _copy_into(out: Tensor, input: Tensor) -> None:
    """Copies in words of `WIDEST` bytes if both tensors allow it: torch copies a slice element by element."""
    if out.dtype == input.dtype and _has_words(out) and _has_words(input):
        out, input = (tensor.movedim(1, -1).view(torch.complex128) for tensor in (out, input))
    out.copy_(input)


def _interleaved(parts: Sequence[Tensor], steps: Sequence[int], size: Sequence[int], stride: Sequence[int]) -> Tensor:
    made = _interleaved_fake(parts, steps, size, stride)
    for phase, part in zip(phases(steps), parts, strict=True):
        made[(..., *(slice(first, None, step) for first, step in zip(phase, steps, strict=True)))] = part
    return made


def _interleaved_fake(parts: Sequence[Tensor], steps: Any, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return parts[0].new_empty_strided(tuple(size), tuple(stride))


def _has_words(tensor: Tensor) -> bool:
    """Whether its channels, which lie last, begin and end with words of `WIDEST` bytes."""
    each = WIDEST // tensor.itemsize
    strides = [stride for axis, stride in enumerate(tensor.stride()) if axis != 1]
    begins = tensor.data_ptr() % WIDEST == tensor.storage_offset() % each == 0
    whole = tensor.shape[1] % each == 0 and not any(stride % each for stride in strides)
    return bool(tensor.stride(1) == 1 and begins and whole and tensor.numel())


def _fused_fake(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False, prologue: str = "",
) -> Tensor:  # fmt: skip
    rank, image = len(stride), input.shape[2:]
    margins = [low + high for low, high in zip(padding[:rank], padding[-rank:], strict=True)]
    windows = [d * (taps - 1) + 1 for taps, d in zip(weight.shape[2:], dilation, strict=True)]
    _check_channels(input, weight, groups, transposed)
    filters = aten.filter_count(weight, groups, transposed)
    if transposed:
        output = [(n - 1) * s + w - m for n, s, w, m in zip(image, stride, windows, margins, strict=True)]
    else:
        padded = [n + m for n, m in zip(image, margins, strict=True)]
        _check_windows(padded, windows)
        output = [(n - w) // s + 1 for n, s, w in zip(padded, stride, windows, strict=True)]
    return empty_in_order(input, (input.shape[0], filters, *output), order_of(input, weight))


def _check_channels(input: Tensor, weight: Tensor, groups: int, transposed: bool) -> None:
    """Raises RuntimeError as aten does where there are data."""
    shape, filters = list(weight.shape), weight.shape[0]
    torch._check(groups > 0, lambda: "non-positive groups is not supported")
    torch._check(
        filters % groups == 0,
        lambda: (
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size {shape} instead"
        ),
    )
    given = "transposed=1" if transposed else f"groups={groups}"
    channels, found = filters if transposed else weight.shape[1] * groups, input.shape[1]
    torch._check(
        found == channels,
        lambda: (
            f"Given {given}, weight of size {shape}, expected input{list(input.shape)} to have {channels} "
            f"channels, but got {found} channels instead"
        ),
    )


def _check_windows(padded: Sequence[int], windows: Sequence[int]) -> None:
    """Raises RuntimeError as aten does where there are data."""

    def larger() -> str:
        image, window = (" x ".join(map(str, sizes)) for sizes in (padded, windows))
        return (
            f"Calculated padded input size per channel: ({image}). Kernel size: ({window}). "
            "Kernel size can't be greater than actual input size"
        )

    for extent, window in zip(padded, windows, strict=True):
        torch._check(extent >= window, larger)


def _conv_on_gpu(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_on_gpu(input, weight, *as_operands(bias, input.dim()), *geometry)


def _conv_by_aten(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_by_aten(input, weight, *as_operands(bias, input.dim()), *geometry)


def _conv_fake(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_fake(input, weight, *as_operands(bias, input.dim()), *geometry)


def as_operands(bias: Tensor | None, axes: int) -> tuple[list[Tensor], str]:
    """A bias as operands and an epilogue."""
    return ([], "") if bias is None else ([bias.view(-1, *(1,) * (axes - 2))], "add")


library.impl("conv", _conv_by_aten, "CompositeExplicitAutograd")
library.impl("conv", _conv_on_gpu, "CUDA")
library.impl("fused_conv", _fused_by_aten, "CompositeExplicitAutograd")
library.impl("fused_conv", _fused_on_gpu, "CUDA")
library.impl("fused_conv_into", _into_by_aten, "CompositeExplicitAutograd")
library.impl("fused_conv_into", _into_on_gpu, "CUDA")
library.impl("copy_into", _copy_into, "CompositeExplicitAutograd")
library.impl("interleaved", _interleaved, "CompositeExplicitAutograd")
torch.library.register_fake("convgen::conv", _conv_fake, lib=library)
torch.library.register_fake("convgen::fused_conv", _fused_fake, lib=library)
for _name in ("fused_conv_into", "copy_into"):
    torch.library.register_fake(f"convgen::{_name}", lambda *_, **__: None, lib=library)
torch.library.register_fake("convgen::interleaved", _interleaved_fake, lib=library)


# ---- gradients ----------------------------------------------------------------------------------

#: What computes each kind of gradient, and in graphs for training each convolution.
choices = Choices()


def gradients() -> Report:
    """A report on what computes each kind of gradient met outside of enabled(), and each convolution of a graph that
    torch.compile trains, with convgen's and aten's times."""
    return choices.report


def _gradient_on_gpu(asked: Gradient) -> Tensor:
    made = launched(choices.launch(asked), *asked.reads, ())
    return asked.by_aten() if made is None else made


def of_input(grad: Tensor, weight: Tensor, input_size: Sequence[int], *geometry: Any) -> Gradient:
    return _asked(Op.DGRAD, grad, weight, input_size, *geometry)


def of_weight(input: Tensor, grad: Tensor, weight_size: Sequence[int], *geometry: Any) -> Gradient:
    return _asked(Op.WGRAD, input, grad, weight_size, *geometry)


def _asked(
    op: Op, first: Tensor, second: Tensor, size: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Gradient:  # fmt: skip
    return Gradient(
        op, first, second, tuple(size), tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode
    )


for _name, _ask in {"conv_input": of_input, "conv_weight": of_weight}.items():
    library.impl(_name, lambda *a, _ask=_ask: _ask(*a).by_aten(), "CompositeExplicitAutograd")
    library.impl(_name, lambda *a, _ask=_ask: _gradient_on_gpu(_ask(*a)), "CUDA")
    torch.library.register_fake(f"convgen::{_name}", lambda *a, _ask=_ask: _ask(*a).empty(), lib=library)


def _with_bias_on_gpu(asked: WithBias) -> tuple[Tensor, Tensor]:
    made = launched(choices.launch(asked), *asked.reads, ())
    return (_gradient_on_gpu(asked.bare), asked.sum()) if made is None else with_bias(made)


def with_bias(made: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients that convgen::conv_weight_bias gives of those that a kernel makes."""
    of_filters, of_bias = made
    return of_filters, of_bias.to(of_filters.dtype)


def _with_bias_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    bare = of_weight(*arguments)
    return bare.empty(), bare.first.new_empty(bare.size[0])


library.impl(
    "conv_weight_bias",
    lambda *a: (of_weight(*a).by_aten(), WithBias(of_weight(*a)).sum()),
    "CompositeExplicitAutograd",
)
library.impl("conv_weight_bias", lambda *a: _with_bias_on_gpu(WithBias(of_weight(*a))), "CUDA")
torch.library.register_fake("convgen::conv_weight_bias", _with_bias_fake, lib=library)


# ---- autograd -----------------------------------------------------------------------------------
# A convolution is linear in both of its inputs, and so are its gradients: those of the three are the three again.


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keeps, of all of them, only those that the gradients read."""
    first, second, third, *ctx.geometry = inputs
    ctx.has_bias = isinstance(third, torch.Tensor)
    by_first, by_second = ctx.needs_input_grad[:2]
    ctx.save_for_backward(first if by_second else None, second if by_first else None)
    ctx.sizes = list(first.shape), list(second.shape)
    ctx.order = order_of(first, second)


def _of_conv(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (input, weight), (of_input, of_weight, of_bias, *_) = ctx.saved_tensors, ctx.needs_input_grad
    grad = in_order(grad, ctx.order)  # once for both
    dx = _conv_input(grad, weight, ctx.sizes[0], *ctx.geometry) if of_input else None
    dw = db = None
    if of_weight and of_bias and ctx.has_bias:
        dw, db = _conv_weight_bias(input, grad, ctx.sizes[1], *ctx.geometry)
    elif of_weight:
        dw = _conv_weight(input, grad, ctx.sizes[1], *ctx.geometry)
    elif of_bias and ctx.has_bias:
        db = bias_gradient(grad)
    return dx, dw, db, *(None,) * len(ctx.geometry)


def _of_conv_input(ctx: Any, direction: Tensor) -> tuple[Any, ...]:
    (grad, weight), (of_grad, of_weight, *_) = ctx.saved_tensors, ctx.needs_input_grad
    dy = _conv(direction, weight, None, *ctx.geometry) if of_grad else None
    dw = _conv_weight(direction, grad, ctx.sizes[1], *ctx.geometry) if of_weight else None
    return dy, dw, *(None,) * (1 + len(ctx.geometry))


def _of_conv_weight(ctx: Any, direction: Tensor) -> tuple[Any, ...]:
    (input, grad), (of_input, of_grad, *_) = ctx.saved_tensors, ctx.needs_input_grad
    dx = _conv_input(grad, direction, ctx.sizes[0], *ctx.geometry) if of_input else None
    dy = _conv(input, direction, None, *ctx.geometry) if of_grad else None
    return dx, dy, *(None,) * (1 + len(ctx.geometry))


def _of_conv_weight_bias(ctx: Any, direction: Tensor, along_bias: Tensor) -> tuple[Any, ...]:
    dx, dy, *others = _of_conv_weight(ctx, direction)
    if dy is not None:
        dy = dy + along_bias.view(-1, *(1,) * (dy.dim() - 2))
    return dx, dy, *others


_FORMULAS = {
    "conv": _of_conv,
    "conv_input": _of_conv_input,
    "conv_weight": _of_conv_weight,
    "conv_weight_bias": _of_conv_weight_bias,
}
_conv, _conv_input, _conv_weight, _conv_weight_bias = (getattr(torch.ops.convgen, name) for name in _FORMULAS)
for _name, _formula in _FORMULAS.items():
    torch.library.register_autograd(f"convgen::{_name}", _formula, setup_context=_keep, lib=library)
