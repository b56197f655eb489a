"""Linear layers over the channels of images are 1x1 convolutions: as such their activations and residuals can be fused.

    linear(x[n, h, w, c])  =  convolution(x seen as [n, c, h, w])  seen as [n, h, w, k]

The views are moved behind the functions that follow (network.sink).  Those that convgen does not take become linear
layers again.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.trace import call, is_call, value_of

Node = Any
A: Any = torch.ops.aten
#: Views of (n, h, w, c) as (n, c, h, w), and back.
_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def linears_as_convolutions(graph: Any) -> None:
    """Rewrites linear layers of tensors of four axes; each convolution's node has `meta["linear"]`."""
    for node in list(graph.nodes):
        if found := _linear(node):
            _convert(graph, node, *found)
    graph.eliminate_dead_code()


def restore(graph: Any) -> None:
    """Makes the convolutions that are left linear layers again."""
    for node in list(graph.nodes):
        if is_call(node, A.convolution.default) and node.meta.get("linear"):
            x, w, bias = node.args[:3]
            with graph.inserting_before(node):
                pixels = call(graph, A.permute.default, x, _LAST)
                matrix = call(graph, A.view.default, w, list(value_of(w).shape[:2]))
                made = call(graph, A.permute.default, call(graph, A.linear.default, pixels, matrix, bias), _FIRST)
            node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _linear(node: Node) -> tuple[Node, Node, Node | None] | None:
    """x, weight and bias of a linear layer, of whose nodes this is the last: a view of a product of a view."""
    if not is_call(node, A.view.default, A._unsafe_view.default) or value_of(node).dim() != 4:
        return None
    product = node.args[0]
    if is_call(product, A.addmm.default) and not product.kwargs:
        bias, rows, columns = product.args
    elif is_call(product, A.mm.default):
        bias, (rows, columns) = None, product.args
    else:
        return None
    if not is_call(rows, A.view.default) or not is_call(columns, A.t.default) or len(product.users) != 1:
        return None
    x, w = rows.args[0], columns.args[0]
    if bias is not None and value_of(bias).dim() != 1:
        return None
    right = value_of(x).dim() == 4 and value_of(x).shape[:3] == value_of(node).shape[:3]
    return (x, w, bias) if right and value_of(x).is_contiguous() else None


def _convert(graph: Any, node: Node, x: Node, w: Node, bias: Node | None) -> None:
    with graph.inserting_before(node):
        image = call(graph, A.permute.default, x, _FIRST)
        filters = call(graph, A.view.default, w, [*value_of(w).shape, 1, 1])
        made = call(graph, A.convolution.default, image, filters, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        made.meta["linear"] = True
        back = call(graph, A.permute.default, made, _LAST)
    node.replace_all_uses_with(back)
