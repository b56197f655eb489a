"""The operators that torch sees: convgen::conv, which autograd differentiates, and convgen::fused_conv, for inference.

    conv(input, weight, bias, stride, padding, dilation, groups, padding_mode="zeros")
    fused_conv(input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode="zeros")
    fused_conv_into(out, input, weight, ...)    the same into a tensor, such as a slice of another's channels
    copy_into(out, input)    aten's copy_, which Inductor would make a copy of all that `out` is a slice of

`padding` is a number an axis, or the lows of all axes and then the highs; `padding_mode` as of torch.nn.Conv2d.
`epilogue` is a chain of steps (convgen.functional.pointwise), whose operands broadcast to the result.  On a GPU both
launch convgen's kernel where it serves; elsewhere they are aten's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.diagnostics import ConvgenError
from convgen.functional.arrays import inverse
from convgen.functional.recipe import Given, result_order
from convgen.torch import aten
from convgen.torch.launch import served

Tensor = Any

_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups, str padding_mode='zeros'"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
library = torch.library.Library("convgen", "DEF")
library.define(f"conv(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor", tags=_TAGS)
library.define(
    f"fused_conv(Tensor input, Tensor weight, Tensor[] operands, str epilogue, {_GEOMETRY}) -> Tensor", tags=_TAGS
)
library.define(
    f"fused_conv_into(Tensor(a!) out, Tensor input, Tensor weight, Tensor[] operands, str epilogue, {_GEOMETRY}) -> ()",
    tags=_TAGS,
)
library.define("copy_into(Tensor(a!) out, Tensor input) -> ()", tags=_TAGS)


def _fused_on_gpu(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    launch = served(input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode).launch
    if launch is not None:
        try:
            return launch(input, weight, operands)
        except ConvgenError:  # of these very tensors: an address that the kernel's loads cannot have
            pass
    return _fused_by_aten(input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode)


def _fused_by_aten(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    made = aten.fused(input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode)
    order = _order(input, weight)
    made = made.permute(order).contiguous().permute(inverse(order))
    return made.clone(memory_format=torch.preserve_format) if made is input else made


def _into_on_gpu(
    out: Tensor, input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> None:  # fmt: skip
    arguments = input, weight, operands, epilogue, stride, padding, dilation, groups, padding_mode
    launch = served(*arguments, out).launch
    if launch is not None:
        try:
            launch(input, weight, operands, out)
            return
        except ConvgenError:  # as above
            pass
    out.copy_(_fused_by_aten(*arguments))


def _into_by_aten(out: Tensor, *arguments: Any) -> None:
    out.copy_(_fused_by_aten(*arguments))


def _copy_into(out: Tensor, input: Tensor) -> None:
    out.copy_(input)


def _fused_fake(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    rank = len(stride)
    axes = zip(input.shape[2:], weight.shape[2:], stride, padding[:rank], padding[-rank:], dilation, strict=True)
    output = [(extent + low + high - d * (taps - 1) - 1) // s + 1 for extent, taps, s, low, high, d in axes]
    torch._check(input.shape[1] == weight.shape[1] * groups, lambda: f"input has {input.shape[1]} channels")
    shape = (input.shape[0], weight.shape[0], *output)
    order = _order(input, weight)
    return input.new_empty([shape[i] for i in order]).permute(inverse(order))


def _order(input: Tensor, weight: Tensor) -> tuple[int, ...]:
    """The order in memory of the result's axes."""
    x, w = (Given(tuple(t.shape), tuple(t.stride()), "") for t in (input, weight))
    return result_order(x, w)


def _conv_on_gpu(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_on_gpu(input, weight, *_as_operands(bias, input.dim()), *geometry)


def _conv_by_aten(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_by_aten(input, weight, *_as_operands(bias, input.dim()), *geometry)


def _conv_fake(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    return _fused_fake(input, weight, *_as_operands(bias, input.dim()), *geometry)


def _as_operands(bias: Tensor | None, axes: int) -> tuple[list[Tensor], str]:
    """A bias as operands and an epilogue."""
    return ([], "") if bias is None else ([bias.view(-1, *(1,) * (axes - 2))], "add")


library.impl("conv", _conv_by_aten, "CompositeExplicitAutograd")
library.impl("conv", _conv_on_gpu, "CUDA")
library.impl("fused_conv", _fused_by_aten, "CompositeExplicitAutograd")
library.impl("fused_conv", _fused_on_gpu, "CUDA")
library.impl("fused_conv_into", _into_by_aten, "CompositeExplicitAutograd")
library.impl("fused_conv_into", _into_on_gpu, "CUDA")
library.impl("copy_into", _copy_into, "CompositeExplicitAutograd")
torch.library.register_fake("convgen::conv", _conv_fake, lib=library)
torch.library.register_fake("convgen::fused_conv", _fused_fake, lib=library)
for _name in ("fused_conv_into", "copy_into"):
    torch.library.register_fake(f"convgen::{_name}", lambda *_, **__: None, lib=library)


# ---- the gradients of conv ----------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, bias, *ctx.geometry = inputs
    ctx.save_for_backward(input, weight)
    ctx.bias_sizes = None if bias is None else list(bias.shape)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """By aten, which is cuDNN on a GPU."""
    input, weight = ctx.saved_tensors
    stride, padding, dilation, groups, mode = ctx.geometry
    rank = len(stride)
    source, left = aten.padded(input, padding, rank, mode)
    wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[2] and ctx.bias_sizes is not None]
    dx, dw, db = torch.ops.aten.convolution_backward(
        grad, source, weight, ctx.bias_sizes, stride, left, dilation, False, [0] * rank, groups, wanted
    )
    if wanted[0] and source is not input:
        dx = aten.unpadded(dx, input, padding, left, mode)
    found = (d if w else None for d, w in zip((dx, dw, db), wanted, strict=True))
    return (*found, *(None,) * len(ctx.geometry))


torch.library.register_autograd("convgen::conv", _gradients, setup_context=_keep, lib=library)
