"""BatchNorm's gradient sums behind squeeze-and-excitation, in backward passes: made without the gate's gradient.

With u the gradient of y = gate * z, and v that of the gate's mean over N pixels, BatchNorm's gradient sums

    sum(d * f), sum(d * f * (read - mean))      d = u * gate + v / N,  f the gradient of z's activation

over all images and pixels.  The gate and v are the same for all pixels of an image's channel, but v follows from
sum(u * z), so u is read twice.  What does not depend on a pixel can be taken out of the sums of an image's pixels:

    sum(d * f) = sum over images of gate * sum(u * f) + v / N * sum(f)

Then all sums over pixels have the same inputs, and Inductor makes them in one kernel, with the gate's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from convgen.torch.network.activation_gradients import unconverted
from convgen.torch.network.sums import is_sum_of_channels
from convgen.torch.network.trace import call, erase_unread, filled, is_call, value_of, with_sources

Node = Any
A: Any = torch.ops.aten
_CAST: Any = torch.ops.prims.convert_element_type.default
#: A product or quotient of a tensor and a number.
_SCALES = (A.div.Scalar, A.div.Tensor, A.mul.Scalar, A.mul.Tensor)


@dataclass
class _Gradient:
    """d = u * gate + v / N: the nodes of d, u, the gate, and the last term from v's copy to all pixels on; and what is
    computed from d."""

    node: Node
    u: Node
    gate: Node
    spread: list[Node]
    dependent: dict[Node, None]

    @property
    def v(self) -> Node:
        return self.spread[0].args[0]


def sum_before_gates(graph: Any) -> bool:
    """Rewrites such sums in a graph of Inductor's, and says whether there were any."""
    found = [made for node in graph.nodes if (made := _gradient(node))]
    served = [(gradient, node) for gradient in found for node in gradient.dependent if _is_served(node, gradient)]
    for gradient, node in served:
        with graph.inserting_before(node):
            made = _by_images(graph, gradient, node)
        node.replace_all_uses_with(made)
        erase_unread(graph, node)
    return bool(served)


# ---- what is served -----------------------------------------------------------------------------


def _gradient(node: Node) -> _Gradient | None:
    if not is_call(node, A.add.Tensor) or node.kwargs or not _is_image(node):
        return None
    for product, other in (node.args, node.args[::-1]):
        if not is_call(product, A.mul.Tensor) or not isinstance(other, torch.fx.Node):
            continue
        for u, gate in (product.args, product.args[::-1]):
            spread = _spread(other)
            if spread and _is_whole(u, node) and _is_of_image(gate, node) and _is_of_image(spread[0].args[0], node):
                found = _Gradient(node, u, gate, spread, dict.fromkeys(_dependent(node)))
                if u in with_sources(found.v, lambda source: True):  # else one pass makes all
                    return found
    return None


def _spread(node: Node) -> list[Node]:
    """From the copy of one number to all pixels up to this node, which scales it; empty where it is something else."""
    nodes = [unconverted(node)]
    while not is_call(last := nodes[-1], A.expand.default):
        if not is_call(last, *_SCALES) or last.kwargs or isinstance(last.args[1], torch.fx.Node):
            return []
        nodes.append(unconverted(last.args[0]))
    return nodes[::-1]


def _is_image(node: Node) -> bool:
    shape = _shape(node)
    return shape is not None and len(shape) > 2 and all(isinstance(size, int) for size in shape)


def _shape(node: Any) -> torch.Size | None:
    """None of what is no tensor of floating-point numbers."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.shape if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def _is_whole(node: Any, like: Node) -> bool:
    return _shape(node) == value_of(like).shape


def _is_of_image(node: Any, like: Node) -> bool:
    """Whether a node has one number for each channel of each image."""
    shape = value_of(like).shape
    return _shape(node) == (*shape[:2], *(1,) * (len(shape) - 2)) and shape[2:].numel() > 1


def _dependent(node: Node) -> Iterator[Node]:
    """The nodes that are computed from a node."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop().users:
            if user not in seen:
                seen.add(user)
                pending.append(user)
                yield user


def _is_served(node: Node, gradient: _Gradient) -> bool:
    """Whether a node is a float32 sum, over images and pixels, of something linear in the gradient."""
    if not is_sum_of_channels(node) or value_of(node).dtype is not torch.float32:
        return False
    return _is_whole(node.args[0], gradient.node) and _is_linear(node.args[0], gradient)


def _is_linear(node: Any, gradient: _Gradient) -> bool:
    """Whether a node is the gradient times factors that do not depend on it."""
    node = unconverted(node)
    if node is gradient.node:
        return True
    if node not in gradient.dependent or not _is_whole(node, gradient.node):
        return False
    if is_call(node, A.mul.Tensor):
        linear = [arg for arg in node.args if _depends(arg, gradient)]
        return len(linear) == 1 and _is_linear(linear[0], gradient)
    if is_call(node, A.where.self) and not _depends(node.args[0], gradient):
        return all(_is_zero(arg) or _is_linear(arg, gradient) for arg in node.args[1:])
    return False


def _depends(node: Any, gradient: _Gradient) -> bool:
    return node is gradient.node or node in gradient.dependent


def _is_zero(node: Any) -> bool:
    return is_call(node, A.full.default) and list(node.args) == [[], 0.0]


# ---- what is put in its place -------------------------------------------------------------------


def _by_images(graph: Any, gradient: _Gradient, node: Node) -> Node:
    """A sum over images of sums over pixels."""
    summed, axes = node.args
    pixels = list(range(2, value_of(summed).dim()))
    u = _as_float32(graph, gradient.u)
    of_u = call(graph, A.sum.dim_IntList, _with(graph, summed, gradient, u), pixels, True)
    ones = filled(graph, u, value_of(u).shape, 1.0)
    of_factors = call(graph, A.sum.dim_IntList, _with(graph, summed, gradient, ones), pixels, True)
    v = _as_float32(graph, gradient.v)
    for step in gradient.spread[1:]:
        v = call(graph, step.target, v, step.args[1])
    terms = (of_u, _as_float32(graph, gradient.gate)), (of_factors, v)
    of_image = call(graph, A.add.Tensor, *(call(graph, A.mul.Tensor, *term) for term in terms))
    return call(graph, A.sum.dim_IntList, of_image, axes)


def _with(graph: Any, node: Node, gradient: _Gradient, value: Node) -> Node:
    """Something linear in the gradient, of another value in its place, in float32."""
    node = unconverted(node)
    if node is gradient.node:
        return value
    args = [_with(graph, arg, gradient, value) if _depends(arg, gradient) else arg for arg in node.args]
    return call(graph, node.target, *args)


def _as_float32(graph: Any, node: Node) -> Node:
    return node if value_of(node).dtype is torch.float32 else call(graph, _CAST, node, torch.float32)
