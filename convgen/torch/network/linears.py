"""Linear layers are convolutions of one tap: as such their activations and residuals can be fused.

    linear(x[n, h, w, c])  =  convolution(x seen as [n, c, h, w])  seen as [n, h, w, k]
    linear(x[n, l, c])     =  convolution(x seen as [n, c, l])     seen as [n, l, k]
    linear(x[n, c])        =  convolution(x seen as [n, c, 1])     seen as [n, k]

The views are moved behind the functions that follow (network.sink).  Those that convgen does not take become linear
layers again.  Of a tensor that is not contiguous, torch makes a product for each of its first axis, all with the same
matrix; here all rows are one product again.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.functional.arrays import inverse, order_of
from convgen.torch.network.layouts import settle
from convgen.torch.network.trace import VIEWS, call, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: How many axes x may have, where there are others than rows and channels.
_RANKS = (3, 4, 5)


def linears_as_convolutions(graph: Any) -> None:
    """Rewrites linear layers; each convolution's node has `meta["linear"]`."""
    for node in list(graph.nodes):
        if found := _linear(node):
            _convert(graph, node, *found)
        elif of_rows := _linear_by_rows(node):
            end, bias = _biased(node)
            _convert(graph, end, *of_rows, bias)
    graph.eliminate_dead_code()


def restore(graph: Any) -> None:
    """Makes the convolutions that are left linear layers again."""
    for node in list(graph.nodes):
        if is_call(node, A.convolution.default) and node.meta.get("linear"):
            x, w, bias = node.args[:3]
            first, last = _orders(value_of(x).dim())
            with graph.inserting_before(node):
                pixels = call(graph, A.permute.default, x, last)
                matrix = call(graph, A.view.default, w, list(value_of(w).shape[:2]))
                made = call(graph, A.permute.default, call(graph, A.linear.default, pixels, matrix, bias), first)
            node.replace_all_uses_with(made)
            settle(graph, made, value_of(node))
    graph.eliminate_dead_code()


def _orders(rank: int) -> tuple[list[int], list[int]]:
    """Orders of the axes: channels moved after the batch, and back."""
    return [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]


def _linear(node: Node) -> tuple[Node, Node, Node | None] | None:
    """x, weight and bias of a linear layer, of whose nodes this is the last: a view of a product of a view, or a
    product of rows that go on as such.

    Where x has axes of its own, such as of heads that are joined, it is what the product reads."""
    if of_view := _product_of_view(node):
        return of_view
    if not (product := product_of(node)) or not value_of(node).numel() or any(map(_product_of_view, node.users)):
        return None
    return product if _order(product[0]) else None


def _product_of_view(node: Node) -> tuple[Node, Node, Node | None] | None:
    if not is_call(node, *VIEWS) or value_of(node).dim() not in _RANKS or not value_of(node).numel():
        return None
    if not (product := product_of(node.args[0])):
        return None
    rows, matrix, bias = product
    if len(node.args[0].users) != 1 or value_of(node).shape[-1] != value_of(node.args[0]).shape[-1]:
        return None
    x = rows.args[0] if is_call(rows, *VIEWS) else rows
    if value_of(x).shape[:-1] != value_of(node).shape[:-1]:
        x = rows
    return (x, matrix, bias) if _order(x) else None


def product_of(node: Node) -> tuple[Node, Node, Node | None] | None:
    """Rows, the matrix that they are multiplied by, transposed, and what is added to each row."""
    if is_call(node, A.addmm.default) and not node.kwargs:
        bias, rows, columns = node.args
    elif is_call(node, A.mm.default):
        bias, (rows, columns) = None, node.args
    else:
        return None
    if not is_call(columns, A.t.default) or (bias is not None and value_of(bias).shape != value_of(node).shape[1:]):
        return None
    return rows, columns.args[0], bias


def _linear_by_rows(node: Node) -> tuple[Node, Node] | None:
    """x and weight, as of `_linear`, where x is not contiguous: torch makes products with the matrix expanded to a
    batch then, and adds the bias to them."""
    if not is_call(node, *VIEWS) or value_of(node).dim() not in _RANKS or not is_call(node.args[0], A.bmm.default):
        return None
    x, matrix = map(_expanded, node.args[0].args)
    if not is_call(matrix, A.t.default) or value_of(x).shape[:-1] != value_of(node).shape[:-1]:
        return None
    return (x, matrix.args[0]) if _order(x) else None


def _biased(node: Node) -> tuple[Node, Node | None]:
    """The sum of a product with a bias, and the bias; the product itself if there is no bias."""
    if len(node.users) == 1:
        (user,) = node.users
        if is_call(user, A.add.Tensor) and not user.kwargs and user.args[0] is node:
            bias = user.args[1]
            if isinstance(bias, torch.fx.Node) and value_of(bias).shape == value_of(node).shape[-1:]:
                return user, bias
    return node, None


def _order(x: Node) -> tuple[int, ...] | None:
    """The order of x's axes in memory, channels last; None where that is not so."""
    shape, rank = tuple(value_of(x).shape), value_of(x).dim()
    order = order_of(shape, value_of(x).stride(), tuple(range(rank)))
    return order if order and order[-1] == rank - 1 else None


def _expanded(node: Node) -> Node:
    """The node of which a node is a series of views, which may repeat it."""
    while is_call(node, *VIEWS, A.expand.default):
        node = node.args[0]
    return node


def _convert(graph: Any, node: Node, x: Node, w: Node, bias: Node | None) -> None:
    before = value_of(node)
    of_rows = before.dim() == 2
    rank = before.dim() + of_rows
    first, last = _orders(rank)
    with graph.inserting_before(node):
        if value_of(x).dim() != rank:
            pixels = [*before.shape[:-1], *[1] * of_rows]
            x = call(graph, A.view.default, x, [*pixels, value_of(x).shape[-1]])
        order = _order(x)
        assert order is not None
        image = call(graph, A.permute.default, x, [order[i] for i in first])
        filters = call(graph, A.view.default, w, [*value_of(w).shape, *[1] * (rank - 2)])
        ones, zeros = [1] * (rank - 2), [0] * (rank - 2)
        made = call(graph, A.convolution.default, image, filters, bias, ones, zeros, ones, False, zeros, 1)
        made.meta["linear"] = True
        # as a convolution or as a linear layer again, unlike aten's convolutions of one axis
        made.meta["val"] = value_of(made).permute(last).contiguous().permute(first)
        back = call(graph, A.permute.default, made, [last[i] for i in inverse(order)])
        if of_rows:
            back = call(graph, A.view.default, back, list(before.shape))
    node.replace_all_uses_with(back)
    settle(graph, back, before)
