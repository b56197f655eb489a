"""The operators' computations by aten: on the CPU, for calls that convgen does not serve, and in autograd's
formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from convgen.functional.pointwise import SUMS, Step, operands_of, read_by_norm, steps_of

Tensor = Any
TF = torch.nn.functional
#: torch's function of each activation, of the value and its numbers.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "relu6": TF.relu6,
    "hardtanh": TF.hardtanh,
    "clamp": torch.clamp,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "leaky_relu": TF.leaky_relu,
    "elu": TF.elu,
    "gelu": TF.gelu,
    "gelu_tanh": lambda t: TF.gelu(t, approximate="tanh"),
    "silu": TF.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": TF.hardswish,
    "hardsigmoid": TF.hardsigmoid,
    "softplus": TF.softplus,
    "mish": TF.mish,
    "softsign": TF.softsign,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "abs": torch.abs,
}
_BINARY: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "prelu": lambda t, slope: torch.where(t > 0, t, t * slope),
}
#: The gradient of what an activation read, of its result's gradient, what it read, and numbers.
_GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "relu_backward": lambda t, z: torch.where(z <= 0, torch.zeros_like(t), t),
    "hardtanh_backward": lambda t, z, low, high: torch.where((z <= low) | (z >= high), torch.zeros_like(t), t),
    "silu_backward": lambda t, z: t * torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z))),
    "hardswish_backward": lambda t, z: torch.where(
        z <= -3, torch.zeros_like(t), torch.where(z < 3, t * (z / 3 + 0.5), t)
    ),
}
#: What is summed of the value and the sum's operands, by its word.
_SUMMED: dict[str, Callable[..., Tensor]] = {
    "value": lambda t: t,
    "square": lambda t: t * t,
    "product": lambda t, a, b: t * (a - b),
    "product_of_norm": lambda t, read, mean: t * (read - mean),
}


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False,
) -> Tensor:  # fmt: skip
    """`padding` is a number an axis, or the lows of all axes and then the highs."""
    rank = len(stride)
    if transposed:
        return _transposed(input, weight, bias, stride, padding, dilation, groups)
    input, padding = padded(input, padding, rank, padding_mode)
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, (0,) * rank, groups)


def _transposed(
    input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Without the padding at the ends of its result; highs that are less than the lows are output padding."""
    rank = len(stride)
    lows, highs = padding[:rank], padding[-rank:]
    extra = [low - high for low, high in zip(lows, highs, strict=True)]
    if all(0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        return torch.convolution(input, weight, bias, stride, lows, dilation, True, extra, groups)
    whole = torch.convolution(input, weight, None, stride, (0,) * rank, dilation, True, (0,) * rank, groups)
    made = TF.pad(whole, [-side[i] for i in reversed(range(rank)) for side in (lows, highs)])
    return made if bias is None else made + bias.view(-1, *(1,) * rank)


def composite(
    input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """`convolution` by torch.nn.functional, which has more types."""
    rank = len(stride)
    input, padding = padded(input, padding, rank, padding_mode)
    return getattr(TF, f"conv{rank}d")(input, weight, bias, stride, padding, dilation, groups)


def padded(input: Tensor, padding: Sequence[int], rank: int, mode: str) -> tuple[Tensor, Sequence[int]]:
    """The input with the padding that aten's convolution does not make, and the padding that is left to it."""
    left, more = _split(padding, rank, mode)
    if not any(map(any, more)):
        return input, left
    amounts = [amount for sides in reversed(more) for amount in sides]
    made = TF.pad(input, amounts, mode="constant" if mode == "zeros" else mode)
    return made.to(input.dtype), left  # a CPU's autocast makes it float32


def _split(padding: Sequence[int], rank: int, mode: str) -> tuple[Sequence[int], list[tuple[int, int]]]:
    """The padding that aten's convolution makes, and (low, high) of each axis that it does not: what one side has more
    than the other, and all that is not of zeros."""
    lows, highs = padding[:rank], padding[-rank:]
    left = [min(low, high) if mode == "zeros" else 0 for low, high in zip(lows, highs, strict=True)]
    return left, [(low - own, high - own) for low, high, own in zip(lows, highs, left, strict=True)]


def _unpadded(grad: Tensor, extents: Sequence[int], more: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """The gradient of `padded` for its input: that of a pixel's copies adds up."""
    for axis, (extent, (low, high)) in enumerate(zip(extents, more, strict=True), 2):
        if low == high == 0:
            continue
        if mode == "zeros":
            grad = grad.narrow(axis, low, extent)
            continue
        pixels = torch.arange(extent, dtype=torch.float32, device=grad.device).view(1, 1, -1)
        pixels = TF.pad(pixels, (low, high), mode=mode).view(-1).long()
        grad = grad.new_zeros((*grad.shape[:axis], extent, *grad.shape[axis + 1 :])).index_add(axis, pixels, grad)
    return grad


def input_gradient(
    grad: Tensor, weight: Tensor, size: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """The gradient of `convolution` for its input of this size, from that of its result, laid out as the filters."""
    rank = len(stride)
    left, more = _split(padding, rank, padding_mode)
    extents = [extent + low + high for extent, (low, high) in zip(size[2:], more, strict=True)]
    source = grad.new_empty(1).expand(*size[:2], *extents)  # which aten does not read
    made, _, _ = torch.ops.aten.convolution_backward(
        grad, source, weight, None, stride, left, dilation, False, [0] * rank, groups, [True, False, False]
    )
    return _unpadded(made, size[2:], more, padding_mode)


def weight_gradient(
    input: Tensor, grad: Tensor, size: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """The gradient of `convolution` for its filters of this size, from that of its result, laid out as the input."""
    rank = len(stride)
    source, left = padded(input, padding, rank, padding_mode)
    weight = grad.new_empty(1).expand(size)  # which aten does not read
    _, made, _ = torch.ops.aten.convolution_backward(
        grad, source, weight, None, stride, left, dilation, False, [0] * rank, groups, [False, True, False]
    )
    return made


def summed(made: Tensor, operands: Sequence[Tensor], epilogue: str, sums: str) -> list[Tensor]:
    """A convolution's or a gradient's epilogue, of float32, in its own type, and sums of that for each channel, or for
    each one of an image."""
    steps, pixels = steps_of(epilogue), list(range(2, made.dim()))
    count, read = operands_of(steps), read_by_norm(steps)
    value, left = apply(steps, made.float(), operands[:count]), iter(operands[count:])
    found = [value.to(made.dtype)]
    for word in sums.split():
        of_norm = [operands[read]] if SUMS[word].of_norm and read is not None else []
        given = (*of_norm, *(next(left) for _ in range(SUMS[word].operands)))
        summand = _SUMMED[word.removeprefix("image_")](value, *given)
        found.append(summand.sum(pixels if SUMS[word].of_images else [0, *pixels]))
    return found


def apply(steps: Sequence[Step], value: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """The steps of an epilogue, one after the other."""
    left = iter(operands)
    for step in steps:
        read = [next(left) for _ in range(step.operands)]
        if step.gradient in _GRADIENTS:
            z = _normalized(*read) if step.of_norm else read[0].to(value.dtype)
            value = _GRADIENTS[step.gradient](value, z, *step.numbers)
        elif step.kind in _BINARY:
            value = _BINARY[step.kind](value, *step.numbers or read)
        else:
            value = FUNCTIONS[step.kind](value, *step.numbers)
    return value


def filter_count(weight: Tensor, groups: int, transposed: bool) -> int:
    """The number of channels that a convolution makes."""
    count: int = weight.shape[1] * groups if transposed else weight.shape[0]
    return count


def _normalized(read: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """BatchNorm's result, in float32."""
    return (read.float() - mean) * scale * weight + bias


def fused(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
    transposed: bool = False, prologue: str = "",
) -> Tensor:  # fmt: skip
    """A convolution, its prologue and its epilogue, of float32 at least, in the input's type."""
    if prologue:
        opening, dtype = steps_of(prologue), input.dtype
        wide = input.to(torch.promote_types(dtype, torch.float32))
        input = apply(opening, wide, operands).to(dtype)
        operands = operands[operands_of(opening) :]
    steps, bias = steps_of(epilogue), None
    filters = filter_count(weight, groups, transposed)
    if steps and steps[0] == Step("add") and _is_bias(operands[0], input, filters):
        steps, bias, operands = steps[1:], operands[0].reshape(-1), operands[1:]
    if _is_product(input, weight, stride, padding, groups, transposed):
        made = TF.linear(input.mT, weight.squeeze(2), bias).mT
    else:
        made = convolution(input, weight, bias, stride, padding, dilation, groups, padding_mode, transposed)
    wide = made.to(torch.promote_types(made.dtype, torch.float32)) if steps else made
    return apply(steps, wide, operands).to(input.dtype)


def _is_product(
    input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int, transposed: bool
) -> bool:
    """Whether a convolution is a linear layer of a sequence, which aten computes faster on a CPU."""
    plain = list(stride) == [1] and not any(padding) and groups == 1 and not transposed
    return plain and weight.shape[2] == 1 and bool(input.mT.is_contiguous())


def _is_bias(operand: Tensor, input: Tensor, filters: int) -> bool:
    """Whether aten's convolution can add it."""
    channels = (filters, *(1,) * (input.dim() - 2))
    return operand.dtype == input.dtype and tuple(operand.shape) == channels
