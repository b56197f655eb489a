"""Functions of a concatenation of convolutions' results, moved before it: MixNet's and YOLO's CSP blocks.

    relu(norm(cat([conv(x, a), conv(y, b)], 1)))  =  cat([relu(norm_a(conv(x, a))), relu(norm_b(conv(y, b)))], 1)

Each convolution has the BatchNorm of its own channels folded, and the functions behind that in its epilogue; the
concatenation is written in place (concatenations.py).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection
from itertools import accumulate
from typing import Any

import torch

from convgen.functional.arrays import WIDEST
from convgen.torch.network.batch_norm import OPERATORS as BATCH_NORMS
from convgen.torch.network.batch_norm import is_constant, normalization_of
from convgen.torch.network.chains import POINTWISE, is_pointwise
from convgen.torch.network.trace import call, channel_axis, is_call, value_of, with_sources

Node = Any
A: Any = torch.ops.aten


def move_before_concatenations(graph: Any, constant: Collection[Node]) -> int:
    """Moves BatchNorms of constants, and functions of one element; how many there were."""
    moved = 0
    for node in list(graph.nodes):
        cat = node if _is_concatenation(node) and _pays(node) else None
        while cat is not None and (made := _moved(graph, cat, constant)) is not None:
            cat, moved = made, moved + 1
    graph.eliminate_dead_code()
    return moved


def _is_concatenation(node: Node) -> bool:
    """Along the channels, of different tensors of one type."""
    if not is_call(node, A.cat.default) or len(node.args) < 2 or node.kwargs:
        return False
    (parts, axis), value = node.args, value_of(node)
    alike = all(value_of(part).dtype == value.dtype and value_of(part).dim() == value.dim() for part in parts)
    return alike and value.dim() in (3, 4, 5) and axis == 1 and len(set(parts)) == len(parts)


def _pays(cat: Node) -> bool:
    """Whether convolutions that nothing else reads make as many channels at least as those that others read, too: of
    these, functions would be passes of their own.  What no convolution makes is copied anyway."""
    channels = Counter[bool]()
    for part in cat.args[0]:
        if _is_convolved(part):
            channels[_is_read_by(part, cat)] += value_of(part).shape[1]
    return channels[True] > 0 and channels[True] >= channels[False]


def _is_convolved(value: Node) -> bool:
    """Whether a value is a convolution's result, or functions of one, which an epilogue can have."""
    return any(is_call(node, A.convolution.default) for node in with_sources(value, _is_function))


def _is_function(node: Node) -> bool:
    return is_call(node, operator.getitem, *POINTWISE, *BATCH_NORMS)


def _is_read_by(value: Node, reader: Node) -> bool:
    """Whether a reader alone reads a value, which alone reads what it is a function of, back to a convolution."""
    if list(value.users) != [reader] or is_call(value, A.convolution.default):
        return list(value.users) == [reader]
    return _is_function(value) and any(_is_read_by(source, value) for source in value.all_input_nodes)


def _moved(graph: Any, cat: Node, constant: Collection[Node]) -> Node | None:
    """The concatenation of what the function that alone reads one makes of its parts; None where it stays."""
    if len(cat.users) != 1:
        return None
    (user,) = cat.users
    result = normalization_of(cat)
    if result is None:
        result, moves = user, _is_of_each_part(user, cat)
    else:
        moves = is_constant(user, constant)
    if not moves:
        return None
    with graph.inserting_before(user):
        whole = call(graph, A.cat.default, [_of_part(graph, cat, user, at) for at in range(len(cat.args[0]))], 1)
    result.replace_all_uses_with(whole)
    return whole


def _is_of_each_part(user: Node, cat: Node) -> bool:
    """Whether a function is elementwise, and its other operands have slices that convolutions can read."""
    if not is_pointwise(user, cat) or value_of(user).shape != value_of(cat).shape:
        return False
    sliced = [value_of(node) for node in user.all_input_nodes if node is not cat and _axis(node, cat, user) is not None]
    return all(first * value.element_size() % WIDEST == 0 for value in sliced for first in _firsts(cat))


def _of_part(graph: Any, cat: Node, user: Node, at: int) -> Node:
    """The function's result for one part."""

    def own(node: Node) -> Node:
        if node is cat:
            return cat.args[0][at]
        if (axis := _axis(node, cat, user)) is None:
            return node
        first = _firsts(cat)[at]
        return call(graph, A.slice.Tensor, node, axis, first, first + value_of(cat.args[0][at]).shape[1])

    arguments, keywords = torch.fx.map_arg((user.args, user.kwargs), own)
    made = call(graph, user.target, *arguments, **keywords)
    several = not isinstance(value_of(made), torch.Tensor)  # of most BatchNorms, the first is the result
    return call(graph, operator.getitem, made, 0) if several else made


def _axis(operand: Node, cat: Node, user: Node) -> int | None:
    """The axis of an operand that is of channels; None where one number, or one image, is for all."""
    return 0 if is_call(user, *BATCH_NORMS) else channel_axis(operand, cat)


def _firsts(cat: Node) -> list[int]:
    """The first channel of each part."""
    return [0, *accumulate(value_of(part).shape[1] for part in cat.args[0][:-1])]
