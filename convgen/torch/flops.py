"""FLOPs of convgen's operators, for torch.utils.flop_counter: torch's formulas of the convolutions in their place.

Epilogues, prologues and sums count nothing, as elementwise functions do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from convgen.torch import ops, summed  # noqa: F401  # they define the operators

Shape = Sequence[int]
_OPS: Any = torch.ops.convgen


@register_flop_formula([_OPS.conv, _OPS.conv_sums])
def _conv(input: Shape, weight: Shape, *_: Any, out_shape: Any, **__: Any) -> int:
    return conv_flop_count(input, weight, _first(out_shape))


def _fused(
    input: Shape, weight: Shape, operands: Sequence[Shape], epilogue: str, stride: Shape, padding: Shape,
    dilation: Shape, groups: int, padding_mode: str = "zeros", transposed: bool = False, prologue: str = "", *,
    out_shape: Shape,
) -> int:  # fmt: skip
    return conv_flop_count(input, weight, out_shape, transposed)


register_flop_formula(_OPS.fused_conv)(_fused)


@register_flop_formula(_OPS.fused_conv_into)
def _fused_into(out: Shape, *arguments: Any, out_shape: None, **named: Any) -> int:
    return _fused(*arguments, out_shape=out, **named)


@register_flop_formula([_OPS.conv_input, _OPS.conv_input_sums])
def _of_input(grad: Shape, weight: Shape, *_: Any, out_shape: Any, **__: Any) -> int:
    return conv_flop_count(grad, weight, _first(out_shape), transposed=True)


@register_flop_formula([_OPS.conv_weight, _OPS.conv_weight_bias])
def _of_weight(input: Shape, grad: Shape, *_: Any, out_shape: Any, **__: Any) -> int:
    images, channels, *extents = input
    return conv_flop_count([channels, images, *extents], grad, _first(out_shape))


def _first(shapes: Any) -> Any:
    """The shape of the only result, or of the first one."""
    return shapes if isinstance(shapes, torch.Size) else shapes[0]
