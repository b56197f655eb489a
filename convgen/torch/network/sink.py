"""Views of what convolutions make, moved past the functions that follow, so that these can be fused:

    relu(permute(y))  =  permute(relu(y))       of linear layers that were made convolutions
    relu(squeeze(y))  =  squeeze(relu(y))       of an image that is no batch, or of an axis that is used up
    relu(flatten(y))  =  flatten(relu(y))       of pixels that go on as a sequence

There they meet others, which undo them, or make one with them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from convgen.torch.network.chains import is_pointwise
from convgen.torch.network.trace import call, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: In a node's meta: where the convolution stands in the graph that makes the value, with steps and views alone.
_POSITION = "of_convolution"
_RESHAPES = (A.view.default, A._unsafe_view.default, A.squeeze.dim, A.unsqueeze.default)


def sink_views(graph: Any) -> None:
    """Moves views of all elements as far back as they go."""
    for position, node in enumerate(graph.nodes):
        _mark(node, position)
    for node in graph.nodes:
        if _is_view(node):
            _sink(graph, node)
    for node in graph.nodes:
        _cancel(node)
    graph.eliminate_dead_code()


def _mark(node: Node, position: int) -> None:
    """Has a node know of the last convolution whose result it is a step, a view or a slice of."""
    if is_call(node, A.convolution.default):
        node.meta[_POSITION] = position
        return
    sees = _is_view(node) or is_call(node, A.slice.Tensor)
    positions = [n.meta[_POSITION] for n in node.all_input_nodes if _POSITION in n.meta and (sees or _is_step(node, n))]
    if positions:
        node.meta[_POSITION] = max(positions)
        if is_call(node, A.transpose.int):
            node.target, node.args = A.permute.default, (node.args[0], _order(node))


def _is_step(node: Node, value: Node) -> bool:
    """Whether a node is a function of each element of a value, and its result is no larger."""
    return is_pointwise(node, value) and value_of(node).shape == value_of(value).shape


def _sink(graph: Any, view: Node) -> None:
    """Moves a view after the functions that read it; a view that nothing reads may be gone."""
    _cancel(view)
    if not view.users:
        return
    value = view.args[0]
    position = value.meta.get(_POSITION)
    if position is None:
        return
    for user in list(view.users):
        if user not in view.users:  # it reads what was moved before, too, and went with that
            continue
        if _is_permute(view) and _is_permute(user):
            with graph.inserting_before(user):
                one = call(graph, A.permute.default, value, [view.args[1][i] for i in user.args[1]])
            one.meta[_POSITION] = position
            user.replace_all_uses_with(one)
            graph.erase_node(user)
            _sink(graph, one)
        elif _is_step(user, view) and all(_goes_along(other, view) for other in user.all_input_nodes):
            _sink_behind(graph, view, user)


def _sink_behind(graph: Any, view: Node, user: Node) -> None:
    """Moves a view after one of its readers, and further."""
    value = view.args[0]
    with graph.inserting_before(user):
        arguments = [value if argument is view else _before(graph, argument, view) for argument in user.args]
        moved = call(graph, user.target, *arguments, **user.kwargs)
        if not _can_be_seen(moved, view):
            graph.erase_node(moved)
            return
        back = call(graph, view.target, moved, *view.args[1:])
    moved.meta[_POSITION] = back.meta[_POSITION] = value.meta[_POSITION]
    user.replace_all_uses_with(back)
    graph.erase_node(user)
    if _is_view(value):
        _sink(graph, value)
    _sink(graph, back)


def _goes_along(other: Node, view: Node) -> bool:
    """Whether what is read beside a view can be seen otherwise: not what a later convolution makes, whose step the
    function rather is, nor another view of what this one makes, which would move back in its turn."""
    if other is view or (other.target, other.args[1:]) == (view.target, view.args[1:]):
        return True
    position, own = _position_of(other), _position_of(view)
    return position is None or own is None or position < own


def _position_of(value: Node) -> int | None:
    """The position in the graph of the convolution that makes a value, or the tensor that it is a view of."""
    while _is_view(value):
        value = value.args[0]
    position: int | None = value.meta.get(_POSITION)
    return position


def _cancel(view: Node) -> None:
    """Has the readers of what undoes a view read what that is a view of."""
    for user in list(view.users):
        if _is_view(view) and _undoes(user, view):
            user.replace_all_uses_with(view.args[0])
            view.graph.erase_node(user)


def _is_view(node: Node) -> bool:
    """Whether a node sees all elements of a value with its axes in another order, with neighbors among them as one, or
    with more or fewer axes of one element."""
    return _is_permute(node) or is_call(node, A.transpose.int) or _merged(node) is not None


def _is_permute(node: Node) -> bool:
    return is_call(node, A.permute.default)


def _order(node: Node) -> list[int]:
    """The order that a permutation or transposition gives the axes; none where a node is neither."""
    if _is_permute(node):
        return list(node.args[1])
    if not is_call(node, A.transpose.int):
        return []
    order = list(range(value_of(node).dim()))
    i, j = node.args[1:]
    order[i], order[j] = order[j], order[i]
    return order


def _merged(node: Node) -> list[list[int]] | None:
    """For each axis of a view, the axes of its source that it merges; None if a node is no such view."""
    if not is_call(node, *_RESHAPES):
        return None
    shape, found, i = value_of(node.args[0]).shape, [], 0
    for extent in value_of(node).shape:
        first, elements = i, 1
        while i < len(shape) and elements * shape[i] <= extent:
            elements *= shape[i]
            i += 1
        if elements != extent:
            return None
        found.append(list(range(first, i)))
    return found if i == len(shape) else None


def _can_be_seen(value: Node, view: Node) -> bool:
    """Whether the strides of a value, of the shape of what a view sees, let it be seen so."""
    shape, strides = value_of(value).shape, value_of(value).stride()
    groups = [[axis for axis in group if shape[axis] != 1] for group in _merged(view) or []]
    return all(strides[i] == strides[j] * shape[j] for group in groups for i, j in pairwise(group))


def _undoes(user: Node, view: Node) -> bool:
    if _merged(view) is not None:
        return is_call(user, *_RESHAPES) and value_of(user).shape == value_of(view.args[0]).shape
    first, second = _order(view), _order(user)
    return bool(first and second) and [first[i] for i in second] == list(range(len(first)))


def _before(graph: Any, operand: Any, view: Node) -> Any:
    """An operand that broadcasts to a view, as one that broadcasts to what it is a view of."""
    if not isinstance(operand, torch.fx.Node):
        return operand
    shape, rank = list(value_of(operand).shape), value_of(view).dim()
    if (groups := _merged(view)) is not None:
        extents = value_of(view.args[0]).shape
        axes = zip(shape, groups[rank - len(shape) :], strict=True)
        return call(graph, A.view.default, operand, [extents[i] if n != 1 else 1 for n, group in axes for i in group])
    order = view.args[1]
    if len(shape) < rank:
        operand = call(graph, A.view.default, operand, [1] * (rank - len(shape)) + shape)
    return call(graph, A.permute.default, operand, sorted(range(rank), key=order.__getitem__))
