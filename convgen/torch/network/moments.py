"""Means and variances from sums that kernels give."""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.trace import call

Node = Any
A: Any = torch.ops.aten
#: Times the mean's square, the least variance that rounded sums tell: about half a step of float16, squared.  What is
#: computed below that is chance, perhaps negative, and dividing by it would make anything of one step.
_LEAST = 2.0**-22


def variance(graph: Any, mean: Node, square: Node) -> Node:
    """The variance of values, from the nodes of their mean and of their squares' mean."""
    squared = call(graph, A.mul.Tensor, mean, mean)
    difference = call(graph, A.sub.Tensor, square, squared)
    return call(graph, A.maximum.default, difference, call(graph, A.mul.Tensor, squared, _LEAST))
