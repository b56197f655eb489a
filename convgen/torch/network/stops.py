"""Why an epilogue takes no more of what follows a convolution, where a person would expect that it does."""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.batch_norm import of_own_statistics
from convgen.torch.network.chains import FLOATS, POINTWISE
from convgen.torch.network.trace import is_call, value_of

Node = Any
A: Any = torch.ops.aten
_OWN = "its own mean and variance need sums over the result"
#: Functions that read several elements of the result for each of theirs: normalizations, perhaps of a view, and others.
_NORMALIZATIONS = {
    A.native_group_norm.default: "GroupNorm needs sums over the result",
    A.native_layer_norm.default: "LayerNorm needs sums over the result",
    A._native_batch_norm_legit_functional.default: _OWN,
}
_OF_MANY = {
    A.glu.default: "a gate of one half of the channels by the other needs both",
    A.split.Tensor: "its channels are split",
    A.split_with_sizes.default: "its channels are split",
    A.pixel_shuffle.default: "PixelShuffle moves pixels",
}
#: What gives the same elements, and copies them.
_VIEWS = (
    *(A.view.default, A._unsafe_view.default, A.permute.default, A.transpose.int, A.unsqueeze.default),
    *(A.squeeze.dim, A.clone.default),
)


def why_stopped(end: Node) -> str:
    """Names what follows a chain's last node that an epilogue cannot include; empty if it is no surprise, such as
    another convolution."""
    readers = [reader for reader in end.users if reader.op == "call_function"]
    if len(readers) != len(end.users):
        return ""
    if len(readers) == 1 and is_call(readers[0], *_OF_MANY):
        return _OF_MANY[readers[0].target]
    behind = _behind_views(readers[0]) if len(readers) == 1 else None
    if behind and (why := _why_normalized(behind)):
        return why
    if behind and behind is not readers[0] and _is_elementwise(behind, behind.all_input_nodes[0]):
        return f"a view stands before {_name(behind)}"
    if len(readers) > 1 and all(is_call(reader, A.slice.Tensor) and reader.args[1:2] == (1,) for reader in readers):
        return _OF_MANY[A.split.Tensor]
    if not readers or not all(_is_elementwise(reader, end) for reader in readers):
        return ""
    names = list(dict.fromkeys(map(_name, readers)))
    if len(names) > 1:
        return f"{' and '.join(names)} read the same result"
    return f"more than one {names[0]} reads the result" if len(readers) > 1 else _obstacle(readers[0])


def is_normalized(end: Node) -> bool:
    """Whether a normalization reads a node's value, perhaps as views of it: a pass that can compute what is before."""
    return any(behind and _why_normalized(behind) for behind in map(_behind_views, end.users))


def _why_normalized(node: Node) -> str:
    """Why an epilogue cannot have a normalization; nothing for other nodes."""
    return _OWN if of_own_statistics(node) is not None else _NORMALIZATIONS.get(node.target, "")


def _obstacle(reader: Node) -> str:
    """Why a function of single elements is no step of an epilogue."""
    for verb, nodes in (("reads", reader.all_input_nodes), ("makes", [reader])):
        if types := {str(v.dtype).removeprefix("torch.") for v in map(value_of, nodes) if v.dtype not in FLOATS}:
            return f"{_name(reader)} {verb} a tensor of {types.pop()}"
    name = _name(reader)
    such = ("such an " if name[0] in "aeiou" else "such a ") * (reader.target in POINTWISE)
    return f"no epilogue has {such}{name}"


def _name(node: Node) -> str:
    return str(node.target).split(".")[1]


def _behind_views(reader: Node) -> Node | None:
    """The function that alone reads views of a result, perhaps copied."""
    while is_call(reader, *_VIEWS) and len(reader.users) == 1:
        (reader,) = reader.users
    return reader if reader.op == "call_function" else None


def _is_elementwise(reader: Node, end: Node) -> bool:
    """Whether a function is elementwise: each element of its result depends on one of its input's."""
    tagged = torch.Tag.pointwise in getattr(reader.target, "tags", ())  # torch 2.11 has no tag for leaky_relu
    if not (tagged or reader.target in POINTWISE) or is_call(reader, A.clone.default):
        return False
    return bool(value_of(reader).shape == value_of(end).shape)
