"""Epilogue expressions in sympy's and back, and the derivatives of the language's functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from itertools import count

import sympy
from sympy import Add, Expr, Float, Integer, Mul, Pow, Rational, Symbol

from convgen.diagnostics import ConvgenError
from convgen.ir import epilogue as ep

ACC = Symbol("acc ")  # no name of the language has a blank


class Underivable(ConvgenError):
    """A derivative that no kernel could compute from what the forward kernel keeps."""


# ---- functions -----------------------------------------------------------------------------------


class _Function(sympy.Function):
    """A function of the language, or one of its comparisons, whose value and partial derivatives sympy does not know by
    itself.  `partials` has a derivative by each argument; a function without them is flat almost everywhere."""

    partials: tuple[Callable[..., Expr], ...] = ()

    def fdiff(self, argindex: int = 1) -> Expr:
        return self.partials[argindex - 1](*self.args) if self.partials else Integer(0)

    def _eval_evalf(self, prec: int) -> Expr | None:
        """A number by the function of this name that sympy finds: not a complex one, where the language has NaN."""
        found = super()._eval_evalf(prec)
        return found if found is not None and found.is_real else None


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


def is_condition(e: Expr) -> bool:
    """Whether an expression is 1 or 0: multiplying by it is a selection."""
    return type(e).__name__ in OPS


def holds(condition: Expr) -> Expr:
    """A value that is true where it is not 0, as a comparison."""
    return condition if is_condition(condition) else OPS["!="](condition, 0)


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
    "round_f16": (lambda x: Integer(1),),
    "round_bf16": (lambda x: Integer(1),),
    "min": (lambda x, y: OPS["<="](x, y), lambda x, y: OPS["<"](y, x)),
    "max": (lambda x, y: OPS[">="](x, y), lambda x, y: OPS[">"](y, x)),
    "clamp": (
        _clamp,
        lambda x, low, high: OPS["&&"](OPS["<="](x, low), OPS["<"](low, high)),
        lambda x, low, high: OPS[">="](F["max"](x, low), high),
    ),
    "select": (
        lambda condition, x, y: Integer(0),
        lambda condition, x, y: holds(condition),
        lambda condition, x, y: OPS["!"](holds(condition)),
    ),
}
for _name, _function in F.items():  # each has them
    _function.partials = _PARTIALS[_name]


# ---- to sympy, and back --------------------------------------------------------------------------

#: Longer fractions are computed as floats: of constants that are squared again and again, digits double.
_BITS = 2048
#: How deep an expression is written before a part of it gets a name; the language has a limit.
_DEEP = 24


def value_of(e: ep.Expr, values: Mapping[str, Expr], shorten: Callable[[Expr], Expr]) -> Expr:
    """An expression of the accumulator, of operands and of what locals stand for, each part of which `shorten` may
    replace by a symbol."""

    def go(e: ep.Expr) -> Expr:
        match e:
            case ep.Number():
                return Integer(int(e.value)) if e.value == int(e.value) else Float(e.value)
            case ep.Acc():
                return ACC
            case ep.OperandRef():
                return symbol(e.name)
            case ep.LocalRef():
                return values[e.name]
            case ep.Unary("-"):
                return -go(e.operand)
            case ep.Unary():
                return shorten(OPS["!"](go(e.operand)))
            case ep.Binary():
                return shorten(_binary(e.op, go(e.left), go(e.right)))
            case ep.Call():
                return shorten(F[e.function](*map(go, e.arguments)))
        raise TypeError(f"not an epilogue expression: {e!r}")

    return go(e)


_ARITHMETIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
}  # fmt: skip


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    found = _ARITHMETIC[op](left, right) if op in _ARITHMETIC else OPS[op](left, right)
    if isinstance(found, Rational) and max(abs(found.p), found.q).bit_length() > _BITS:
        return Float(found)
    return found


def symbol(name: str) -> Symbol:
    return Symbol(name, real=True)


class Writer:
    """Expressions of sympy in the language: ACC as `acc`, other symbols as operands, whose names get a prefix.

    `body` are the assignments that they need: of powers, which are squared again and again, of what is too deep, and of
    what `define` defines.  Their names are none of those `taken`.
    """

    def __init__(self, acc: ep.Expr, prefix: str, taken: Collection[str] = ()) -> None:
        self._acc, self._prefix = acc, prefix
        self._names = (name for i in count(1) if (name := f"u{i}") not in taken)
        self._named: dict[ep.Expr, ep.LocalRef] = {}
        self._symbols: dict[Symbol, ep.Expr] = {}

    @property
    def body(self) -> tuple[ep.Assignment, ...]:
        return tuple(ep.Assignment(local.name, value) for value, local in self._named.items())

    def define(self, symbol: Symbol, value: Expr) -> None:
        """Has the symbol written as a local of this value."""
        self._symbols[symbol] = self._local(self.expression(value))

    def expression(self, e: Expr) -> ep.Expr:
        match e:
            case Symbol():
                if e in self._symbols:
                    return self._symbols[e]
                return self._acc if e == ACC else ep.OperandRef(self._prefix + e.name)
            case Integer() | Float() | Rational():
                return _number(e)
            case Add():
                return self._sum(e)
            case Mul() | Pow():
                return self._product(Mul.make_args(e))
            case _Function():
                arguments = tuple(map(self._shallow, map(self.expression, e.args)))
                name = type(e).__name__
                if name in ep.FUNCTIONS:
                    return ep.Call(name, arguments)
                return ep.Unary(name, *arguments) if len(arguments) == 1 else ep.Binary(name, *arguments)
        raise TypeError(f"not of the language: {e!r}")

    def _local(self, e: ep.Expr) -> ep.Expr:
        """A local with this value, or the value itself if there is nothing to compute."""
        if not e.children():
            return e
        if e not in self._named:
            self._named[e] = ep.LocalRef(next(self._names))
        return self._named[e]

    def _shallow(self, e: ep.Expr) -> ep.Expr:
        return self._local(e) if _depth(e) >= _DEEP else e

    def _binary(self, op: str, left: ep.Expr, right: ep.Expr) -> ep.Expr:
        return ep.Binary(op, self._shallow(left), self._shallow(right))

    def _sum(self, e: Expr) -> ep.Expr:
        terms = sorted(e.as_ordered_terms(), key=lambda t: t.could_extract_minus_sign())
        found = self.expression(terms[0])
        for term in terms[1:]:
            minus = term.could_extract_minus_sign()
            found = self._binary("-" if minus else "+", found, self.expression(-term if minus else term))
        return found

    def _product(self, factors: Sequence[Expr]) -> ep.Expr:
        """A product; a factor that is a condition becomes a selection, since zero times infinity is NaN."""
        above: list[ep.Expr] = []
        below: list[ep.Expr] = []
        conditions = [f for f in factors if is_condition(f)]
        for factor in sorted(factors, key=lambda f: f != ACC):
            base, power = factor.as_base_exp()
            if not power.is_Integer:
                raise TypeError(f"not of the language: {factor!r}")
            if factor not in conditions:
                (above if power > 0 else below).extend(self._power(self.expression(base), abs(int(power))))
        minus = ep.Unary("-", ep.Number(1.0))
        found = self._multiplied([f for f in above if f != minus])
        found = ep.Unary("-", found) if minus in above else found
        found = self._binary("/", found, self._multiplied(below)) if below else found
        if not conditions:
            return found
        holds = reduce(lambda a, b: self._binary("&&", a, b), map(self.expression, conditions))
        return ep.Call("select", (holds, found, ep.Number(0.0)))

    def _multiplied(self, factors: Sequence[ep.Expr]) -> ep.Expr:
        return reduce(lambda a, b: self._binary("*", a, b), factors) if factors else ep.Number(1.0)

    def _power(self, base: ep.Expr, power: int) -> list[ep.Expr]:
        """The factors of a power of a whole number: squares of squares from the fourth on."""
        if power < 4:
            return [base] * power
        found = []
        while power > 1:
            base = self._local(base)
            found += [base] * (power % 2)
            base, power = ep.Binary("*", base, base), power // 2
        return [*found, base]


def _number(e: Expr) -> ep.Expr:
    """Raises Underivable where no spec can say it."""
    try:
        value = float(e)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise Underivable("the derivative has a number in it that is larger than what an f64 holds")
    return ep.Unary("-", ep.Number(-value)) if value < 0 else ep.Number(value)


def _depth(e: ep.Expr) -> int:
    return 1 + max(map(_depth, e.children()), default=0)
