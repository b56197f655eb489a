"""What the operators compute, by aten: on the CPU, for what convgen does not serve, and in autograd's formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from convgen.functional.pointwise import Step, steps_of

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
}
_BINARY: dict[str, Callable[[Tensor, Any], Tensor]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """`padding` is a number an axis, or the lows of all axes and then the highs."""
    rank = len(stride)
    input, padding = padded(input, padding, rank, padding_mode)
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, (0,) * rank, groups)


def composite(
    input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """`convolution` by torch.nn.functional, which has more types."""
    rank = len(stride)
    input, padding = padded(input, padding, rank, padding_mode)
    return getattr(TF, f"conv{rank}d")(input, weight, bias, stride, padding, dilation, groups)


def padded(input: Tensor, padding: Sequence[int], rank: int, mode: str) -> tuple[Tensor, Sequence[int]]:
    """The input with the padding that aten's convolution does not make, and the padding that is left to it: what one
    side of an axis has more than the other, and all that is not of zeros."""
    lows, highs = padding[:rank], padding[-rank:]
    if lows == highs and (mode == "zeros" or not any(lows)):
        return input, lows
    least = [min(low, high) if mode == "zeros" else 0 for low, high in zip(lows, highs, strict=True)]
    more = [side[i] - least[i] for i in reversed(range(rank)) for side in (lows, highs)]
    return TF.pad(input, more, mode="constant" if mode == "zeros" else mode), least


def unpadded(grad: Tensor, input: Tensor, padding: Sequence[int], left: Sequence[int], mode: str) -> Tensor:
    """The gradient of `padded` for its input: that of a pixel's copies adds up."""
    rank = len(left)
    for axis in range(rank):
        extent = input.shape[axis + 2]
        low, high = padding[axis] - left[axis], padding[-rank:][axis] - left[axis]
        if low == high == 0:
            continue
        if mode == "zeros":
            grad = grad.narrow(axis + 2, low, extent)
            continue
        pixels = torch.arange(extent, dtype=torch.float32, device=grad.device).view(1, 1, -1)
        pixels = TF.pad(pixels, (low, high), mode=mode).view(-1).long()
        shape = (*grad.shape[: axis + 2], extent, *grad.shape[axis + 3 :])
        grad = grad.new_zeros(shape).index_add(axis + 2, pixels, grad)
    return grad


def apply(steps: Sequence[Step], value: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """The steps of an epilogue, one after the other."""
    left = iter(operands)
    for step in steps:
        if step.kind in _BINARY:
            value = _BINARY[step.kind](value, step.numbers[0] if step.numbers else next(left))
        else:
            value = FUNCTIONS[step.kind](value, *step.numbers)
    return value


def fused(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """A convolution and its epilogue, in the input's type."""
    steps, bias = steps_of(epilogue), None
    if steps and steps[0] == Step("add") and _is_bias(operands[0], input, weight):
        steps, bias, operands = steps[1:], operands[0].reshape(-1), operands[1:]
    made = convolution(input, weight, bias, stride, padding, dilation, groups, padding_mode)
    return apply(steps, made, operands).to(input.dtype)


def _is_bias(operand: Tensor, input: Tensor, weight: Tensor) -> bool:
    """Whether aten's convolution can add it."""
    channels = (weight.shape[0], *(1,) * (input.dim() - 2))
    return operand.dtype == input.dtype and tuple(operand.shape) == channels
