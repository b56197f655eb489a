"""Concatenations along the channels, written in place: DenseNet's, GoogLeNet's, U-Nets'.

    cat([convolution, pooling], 1)  =  a tensor of all channels, of which the convolution writes a slice; the pooling's
                                       result is copied into another, or is that, by Inductor

A concatenation that begins with another's tensors is the same memory, of which the shorter is a slice: in a block of
DenseNet each tensor is written once, and copied never.  A convolution writes in place where the slice is aligned, and
where whatever else reads its result can read a slice.
"""

from __future__ import annotations

import operator
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import torch

from convgen.functional.arrays import WIDEST, channels_last, is_packed, pitch_of
from convgen.torch.network.batch_norm import OPERATORS as BATCH_NORMS
from convgen.torch.network.chains import POINTWISE
from convgen.torch.network.pools import POOLS
from convgen.torch.network.trace import call, is_call, value_of

Node = Any
Readers = Set[Any]
A: Any = torch.ops.aten
C: Any = torch.ops.convgen
_CONV = C.fused_conv.default
#: What reads a slice as well as a packed tensor, besides convgen's own operators; of cuDNN's, what Inductor replaces.
_BY_INDUCTOR = frozenset({A.cudnn_batch_norm.default})
_READERS = frozenset({
    *POINTWISE, *BATCH_NORMS, A.cat.default, A.max_pool2d_with_indices.default, A.max_pool2d.default,
    A.avg_pool2d.default, A.adaptive_avg_pool2d.default, A._adaptive_avg_pool2d.default, A.mean.dim,
    A._unsafe_index.Tensor,
})  # fmt: skip
#: What Inductor makes by passes.
_PASSES = (
    *(*POINTWISE, *BATCH_NORMS, A.clone.default, A._unsafe_index.Tensor, A.index.Tensor),
    *(*POOLS, A.avg_pool2d.default),
)


@dataclass
class Family:
    """Concatenations of the first tensors of a list, the longest of them of all."""

    parts: list[Node]
    members: dict[Node, int] = field(default_factory=dict)  # with how many parts they have

    @property
    def whole(self) -> Node:
        """The longest; the others are slices."""
        return max(self.members, key=self.members.__getitem__)

    def first_channel(self, at: int) -> int:
        return sum(value_of(part).shape[1] for part in self.parts[:at])


def in_place(graph: Any, inductor: bool) -> int:
    """Rewrites concatenations of results of convgen::fused_conv, in a graph that Inductor compiles or aten runs; how
    many there were."""
    readers = _READERS if inductor else _READERS - _BY_INDUCTOR
    order = {node: i for i, node in enumerate(graph.nodes)}
    pieces: dict[Node, Node] = {}  # of what is written in place
    rewritten = 0
    for family in _families(graph):
        writers = {at: part for at, part in enumerate(family.parts) if _writes(family, at, readers, inductor)}
        writers = {at: part for at, part in writers.items() if part not in pieces}
        if _pays(family, writers, inductor):
            family.parts = [pieces.get(part, part) for part in family.parts]
            rewritten += _rewrite(graph, family, writers, readers, order, pieces)
    graph.eliminate_dead_code()
    return rewritten


def _families(graph: Any) -> list[Family]:
    """The families of concatenations that have channels last."""
    found: list[Family] = []
    cats = [node for node in graph.nodes if _is_concatenation(node)]
    for cat in sorted(cats, key=lambda node: -len(_parts(node))):
        parts = _parts(cat)
        family = next((f for f in found if f.parts[: len(parts)] == parts), None)
        if family is None:
            found.append(family := Family(parts))
        family.members[cat] = len(parts)
    return found


def _is_concatenation(node: Node) -> bool:
    if not is_call(node, A.cat.default) or len(node.args) < 2 or node.args[1] != 1 or node.kwargs:
        return False
    values = [value_of(node), *map(value_of, node.args[0])]
    rank = value_of(node).dim() - 2
    if rank not in (1, 2, 3) or not _is_packed(node):
        return False
    return all(
        v.dtype == values[0].dtype and (_is_packed(part) or pitch_of(v.shape, v.stride(), channels_last(rank)))
        for part, v in zip(node.args[0], values[1:], strict=True)
    )


def _is_packed(node: Node) -> bool:
    """Whether a value has channels last, and is no slice of a larger one."""
    value = value_of(node)
    return is_packed(value.shape, value.stride(), channels_last(value.dim() - 2))


def _parts(cat: Node) -> list[Node]:
    """The tensors of a concatenation, those of one among them in its place."""
    found: list[Node] = []
    for part in cat.args[0]:
        found += _parts(part) if _is_concatenation(part) else [part]
    return found


def _writes(family: Family, at: int, readers: Readers, inductor: bool) -> bool:
    """Whether a part can be written where it belongs."""
    part = family.parts[at]
    if not (is_call(part, _CONV) or (inductor and _is_pass(part))) or family.parts.count(part) > 1:
        return False
    size = value_of(part).element_size()
    aligned = all(n * size % WIDEST == 0 for n in (family.first_channel(at), value_of(family.whole).shape[1]))
    return aligned and _is_read_as_slice(part, readers)


def _pays(family: Family, writers: dict[int, Node], inductor: bool) -> bool:
    """Whether fewer channels are copied into the memory than concatenations copy of what convolutions write in place;
    as many only where none are slices, as of a block's half that passes by, which Inductor reads where a shuffle wants
    it.  What Inductor's passes make for the concatenation alone is copied by neither."""
    channels = [value_of(part).shape[1] for part in family.parts]
    convolutions = [at for at, part in writers.items() if is_call(part, _CONV)]
    saved = sum(channels[at] for count in family.members.values() for at in convolutions if at < count)
    copied = [
        at
        for at, part in enumerate(family.parts)
        if at not in writers and not (inductor and _is_pass(part) and family.members.keys() >= part.users.keys())
    ]
    slices = any(not _is_packed(family.parts[at]) for at in copied)
    return bool(convolutions) and saved >= sum(channels[at] for at in copied) + slices


def _is_pass(part: Node) -> bool:
    """Whether Inductor makes a value by a pass."""
    return is_call(part.args[0] if part.target is operator.getitem else part, *_PASSES)


def _is_read_as_slice(node: Node, readers: Readers) -> bool:
    """Whether all that reads a node's value can read a slice."""
    return all(user.target in readers or (is_call(user, _CONV) and user.args[1] is not node) for user in node.users)


def _rewrite(
    graph: Any, family: Family, writers: dict[int, Node], readers: Readers, order: dict[Node, int],
    pieces: dict[Node, Node],
) -> int:  # fmt: skip
    """Makes the family one tensor; of how many members."""
    whole = family.whole
    members = [cat for cat in family.members if cat is whole or _is_read_as_slice(cat, readers)]
    copied = {at: part for at, part in enumerate(family.parts) if at not in writers}
    # a copy is due where the first concatenation that has the part is read
    due = {at: min((m for m in members if family.members[m] > at), key=order.__getitem__) for at in copied}
    with graph.inserting_before(min((*writers.values(), *due.values()), key=order.__getitem__)):
        memory = _empty(graph, value_of(whole))
    for at, part in writers.items():
        with graph.inserting_before(part):
            pieces[part] = piece = _slice(graph, memory, family, at, at + 1)
        part.replace_all_uses_with(piece)
        with graph.inserting_after(part):
            if is_call(part, _CONV):
                call(graph, C.fused_conv_into.default, piece, *part.args, **part.kwargs)
            else:
                call(graph, C.copy_into.default, piece, part)
    for at, part in copied.items():
        with graph.inserting_before(due[at]):
            call(graph, C.copy_into.default, _slice(graph, memory, family, at, at + 1), part)
    for cat in members:
        with graph.inserting_before(cat):
            made = memory if cat is whole else _slice(graph, memory, family, 0, family.members[cat])
        cat.replace_all_uses_with(made)
    return len(members)


def _empty(graph: Any, like: Any) -> Node:
    """Memory for a value."""
    sizes, options = (list(like.shape), list(like.stride())), {"dtype": like.dtype, "device": like.device}
    node = graph.call_function(A.empty_strided.default, sizes, options)
    with like.fake_mode:
        node.meta["val"] = A.empty_strided.default(*sizes, **options)
    return node


def _slice(graph: Any, memory: Node, family: Family, first: int, last: int) -> Node:
    """The channels of some of the family's parts."""
    return call(graph, A.slice.Tensor, memory, 1, family.first_channel(first), family.first_channel(last))


def rebuilt(graph: Any) -> list[tuple[Any, ...]]:
    """Arguments of `launch.recipe`, fake ones for tensors, of all convolutions: some read or write slices now."""
    found = []
    for node in graph.nodes:
        into = is_call(node, C.fused_conv_into.default)
        if into or is_call(node, C.fused_conv.default):
            x, w, operands, *others = node.args[into:]
            tensors = value_of(x), value_of(w), [value_of(o) for o in operands]
            defaults = [argument.default_value for argument in node.target._schema.arguments[len(node.args) :]]
            found.append((*tensors, *others, *defaults, value_of(node.args[0]) if into else None))
    return found
