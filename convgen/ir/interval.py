"""Epilogues over intervals: how far an evaluation in float32, or for f64 in float64, may be from the reference.

Each value is a pair of ends in float64.  Every operation takes the hull of its results and widens it by
the rounding of the kernel's type, so a kernel's value, in whatever order it rounds, lies between the ends.  An end that
is NaN says that the element passes, or may pass, beyond a function's domain: then nothing is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import FUNCTIONS, OPERATORS, Array, input_values, operand_values, over_dims, summed_values
from convgen.ir.tensor import Tensor


@dataclass(frozen=True)
class Rounding:
    """The rounding of a type of values.  `eps` is relative, with room for division and for contraction to fma.  Below
    `tiny`, intermediates of functions may flush or overflow to 0 (exp(x) near x = 88, in float32)."""

    dtype: type[numpy.floating]
    eps: float
    tiny: float

    @property
    def largest(self) -> float:
        """The largest finite number: an intermediate beyond it is infinite."""
        return float(numpy.finfo(self.dtype).max)


#: Of float64, the reference rounds as a kernel does: both have half of `eps`.
ROUNDING = {
    "f32": Rounding(numpy.float32, 2.0**-22, 2.0**-120),
    "f64": Rounding(numpy.float64, 2.0**-50, 2.0**-1000),
}


@dataclass(frozen=True)
class Interval:
    """Elementwise bounds, of arrays of one shape."""

    low: Array
    high: Array


@dataclass(frozen=True)
class Shape:
    """The shape of a function of one argument, for interval evaluation.

    Monotone on both sides of `turn`, where there is one.  `argument` is the error in units of the
    rounding of the argument, on top of the value's: what is lost to cancellation inside.  An `exact`
    function does not round.  `narrow` is the error, relative and absolute, of the form that kernels have whose
    results are of 16 bits or less (templates/helpers.cuh.j2).
    """

    turn: float | None = None
    argument: float = 0.0
    exact: bool = False
    narrow: tuple[float, float] = (0.0, 0.0)


#: Of a product with 1 / (1 + 2^x) by approximate instructions, which vanishes a little early (PTX ISA, "ex2", "rcp").
_FAST_EXP = (2.0**-16, 1e-35)
_SHAPES: dict[str, Shape] = {
    "relu": Shape(exact=True),
    "gelu": Shape(turn=-0.7517915, argument=2, narrow=(1e-5, 1e-12)),
    "gelu_tanh": Shape(turn=-0.7524614, argument=2, narrow=_FAST_EXP),
    "silu": Shape(turn=-1.2784645, narrow=_FAST_EXP),
    "sigmoid": Shape(narrow=_FAST_EXP),
    "tanh": Shape(),
    "exp": Shape(),
    "log": Shape(),
    "sqrt": Shape(),
    "abs": Shape(turn=0.0, exact=True),
    "round_f16": Shape(exact=True),
    "round_bf16": Shape(exact=True),
}
_EXACT = frozenset({"min", "max", "clamp"})  # and monotone in each argument
_SWAPPED = {">": "<", ">=": "<="}


def epilogue_interval(
    problem: ConvProblem, acc: Interval, arrays: Mapping[str, Array], xp: Any
) -> tuple[Interval, ...]:
    """All results of the epilogue of accumulators, one axis a dim of the operator's result; axes are dims."""
    values = _values(problem, acc, arrays, xp)
    found = []
    for t in problem.results:
        read = summed_values(problem, t, arrays, xp)
        own = (values[t.name].low, values[t.name].high) if read is None else (read, read)
        shape = acc.low.shape if read is None else read.shape
        low, high = (xp.broadcast_to(end, shape) for end in own)
        found.append(_result(problem, t, low, high, xp))
    return tuple(found)


def _values(problem: ConvProblem, acc: Interval, arrays: Mapping[str, Array], xp: Any) -> dict[str, Interval]:
    """The values computed for each element of the operator's result, by name."""
    if problem.epilogue is None or problem.epilogue.is_identity:
        return {problem.result.name: acc}
    operands = operand_values(problem, arrays, xp)
    return _evaluate(
        problem.epilogue.pointwise, operands, acc, _Operations(xp, problem.narrow, ROUNDING[problem.number])
    )


def prologue_interval(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any) -> Interval:
    """x as it is multiplied, before it is rounded to its type; one axis a dim."""
    assert problem.prologue
    operations = _Operations(xp, problem.narrow, ROUNDING[problem.number])
    values = _evaluate(problem.prologue.body, input_values(problem, arrays, xp), None, operations)
    given = values[problem.x.name]
    return Interval(*(xp.broadcast_to(end, problem.x.extents) for end in (given.low, given.high)))


def _evaluate(
    body: Iterable[ep.Assignment], given: Mapping[str, Array], acc: Interval | None, on: _Operations
) -> dict[str, Interval]:
    """Values of tensors and what the assignments give, by name."""
    values = {name: on.converted(v) for name, v in given.items()}

    def go(e: ep.Expr) -> Interval:
        match e:
            case ep.Number():
                return on.converted(on.xp.full((), e.value))
            case ep.Acc() if acc:
                return on.rounded(acc)  # an integer accumulator is converted to float32
            case ep.OperandRef() | ep.LocalRef() | ep.TensorRef():
                return values[e.name]
            case ep.Unary("-"):
                x = go(e.operand)
                return Interval(-x.high, -x.low)
            case ep.Unary("!"):
                return on.compare("==", go(e.operand), on.constant(0.0))
            case ep.Binary():
                return on.binary(e.op, go(e.left), go(e.right))
            case ep.Call():
                return on.call(e.function, [go(a) for a in e.arguments])
        raise TypeError(f"not an epilogue expression: {e!r}")

    for assignment in body:
        values[assignment.name] = go(assignment.value)
    return values


def _result(problem: ConvProblem, tensor: Tensor, low: Array, high: Array, xp: Any) -> Interval:
    """The interval of one of the results, over its dims, from the ends of each element's value.  A sum, in whatever
    order, is off by the rounding of each of its additions; these walk randomly."""
    ends = Interval(*(over_dims(problem, tensor, end, xp.sum) for end in (low, high)))
    if tensor not in problem.sums:
        return ends
    additions = problem.like(tensor).size // tensor.size
    scale = over_dims(problem, tensor, xp.maximum(abs(low), abs(high)), xp.sum)
    slack = ROUNDING[problem.number].eps / 4 * 8 * math.sqrt(additions) * xp.where(xp.isfinite(scale), scale, 0.0)
    return Interval(ends.low - slack, ends.high + slack)


def _has_zero(x: Interval) -> Array:
    return (x.low <= 0) & (x.high >= 0)


@dataclass(frozen=True)
class _Operations:
    """The operations of the epilogue language on intervals, in a kernel of `narrow` results or another, whose values
    round as `rounding` says.  `xp` is NumPy or CuPy."""

    xp: Any
    narrow: bool
    rounding: Rounding

    def constant(self, value: float) -> Interval:
        return Interval(self.xp.full((), value), self.xp.full((), value))

    def hull(self, *points: Array) -> Interval:
        low, high = points[0], points[0]
        for p in points[1:]:
            low, high = self.xp.minimum(low, p), self.xp.maximum(high, p)
        return Interval(low, high)

    def rounded(self, x: Interval, lost: Array | float = 0.0) -> Interval:
        """Widened by the type's rounding and by `lost`."""
        xp, eps, tiny = self.xp, self.rounding.eps, self.rounding.tiny
        low = x.low * (1 - xp.copysign(eps, x.low)) - tiny - lost
        high = x.high * (1 + xp.copysign(eps, x.high)) + tiny + lost
        return Interval(
            *(xp.where(abs(end) > self.rounding.largest, xp.copysign(xp.inf, end), end) for end in (low, high))
        )

    def converted(self, value: Array) -> Interval:
        """A value in the kernel's type, which does not hold every integer or written number: those are rounded."""
        held = value.astype(self.rounding.dtype) == value
        if held.all():
            return Interval(value, value)
        near = self.rounded(Interval(value, value))
        return Interval(*(self.xp.where(held, value, end) for end in (near.low, near.high)))

    def unknown_where(self, condition: Array, x: Interval) -> Interval:
        return Interval(*(self.xp.where(condition, self.xp.nan, end) for end in (x.low, x.high)))

    def known(self, result: Interval, *arguments: Interval) -> Interval:
        """The result, unknown where an argument is.  For operations that would lose a NaN."""
        unknown = sum(self.xp.isnan(end) for x in arguments for end in (x.low, x.high)) > 0
        return self.unknown_where(unknown, result)

    def compare(self, op: str, a: Interval, b: Interval) -> Interval:
        """[certain, possible], as 0 and 1."""
        if op in _SWAPPED:
            op, a, b = _SWAPPED[op], b, a
        same = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        meet = (a.low <= b.high) & (b.low <= a.high)
        certain, possible = {
            "<": (a.high < b.low, a.low < b.high),
            "<=": (a.high <= b.low, a.low <= b.high),
            "==": (same, meet),
            "!=": (~meet, ~same),
        }[op]
        return self.known(Interval(certain * 1.0, possible * 1.0), a, b)

    def binary(self, op: str, a: Interval, b: Interval) -> Interval:
        f = OPERATORS[op]
        if op in ("&&", "||"):  # monotone in the truth of each side
            a, b = (self.compare("!=", x, self.constant(0.0)) for x in (a, b))
            return self.known(Interval(f(a.low, b.low), f(a.high, b.high)), a, b)
        if op not in "+-*/":
            return self.compare(op, a, b)
        spread = self.rounded(self.hull(*(f(x, y) for x in (a.low, a.high) for y in (b.low, b.high))))
        if op == "/":
            return self.unknown_where(_has_zero(b), spread)
        if op == "*":  # infinity times 0
            return self.unknown_where((self.unbounded(a) & _has_zero(b)) | (self.unbounded(b) & _has_zero(a)), spread)
        return spread

    def unbounded(self, x: Interval) -> Array:
        return self.xp.isinf(x.low) | self.xp.isinf(x.high)

    def call(self, name: str, arguments: list[Interval]) -> Interval:
        xp, f, x = self.xp, FUNCTIONS[name], arguments[0]
        if name in _EXACT:
            ends = (f(xp, *(i.low for i in arguments)), f(xp, *(i.high for i in arguments)))
            return self.known(Interval(*ends), *arguments)
        if name == "select":
            return self.select(self.compare("!=", x, self.constant(0.0)), *arguments[1:])
        if name == "leaky_relu":
            positive = self.compare(">", x, self.constant(0.0))
            return self.select(positive, x, self.binary("*", arguments[1], x))
        shape = _SHAPES[name]
        points = [x.low, x.high]
        if shape.turn is not None:
            points.append(xp.minimum(xp.maximum(shape.turn, x.low), x.high))
        values = self.hull(*(f(xp, p) for p in points))
        if shape.exact:
            return self.known(values, x)
        lost = shape.argument * self.rounding.eps * xp.maximum(abs(x.low), abs(x.high)) if shape.argument else 0.0
        if self.narrow and any(shape.narrow):
            relative, absolute = shape.narrow
            size = xp.maximum(abs(values.low), abs(values.high))
            lost = lost + relative * xp.where(xp.isfinite(size), size, 0.0) + absolute
        return self.rounded(values, lost)

    def select(self, condition: Interval, yes: Interval, no: Interval) -> Interval:
        xp = self.xp
        low, high = xp.minimum(yes.low, no.low), xp.maximum(yes.high, no.high)
        certain, impossible = condition.low != 0, condition.high == 0
        chosen = Interval(
            xp.where(certain, yes.low, xp.where(impossible, no.low, low)),
            xp.where(certain, yes.high, xp.where(impossible, no.high, high)),
        )
        return self.known(chosen, condition)
