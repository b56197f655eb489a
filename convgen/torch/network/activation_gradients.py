"""Gradients of activations in backward passes, where Inductor has written them out: known by their form.

    where(z <= 0, 0, g)                         relu's, of z or of its result
    where(z <= low | z >= high, 0, g)           hardtanh's: ReLU6
    g * sigmoid(z) * (1 + z * (1 - sigmoid(z)))
    where(z <= -3, 0, where(z < 3, g * (z / 3 + 0.5), g))

z was saved, or is BatchNorm's result, which the graph computes anew from what was saved:

    z = (read - mean) * scale * weight + bias

Before torch 2.13, what SiLU's gradient gives stays float32; its sigmoids are written as such before (network.sigmoids).

Between functions there are conversions to other types and back, which Inductor's kernels do not round by either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from convgen.functional.pointwise import Step
from convgen.torch.network.trace import is_call, value_of, with_sources

Node = Any
A: Any = torch.ops.aten
_CAST: Any = torch.ops.prims.convert_element_type.default
_COMMUTE = (A.add.Tensor, A.mul.Tensor, A.bitwise_or.Tensor)
_ZERO: Any = (A.full.default, [], 0.0)
_SIGMOID = (A.sigmoid.default, "z")
#: Functions and their arguments: other functions, numbers, or names of what may stand there, the same for each name.
_FORMS: list[tuple[str, tuple[Any, ...]]] = [
    ("relu_backward", (A.where.self, (A.le.Scalar, "z", 0), _ZERO, "g")),
    ("hardtanh_backward", (
        A.where.self, (A.bitwise_or.Tensor, (A.le.Scalar, "z", "low"), (A.ge.Scalar, "z", "high")), _ZERO, "g"
    )),
    ("silu_backward", (
        A.mul.Tensor, (A.mul.Tensor, "g", _SIGMOID),
        (A.add.Tensor, (A.mul.Tensor, "z", (A.sub.Tensor, 1, _SIGMOID)), 1),
    )),
    ("hardswish_backward", (
        A.where.self, (A.le.Scalar, "z", -3), _ZERO,
        (A.where.self, (A.lt.Scalar, "z", 3), (A.mul.Tensor, "g", (A.add.Tensor, (A.div.Tensor, "z", 3), 0.5)), "g"),
    )),
]  # fmt: skip
_NORM = (
    A.add.Tensor,
    (A.mul.Tensor, (A.mul.Tensor, (A.sub.Tensor, "read", "mean"), "scale"), "weight"),
    "bias",
)
#: Nodes from an activation's gradient to that of what it read, at most, as readers of readers are counted.
_MOST = 8


@dataclass(frozen=True)
class ActivationGradient:
    """The nodes from a gradient to that of what an activation read, and the step that they are, with its operands."""

    nodes: list[Node]
    step: Step
    operands: list[Node]


def activation_gradient(
    value: Node, is_saved: Callable[[Any], bool], is_of_channels: Callable[[Any], bool]
) -> ActivationGradient | None:
    """The only reader of a 16-bit gradient, if it is an activation's gradient: a tensor of its type or of float32.
    `is_saved`: whether a node is a tensor like the value, at hand; `is_of_channels`: a number for each channel."""
    for end in _ends(value):
        for kind, form in _FORMS:
            bound: dict[str, Any] = {"g": value}
            if _fits(form, end, bound) and (step := _step(kind, bound, is_saved, is_of_channels)):
                nodes = _between(value, end)
                return ActivationGradient(nodes, *step) if nodes else None
    return None


def _ends(value: Node) -> list[Node]:
    """The functions of the value that may be the last: those of its own type before those of float32."""
    found = [value]
    for node in found:
        found += [user for user in node.users if user not in found and len(found) <= _MOST]
    functions = [node for node in found[1:] if node.op == "call_function"]
    return [node for dtype in (value_of(value).dtype, torch.float32) for node in functions if _dtype(node) == dtype]


def _dtype(node: Node) -> Any:
    """None of several tensors."""
    return getattr(node.meta.get("val"), "dtype", None)


def _between(value: Node, end: Node) -> list[Node]:
    """The nodes that follow from a value up to the end, in order; none where something else reads one of them."""
    sources = set(with_sources(end, lambda node: node is not value))
    inside, node = {value}, value
    while node is not end:
        if node in inside:
            if not sources.issuperset(node.users):
                return []
            inside.update(node.users)
        node = node.next
    ordered, node = [], value
    while node is not end:
        node = node.next
        if node in inside:
            ordered.append(node)
    return ordered


def _step(
    kind: str, bound: dict[str, Any], is_saved: Callable[[Any], bool], is_of_channels: Callable[[Any], bool]
) -> tuple[Step, list[Node]] | None:
    numbers = tuple(float(bound[name]) for name in ("low", "high") if name in bound)
    z = bound["z"]
    norm: dict[str, Any] = {}
    if is_saved(z):
        return Step(kind, numbers), [z]
    if _fits(_NORM, z, norm):
        read, *channels = (norm[name] for name in ("read", "mean", "scale", "weight", "bias"))
        if is_saved(read) and all(map(is_of_channels, channels)):
            return Step(f"{kind}_of_norm", numbers), [read, *channels]
    return None


# ---- forms --------------------------------------------------------------------------------------


def _fits(form: Any, found: Any, bound: dict[str, Any]) -> bool:
    """Whether something matches a form, given the names `bound` so far; new bindings are added."""
    found = unconverted(found)
    if isinstance(form, str):
        return bound.setdefault(form, found) == found
    if not isinstance(form, tuple):
        return not isinstance(found, torch.fx.Node) and found == form
    operator, *parts = form
    if not is_call(found, operator) or len(found.args) != len(parts):
        return False
    if found.kwargs and operator is not A.full.default:  # whose type is one
        return False
    for args in (found.args, found.args[::-1]) if operator in _COMMUTE else (found.args,):
        trial = dict(bound)
        if all(_fits(part, arg, trial) for part, arg in zip(parts, args, strict=True)):
            bound.update(trial)
            return True
    return False


def unconverted(node: Any) -> Any:
    """The node before conversions between floating-point types."""
    while is_call(node, _CAST) and value_of(node.args[0]).is_floating_point():
        node = node.args[0]
    return node
