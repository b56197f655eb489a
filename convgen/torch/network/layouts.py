"""Images have channels last: what is given, and what convolutions read, such as of a channel shuffle, is copied first.

The copy is part of the graph, so that Inductor makes it on the way, with the functions before it.  For (n, c, w)
torch has strides, but no memory format, of channels last: there only what a convolution reads is copied, because
other tensors of rank 3 are often sequences.  Filters that are computed from weights are laid out when weights are
packed.  What follows has channels last, too; where a view of the model's own does not go with that, what it is a view
of is copied back.  Results lie in memory as the model's own do: whoever reads them may take views.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convgen.functional.arrays import channels_last, inverse, is_packed, order_of, pitch_of, strides_in
from convgen.torch.network.padding import PADDINGS
from convgen.torch.network.trace import VIEWS, call, drop_identities, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
#: What takes the strides of its first argument for granted, where torch has made a copy before if need be; and whether
#: channels last will do on a CPU.
_WANTS_PACKED = {A.native_group_norm.default: True, A._weight_norm_interface.default: False}
#: What takes for granted that queries, keys and values, its first arguments, have the elements of a row side by side:
#: torch looks at that before it chooses one of them.
_WANTS_ROWS = (
    *(A._scaled_dot_product_flash_attention_for_cpu.default, A._scaled_dot_product_flash_attention.default),
    *(A._scaled_dot_product_efficient_attention.default, A._scaled_dot_product_cudnn_attention.default),
)
#: What reads the memory of its first argument, whatever its axes mean.
_READS_MEMORY = (A.as_strided.default, A.as_strided_scatter.default, A.resize.default)
#: Libraries whose functions go by the strides of what they read; those of others may read memory as it lies.
_GO_BY_STRIDES = ("aten", "prims", "prim", "torchvision", "convgen")
#: By the number of axes.
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Layout:
    """A tensor's shape and strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()))

    def stride(self) -> tuple[int, ...]:
        """A stride, as of a tensor."""
        return self.strides

    def laid_out(self, tensor: Tensor) -> Tensor:
        """The tensor if it lies like this, else a copy that does; where elements would have gaps, one without them if
        its axes lie in another order."""
        if tensor.stride() == self.strides:
            return tensor
        if same_strides(tensor, self):
            return tensor.as_strided(self.shape, self.strides)
        if not order_of(self.shape, self.strides):
            order = _order_to_copy_in(tensor, self)
            return tensor.permute(order).contiguous().permute(inverse(order)) if order else tensor
        return torch.empty_strided(self.shape, self.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def is_channels_last(tensor: Tensor) -> bool:
    """Or of a rank or a type that has no channels."""
    memory_format = FORMATS.get(tensor.dim())
    return (
        memory_format is None
        or not tensor.is_floating_point()
        or tensor.is_contiguous(memory_format=memory_format)
    )  # fmt: skip


def has_one_channel(tensor: Any) -> bool:
    """Whether an image's memory is the same with channels first and last, and its strides say first."""
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


def reads_memory(graph: Any) -> bool:
    """Whether a graph takes layouts for granted, so that it is right for those alone that it was traced with."""
    return any(_as_they_lie(node) for node in graph.nodes)


def _as_they_lie(node: Node) -> list[Node]:
    """What a node reads in memory order, whatever the axes mean: everything, for a function of another library or one
    with its own graphs, which were traced for these strides."""
    if is_call(node, *_READS_MEMORY):
        return [node.args[0]]
    target = node.target
    is_other = isinstance(target, torch._ops.OpOverload) and target.namespace not in _GO_BY_STRIDES
    is_other = is_other or isinstance(target, torch._ops.HigherOrderOperator)
    return [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)] if is_other else []


def lay_out(graph: Any, first: Sequence[Node], given: Sequence[Any], constant: Collection[Node] = ()) -> None:
    """Inserts the copies: of the tensors given, which the placeholders stand for, and of what convolutions read, images
    and constant filters."""
    changed: set[Node] = set()
    copies: dict[Node, Node] = {}
    any_layout = not reads_memory(graph)
    for node in list(graph.nodes):
        for read in _as_they_lie(node):
            _keep_layout(graph, node, read)
    with graph.inserting_after(first[-1] if first else None):
        for node, tensor in zip(first, given, strict=True):
            if isinstance(tensor, torch.Tensor) and not is_channels_last(tensor):
                changed.add(_copy_placeholder(graph, node, tensor))
            elif isinstance(tensor, torch.Tensor) and value_of(node).stride() != tensor.stride():
                _view_placeholder(graph, node, tensor)
    for node in list(graph.nodes):
        if is_call(node, A.convolution.default):
            _copy_image(graph, node, changed, copies)
            _copy_filters(graph, node, constant, changed)
        elif any_layout and _undoes_channels_last(node):
            node.kwargs = {}
            _renew(graph, node, changed)
        _follow(graph, node, changed)
    drop_identities(graph)


def settle(graph: Any, node: Node, before: Any) -> None:
    """Renews the values after a node that took the place of one of the value `before`: results of aten's 3-D
    convolutions do not always have channels last, as ours do."""
    if same_strides(value_of(node), before):
        return
    changed = {node}
    for other in list(graph.nodes):
        _follow(graph, other, changed)
    drop_identities(graph)


def keep_strides(graph: Any, own: Callable[[], Sequence[Any]]) -> dict[int, Layout]:
    """Copies results that do not lie in memory as the model's own, fake ones, do.  Rows in order are
    taken for the model's; a part of something stays one where its axes lie in the model's order.

    Gives what is left to do, by the results' places: strides of a call's tensors are not always those of fake ones."""
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    values = [value_of(node) for node in results if isinstance(node, torch.fx.Node)]
    if all(value.dim() < 3 and _has_usual_strides(value) for value in values if isinstance(value, torch.Tensor)):
        return {}
    layouts = {}
    with graph.inserting_before(output):
        for i, (node, wanted) in enumerate(zip(results, own(), strict=True)):
            if not isinstance(wanted, torch.Tensor) or value_of(node).stride() == wanted.stride():
                continue
            if same_strides(value_of(node), wanted):  # people read the others, too
                layouts[i] = Layout.of(wanted)
            elif order := _order_to_copy_in(value_of(node), wanted):
                results[i] = _packed_in(graph, node, order)
    output.args = (tuple(results),)
    return layouts


def layouts_of_results(graph: Any) -> dict[int, Layout]:
    """The layouts of those results that are tensors, by their places."""
    (output,) = graph.find_nodes(op="output")
    values = {i: value_of(node) for i, node in enumerate(output.args[0]) if isinstance(node, torch.fx.Node)}
    return {i: Layout.of(value) for i, value in values.items() if isinstance(value, torch.Tensor)}


def check_strides(graph: Any) -> None:
    """For a graph that aten runs: has what takes strides for granted read copies where tensors of a call do not have
    them, and lets views be copies there.  Strides of aten's results are not always those of fake tensors, such as of
    torch.roll, or of a pooling with an axis of one element, and what follows has theirs."""
    for node in list(graph.nodes):
        if is_call(node, *VIEWS):
            node.target = A.reshape.default
        wanted: list[tuple[Node, Callable[[Tensor], Tensor]]] = []
        if is_call(node, *_WANTS_PACKED):
            wanted = [(node.args[0], _packed_for_torch if _WANTS_PACKED[node.target] else A.contiguous.default)]
        elif is_call(node, *_WANTS_ROWS):
            wanted = [(argument, _with_rows) for argument in dict.fromkeys(node.args[:3])]
        for argument, function in wanted:
            with graph.inserting_before(node):
                made = graph.call_function(function, (argument,))
            made.meta["val"] = value_of(argument)
            node.replace_input_with(argument, made)


def _packed_for_torch(tensor: Tensor) -> Tensor:
    return tensor if _is_packed(tensor, or_channels_last=True) else tensor.contiguous()


def _with_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _order_to_copy_in(made: Tensor, wanted: Tensor | Layout) -> tuple[int, ...] | None:
    """The order of a result's axes in memory that the model's own wants; None where it will do as it was made."""
    axes, lies = range(made.dim()), wanted.stride()
    order = order_of(tuple(wanted.shape), lies, tuple(axes))
    if order or 0 in lies:
        return order
    of_part = tuple(sorted(axes, key=lambda i: -lies[i]))
    strides = [made.stride(i) for i in of_part if made.shape[i] != 1]
    return None if strides == sorted(strides, reverse=True) else of_part


def same_strides(a: Tensor | Layout, b: Tensor | Layout) -> bool:
    """Whether two tensors of one shape have the same strides, as far as they say something."""
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(extent == 1 or one == other for extent, one, other in pairs)


def _has_usual_strides(tensor: Tensor) -> bool:
    """Whether strides are those of torch.empty, also for axes of one element."""
    return bool(tensor.stride() == strides_in(tuple(tensor.shape), tuple(range(tensor.dim()))))


def _keep_layout(graph: Any, node: Node, read: Node) -> None:
    """Has a node read a copy that lies as an argument does now, which is dropped where nothing changes.  None serves a
    part of something: the rest may be read, too."""
    source = value_of(read)
    order = order_of(tuple(source.shape), source.stride(), tuple(range(source.dim())))
    if order and source.untyped_storage().nbytes() == source.numel() * source.element_size():
        with graph.inserting_before(node):
            packed = _packed_in(graph, read, order)
        node.replace_input_with(read, packed)


def _copy_placeholder(graph: Any, node: Node, tensor: Tensor) -> Node:
    """The copy that everything reads in place of a placeholder, which stays unchanged."""
    readers = list(node.users)
    node.meta["val"] = node.meta["val"].new_empty_strided(tensor.shape, tensor.stride())
    made = call(graph, A.clone.default, node, memory_format=FORMATS[tensor.dim()])
    for reader in readers:
        reader.replace_input_with(node, made)
    return made


def _view_placeholder(graph: Any, node: Node, tensor: Tensor) -> None:
    """Like `_copy_placeholder`, for one channel: the strides with which it was traced will do."""
    readers, strides = list(node.users), list(value_of(node).stride())
    node.meta["val"] = node.meta["val"].new_empty_strided(tensor.shape, tensor.stride())
    made = call(graph, A.as_strided.default, node, list(tensor.shape), strides)
    for reader in readers:
        reader.replace_input_with(node, made)


def _copy_image(graph: Any, convolution: Node, changed: set[Node], copies: dict[Node, Node]) -> None:
    """Copies the image of a convolution, or of the padding before it, which will become the convolution's; all its
    readers share one copy."""
    reader = convolution
    if is_call(convolution.args[0], *PADDINGS):
        reader = convolution.args[0]
    image = reader.args[0]
    if _lies_as_read(value_of(image)):
        return
    if image not in copies:
        with graph.inserting_before(reader):
            copies[image] = copied(graph, image)
    made = copies[image]
    reader.replace_input_with(image, made)
    changed.add(made)
    if reader is not convolution:
        behind: set[Node] = set()
        _renew(graph, reader, behind)
        for node in itertools.takewhile(lambda each: each is not convolution, list(graph.nodes)):  # which are laid out
            _follow(graph, node, behind)
        changed |= behind


def _undoes_channels_last(node: Node) -> bool:
    """Whether a copy has an image's channels first, as of contiguous(); what needs that makes a copy of its own."""
    if not is_call(node, A.clone.default) or node.kwargs.get("memory_format") != torch.contiguous_format:
        return False
    image = value_of(node.args[0])
    return image.dim() in FORMATS and is_channels_last(image) and not any(user.op == "output" for user in node.users)


def _copy_filters(graph: Any, convolution: Node, constant: Collection[Node], changed: set[Node]) -> None:
    filters = convolution.args[1]
    if filters in constant and not _lies_as_read(value_of(filters)):
        with graph.inserting_before(convolution):
            made = copied(graph, filters)
        convolution.replace_input_with(filters, made)
        changed.add(made)


def _lies_as_read(value: Any) -> bool:
    """Whether a tensor has its channels last, or is a slice of such channels."""
    rank = value.dim() - 2
    if rank > 1 and is_channels_last(value):
        return True
    # a single channel lies either way; its strides still tell kernels the order
    says_first = rank == 1 and value.shape[1] == 1 and value.stride(1) > value.stride(2)
    packed = rank == 1 and is_packed(value.shape, value.stride(), channels_last(rank))
    return not says_first and (packed or bool(pitch_of(value.shape, value.stride(), channels_last(rank))))


def copied(graph: Any, node: Node) -> Node:
    """A new node that copies another with channels last."""
    if memory_format := FORMATS.get(value_of(node).dim()):
        return call(graph, A.clone.default, node, memory_format=memory_format)
    return _packed_in(graph, node, channels_last(1))


def uncopied(node: Node) -> Node:
    """The node of which a node is a copy, as `copied` makes one; otherwise the node itself."""
    packed: Node = node.args[0] if is_call(node, A.permute.default) else None
    if is_call(packed, A.clone.default) and is_call(packed.args[0], A.permute.default):
        source, order = packed.args[0].args
        return source if node.args[1] == list(inverse(order)) else node
    return node.args[0] if is_call(node, A.clone.default) else node


def _packed_in(graph: Any, node: Node, order: tuple[int, ...]) -> Node:
    """A new node that copies another with its axes in this order in memory."""
    packed = call(graph, A.permute.default, node, list(order))
    packed = call(graph, A.clone.default, packed, memory_format=torch.contiguous_format)
    return call(graph, A.permute.default, packed, list(inverse(order)))


def _follow(graph: Any, node: Node, changed: set[Node]) -> None:
    """Renews a node's value if the strides of its inputs have changed."""
    if node.op == "call_function" and node not in changed and not changed.isdisjoint(node.all_input_nodes):
        _renew(graph, node, changed)


def _renew(graph: Any, node: Node, changed: set[Node]) -> None:
    """The value of a node whose inputs have other strides."""
    if _as_they_lie(node):
        raise ValueError("the network takes strides of a tensor for granted")
    before = node.meta["val"]
    if is_call(node, *_WANTS_PACKED) and not _is_packed(value_of(node.args[0]), _WANTS_PACKED[node.target]):
        _copy_source(graph, node)
    try:
        made = _value(node)
    except (RuntimeError, ValueError):  # a view that needs the strides that were
        _copy_source(graph, node)
        made = _value(node)
    node.meta["val"] = made
    if _strides(made) != _strides(before):
        changed.add(node)


def _copy_source(graph: Any, node: Node) -> None:
    """Has a node read its first argument as torch lays out what nobody says more of."""
    source = node.args[0]
    with graph.inserting_before(node):
        made = call(graph, A.clone.default, source, memory_format=torch.contiguous_format)
    node.replace_input_with(source, made)


def _is_packed(tensor: Tensor, or_channels_last: bool) -> bool:
    """Contiguous, or on a CPU with channels last where that will do, and its strides say so to torch, which of one
    image may be any."""
    if or_channels_last and tensor.device.type == "cpu" and tensor.dim() in FORMATS:
        return tensor.is_contiguous(memory_format=torch._prims_common.suggest_memory_format(tensor))
    return tensor.is_contiguous()


def _value(node: Node) -> Any:
    values = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    if is_call(node, *VIEWS):  # of which fake tensors allow more than others do
        image = values[0][0]
        torch.empty_strided(image.shape, image.stride(), device="meta").view(values[0][1])
    with value_of(next(iter(node.graph.nodes))).fake_mode:
        return node.target(*values[0], **values[1])


def _strides(value: Any) -> list[Any]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf.stride() for leaf in leaves if isinstance(leaf, torch.Tensor)]
