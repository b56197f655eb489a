"""Images have channels last: what is given, and what convolutions read, such as of a channel shuffle, is copied first.

The copy is part of the graph, so that Inductor makes it on the way, with the functions before it.  What follows has
channels last, too; where a view of the model's own does not go with that, what it is a view of is copied back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.functional.arrays import channels_last, pitch_of, strides_in
from convgen.torch.network.padding import PADDINGS
from convgen.torch.network.trace import call, drop_identities, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
#: By the number of axes.
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(tensor: Tensor) -> bool:
    """Or of a rank or a type that has no channels."""
    memory_format = FORMATS.get(tensor.dim())
    return (
        memory_format is None
        or not tensor.is_floating_point()
        or tensor.is_contiguous(memory_format=memory_format)
    )  # fmt: skip


def has_one_channel(tensor: Any) -> bool:
    """Whether an image lies the same with channels first and last, of which its strides say the first."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dim() in FORMATS
        and tensor.is_floating_point()
        and tensor.shape[1] == 1
        and tensor.stride(1) > tensor.stride(-1)
        and tensor.is_contiguous(memory_format=FORMATS[tensor.dim()])
    )


def with_channels_last(tensor: Tensor) -> Tensor:
    """A view of one channel whose strides say that it is last."""
    return tensor.as_strided(tensor.shape, strides_in(tuple(tensor.shape), channels_last(tensor.dim() - 2)))


def lay_out(graph: Any, first: Sequence[Node], given: Sequence[Any]) -> None:
    """Inserts the copies: of the tensors given, which the placeholders stand for, and of what convolutions read."""
    changed: set[Node] = set()
    with graph.inserting_after(first[-1] if first else None):
        for node, tensor in zip(first, given, strict=True):
            if isinstance(tensor, torch.Tensor) and not is_channels_last(tensor):
                changed.add(_copy_placeholder(graph, node, tensor))
            elif isinstance(tensor, torch.Tensor) and value_of(node).stride() != tensor.stride():
                _view_placeholder(graph, node, tensor)
    for node in list(graph.nodes):
        if is_call(node, A.convolution.default):
            _copy_image(graph, node, changed)
        if node.op == "call_function" and node not in changed and not changed.isdisjoint(node.all_input_nodes):
            _renew(graph, node, changed)
    drop_identities(graph)


def _copy_placeholder(graph: Any, node: Node, tensor: Tensor) -> Node:
    """What everything reads in place of a placeholder, which stays as it is given."""
    readers = list(node.users)
    node.meta["val"] = node.meta["val"].new_empty_strided(tensor.shape, tensor.stride())
    made = call(graph, A.clone.default, node, memory_format=FORMATS[tensor.dim()])
    for reader in readers:
        reader.replace_input_with(node, made)
    return made


def _view_placeholder(graph: Any, node: Node, tensor: Tensor) -> None:
    """As `_copy_placeholder`, of one channel: the strides that it was traced with will do."""
    readers, strides = list(node.users), list(value_of(node).stride())
    node.meta["val"] = node.meta["val"].new_empty_strided(tensor.shape, tensor.stride())
    made = call(graph, A.as_strided.default, node, list(tensor.shape), strides)
    for reader in readers:
        reader.replace_input_with(node, made)


def _copy_image(graph: Any, convolution: Node, changed: set[Node]) -> None:
    """Of a convolution, or of the padding before it, which will be the convolution's."""
    reader = convolution
    if is_call(convolution.args[0], *PADDINGS):
        reader = convolution.args[0]
    image = reader.args[0]
    value = value_of(image)
    if is_channels_last(value) or pitch_of(value.shape, value.stride(), channels_last(value.dim() - 2)):
        return
    with graph.inserting_before(reader):
        made = call(graph, A.clone.default, image, memory_format=FORMATS[value.dim()])
    reader.replace_input_with(image, made)
    changed.add(made)
    if reader is not convolution:
        _renew(graph, reader, changed)


def _renew(graph: Any, node: Node, changed: set[Node]) -> None:
    """The value of a node whose inputs have other strides."""
    if is_call(node, A.as_strided.default):
        raise ValueError("the network takes strides of a tensor for granted")
    before = node.meta["val"]
    try:
        made = _value(node)
    except (RuntimeError, ValueError):  # a view that needs the strides that were
        source = node.args[0]
        with graph.inserting_before(node):
            copied = call(graph, A.clone.default, source, memory_format=torch.contiguous_format)
        node.replace_input_with(source, copied)
        made = _value(node)
    node.meta["val"] = made
    if _strides(made) != _strides(before):
        changed.add(node)


def _value(node: Node) -> Any:
    values = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    with value_of(next(iter(node.graph.nodes))).fake_mode:
        return node.target(*values[0], **values[1])


def _strides(value: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.stride() for leaf in leaves if isinstance(leaf, torch.Tensor)]
