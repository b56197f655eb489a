"""InstanceNorm and GroupNorm in graphs for inference, as Inductor makes them best where channels are last.

Both take mean and variance of each image, of one channel or of some.  Here those of each channel come first: from sums
that the kernel of the convolution before gives beside its result (network.image_sums), or from a pass over the pixels,
which reads channels that are neighbors; torch's own functions would read them as if they were far apart.  Of groups
they follow from their channels'.  What is left is a pass over the tensor,

    (x - mean) / sqrt(variance + epsilon) * weight + bias

with its layout, which Inductor compiles with the functions that follow.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

from convgen.functional.arrays import channels_last, is_packed, pitch_of
from convgen.torch.network.batch_norm import of_own_statistics
from convgen.torch.network.chains import FLOATS
from convgen.torch.network.layouts import settle
from convgen.torch.network.trace import VIEWS, call, erase_unread, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: What stands between a value and what normalizes it: copies, and float32 under autocast.
_COPIES = (A.clone.default, A._to_copy.default)


@dataclass(frozen=True)
class Normalization:
    """A normalization by statistics of each image of a value, over groups of its channels."""

    result: Node  # what it makes, of the value's shape
    groups: int
    weight: Node | None  # of as many elements as the channels of an image, or of all images
    bias: Node | None
    epsilon: float

    def put(self, graph: Any, value: Node, mean: Node, variance: Node) -> None:
        """Replaces it by nodes that read statistics of [image, channel]."""
        n, k, *extents = value_of(value).shape
        before = value_of(self.result)
        if self.groups < k:
            of_group = self._of_group(graph, mean)
            apart = call(graph, A.sub.Tensor, mean, of_group)
            apart = call(graph, A.mul.Tensor, apart, apart)
            mean, variance = of_group, self._of_group(graph, call(graph, A.add.Tensor, variance, apart))
        scale = call(graph, A.rsqrt.default, call(graph, A.add.Tensor, variance, self.epsilon))
        each = [n, k, *[1] * len(extents)]
        mean, scale = (call(graph, A.view.default, found, each) for found in (mean, scale))
        if self.weight is not None:
            scale = call(graph, A.mul.Tensor, scale, _parameter(graph, self.weight, each))
        made = call(graph, A.sub.Tensor, _wide(graph, value), mean)
        made = call(graph, A.mul.Tensor, made, scale)
        if self.bias is not None:
            made = call(graph, A.add.Tensor, made, _parameter(graph, self.bias, each))
        if before.dtype != torch.float32:
            made = call(graph, A._to_copy.default, made, dtype=before.dtype)
        self.result.replace_all_uses_with(made)
        erase_unread(graph, self.result)
        settle(graph, made, before)

    def _of_group(self, graph: Any, of_channels: Node) -> Node:
        """For each channel the mean of its group."""
        n, k = value_of(of_channels).shape
        shape = [n, self.groups, k // self.groups]
        made = call(graph, A.mean.dim, call(graph, A.view.default, of_channels, shape), [2], True)
        made = call(graph, A.expand.default, made, shape)
        made = call(graph, A.clone.default, made, memory_format=torch.contiguous_format)
        return call(graph, A.view.default, made, [n, k])


# ---- by a pass -------------------------------------------------------------------------------------


def write_out(graph: Any) -> None:
    """Puts mean and variance of each channel, and what reads them, in the place of the graph's normalizations of values
    that have channels last, or are slices of such."""
    for node in list(graph.nodes):
        for normalization in normalizations_of(node) if _has_channels_last(node) else ():
            with graph.inserting_before(normalization.result):
                pixels = list(range(2, value_of(node).dim()))
                both = call(graph, A.var_mean.correction, _wide(graph, node), pixels, correction=0)
                variance, mean = (call(graph, operator.getitem, both, i) for i in range(2))
                normalization.put(graph, node, mean, variance)
    graph.eliminate_dead_code()


def _has_channels_last(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in FLOATS or value.dim() not in (3, 4, 5):
        return False
    lies = value.shape, value.stride(), channels_last(value.dim() - 2)
    return bool(value.numel()) and (is_packed(*lies) or bool(pitch_of(*lies)))


def _wide(graph: Any, node: Node) -> Node:
    return node if value_of(node).dtype == torch.float32 else call(graph, A._to_copy.default, node, dtype=torch.float32)


def _parameter(graph: Any, node: Node, each: list[int]) -> Node:
    return call(graph, A.view.default, _wide(graph, node), [-1, *each[1:]])


# ---- what is found ---------------------------------------------------------------------------------


def normalizations_of(value: Node) -> list[Normalization]:
    """The normalizations that read a value, perhaps through copies."""
    found = (_normalization(value, user) for user in value.users)
    return [each for each in found if each is not None]


def _normalization(value: Node, user: Node) -> Normalization | None:
    source = value
    while is_call(user, *_COPIES) and len(user.users) == 1 and _keeps_values(user, value):
        source, user = user, next(iter(user.users))
    if is_call(user, A.native_group_norm.default) and user.args[0] is source:
        _, weight, bias, *sizes, groups, epsilon = user.args
        n, k, *extents = value_of(source).shape
        result = _only_result(user) if sizes == [n, k, math.prod(extents)] else None
        return None if result is None else Normalization(result, groups, weight, bias, epsilon)
    return _instance_norm(value, user)


def _instance_norm(value: Node, view: Node) -> Normalization | None:
    """A BatchNorm's own statistics of a view in which images are channels of one image."""
    n, k, *extents = value_of(value).shape if value_of(value).dim() > 2 else (0, 0)
    if not is_call(view, *VIEWS) or list(value_of(view).shape) != [1, n * k, *extents] or len(view.users) != 1:
        return None
    (norm,) = view.users
    epsilon = of_own_statistics(norm)
    if epsilon is None or norm.args[0] is not view:
        return None
    made = _only_result(norm)
    result = next(iter(made.users)) if made is not None and len(made.users) == 1 else None
    if not is_call(result, *VIEWS) or value_of(result).shape != value_of(value).shape:
        return None
    weight, bias = norm.args[1:3]
    return Normalization(result, k, weight, bias, epsilon)


def _only_result(node: Node) -> Node | None:
    """The first item of a tuple, where no other is read."""
    read = [user for user in node.users if user.users]
    alone = len(read) == 1 and is_call(read[0], operator.getitem) and read[0].args[1] == 0
    return read[0] if alone else None


def _keeps_values(copy: Node, value: Node) -> bool:
    return value_of(copy).dtype in (value_of(value).dtype, torch.float32)
