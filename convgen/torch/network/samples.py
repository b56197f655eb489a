"""Values of functions of one number at points that show all that they do: what is alike there is alike between them.

Functions that are written in exponentials and the like are smooth between their knots, where they have kinks or jumps.
So knots are points, as are numbers just below and above them.  They are found exactly, because a value is compared
with another only where both are straight between knots of their own.

Elsewhere points are so close that values change little from one to the next: those that change faster near 0 are
refused.  Values at 0 are small, or refused, so that what happens at a large x happens over a part of x: there the
points are a smaller part of x apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch

from convgen.torch.network.trace import is_call, value_of

Node = Any
Tensor = Any
A: Any = torch.ops.aten
_COMPARISONS = (A.gt.Scalar, A.ge.Scalar, A.lt.Scalar, A.le.Scalar)
#: What has knots where its argument is one of these numbers, or of those that it is given.
_KNOTS: dict[Any, tuple[float, ...]] = {
    A.relu.default: (0,), A.abs.default: (0,), A.hardtanh.default: (-1, 1), A.hardsigmoid.default: (-3, 3),
    A.softplus.default: (20,), A.clamp.default: (), A.clamp_min.default: (), A.clamp_max.default: (),
    **dict.fromkeys(_COMPARISONS, ()),
}  # fmt: skip
#: What has knots where its arguments are equal.
_EXTREMES = (A.maximum.default, A.minimum.default)
_PRODUCTS, _QUOTIENTS = (A.mul.Tensor, A.mul.Scalar), (A.div.Tensor, A.div.Scalar)
#: What is straight between knots where all that it reads is.
_STRAIGHT = (
    *(A.add.Tensor, A.add.Scalar, A.sub.Tensor, A.sub.Scalar, A.rsub.Scalar, A.neg.default, A._to_copy.default),
    *(A.relu.default, A.abs.default, A.hardtanh.default, A.hardsigmoid.default, *_EXTREMES),
    *(A.clamp.default, A.clamp_min.default, A.clamp_max.default, A.where.self, A.masked_fill.Scalar),
)
#: Smooth functions of smooth ones.
_SMOOTH = (A.exp.default, A.erf.default, A.erfc.default, A.tanh.default, A.sigmoid.default, A.pow.Tensor_Scalar)
#: What is smooth where its argument does not come near this number.
_POLES = {A.reciprocal.default: 0, A.log.default: 0, A.log1p.default: -1}
#: Numbers as tensors: of the value's shape or of none.
_ZEROS, _NUMBER = A.zeros_like.default, A.scalar_tensor.default
_FUNCTIONS = frozenset({_ZEROS, *_KNOTS, *_EXTREMES, *_PRODUCTS, *_QUOTIENTS, *_STRAIGHT, *_SMOOTH, *_POLES})

#: What values are computed in, whatever the default device is.
_EXACT: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
#: Near 0, points are so far apart; further on, such a part of themselves.
_NEAR, _APART, _PART = 16.0, 1 / 32, 1 / 64
#: How fast values near 0 may change: those of less than 1, and others in proportion.
_FASTEST = 8.0
#: How far the points beside a knot are from it, in proportion, and what points that are no such are further apart than.
_BESIDE, _CLOSE = 1e-9, 1e-6


def is_conversion(node: Node) -> bool:
    """Whether a node converts to another floating-point type."""
    return is_call(node, A._to_copy.default) and bool(value_of(node).is_floating_point())


class Samples:
    """`values` of a node, which are the `points` themselves, and of nodes that follow from it alone.

    The points are in order.  0, 1, 60 and -60 are among them."""

    def __init__(self, value: Node) -> None:
        self._knots = frozenset({0.0})
        self.points = _points(self._knots)
        self.values: dict[Node, Tensor] = {value: self.points}
        # of the polynomials that values are between knots
        self._degrees: dict[Node, float] = {value: 1}

    def add(self, node: Node) -> bool:
        """Adds a node; returns whether it follows from the nodes so far, so that points show all of it.  If not, this
        object is useless from then on."""
        inputs = node.all_input_nodes
        if not _is_known(node) or not all(each in self.values or is_call(each, _NUMBER) for each in inputs):
            return False
        if differences := list(_differences(node, self.values)):
            if any(self._degrees.get(each, 0) > 1 for each in inputs):
                return False
            self._have_knots([knot for each in differences for knot in _zeros(self.points, each)])
        made = _computed(node, self.values)
        if made.is_complex():  # the points are real
            return False
        self.values[node] = made
        self._degrees[node] = _degree(node, self._degrees)
        small = bool((made[self.points == 0].double().abs() <= _NEAR).all())
        return small and _is_slow(self.points, made, 1) and _keeps_off_poles(node, self.points, self.values)

    def keeps_nan(self, node: Node) -> bool:
        """Whether the node is NaN where the value is, as known activations are: where(x > 0, x, 0) is 0."""
        first, *others = self.values
        values = {first: torch.full((1,), math.nan, **_EXACT)}
        for other in others:
            values[other] = _computed(other, values)
        return bool(values[node].isnan().all())

    def _have_knots(self, knots: list[float]) -> None:
        if self._knots.issuperset(knots):
            return
        self._knots = self._knots.union(knots)
        self.points = _points(self._knots)
        first, *others = self.values
        self.values = {first: self.points}
        for node in others:
            self.values[node] = _computed(node, self.values)


@lru_cache(maxsize=64)
def _points(knots: frozenset[float]) -> Tensor:
    near = torch.arange(0, _NEAR, _APART, **_EXACT)
    far = _NEAR * (1 + _PART) ** torch.arange(600, **_EXACT)  # as far as 175000
    positive = torch.cat([near, far, torch.tensor([60, 1e10, 1e20, 1e30], **_EXACT)])
    at = torch.tensor(sorted(knots), **_EXACT)
    beside = _BESIDE * at.abs().clamp(min=1e-3)
    return torch.cat([positive, -positive, at, at - beside, at + beside, 2 * at]).unique(sorted=True)


def _is_known(node: Node) -> bool:
    if is_call(node, A._to_copy.default):
        return is_conversion(node)
    if is_call(node, A.pow.Tensor_Scalar):  # of others, much may happen at once
        return node.args[1] in (1, 2, 3, 4)
    if is_call(node, A.softplus.default):
        return node.args[1:] in ((), (1,), (1, 20)) and not node.kwargs
    return is_call(node, *_FUNCTIONS)


def _value(argument: Any, values: Mapping[Node, Tensor]) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return argument
    return values[argument] if argument in values else torch.tensor(argument.args[0], **_EXACT)


def _computed(node: Node, values: Mapping[Node, Tensor]) -> Tensor:
    if is_call(node, A._to_copy.default):
        return values[node.args[0]].double()
    if is_call(node, _ZEROS):
        return torch.zeros_like(values[node.args[0]])
    reads_masks = is_call(node, A.where.self, A.masked_fill.Scalar)  # others have them as numbers

    def given(each: Node) -> Tensor:
        return _value(each, values) if reads_masks else _value(each, values).double()

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), given)
    return node.target(*args, **kwargs)


def _differences(node: Node, values: Mapping[Node, Tensor]) -> Iterator[Tensor]:
    """Values that are 0 where a node has knots."""
    if is_call(node, *_EXTREMES):
        a, b = (_value(each, values).double() for each in node.args)  # masks are numbers, too
        yield a - b
    elif node.target in _KNOTS:
        given = (n for n in (*node.args[1:], *node.kwargs.values()) if isinstance(n, int | float))
        for number in (*_KNOTS[node.target], *given):
            yield _value(node.args[0], values).double() - number


def _zeros(points: Tensor, values: Tensor) -> list[float]:
    """The zeros of values that are linear between points, before the first and after the last."""
    p, q, a, b = points[:-1], points[1:], values[:-1], values[1:]
    at = p - a * (q - p) / (b - a)
    here = (p <= at) & (at <= q)
    here[0] |= at[0] < p[0]
    here[-1] |= at[-1] > q[-1]
    return [float(f"{float(x):.12g}") for x in at[here & at.isfinite()]]


def _degree(node: Node, degrees: Mapping[Node, float]) -> float:
    """The degree of a node's polynomial between knots; infinite if it is no known polynomial."""
    given = [degrees.get(each, 0) for each in node.args if isinstance(each, torch.fx.Node)]
    if is_call(node, _ZEROS, *_COMPARISONS) or not any(given):
        return 0
    if is_call(node, *_PRODUCTS):
        return sum(given)
    if is_call(node, *_QUOTIENTS) and degrees.get(node.args[1], 0) == 0:
        return given[0]
    return max(given) if is_call(node, *_STRAIGHT) else math.inf


def _keeps_off_poles(node: Node, points: Tensor, values: Mapping[Node, Tensor]) -> bool:
    """Whether a node's divisor changes slowly even relative to itself."""
    if is_call(node, *_QUOTIENTS):
        argument, pole = node.args[1], 0
    elif node.target in _POLES:
        argument, pole = node.args[0], _POLES[node.target]
    else:
        return True
    return argument not in values or _is_slow(points, values[argument] - pole, 0)


def _is_slow(points: Tensor, values: Tensor, least: float) -> bool:
    """Whether values near 0 change little from point to point, but for jumps: in proportion to them and `least`."""
    near = points.abs() <= _NEAR
    x, y = points[near], values[near].double()
    steps, sizes = x.diff(), least + y.abs()
    slow = y.diff().abs() <= _FASTEST * steps * sizes[:-1].minimum(sizes[1:])
    return bool((slow | (steps < _CLOSE)).all())
