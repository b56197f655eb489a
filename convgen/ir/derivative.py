"""The chain rule through epilogues, by sympy: from the gradient of a result to that of the accumulator.

A backward kernel can read what the forward one keeps: its result, further results, and operands.  So derivatives are
expressions of these alone: relu's and sigmoid's follow from the result, silu's from a saved pre-activation.

Expressions stay small, as their derivatives take time that grows with every power of their size: what is larger is a
step of its own, which has a symbol there, and a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count

import sympy
from sympy import Expr, Pow, Symbol

from convgen.ir import epilogue as ep
from convgen.ir.dtypes import DTYPES
from convgen.ir.reference import round_to
from convgen.ir.symbolic import ACC, OPS, F, Underivable, Writer, holds, is_condition, symbol, value_of

__all__ = ["Backward", "Underivable", "added", "backward", "saved_name"]

#: How large an expression is before it becomes a step, and what a function counts there: derivatives of functions of
#: functions have the inner ones many times.
_LARGEST, _FUNCTION = 32, 8
#: What roundings on the way to a multiple of a bound may amount to, by the type that results are computed in.
_ROUNDINGS = {"f64": 2.0**-48}
_ROUNDINGS_OF_F32 = 2.0**-20


@dataclass(frozen=True)
class Backward:
    """The gradient of the accumulator, `value`, with the assignments `body` before it, and the results and operands of
    the forward kernel that it reads, by their names there; here they are operands, called as `saved_name` says."""

    body: tuple[ep.Assignment, ...]
    value: ep.Expr
    reads: tuple[str, ...]


def backward(
    epilogue: ep.Epilogue, result: str, stored: Mapping[str, str], gradient: ep.Expr, taken: Collection[str] = ()
) -> Backward:
    """The gradient of the accumulator from that of the result of that name, `gradient`: by the chain rule, from as few
    of the results `stored` as possible, earlier ones first; it has their element types by name.  Its locals have none
    of the names `taken`.

    Operands are at hand, too.  Results count as they are stored; at a kink, such as relu's at 0, the derivative is
    one-sided.  Raises Underivable.
    """
    steps, kept = _Steps(epilogue, stored), tuple(stored)
    exact = steps.derivative(steps.values[result], ACC)
    if exact == 0:
        raise Underivable(f"the gradient through `{result}` is 0: it does not follow acc")
    if any(e.has(sympy.zoo, sympy.oo, sympy.nan) for e in steps.behind(exact)):
        raise Underivable(f"the derivative of `{result}` by acc is not a number: `{result}` divides by 0")
    found = _from_fewest(steps, exact, kept)
    if not found:
        raise Underivable(_unkept(epilogue, steps, exact, result))
    used = {s for e in found.values() for s in e.free_symbols}
    reads = tuple(n for n in (*kept, *(t.name for t in epilogue.operands)) if symbol(n) in used)
    writer = Writer(gradient, saved_name(""), {*taken, *map(saved_name, reads)})
    exact = found.pop(RESULT)
    for step, e in found.items():
        writer.define(step, e)
    value = writer.expression(ACC * exact)
    return Backward(writer.body, value, reads)


def _from_fewest(steps: _Steps, e: Expr, kept: Sequence[str]) -> dict[Symbol, Expr]:
    """The fewest saved results from which an expression can be computed, or at least none that is unnecessary if it
    takes more than two; empty if all are not enough."""

    def by(names: Sequence[str]) -> dict[Symbol, Expr]:
        return steps.from_saved(e, {name: steps.values[name] for name in names})

    if not (found := by(kept)):
        return {}
    for few in (saved for number in range(min(3, len(kept))) for saved in combinations(kept, number)):
        if fewer := by(few):
            return fewer
    for name in reversed(kept):
        if fewer := by([other for other in kept if other != name]):
            kept, found = [other for other in kept if other != name], fewer
    return found


def _unkept(epilogue: ep.Epilogue, steps: _Steps, e: Expr, result: str) -> str:
    """The message that the derivative needs more than is kept, with what to keep: part of the value, or the sums."""
    writer = Writer(ep.Acc(), "")
    known = "" if len(steps.behind(e)) > 1 else f" is {writer.expression(e)}, which"
    said = f"the derivative of `{result}` by acc{'' if writer.body else known}"
    names = {*(t.name for t in (*epilogue.operands, *epilogue.results)), *steps.values}
    name = next(t for i in count() if (t := f"t{i or ''}") not in names)
    value = next(a.value for a in epilogue.pointwise if a.name == result)
    parts = (part for child in value.children() for part in child.walk() if not isinstance(part, ep.Number))
    part = next((p for p in parts if steps.from_saved(e, {name: steps.value(p)})), ep.Acc())
    hint = f"declare another result that holds what it reads: `{name} = {part}` before `{result} = {value}`"
    if isinstance(part, ep.LocalRef):
        dtype = next((t.dtype for t in epilogue.results if t.name == part.name), None)
        hint = f"`{part}` is {dtype}, which rounds too much: declare it as f32"
        hint = hint if dtype else f"declare `{part}` as a result, so that it is kept"
    return f"{said} follows from nothing that the forward kernel keeps\nhint: {hint}"


def added(epilogue: ep.Epilogue, result: str) -> tuple[str, ...]:
    """The operands that are added to the accumulator: their gradient is the accumulator's, summed over the dims that
    they leave out."""
    steps = _Steps(epilogue)
    value = steps.values[result]
    exact = steps.derivative(value, ACC)
    return tuple(t.name for t in epilogue.operands if steps.derivative(value, symbol(t.name)) == exact)


def saved_name(name: str) -> str:
    """The name of a forward result or operand in a backward kernel."""
    return f"saved_{name}"


class _Steps:
    """The assignments of an epilogue, as expressions of the accumulator, of operands, and of the symbols of steps."""

    def __init__(self, epilogue: ep.Epilogue, stored: Mapping[str, str] | None = None) -> None:
        self._stored = stored or {}
        self._value: dict[Symbol, Expr] = {}  # of each step, from those before it
        self._symbol: dict[Expr, Symbol] = {}
        self._of_acc: set[Symbol] = {ACC}  # and the steps that are computed from it
        self.values: dict[str, Expr] = {}
        for a in epilogue.pointwise:
            self.values[a.name] = self.value(a.value)
        self._assigned = tuple(self._value)
        self._derivatives: dict[tuple[Symbol, Symbol], Expr] = {}

    def value(self, e: ep.Expr) -> Expr:
        return value_of(e, self.values, self._short)

    def _short(self, e: Expr) -> Expr:
        """The expression, or the symbol of a step with this value where it is large."""
        if _size(e) <= _LARGEST or is_condition(e):
            return e
        if conditions := [factor for factor in e.args if e.is_Mul and is_condition(factor)]:
            # factors of a condition become selections, so a condition stays in place
            return sympy.Mul(*conditions, self._short(sympy.Mul(*(f for f in e.args if f not in conditions))))
        if e not in self._symbol:
            step = Symbol(f"{len(self._symbol)} ", real=True)  # no name of the language has a blank
            self._symbol[e], self._value[step] = step, e
            if e.free_symbols & self._of_acc:
                self._of_acc.add(step)
        return self._symbol[e]

    def _within(self, e: Expr) -> list[Symbol]:
        """The steps that an expression reads, in their order."""
        return sorted(e.free_symbols & self._value.keys(), key=_index)

    def derivative(self, e: Expr, by: Symbol) -> Expr:
        """The derivative of a value with respect to the accumulator or an operand."""
        for step in self._assigned:
            if (step, by) not in self._derivatives:
                self._derivatives[step, by] = self._chained(self._value[step], by)
        return self._chained(e, by)

    def _chained(self, e: Expr, by: Symbol) -> Expr:
        found = e.diff(by)
        for step in self._within(e):
            if (inner := self._derivatives[step, by]) != 0:
                found += e.diff(step) * inner
        return self._short(found)

    def behind(self, e: Expr) -> list[Expr]:
        """The expression and the values of all steps that it is computed from."""
        return list(self._computed(e, None).values())

    def from_saved(self, e: Expr, saved: Mapping[str, Expr]) -> dict[Symbol, Expr]:
        """The values of the steps that an expression is computed from, first ones first, and then as RESULT the
        expression, all by values that are saved under these names; empty where these do not give them."""
        return self._computed(e, saved)

    def _computed(self, e: Expr, saved: Mapping[str, Expr] | None) -> dict[Symbol, Expr]:
        found, pending = {}, {RESULT: e}
        while pending:
            step = max(pending, key=_index)  # which later ones alone read
            e = pending.pop(step)
            if saved is not None:
                e = self._in_terms_of(e, saved)
                if ACC in e.free_symbols:
                    return {}
            found[step] = e
            pending |= {inner: self._value[inner] for inner in self._within(e)}
        return dict(reversed(found.items()))

    def _in_terms_of(self, e: Expr, saved: Mapping[str, Expr]) -> Expr:
        """The expression with the results' names for their values, larger ones first; a result that is a multiple of
        the accumulator and something added to that gives the accumulator, and a multiple of anything else gives that.
        """
        for name, value in sorted(saved.items(), key=lambda item: -sympy.count_ops(item[1])):
            if not value.free_symbols:  # a number tells nothing
                continue
            scale = value.diff(ACC)
            if scale.is_Number and scale != 0:
                rest = sympy.expand_mul(value - scale * ACC)
                known = not rest.free_symbols & self._of_acc  # nor in a comparison, which is flat
                if known and self._divisors(rest) <= self._divisors(e):
                    e = e.subs(ACC, (symbol(name) - rest) / scale)
                    continue
            times, value = value.as_coeff_Mul()
            kept = symbol(name) / times
            e = self._bounded(e, name, times, value)
            # a saved condition selects, as a computed one does
            e = e.subs(value, holds(kept) if is_condition(value) else kept)
            if ACC in e.free_symbols:
                e = self._solved(e, symbol(name), times * value, scale)
        return e

    def _bounded(self, e: Expr, name: str, times: Expr, value: Expr) -> Expr:
        """The expression where it compares a value that `clamp` gives, of which a multiple is saved, with its bounds:
        the saved number with the number that is saved of a bound, which rounding moves."""
        if not isinstance(value, F["clamp"]):
            return e
        _, low, high = value.args
        for op, bound in ((">", low), ("<", high)):
            within = op if times.is_positive else "<>".replace(op, "")
            stored = _stored(times, bound, within, self._stored.get(name, "f32"))
            e = e.subs(OPS[op](value, bound), OPS[within](symbol(name), stored))
        return e

    def _solved(self, e: Expr, name: Symbol, value: Expr, scale: Expr) -> Expr:
        """The expression with a result in the place of its value, a multiple of the accumulator by an operand and
        something added: also of multiples of that, whose parts stand in order of their own.  The expression itself
        where something would be, or was, divided by an operand, which may be 0."""
        rest = sympy.expand_mul(value - scale * ACC)
        if scale == 0 or (scale.free_symbols | rest.free_symbols) & {ACC, *self._of_acc}:
            return e
        acc = (name - rest) / scale

        def reads(x: Expr) -> bool:
            return bool((x.is_Add or x.is_Mul) and x.has(ACC))

        def is_linear(x: Expr) -> bool:
            return reads(x) and x.is_polynomial(ACC) and x.diff(ACC, 2) == 0

        for before in (e, e.replace(is_linear, sympy.expand_mul)):
            found = before.replace(reads, lambda x: sympy.expand_mul(x.subs(ACC, acc)))
            if self._divisors(found) | self._divisors(scale) <= self._divisors(e):
                return found
        return e

    def _divisors(self, e: Expr) -> set[Expr]:
        """The divisors in an expression."""
        powers = (power for part in self.behind(e) for power in part.atoms(Pow))
        return {power.base for power in powers if power.exp.is_negative}


def _stored(times: Expr, bound: Expr, within: str, dtype: str) -> Expr:
    """What is saved, as numbers of this type, of a multiple of a bound: as it is rounded, and where the multiple was
    rounded on its way, the number as much further `within` as that can amount to."""
    value, reach = times * bound, 0.0
    if times != 1 and bound != 0:
        reach = _ROUNDINGS.get(dtype, _ROUNDINGS_OF_F32) * (1 if within == ">" else -1)
    if value.is_Number:
        number = float(value) + reach * abs(float(value))
        if dtype in _NARROW:  # sums are float32
            number = float(round_to(round_to(number, DTYPES["f32"]), DTYPES[dtype]))
        return value if number == float(value) or math.isinf(number) else sympy.Float(number)
    value = value + reach * F["abs"](value) if reach else value
    return F[f"round_{dtype}"](value) if dtype in _NARROW else value


#: Types narrower than sums.
_NARROW = ("f16", "bf16")
#: Ranks after every step.
RESULT = Symbol("inf ")


def _index(step: Symbol) -> float:
    return float(step.name)


def _size(e: Expr) -> int:
    """How much there is to compute; a power counts its factors."""
    if isinstance(e, Pow) and e.exp.is_Integer:
        return _size(e.base) + abs(int(e.exp))
    return 1 + sum(map(_size, e.args)) + (_FUNCTION if e.is_Function else 0)
