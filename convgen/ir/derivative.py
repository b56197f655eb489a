"""The chain rule through epilogues, by sympy: from the gradient of a result to that of the accumulator.

A backward kernel can read what the forward one keeps: its result, further results, and operands.  So derivatives are
expressions of these alone: relu's and sigmoid's follow from the result, silu's from a saved pre-activation.  The
functions' own derivatives are below, by the functions' values where these are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import sympy
from sympy import Add, Expr, Float, Integer, Mul, Pow, Rational, Symbol

from convgen.diagnostics import ConvgenError
from convgen.ir import epilogue as ep

ACC = Symbol("acc ")  # no name of the language has a blank


class Underivable(ConvgenError):
    """A derivative that no kernel could compute from what the forward kernel keeps."""


@dataclass(frozen=True)
class Backward:
    """The gradient of the accumulator, `value`, and the results and operands of the forward kernel that it reads, by
    their names there; in `value` they are operands, called as `saved_name` says."""

    value: ep.Expr
    reads: tuple[str, ...]


def backward(epilogue: ep.Epilogue, result: str, kept: Sequence[str], gradient: ep.Expr) -> Backward:
    """The gradient of the accumulator from that of the result of that name, `gradient`: by the chain rule, from as few
    of the results `kept` as possible, earlier ones first.

    Operands are at hand, too.  Results count as they are stored; at a kink, such as relu's at 0, the derivative is
    one-sided.  Raises Underivable.
    """
    values = _values(epilogue)
    exact = values[result].diff(ACC)
    if exact == 0:
        raise Underivable(f"the gradient through `{result}` is 0: it does not follow acc")
    if exact.has(sympy.zoo, sympy.oo, sympy.nan):
        raise Underivable(f"the derivative of `{result}` by acc is no number: `{result}` divides by 0")
    operands = [t.name for t in epilogue.operands]
    for count in range(len(kept) + 1):
        for saved in combinations(kept, count):
            found = _in_terms_of(exact, {name: values[name] for name in saved})
            if ACC not in found.free_symbols:
                names = tuple(n for n in (*saved, *operands) if _saved(n) in found.free_symbols)
                return Backward(_Writer(gradient).expression(ACC * found), names)
    raise Underivable(
        f"the derivative of `{result}` by acc is {_Writer(ep.Acc(), '').expression(exact)}, "
        f"which follows from nothing that the forward kernel keeps\n"
        f"hint: declare another result that holds what it reads, such as `t = acc + b` before `{result} = silu(t)`"
    )


def added(epilogue: ep.Epilogue, result: str) -> tuple[str, ...]:
    """The operands that are added to the accumulator: their gradient is the accumulator's, summed over the dims that
    they leave out."""
    value = _values(epilogue)[result]
    exact = value.diff(ACC)
    return tuple(t.name for t in epilogue.operands if value.diff(_saved(t.name)) == exact)


def saved_name(name: str) -> str:
    """What a backward kernel calls a result or an operand of the forward one."""
    return f"saved_{name}"


def _saved(name: str) -> Symbol:
    return Symbol(name, real=True)


def _in_terms_of(e: Expr, saved: dict[str, Expr]) -> Expr:
    """The expression with the results' names for their values, larger ones first; a result that is a multiple of the
    accumulator and something added to that gives the accumulator."""
    for name, value in sorted(saved.items(), key=lambda item: -sympy.count_ops(item[1])):
        scale = value.diff(ACC)
        rest = sympy.expand(value - scale * ACC)
        if scale.is_Number and scale != 0 and ACC not in rest.free_symbols:  # nor in a comparison, which is flat
            e = e.subs(ACC, (_saved(name) - rest) / scale)
        else:
            e = e.subs(value, _saved(name))
    return e


# ---- functions -----------------------------------------------------------------------------------


class _Function(sympy.Function):
    """A function of the language, or one of its comparisons, whose value and partial derivatives sympy does not know by
    itself.  `partials` has a derivative by each argument; a function without them is flat almost everywhere."""

    partials: tuple[Callable[..., Expr], ...] = ()

    def fdiff(self, argindex: int = 1) -> Expr:
        return self.partials[argindex - 1](*self.args) if self.partials else Integer(0)


def _made(names: Iterable[str]) -> dict[str, type[_Function]]:
    return {name: type(name, (_Function,), {}) for name in names}


F = _made(ep.FUNCTIONS)
#: Comparisons and logic: 1 or 0.
OPS = _made(("<", "<=", ">", ">=", "==", "!=", "&&", "||", "!"))


def _gelu(x: Expr) -> Expr:
    density = Float(1 / math.sqrt(2 * math.pi)) * F["exp"](Float(-0.5) * x * x)
    return F["select"](OPS["=="](x, 0), Float(0.5), F["gelu"](x) / x) + x * density


def _gelu_tanh(x: Expr) -> Expr:
    scale, cubic = Float(math.sqrt(2 / math.pi)), Float(0.044715)
    t = F["tanh"](scale * (x + cubic * x**3))
    return Float(0.5) * (1 + t) + Float(0.5) * x * (1 - t * t) * scale * (1 + 3 * cubic * x * x)


def _leaky_relu(x: Expr, slope: Expr) -> Expr:
    # a slope that is not negative keeps the sign
    sign = F["leaky_relu"](x, slope) if slope.is_nonnegative else x
    return F["select"](OPS[">"](sign, 0), 1, slope)


def _clamp(x: Expr, low: Expr, high: Expr) -> Expr:
    y = F["clamp"](x, low, high)
    return OPS["&&"](OPS[">"](y, low), OPS["<"](y, high))


_PARTIALS: dict[str, tuple[Callable[..., Expr], ...]] = {
    "relu": (lambda x: OPS[">"](F["relu"](x), 0),),
    "leaky_relu": (_leaky_relu, lambda x, slope: F["min"](x, 0)),
    "gelu": (_gelu,),
    "gelu_tanh": (_gelu_tanh,),
    "silu": (lambda x: F["sigmoid"](x) * (1 + x * (1 - F["sigmoid"](x))),),
    "sigmoid": (lambda x: F["sigmoid"](x) * (1 - F["sigmoid"](x)),),
    "tanh": (lambda x: 1 - F["tanh"](x) ** 2,),
    "exp": (lambda x: F["exp"](x),),
    "log": (lambda x: 1 / x,),
    "sqrt": (lambda x: Float(0.5) / F["sqrt"](x),),
    "abs": (lambda x: OPS[">"](x, 0) - OPS["<"](x, 0),),
    "min": (lambda x, y: OPS["<="](x, y), lambda x, y: OPS["<"](y, x)),
    "max": (lambda x, y: OPS[">="](x, y), lambda x, y: OPS[">"](y, x)),
    "clamp": (
        _clamp,
        lambda x, low, high: OPS["&&"](OPS["<="](x, low), OPS["<"](low, high)),
        lambda x, low, high: OPS[">="](F["max"](x, low), high),
    ),
    "select": (
        lambda condition, x, y: Integer(0),
        lambda condition, x, y: F["select"](condition, 1, 0),
        lambda condition, x, y: F["select"](condition, 0, 1),
    ),
}
for _name, _function in F.items():  # each has them
    _function.partials = _PARTIALS[_name]


# ---- to sympy, and back --------------------------------------------------------------------------


def _values(epilogue: ep.Epilogue) -> dict[str, Expr]:
    """Each assigned value as an expression of the accumulator and operands."""
    values: dict[str, Expr] = {}

    def go(e: ep.Expr) -> Expr:
        match e:
            case ep.Number():
                return Integer(int(e.value)) if e.value == int(e.value) else Float(e.value)
            case ep.Acc():
                return ACC
            case ep.OperandRef():
                return _saved(e.name)
            case ep.LocalRef():
                return values[e.name]
            case ep.Unary("-"):
                return -go(e.operand)
            case ep.Unary():
                return OPS["!"](go(e.operand))
            case ep.Binary():
                left, right = go(e.left), go(e.right)
                return _ARITHMETIC[e.op](left, right) if e.op in _ARITHMETIC else OPS[e.op](left, right)
            case ep.Call():
                return F[e.function](*map(go, e.arguments))
        raise TypeError(f"not an epilogue expression: {e!r}")

    for a in epilogue.pointwise:
        values[a.name] = go(a.value)
    return values


_ARITHMETIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
}  # fmt: skip


class _Writer:
    """Expressions of sympy in the language: ACC as `acc`, other symbols as operands, whose names get a prefix."""

    def __init__(self, acc: ep.Expr, prefix: str = saved_name("")) -> None:
        self._acc, self._prefix = acc, prefix

    def expression(self, e: Expr) -> ep.Expr:
        match e:
            case Symbol():
                return self._acc if e == ACC else ep.OperandRef(self._prefix + e.name)
            case Integer() | Float() | Rational():
                value = float(e)
                return ep.Unary("-", ep.Number(-value)) if value < 0 else ep.Number(value)
            case Add():
                return self._sum(e)
            case Mul() | Pow():
                return self._product(Mul.make_args(e))
            case _Function():
                arguments = tuple(map(self.expression, e.args))
                name = type(e).__name__
                if name in ep.FUNCTIONS:
                    return ep.Call(name, arguments)
                return ep.Unary(name, *arguments) if len(arguments) == 1 else ep.Binary(name, *arguments)
        raise TypeError(f"not of the language: {e!r}")

    def _sum(self, e: Expr) -> ep.Expr:
        terms = sorted(e.as_ordered_terms(), key=lambda t: t.could_extract_minus_sign())
        found = self.expression(terms[0])
        for term in terms[1:]:
            minus = term.could_extract_minus_sign()
            found = ep.Binary("-" if minus else "+", found, self.expression(-term if minus else term))
        return found

    def _product(self, factors: Sequence[Expr]) -> ep.Expr:
        """Powers of whole numbers are products and quotients.  What is multiplied by a condition is selected, as zero
        times infinity is NaN."""
        above: list[ep.Expr] = []
        below: list[ep.Expr] = []
        conditions = [f for f in factors if type(f).__name__ in OPS]
        for factor in sorted(factors, key=lambda f: f != ACC):
            base, power = factor.as_base_exp()
            if not power.is_Integer:
                raise TypeError(f"not of the language: {factor!r}")
            if factor not in conditions:
                (above if power > 0 else below).extend([self.expression(base)] * abs(int(power)))
        minus = ep.Unary("-", ep.Number(1.0))
        found = _product([f for f in above if f != minus])
        found = ep.Unary("-", found) if minus in above else found
        found = ep.Binary("/", found, _product(below)) if below else found
        if not conditions:
            return found
        holds = reduce(lambda a, b: ep.Binary("&&", a, b), map(self.expression, conditions))
        return ep.Call("select", (holds, found, ep.Number(0.0)))


def _product(factors: Sequence[ep.Expr]) -> ep.Expr:
    return reduce(lambda left, right: ep.Binary("*", left, right), factors) if factors else ep.Number(1.0)
