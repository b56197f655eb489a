"""Sums of each channel that a convolution's kernel can give beside its result, in graphs for training.

A forward pass has BatchNorm's statistics, aten::var_mean of a convolution's result.  A backward pass has the sums of
BatchNorm's gradient, of what follows the gradient of a convolution's input:

    g = where(saved <= 0, 0, dx + branch)       an activation's gradient, and another branch's, where there are such
    sum(g), sum(g * (read - mean))              read is what BatchNorm read

The activation is relu, or one of network.activation_gradients, whose kernel computes BatchNorm's result anew from read.
The graphs are Inductor's, in which aten's functions are decomposed.  What the sums read is in memory anyway: tensors
that the forward pass saved, and the gradient of the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch

from convgen.torch.asked import Bare, Summed
from convgen.torch.network import moments
from convgen.torch.network.activation_gradients import activation_gradient
from convgen.torch.network.chains import NARROW
from convgen.torch.network.trace import call, erase_unread, is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
_CAST: Any = torch.ops.prims.convert_element_type.default


@dataclass
class Ending:
    """The functions after a convolution, or after the gradient of an input: an epilogue and sums of its results."""

    chain: list[Node]  # from the convolution's result to the epilogue's
    epilogue: list[str] = field(default_factory=list)
    operands: list[Node] = field(default_factory=list)
    read_by_norm: Node | None = None  # where the epilogue computes BatchNorm's result: what that read
    statistics: Node | None = None  # aten::var_mean of the result, for which the sums are of the values and squares
    sums: list[tuple[str, list[Node]]] = field(default_factory=list)  # else: each sum's word, and the nodes that are it
    sum_operands: list[Node] = field(default_factory=list)

    @property
    def value(self) -> Node:
        """The epilogue's result."""
        return self.chain[-1]

    @property
    def words(self) -> str:
        return "value square" if self.statistics else " ".join(word for word, _ in self.sums)

    def asked(self, bare: Bare) -> Summed:
        """The request to convgen, with fake tensors."""
        operands = [_broadcast(value_of(o), value_of(self.value).dim()) for o in (*self.operands, *self.sum_operands)]
        return Summed(bare, operands, " ".join(self.epilogue), self.words)

    def put(self, graph: Any, make: Callable[[list[Node]], Node]) -> None:
        """Lets `make(operands)`, a node of a list of tensors, give the value and the sums.  The convolution's own node
        is left to the caller, without readers."""
        rank = value_of(self.value).dim()
        with graph.inserting_before(self.value):
            operands = [_as_operand(graph, o, rank) for o in self.operands]
            made = make([*operands, *(_again(graph, o) for o in self.sum_operands)])
            value, *sums = (call(graph, getitem, made, i) for i in range(1 + len(self.words.split())))
            if (dtype := value_of(self.value).dtype) != value_of(value).dtype:
                value = call(graph, _CAST, value, dtype)
        if self.statistics:
            _replace_statistics(graph, self.statistics, *sums)
        for (_, nodes), found in zip(self.sums, sums if self.sums else (), strict=True):
            for node in nodes:
                node.replace_all_uses_with(found)
                graph.erase_node(node)
        self.value.replace_all_uses_with(value)
        read = dict.fromkeys(source for node in self.chain[1:] for source in node.all_input_nodes)
        for node in reversed(self.chain[1:]):
            graph.erase_node(node)
        erase_unread(graph, *(node for node in read if node not in self.chain))


def ending_of(result: Node) -> Ending | None:
    """The sums that follow a convolution's node, or the node of an input's gradient; None where there are none."""
    value = value_of(result)
    if value.dtype not in NARROW or not value.numel():
        return None
    return _statistics(result) if is_call(result, A.convolution.default) else _gradient_sums(result)


# ---- forward ------------------------------------------------------------------------------------


def _statistics(result: Node) -> Ending | None:
    for wide in (result, *_wide(result)):
        for node in wide.users:
            over_pixels = is_call(node, A.var_mean.correction) and _over_pixels(node)
            if over_pixels and node.kwargs.get("correction") == 0 and all(is_call(u, getitem) for u in node.users):
                bias = result.args[2]
                return Ending([result], ["add"] if bias else [], [bias] if bias else [], statistics=node)
    return None


def _replace_statistics(graph: Any, node: Node, total: Node, squares: Node) -> None:
    value = value_of(node.args[0])
    share = value.shape[1] / value.numel()
    with graph.inserting_before(node):
        mean, square = (call(graph, A.mul.Tensor, found, share) for found in (total, squares))
        found = [moments.variance(graph, mean, square), mean]
        if node.kwargs.get("keepdim"):
            shape = [1, -1, *(1,) * (value.dim() - 2)]
            found = [call(graph, A.view.default, one, shape) for one in found]
    for reader in list(node.users):
        reader.replace_all_uses_with(found[reader.args[1]])
        graph.erase_node(reader)
    graph.erase_node(node)


# ---- backward -----------------------------------------------------------------------------------


def _gradient_sums(result: Node) -> Ending | None:
    found = Ending([result])
    _add_branch(found)
    _add_activation(found)
    totals: list[Node] = []
    products: dict[tuple[Node, Node], list[Node]] = {}
    for wide in _wide(found.value):
        for node in wide.users:
            if is_sum_of_channels(node):
                totals.append(node)
            elif centered := _centered(node, wide, result):
                products.setdefault(centered, []).extend(filter(is_sum_of_channels, node.users))
    if totals:
        found.sums.append(("value", totals))
    for (read, mean), nodes in products.items():
        if nodes:
            of_norm = read is found.read_by_norm
            found.sums.append(("product_of_norm" if of_norm else "product", nodes))
            found.sum_operands += [mean] if of_norm else [read, mean]
    return found if found.sums else None


def _add_branch(found: Ending) -> None:
    """The sum with the gradient of another branch."""
    value, node = found.value, _only_reader(found.value)
    if is_call(node, A.add.Tensor) and not node.kwargs:
        other = node.args[1] if node.args[0] is value else node.args[0]
        if other is not value and _alike(other, value):
            found.chain.append(node)
            found.epilogue.append("add")
            found.operands.append(other)


def _add_activation(found: Ending) -> None:
    """Adds the gradient of an activation, which reads saved tensors."""
    value = found.value

    def is_saved(node: Any) -> bool:
        return _alike(node, value) and node.op == "placeholder"

    def is_of_channels(node: Any) -> bool:
        return _is_of_channels(node, value_of(value))

    gradient = activation_gradient(value, is_saved, is_of_channels)
    if gradient is not None and _lies_alike(gradient.nodes[-1], value):
        found.chain += gradient.nodes
        found.epilogue.append(str(gradient.step))
        found.read_by_norm = gradient.operands[0] if gradient.step.of_norm else None
        found.operands += gradient.operands


def _centered(node: Node, wide: Node, result: Node) -> tuple[Node, Node] | None:
    """Finds in wide * (read - mean) the saved tensor, and the one value per channel."""
    if not is_call(node, A.mul.Tensor):
        return None
    other = node.args[1] if node.args[0] is wide else node.args[0]
    if not is_call(other, A.sub.Tensor) or other.kwargs:
        return None
    read, mean = other.args
    if is_call(read, _CAST):
        read = read.args[0]
    saved = _alike(read, result) and read.op == "placeholder"
    exact = _is_of_channels(mean, value_of(result)) and value_of(mean).dtype is torch.float32
    return (read, mean) if saved and exact else None


def _is_of_channels(node: Any, like: Tensor) -> bool:
    """Whether a node has one number per channel, and is computed from saved tensors through nothing larger."""
    if not isinstance(node, torch.fx.Node) or not value_of(node).is_floating_point():
        return False
    shape = [like.shape[1], *(1,) * (like.dim() - 2)]
    return list(value_of(node).shape) in (shape, [1, *shape]) and _is_small(node, like.shape[1])


def _is_small(node: Node, most: int) -> bool:
    value = value_of(node)  # a tuple of var_mean
    if not isinstance(value, torch.Tensor) or value.numel() > most:
        return False
    return node.op == "placeholder" or all(_is_small(source, most) for source in node.all_input_nodes)


# ---- nodes --------------------------------------------------------------------------------------


def _wide(node: Node) -> Iterator[Node]:
    """The nodes that are its value in float32."""
    if value_of(node).dtype is torch.float32:
        yield node
    yield from (user for user in node.users if is_call(user, _CAST) and user.args[1] is torch.float32)


def is_sum_of_channels(node: Node) -> bool:
    """Whether a node is a sum over all axes but the channels, which it drops."""
    return is_call(node, A.sum.dim_IntList) and len(node.args) == 2 and not node.kwargs and _over_pixels(node)


def _over_pixels(node: Node) -> bool:
    """Whether a reduction is over all axes but the channels."""
    rank = value_of(node.args[0]).dim()
    return sorted(axis % rank for axis in node.args[1]) == [0, *range(2, rank)]


def _only_reader(node: Node) -> Node:
    """None where there are several."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _alike(node: Any, other: Node) -> bool:
    if not isinstance(node, torch.fx.Node):
        return False
    return value_of(node).dtype == value_of(other).dtype and _lies_alike(node, other)


def _lies_alike(node: Node, other: Node) -> bool:
    a, b = value_of(node), value_of(other)
    return (a.shape, a.stride()) == (b.shape, b.stride())


def _broadcast(value: Tensor, rank: int) -> Tensor:
    """A bias as an operand."""
    return value.view(-1, *(1,) * (rank - 2)) if value.dim() == 1 else value


def _as_operand(graph: Any, node: Node, rank: int) -> Node:
    return call(graph, A.view.default, node, [-1, *(1,) * (rank - 2)]) if value_of(node).dim() == 1 else node


def _again(graph: Any, node: Node) -> Node:
    """A saved tensor, or one computed from saved tensors by something small, inserted at the graph's insertion
    point."""
    return node if node.op == "placeholder" else graph.node_copy(node, lambda source: _again(graph, source))
