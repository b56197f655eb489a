"""Sums over the pixels of each image by the kernel of a convolution, in graphs for inference: a pass would read its
result again.

    mean(y, pixels)         of squeeze and excitation, or before a classifier
    mean and variance       of what normalizes the result (network.normalizations)
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from convgen.torch.asked import Forward, Summed
from convgen.torch.network import moments
from convgen.torch.network.chains import FLOATS, NARROW, Chain, End
from convgen.torch.network.normalizations import normalizations_of
from convgen.torch.network.trace import call, erase_unread, is_call, value_of

Node = Any
A: Any = torch.ops.aten


def sums_behind(chain: Chain, end: End) -> Summed | None:
    """The request for the sums that readers of a chain's end need, with fake tensors; None if none reads sums, if a
    concatenation, which may be written in place, reads it, too, or if no kernel has such sums."""
    value, words = value_of(end.node), _words(end.node)
    known = value.dtype in NARROW and value.numel() and not (chain.transposed or chain.opening)
    if not known or not words or any(is_call(user, A.cat.default) for user in end.node.users):
        return None
    x, w, operands, epilogue, *geometry = chain.arguments(end)
    stride, padding, dilation, groups, padding_mode = geometry[:5]
    bare = Forward(
        value_of(x), value_of(w), [], "", tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode
    )
    return Summed(bare, [value_of(o) for o in operands], epilogue, words)


def use_sums(graph: Any, made: Node) -> None:
    """Lets the kernel of a node of convgen::fused_conv give what `sums_behind` asked for."""
    x, w, operands, epilogue, *geometry = made.args
    normalizations, means, words = normalizations_of(made), _means_of(made), _words(made)
    with graph.inserting_before(made):
        both = call(graph, torch.ops.convgen.conv_sums.default, x, w, operands, epilogue, words, *geometry[:5])
        value, *sums = (call(graph, operator.getitem, both, i) for i in range(1 + len(words.split())))
        share = value_of(sums[0]).numel() / value_of(value).numel()
        mean, *square = (call(graph, A.mul.Tensor, each, share) for each in sums)
        variance = moments.variance(graph, mean, *square) if square else None
    made.replace_all_uses_with(value)
    for node in means:
        _replace_mean(graph, node, mean)
    for normalization in normalizations:
        with graph.inserting_before(normalization.result):
            normalization.put(graph, value, mean, variance)
    erase_unread(graph, made)


def _words(value: Node) -> str:
    """The sums of a value that are read, by their names in convgen.functional.pointwise."""
    if normalizations_of(value):
        return "image_value image_square"
    return "image_value" if _means_of(value) else ""


def _means_of(value: Node) -> list[Node]:
    """Means over the pixels of each image and channel."""
    rank = value_of(value).dim()
    return [
        user
        for user in value.users
        if is_call(user, A.mean.dim)
        and user.args[0] is value
        and sorted(axis % rank for axis in user.args[1] or ()) == list(range(2, rank))
        and value_of(user).dtype in FLOATS
    ]


def _replace_mean(graph: Any, node: Node, mean: Node) -> None:
    made = value_of(node)
    with graph.inserting_before(node):
        found = mean if made.dtype == torch.float32 else call(graph, A._to_copy.default, mean, dtype=made.dtype)
        if made.dim() != 2:
            found = call(graph, A.view.default, found, list(made.shape))
    node.replace_all_uses_with(found)
    graph.erase_node(node)
