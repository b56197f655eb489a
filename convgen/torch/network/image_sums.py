"""InstanceNorm's and GroupNorm's statistics by the kernel of the convolution before, in graphs for inference.

Both take mean and variance of each image, of one channel or of some; the kernel gives each channel's sums of values and
squares beside its result.  What is left is a pass over the result,

    (y - mean) / sqrt(variance + epsilon) * weight + bias

which Inductor compiles with the functions that follow.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from convgen.torch.asked import Forward, Summed
from convgen.torch.network.batch_norm import of_own_statistics
from convgen.torch.network.chains import Chain, End
from convgen.torch.network.trace import call, erase_unread, is_call, value_of

Node = Any
A: Any = torch.ops.aten
_WORDS = "image_value image_square"
#: Types that round more coarsely than sums of squares in float32 do; others keep torch's statistics.
_TYPES = (torch.float16, torch.bfloat16)
#: What stands between a convolution and what normalizes its result: copies, and float32 under autocast.
_COPIES = (A.clone.default, A._to_copy.default)


@dataclass(frozen=True)
class Normalization:
    """What makes statistics of each image of a convolution's result, over groups of its channels."""

    result: Node  # what it makes, of the convolution's shape
    groups: int
    weight: Node | None  # of as many elements as the channels of an image, or of all images
    bias: Node | None
    epsilon: float

    def put(self, graph: Any, value: Node, total: Node, squares: Node) -> None:
        """Lets the sums give the statistics."""
        made = value_of(value)
        n, k, *extents = made.shape
        share, ones = self.groups * n / made.numel(), [1] * len(extents)
        with graph.inserting_before(self.result):
            mean, square = (self._of_groups(graph, found, share) for found in (total, squares))
            variance = call(graph, A.sub.Tensor, square, call(graph, A.mul.Tensor, mean, mean))
            variance = call(graph, A.relu.default, variance)  # that of rounded sums may be below zero
            scale = call(graph, A.rsqrt.default, call(graph, A.add.Tensor, variance, self.epsilon))
            mean, scale = (call(graph, A.view.default, found, [n, k, *ones]) for found in (mean, scale))
            if self.weight is not None:
                scale = call(graph, A.mul.Tensor, scale, self._parameter(graph, self.weight, k, ones))
            wide = call(graph, A._to_copy.default, value, dtype=torch.float32)
            made = call(graph, A.mul.Tensor, call(graph, A.sub.Tensor, wide, mean), scale)
            if self.bias is not None:
                made = call(graph, A.add.Tensor, made, self._parameter(graph, self.bias, k, ones))
            before = value_of(self.result)
            made = call(graph, A._to_copy.default, made, dtype=before.dtype)
            if value_of(made).stride() != before.stride():
                made = call(graph, A.clone.default, made, memory_format=torch.contiguous_format)
        self.result.replace_all_uses_with(made)

    def _of_groups(self, graph: Any, sums: Node, share: float) -> Node:
        """Sums of [n, k] as means of the group that each channel is of."""
        n, k = value_of(sums).shape
        if self.groups < k:
            shape = [n, self.groups, k // self.groups]
            of_group = call(graph, A.sum.dim_IntList, call(graph, A.view.default, sums, shape), [2], True)
            of_each = call(graph, A.expand.default, of_group, shape)
            of_each = call(graph, A.clone.default, of_each, memory_format=torch.contiguous_format)
            sums = call(graph, A.view.default, of_each, [n, k])
        return call(graph, A.mul.Tensor, sums, share)

    def _parameter(self, graph: Any, node: Node, k: int, ones: list[int]) -> Node:
        wide = call(graph, A._to_copy.default, node, dtype=torch.float32)
        return call(graph, A.view.default, wide, [-1, k, *ones])


def sums_behind(chain: Chain, end: End) -> Summed | None:
    """What would give the sums for the normalizations that read a chain's end, asked with fake tensors; None where none
    does, where a concatenation reads it, too, which may be written in place, or where no kernel has such sums."""
    value = value_of(end.node)
    known = value.dtype in _TYPES and value.numel() and not (chain.transposed or chain.opening)
    if not known or not normalizations_of(end.node) or any(is_call(user, A.cat.default) for user in end.node.users):
        return None
    x, w, operands, epilogue, *geometry = chain.arguments(end)
    stride, padding, dilation, groups, padding_mode = geometry[:5]
    bare = Forward(
        value_of(x), value_of(w), [], "", tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode
    )
    return Summed(bare, [value_of(o) for o in operands], epilogue, _WORDS)


def use_sums(graph: Any, made: Node) -> None:
    """Lets the kernel of a node of convgen::fused_conv give the statistics of what normalizes its result."""
    x, w, operands, epilogue, *geometry = made.args
    found = normalizations_of(made)
    with graph.inserting_before(made):
        both = call(graph, torch.ops.convgen.conv_sums.default, x, w, operands, epilogue, _WORDS, *geometry[:5])
        value, total, squares = (call(graph, operator.getitem, both, i) for i in range(3))
    made.replace_all_uses_with(value)
    for normalization in found:
        normalization.put(graph, value, total, squares)
    erase_unread(graph, made)


def normalizations_of(value: Node) -> list[Normalization]:
    """Those that read a convolution's result."""
    found = [_normalization(value, user) for user in value.users]
    return [each for each in found if each is not None and _lies_usually(value_of(each.result), value_of(value))]


def _normalization(value: Node, user: Node) -> Normalization | None:
    source = value
    while is_call(user, *_COPIES) and len(user.users) == 1 and _keeps_values(user, value):
        (source, user) = user, next(iter(user.users))
    if is_call(user, A.native_group_norm.default) and user.args[0] is source:
        _, weight, bias, _, _, _, groups, epsilon = user.args
        result = _only_result(user)
        return None if result is None else Normalization(result, groups, weight, bias, epsilon)
    return _instance_norm(value, user)


def _instance_norm(value: Node, view: Node) -> Normalization | None:
    """A BatchNorm's own statistics of a view in which images are channels of one image."""
    n, k, *extents = value_of(value).shape
    if not is_call(view, A.view.default) or list(value_of(view).shape) != [1, n * k, *extents] or len(view.users) != 1:
        return None
    (norm,) = view.users
    epsilon = of_own_statistics(norm)
    if epsilon is None or norm.args[0] is not view:
        return None
    made = _only_result(norm)
    result = next(iter(made.users)) if made is not None and len(made.users) == 1 else None
    if not is_call(result, A.view.default) or value_of(result).shape != value_of(value).shape:
        return None
    weight, bias = norm.args[1:3]
    return Normalization(result, k, weight, bias, epsilon)


def _only_result(node: Node) -> Node | None:
    """The first item of a tuple, where no other is read."""
    read = [user for user in node.users if user.users]
    alone = len(read) == 1 and is_call(read[0], operator.getitem) and read[0].args[1] == 0
    return read[0] if alone else None


def _lies_usually(result: Any, value: Any) -> bool:
    """Whether a normalization's result lies as what it reads does, or in the order of its axes."""
    return bool(result.stride() == value.stride() or result.is_contiguous())


def _keeps_values(copy: Node, value: Node) -> bool:
    return value_of(copy).dtype in (value_of(value).dtype, torch.float32)
