"""The operators that give sums of each channel beside their result, for normalizations: BatchNorm in graphs for
training; InstanceNorm and GroupNorm in graphs for inference.

    conv_sums(input, weight, operands, epilogue, sums, ...)                             y of convgen::conv
    conv_input_sums(grad_output, weight, operands, epilogue, sums, input_size, ...)     that of convgen::conv_input

Each gives a list: the result behind its epilogue, and for each word of `sums` (convgen.functional.pointwise) the sum
over all axes but the channels, or but those of each image, in float32.  The sums' operands come last.  On a GPU both
launch convgen's kernel where it serves; elsewhere they are aten's functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.functional.pointwise import SUMS
from convgen.ir.problem import Op
from convgen.torch import ops
from convgen.torch.asked import Forward, Gradient, Summed
from convgen.torch.launch import launched

Tensor = Any

_ENDING = "Tensor[] operands, str epilogue, str sums"
_DEFINED = {
    "conv_sums": f"Tensor input, Tensor weight, {_ENDING}, {ops.GEOMETRY}",
    "conv_input_sums": f"Tensor grad_output, Tensor weight, {_ENDING}, SymInt[] input_size, {ops.GEOMETRY}",
}


def of_convolution(
    input: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, sums: str,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Summed:  # fmt: skip
    geometry = tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode
    return Summed(Forward(input, weight, [], "", *geometry), operands, epilogue, sums)


def of_input(
    grad: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, sums: str, input_size: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str = "zeros",
) -> Summed:  # fmt: skip
    geometry = tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode
    return Summed(Gradient(Op.DGRAD, grad, weight, tuple(input_size), *geometry), operands, epilogue, sums)


def _on_gpu(asked: Summed) -> list[Tensor]:
    made: list[Tensor] | None = launched(asked.served().launch, *asked.reads, asked.operands)
    return asked.by_aten() if made is None else made


def _empty(asked: Summed) -> list[Tensor]:
    """Empty tensors like the results."""
    result = asked.result
    extents = [result.shape[not SUMS[word].of_images : 2] for word in asked.sums.split()]
    return [result, *(result.new_empty(sizes, dtype=torch.float32) for sizes in extents)]


for _name, _ask in {"conv_sums": of_convolution, "conv_input_sums": of_input}.items():
    ops.library.define(f"{_name}({_DEFINED[_name]}) -> Tensor[]", tags=ops.TAGS)
    ops.library.impl(_name, lambda *a, _ask=_ask: _ask(*a).by_aten(), "CompositeExplicitAutograd")
    ops.library.impl(_name, lambda *a, _ask=_ask: _on_gpu(_ask(*a)), "CUDA")
    torch.library.register_fake(f"convgen::{_name}", lambda *a, _ask=_ask: _empty(_ask(*a)), lib=ops.library)


def operator_of(asked: Summed) -> tuple[Any, list[Any]]:
    """The operator, and its arguments after the sums."""
    convgen: Any = torch.ops.convgen
    numbers: tuple[Any, ...]
    if isinstance(asked.bare, Forward):
        operator, numbers = convgen.conv_sums, asked.bare.geometry
    else:
        operator, numbers = convgen.conv_input_sums, asked.bare[3:]
    return operator.default, [list(number) if isinstance(number, tuple) else number for number in numbers]
