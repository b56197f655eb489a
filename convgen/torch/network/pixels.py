"""Pixels that a graph takes by numbers alone: the indices and weights that interpolation is traced to."""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.trace import is_call, value_of, with_sources

Node = Any
Tensor = Any
A: Any = torch.ops.aten
_MADE_OF_NUMBERS = (A.arange.default, A.arange.start, A.arange.start_step)
_TAKES = (A._unsafe_index.Tensor, A.index.Tensor)


def constant(node: Any) -> Tensor | None:
    """The value of a node that follows from numbers alone, on the CPU; None of others."""
    made: dict[Node, Tensor] = {}

    def value(each: Node) -> Tensor:
        if each not in made:
            arguments, keywords = torch.fx.map_arg((each.args, each.kwargs), value)
            if "device" in keywords:
                keywords = {**keywords, "device": torch.device("cpu")}
            made[each] = each.target(*arguments, **keywords)
        return made[each]

    return value(node) if _is_of_numbers(node) else None


def _is_of_numbers(node: Any) -> bool:
    """Whether a node is made of numbers alone.  Of others, which all of a network may be behind, no more is looked at
    than it takes to know."""
    return isinstance(node, torch.fx.Node) and all(
        each.op == "call_function" and (each.all_input_nodes or is_call(each, *_MADE_OF_NUMBERS))
        for each in with_sources(node, lambda _: True)
    )


def takes_pixels(node: Node) -> bool:
    """Whether a node takes pixels of an image, the same ones of each channel: indices of all its axes but the first
    two.  Which ones, is not looked at."""
    if not is_call(node, *_TAKES):
        return False
    rank = value_of(node).dim() - 2
    indices = node.args[1]
    return rank >= 1 and len(indices) == rank + 2 and indices[0] is None and indices[1] is None
