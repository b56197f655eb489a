"""Views of what convolutions make, moved behind the functions that follow, so that these can be fused:

    relu(permute(y))  =  permute(relu(y))       of linear layers that were made convolutions
    relu(squeeze(y))  =  squeeze(relu(y))       of an image that is no batch, or of an axis that is used up

There they meet others, which undo them, or make one with them.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.chains import is_pointwise
from convgen.torch.network.trace import call, is_call, value_of

Node = Any
A: Any = torch.ops.aten


def sink_views(graph: Any) -> None:
    """Moves those of all elements as far back as they go."""
    for place, node in enumerate(graph.nodes):
        if is_call(node, A.convolution.default):
            node.meta["of_convolution"] = place
    for node in graph.nodes:
        if _is_permute(node) or _is_squeeze(node):
            _sink(graph, node)
    for node in graph.nodes:
        _cancel(node)
    graph.eliminate_dead_code()


def _sink(graph: Any, view: Node) -> None:
    """Moves a view behind the functions that read it."""
    _cancel(view)
    value = view.args[0]
    place = value.meta.get("of_convolution")
    if place is None:
        return
    for user in list(view.users):
        if user not in view.users:  # it reads what was moved before, too, and went with that
            continue
        if _is_permute(view) and (order := _reordered(user)):
            with graph.inserting_before(user):
                one = call(graph, A.permute.default, value, [view.args[1][i] for i in order])
            user.replace_all_uses_with(one)
            graph.erase_node(user)
            _sink(graph, one)
            continue
        if not is_pointwise(user, view) or value_of(user).shape != value_of(view).shape:
            continue
        if not all(_goes_along(other, view) for other in user.all_input_nodes):
            continue
        with graph.inserting_before(user):
            arguments = [value if argument is view else _before(graph, argument, view) for argument in user.args]
            moved = call(graph, user.target, *arguments, **user.kwargs)
            moved.meta["of_convolution"] = place
            back = call(graph, view.target, moved, *view.args[1:])
        user.replace_all_uses_with(back)
        graph.erase_node(user)
        _sink(graph, back)


def _goes_along(other: Node, view: Node) -> bool:
    """Whether what is read beside a view can be seen otherwise: not what a later convolution makes, whose step the
    function rather is, nor another view of what this one makes, which would move back in its turn."""
    if other is view or (other.target, other.args[1:]) == (view.target, view.args[1:]):
        return True
    place, own = _place(other), _place(view)
    return place is None or own is None or place < own


def _place(value: Node) -> int | None:
    """Where the convolution stands in the graph that makes a value, or what a value is a view of."""
    while _is_permute(value) or _is_squeeze(value):
        value = value.args[0]
    place: int | None = value.meta.get("of_convolution")
    return place


def _cancel(view: Node) -> None:
    """Has the readers of what undoes a view read what that is a view of."""
    for user in list(view.users):
        if (_is_permute(view) or _is_squeeze(view)) and _undoes(user, view):
            user.replace_all_uses_with(view.args[0])
            view.graph.erase_node(user)


def _is_permute(node: Node) -> bool:
    return is_call(node, A.permute.default)


def _reordered(node: Node) -> list[int] | None:
    """The order that a node gives the axes of what it reads."""
    if _is_permute(node):
        return list(node.args[1])
    if not is_call(node, A.transpose.int):
        return None
    order = list(range(value_of(node).dim()))
    i, j = node.args[1:]
    order[i], order[j] = order[j], order[i]
    return order


def _is_squeeze(node: Node) -> bool:
    """Of an axis of one element."""
    return is_call(node, A.squeeze.dim) and value_of(node.args[0]).shape[node.args[1]] == 1


def _axis(squeeze: Node) -> int:
    return int(squeeze.args[1]) % value_of(squeeze.args[0]).dim()


def _undoes(user: Node, view: Node) -> bool:
    if _is_squeeze(view):
        return is_call(user, A.unsqueeze.default) and user.args[1] % value_of(user).dim() == _axis(view)
    order = view.args[1]
    return _is_permute(user) and [order[i] for i in user.args[1]] == list(range(len(order)))


def _before(graph: Any, operand: Any, view: Node) -> Any:
    """An operand that broadcasts to a view, as one that broadcasts to what it is a view of."""
    if not isinstance(operand, torch.fx.Node):
        return operand
    shape, rank = list(value_of(operand).shape), value_of(view).dim()
    if _is_squeeze(view):
        behind = rank - _axis(view)  # axes behind the one that is squeezed
        return call(graph, A.unsqueeze.default, operand, len(shape) - behind) if len(shape) >= behind else operand
    order = view.args[1]
    if len(shape) < rank:
        operand = call(graph, A.view.default, operand, [1] * (rank - len(shape)) + shape)
    return call(graph, A.permute.default, operand, sorted(range(rank), key=order.__getitem__))
