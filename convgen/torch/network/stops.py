"""Why an epilogue takes no more of what follows a convolution, where a person would expect that it does."""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.chains import FLOATS
from convgen.torch.network.trace import is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: Functions that people write behind convolutions, and that read several elements of the result for each of theirs.
_OF_MANY = {
    A.native_group_norm.default: "GroupNorm needs sums over the result",
    A.native_layer_norm.default: "LayerNorm needs sums over the result",
    A._native_batch_norm_legit.no_stats: "its own mean and variance need sums over the result",
    A._native_batch_norm_legit_functional.default: "its own mean and variance need sums over the result",
    A.glu.default: "a gate of one half of the channels by the other needs both",
    A.split.Tensor: "its channels are split",
    A.split_with_sizes.default: "its channels are split",
    A.pixel_shuffle.default: "PixelShuffle moves pixels",
}


def why_stopped(end: Node) -> str:
    """What stands behind the last node of a chain that an epilogue cannot have; nothing where that is no surprise, such
    as another convolution."""
    readers = [reader for reader in end.users if reader.op == "call_function"]
    if len(readers) != len(end.users):
        return ""
    if len(readers) == 1 and is_call(readers[0], *_OF_MANY):
        return _OF_MANY[readers[0].target]
    if len(readers) == 1 and (behind := _behind_views(readers[0])):
        return f"a view stands before {str(behind.target).split('.')[1]}"
    if len(readers) > 1 and all(is_call(reader, A.slice.Tensor) and reader.args[1:2] == (1,) for reader in readers):
        return _OF_MANY[A.split.Tensor]
    if not readers or not all(_is_elementwise(reader, end) for reader in readers):
        return ""
    names = [str(reader.target).split(".")[1] for reader in readers]
    if len(readers) > 1:
        return f"{' and '.join(names)} read the same result"
    types = {
        str(v.dtype).removeprefix("torch.") for v in map(value_of, readers[0].all_input_nodes) if v.dtype not in FLOATS
    }
    return f"{names[0]} reads a tensor of {types.pop()}" if types else f"no epilogue has {names[0]}"


def _behind_views(reader: Node) -> Node | None:
    """The function of single elements that alone reads views of a result, perhaps copied."""
    node = reader
    while is_call(node, A.view.default, A._unsafe_view.default, A.clone.default) and len(node.users) == 1:
        node = next(iter(node.users))
    views = node is not reader and node.op == "call_function"
    return node if views and _is_elementwise(node, node.all_input_nodes[0]) else None


def _is_elementwise(reader: Node, end: Node) -> bool:
    """And of one element of the result for each of its own."""
    if torch.Tag.pointwise not in getattr(reader.target, "tags", ()) or is_call(reader, A.clone.default):
        return False
    return bool(value_of(reader).shape == value_of(end).shape)
