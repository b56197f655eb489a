"""Pixels that a graph takes by numbers alone: the indices and weights that interpolation is traced to."""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.trace import is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
_MADE_OF_NUMBERS = (A.arange.default, A.arange.start, A.arange.start_step)
_TAKES = (A._unsafe_index.Tensor, A.index.Tensor)


def constant(node: Any) -> Tensor | None:
    """The value of a node that follows from numbers alone, on the CPU; None of others."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return None
    inputs = {each: constant(each) for each in node.all_input_nodes}
    if any(value is None for value in inputs.values()) or not (inputs or is_call(node, *_MADE_OF_NUMBERS)):
        return None
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), inputs.__getitem__)
    if "device" in keywords:
        keywords = {**keywords, "device": torch.device("cpu")}
    return node.target(*arguments, **keywords)


def takes_pixels(node: Node) -> bool:
    """Whether a node takes pixels of an image, the same ones of each channel: indices of all its axes but the first
    two.  Which ones, is not looked at."""
    if not is_call(node, *_TAKES):
        return False
    rank = value_of(node).dim() - 2
    indices = node.args[1]
    return rank >= 1 and len(indices) == rank + 2 and indices[0] is None and indices[1] is None
