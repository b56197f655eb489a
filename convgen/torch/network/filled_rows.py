"""Channels filled up to rows of 16 bytes where convolutions alone mix them: HRNet has 24 for 18, ReXNet 168 for 162.

    conv_b(f(conv_a(x)))  =  conv_b'(f(conv_a'(x)))

TMA loads and stores rows of 16 bytes; other rows are copied first, or moved by threads.  conv_a' makes its first
channels once more behind the last one.  f has functions of each channel alone: activations, sums, pools, depthwise
convolutions.  conv_b' multiplies either copy by half of the channel's filters, so that sums stay as they are, also
where a value is infinite, of which a filter of zeros would make NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch

from convgen.torch.network.branches import is_of_constants
from convgen.torch.network.chains import POINTWISE
from convgen.torch.network.pixels import takes_pixels
from convgen.torch.network.pools import POOLS
from convgen.torch.network.trace import call, channel_axis, is_call, renew, value_of

Node = Any
A: Any = torch.ops.aten
#: Bytes that a row is filled up to multiples of, and how much longer it may get by that.
_BYTES, _MOST = 16, 1.5
#: Functions of an image that take each channel for itself, besides max pools, which give places, too.
_OF_CHANNELS = (
    A.clone.default, A.avg_pool1d.default, A.avg_pool2d.default, A.avg_pool3d.default,
    A._adaptive_avg_pool2d.default, A._adaptive_avg_pool3d.default,
    A.reflection_pad1d.default, A.reflection_pad2d.default, A.reflection_pad3d.default,
    A.replication_pad1d.default, A.replication_pad2d.default, A.replication_pad3d.default,
)  # fmt: skip


def fill_rows(graph: Any, constant: Collection[Node]) -> int:
    """Has convolutions make more channels; how many do."""
    filled, constant = 0, set(constant)
    for members in _connected(graph, constant):
        more = _missing(members[0])
        if more and _is_closed(set(members), constant):
            filled += _fill(members, more, constant)
    return filled


def _missing(image: Node) -> int:
    """Channels that a row lacks; none where too many would be."""
    value = value_of(image)
    channels, element = int(value.shape[1]), value.element_size()
    more = -channels % (_BYTES // element)
    return more if element == 2 and channels + more <= _MOST * channels else 0


def _connected(graph: Any, constant: Collection[Node]) -> list[list[Node]]:
    """Images that are functions of one another channel by channel, in the graph's order."""
    first: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while first[node] is not node:
            node = first[node]
        return node

    for node in graph.nodes:
        if node not in constant and _is_image(node):
            first[node] = node
            for source in _sources(node, constant) or ():
                if source in first:
                    first[root(source)] = root(node)
    found: dict[Node, list[Node]] = {}
    for node in first:
        found.setdefault(root(node), []).append(node)
    return list(found.values())


def _is_image(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() in (3, 4, 5) and value.is_floating_point()


def _sources(node: Node, constant: Collection[Node]) -> list[Node] | None:
    """The images that a node is a function of, channel by channel; None where it mixes channels, or is no such."""
    if is_call(node, operator.getitem) and is_call(node.args[0], *POOLS):
        return [node.args[0].args[0]] if list(node.args[0].users) == [node] and node.args[1] == 0 else None
    of_pixels = _is_mean_of_pixels(node) or takes_pixels(node) or _pads_pixels(node)
    if is_call(node, *_OF_CHANNELS) or of_pixels or _is_depthwise(node, constant):
        return [node.args[0]]
    if not is_call(node, *POINTWISE):
        return None
    images = [each for each in node.all_input_nodes if each not in constant and channel_axis(each, node) is not None]
    return images if all(value_of(image).dim() == value_of(node).dim() for image in images) else None


def _is_mean_of_pixels(node: Node) -> bool:
    if not is_call(node, A.mean.dim) or len(node.args) < 3:
        return False
    axes, keeps = node.args[1:3]
    return bool(axes and keeps and {axis % value_of(node).dim() for axis in axes}.isdisjoint((0, 1)))


def _pads_pixels(node: Node) -> bool:
    return is_call(node, A.constant_pad_nd.default) and len(node.args[1]) <= 2 * (value_of(node).dim() - 2)


def _is_depthwise(node: Node, constant: Collection[Node]) -> bool:
    if not _is_convolution(node, constant):
        return False
    return bool(node.args[8] == value_of(node).shape[1] == value_of(node.args[0]).shape[1])


def _mixes(node: Node, constant: Collection[Node]) -> bool:
    """Whether a node is a convolution of all channels."""
    return _is_convolution(node, constant) and node.args[8] == 1


def _is_convolution(node: Node, constant: Collection[Node]) -> bool:
    return is_of_constants(node, constant) and not node.meta.get("linear")


def _is_closed(members: set[Node], constant: Collection[Node]) -> bool:
    """Whether convolutions make all of these images, and all that reads them is one of them, or a convolution."""
    made = [node for node in members if _mixes(node, constant)]
    others = [node for node in members if not _mixes(node, constant)]
    read = [user for node in members for user in _readers(node) if user not in members]
    return bool(
        made and read
        and all(sources and members.issuperset(sources) for sources in (_sources(n, constant) for n in others))
        and all(_mixes(user, constant) for user in read)
    )  # fmt: skip


def _readers(node: Node) -> Iterator[Node]:
    """The readers of a node; those of a pool are those of its values."""
    for user in node.users:
        if is_call(user, *POOLS):
            yield from user.users
        else:
            yield user


def _fill(members: list[Node], more: int, constant: set[Node]) -> int:
    """Fills in the graph's order, so that each convolution finds its sources done; returns how many there are."""
    inside, channels = set(members), value_of(members[0]).shape[1]
    sinks = list(dict.fromkeys(user for node in members for user in _readers(node) if user not in inside))
    sinks += [node for node in members if node.args[0] in inside and _mixes(node, constant)]
    made = [node for node in members if _mixes(node, constant)]
    for node in members:
        with node.graph.inserting_before(node):
            if is_call(node, A.convolution.default):
                parameters = [each and _twice(node.graph, each, 0, more) for each in node.args[1:3]]
                constant.update(filter(None, parameters))
                groups = channels + more if node.args[8] > 1 else 1
                node.args = (node.args[0], *parameters, *node.args[3:8], groups)
            else:
                _fill_constants(node, more, constant)
        if is_call(node, operator.getitem):
            renew(node.args[0])
        renew(node)
    for node in sinks:
        with node.graph.inserting_before(node):
            node.update_arg(1, _halved(node.graph, node.args[1], more))
        constant.add(node.args[1])
        renew(node)
    return len(made)


def _fill_constants(node: Node, more: int, constant: set[Node]) -> None:
    """Fills the per-channel constants that a function reads besides an image."""
    for each in node.all_input_nodes:
        if each in constant and (axis := channel_axis(each, node)) is not None:
            node.replace_input_with(each, twice := _twice(node.graph, each, axis, more))
            constant.add(twice)


def _twice(graph: Any, parameter: Node, axis: int, more: int) -> Node:
    """The channels with the first ones repeated after the last."""
    again = call(graph, A.slice.Tensor, parameter, axis, 0, more)
    return call(graph, A.cat.default, [parameter, again], axis)


def _halved(graph: Any, filters: Node, more: int) -> Node:
    """Filters of the channels that are there twice: half for either."""
    first = call(graph, A.mul.Tensor, call(graph, A.slice.Tensor, filters, 1, 0, more), 0.5)
    rest = call(graph, A.slice.Tensor, filters, 1, more, value_of(filters).shape[1])
    return call(graph, A.cat.default, [first, rest, first], 1)
