"""Activations that a model writes out, such as x * (1 + erf(x / sqrt(2))) / 2, known by what they compute.

There are many ways to write each.  So its nodes are computed at some points, in float64, and the values compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from convgen.functional.pointwise import Step
from convgen.torch import aten
from convgen.torch.network.trace import is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
#: Those that are known; silu also as x * sigmoid(1.702 * x), and leaky_relu of any slope.
KINDS = ("relu", "gelu", "gelu_tanh", "silu", "hardswish", "mish", "sigmoid", "hardsigmoid", "softplus", "softsign")
#: Functions of single elements that they are written in; of values of one model, and numbers.
_FUNCTIONS = frozenset(
    {
        A.add.Tensor, A.add.Scalar, A.sub.Tensor, A.sub.Scalar, A.rsub.Scalar, A.mul.Tensor, A.mul.Scalar,
        A.div.Tensor, A.div.Scalar, A.reciprocal.default, A.neg.default, A.pow.Tensor_Scalar, A.exp.default,
        A.log.default, A.log1p.default, A.erf.default, A.erfc.default, A.tanh.default, A.sigmoid.default,
        A.relu.default, A.hardtanh.default, A.hardsigmoid.default, A.clamp.default, A.clamp_min.default,
        A.clamp_max.default, A.softplus.default, A.abs.default, A.maximum.default,
        A.minimum.default, A.where.self, A.masked_fill.Scalar, A.gt.Scalar, A.ge.Scalar, A.lt.Scalar, A.le.Scalar,
    }
)  # fmt: skip
#: Numbers as tensors: of the value's shape or of none.
_ZEROS, _NUMBER = A.zeros_like.default, A.scalar_tensor.default
#: Nodes that are looked at, at most.
_MOST = 16
#: How far values may be off: constants are often written with six digits.
_TOLERANCE = 2e-6
#: What values are computed in, whatever the default device is.
_EXACT: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


def written_out(value: Node) -> tuple[Node, tuple[Step, ...]] | None:
    """The last node that is a known activation of a value, perhaps scaled, where nothing else reads what is between;
    and the activation's steps."""
    inside: dict[Node, Tensor] = {value: _points()}
    found, functions = None, 0
    node = value.next
    while node.op != "root" and len(inside) <= _MOST:
        if any(n in inside for n in node.all_input_nodes):
            converts = is_call(node, A._to_copy.default) and value_of(node).is_floating_point()
            known = all(n in inside or is_call(n, _NUMBER) for n in node.all_input_nodes)
            if not known or not (converts or is_call(node, _ZEROS, *_FUNCTIONS)):
                break
            inside[node] = _computed(node, inside)
            functions += not converts
            alone = all(user in inside for n in inside if n is not node for user in n.users)
            # one function alone speaks for itself
            if alone and functions > 1 and not converts and (steps := _steps(inside[node])):
                found = node, steps
        node = node.next
    return found


def scaled(before: float, step: Step, behind: float) -> tuple[Step, ...]:
    """The step of a product, and a product of that."""
    first, last = ((Step("mul", (float(n),)),) if n != 1 else () for n in (before, behind))
    return *first, step, *last


@cache
def _points() -> Tensor:
    """1 comes first; the last is so large that gates are 1 there."""
    near = torch.linspace(-12, 12, 97, **_EXACT)
    far = torch.tensor([-3e4, -1e3, -60, -40, -20, 20, 40, 60], **_EXACT)
    return torch.cat([torch.ones_like(near[:1]), near, far])


@cache
def _known(kind: str, scale: float = 1.0) -> Tensor:
    return aten.FUNCTIONS[kind](_points() * scale)


def _computed(node: Node, values: Mapping[Node, Tensor]) -> Tensor:
    if is_call(node, A._to_copy.default):
        return values[node.args[0]]
    if is_call(node, _ZEROS):
        return torch.zeros_like(values[node.args[0]])
    numbers = {n: torch.tensor(n.args[0], **_EXACT) for n in node.all_input_nodes if is_call(n, _NUMBER)}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values.get(n, numbers.get(n)))
    return node.target(*args, **kwargs)


def _steps(values: Tensor) -> tuple[Step, ...]:
    """The steps of what has these values; none where it is not known."""
    for kind in KINDS:
        behind = _digits(values[-1] / _known(kind)[-1])
        if _alike(values, _known(kind), behind):
            return scaled(1.0, Step(kind), behind)
    points, slope = _points(), values[-1] / _points()[-1]
    ratio = _digits(values[points.argmin()] / points.min() / slope)
    if 0 < ratio < 1 and _alike(values, torch.where(points > 0, points, ratio * points), slope):
        return scaled(1.0, Step("leaky_relu", (ratio,)), _digits(slope))
    # x * sigmoid(scale * x)
    scale = _digits(torch.logit(values[0] / slope))
    if scale > 0 and _alike(values, _known("silu", scale) / scale, slope):
        return scaled(scale, Step("silu"), _digits(slope) / scale)
    return ()


def _digits(number: Tensor) -> float:
    """A number without the rounding of what it was computed from."""
    return float(f"{float(number):.12g}")


def _alike(values: Tensor, known: Tensor, factor: Tensor | float) -> bool:
    """Whether values are so many times those of a known function, of which we ask for fewer digits where it is near 0
    though its argument is not."""
    scale = known.abs().maximum(_points().abs().clamp(max=1))
    return bool(factor) and bool(((values - factor * known).abs() <= _TOLERANCE * abs(factor) * scale).all())
