"""Activations that a model writes out, such as x * (1 + erf(x / sqrt(2))) / 2, recognized by what they compute.

There are many ways to write each.  So its nodes are computed at points that show all that they do, in float64, and the
values compared.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.functional.pointwise import Step
from convgen.torch import aten
from convgen.torch.network.samples import Samples, is_conversion

Node = Any
Tensor = Any
#: Those that are known; silu also as x * sigmoid(1.702 * x), and leaky_relu of any slope.
KINDS = ("relu", "gelu", "gelu_tanh", "silu", "hardswish", "mish", "sigmoid", "hardsigmoid", "softplus", "softsign")
#: Nodes that are looked at, at most.
_MOST = 16
#: How far values may be off: constants are often written with six digits.
_TOLERANCE = 2e-6
#: Of larger numbers, exponentials may overflow.
_LARGE = 80.0


def written_out(value: Node) -> tuple[Node, tuple[Step, ...]] | None:
    """The last node that is a known activation of a value, perhaps scaled, if nothing else reads the nodes between; and
    the activation's steps."""
    samples = Samples(value)
    inside, found, functions = samples.values, None, 0
    node = value.next
    while node.op != "root" and len(inside) <= _MOST:
        if any(n in inside for n in node.all_input_nodes):
            if not samples.add(node):
                break
            inside, converts = samples.values, is_conversion(node)
            functions += not converts
            alone = all(user in inside for n in inside if n is not node for user in n.users)
            # one function alone speaks for itself
            if alone and functions > 1 and not converts and (steps := _steps(samples.points, inside[node])):
                found = (node, steps) if samples.keeps_nan(node) else found
        node = node.next
    return found


def scaled(before: float, step: Step, behind: float) -> tuple[Step, ...]:
    """The step of a product, and a product of that."""
    first, last = ((Step("mul", (float(n),)),) if n != 1 else () for n in (before, behind))
    return *first, step, *last


def _steps(points: Tensor, values: Tensor) -> tuple[Step, ...]:
    """The steps of the function that has these values at these points; none if it is unknown."""
    one, large, negative = (values[points == x].squeeze() for x in (1, 60, -60))
    for kind in KINDS:
        known = aten.FUNCTIONS[kind](points)
        behind = _digits(large / known[points == 60])
        if _alike(points, values, known, behind):
            return scaled(1.0, Step(kind), behind)
    slope = large / 60  # gates are 1 there
    ratio = _digits(negative / -60 / slope)
    if 0 < ratio < 1 and _alike(points, values, torch.where(points > 0, points, ratio * points), slope):
        return scaled(1.0, Step("leaky_relu", (ratio,)), _digits(slope))
    # x * sigmoid(scale * x)
    scale = _digits(torch.logit(one / slope))
    if scale > 0 and _alike(points, values, aten.FUNCTIONS["silu"](scale * points) / scale, slope):
        return scaled(scale, Step("silu"), _digits(slope) / scale)
    return ()


def _digits(number: Tensor) -> float:
    """A number without the rounding of what it was computed from."""
    return float(f"{float(number):.12g}")


def _alike(points: Tensor, values: Tensor, known: Tensor, factor: Tensor | float) -> bool:
    """Whether values are so many times those of a known function, of which we ask for fewer digits where it is near 0
    though its argument is not."""
    scale = known.abs().maximum(points.abs().clamp(max=1))
    alike = (values - factor * known).abs() <= _TOLERANCE * abs(factor) * scale
    # exponentials of large numbers overflow, as the model's own do
    return bool(factor) and bool((alike | ~values.isfinite() & (points.abs() > _LARGE)).all())
