"""Sizes that a call decides: `dynamic n h w` in a spec.

A plan is made for the sizes that the spec writes, by code that need not know of others: a `Size` is the int that
follows from these, and remembers how.  Sums, differences, products, quotients and remainders of Sizes are Sizes.

Code may decide by a Size only what holds for others, too.  Hence equality means equal for every size: no Size equals
a number, so that none is taken for 0 or 1 and no remainder vanishes.  Order is by the written sizes, where 0 and 1
count as 2.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from math import gcd
from types import CodeType
from typing import Any

#: Sizes at which formulas are compared: primes, and no two alike.
_PROBE = {"n": 10007, "d": 10009, "h": 10037, "w": 10039, "o": 10061, "p": 10067, "q": 10069}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def whole(value: object) -> int | None:
    """A whole number of any kind, such as NumPy's, as an int; None for anything else, such as an array of several, or
    True."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


class BadFormula(ValueError):
    """A text that is not a formula over sizes."""


class Size(int):
    """The value for the written sizes, and the `formula`."""

    _probe: int
    _form: str
    _operands: tuple[int, ...]

    def __new__(cls, value: int, formula: str) -> Size:
        """Raises BadFormula."""
        made = cls._made(value, evaluate(formula, _PROBE), "", ())
        made.formula = formula
        return made

    @classmethod
    def _made(cls, value: int, probe: int, form: str, operands: tuple[int, ...]) -> Size:
        made = super().__new__(cls, value)
        made._probe, made._form, made._operands = probe, form, operands
        return made

    @cached_property
    def formula(self) -> str:
        """An expression of Python, over dims such as n and h, with + - * // % alone.  It is written when it is asked
        for: most numbers of a search are compared alone."""
        return self._form.format(*(getattr(v, "formula", v) for v in self._operands))

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.formula

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and (int(self), self._probe) == (int(other), other._probe)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self._probe))

    def __bool__(self) -> bool:
        return True

    @property
    def _ordered(self) -> int:
        return 2 if int(self) in (0, 1) else int(self)

    def __lt__(self, other: int) -> bool:
        return self._ordered < other

    def __le__(self, other: int) -> bool:
        return self._ordered <= other

    def __gt__(self, other: int) -> bool:
        return self._ordered > other

    def __ge__(self, other: int) -> bool:
        return self._ordered >= other

    def __add__(self, other: int) -> Size:
        return _combined("+", self, other)

    def __radd__(self, other: int) -> Size:
        return _combined("+", other, self)

    def __sub__(self, other: int) -> Size:
        return _combined("-", self, other)

    def __rsub__(self, other: int) -> Size:
        return _combined("-", other, self)

    def __mul__(self, other: int) -> Size:
        return _combined("*", self, other)

    def __rmul__(self, other: int) -> Size:
        return _combined("*", other, self)

    def __floordiv__(self, other: int) -> Size:
        return _combined("//", self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return _combined("//", other, self)

    def __mod__(self, other: int) -> Size:
        return _combined("%", self, other)

    def __rmod__(self, other: int) -> Size:
        return _combined("%", other, self)

    def __divmod__(self, other: int) -> tuple[Size, Size]:
        return self // other, self % other

    def __neg__(self) -> Size:
        return Size._made(-int(self), -self._probe, "(-{})", (self,))


#: Operators, and the number behind each that changes nothing.
_APPLIED: dict[str, tuple[Callable[[int, int], int], int | None]] = {
    "+": (operator.add, 0), "-": (operator.sub, 0), "*": (operator.mul, 1), "//": (operator.floordiv, 1),
    "%": (operator.mod, None),
}  # fmt: skip


def _combined(sign: str, a: Any, b: Any) -> Any:
    """A Size of two numbers, one of which is a Size."""
    if not (isinstance(a, int) and isinstance(b, int)):
        return NotImplemented
    function, neutral = _APPLIED[sign]
    at_a, at_b = a, b  # the probe's values
    if isinstance(a, Size):
        at_a = a._probe
    elif a == neutral and sign in "+*":
        return b
    if isinstance(b, Size):
        at_b = b._probe
    elif b == neutral:
        return a
    return Size._made(function(int(a), int(b)), function(at_a, at_b), f"({{}} {sign} {{}})", (a, b))


def of_dim(value: int, dim: str) -> int:
    """The Size of a dim; a Size stays as it is."""
    return value if isinstance(value, Size) else Size(value, dim)


def divisor(value: int) -> int:
    """The greatest number that is sure to divide a size, whatever the dims': the value itself of a number."""
    return _divisor(parsed(value.formula)) if isinstance(value, Size) else abs(value)


def _divisor(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(number)):
            return abs(number)
        case ast.UnaryOp(_, operand):
            return _divisor(operand)
        case ast.BinOp(a, ast.Mult(), b):
            return _divisor(a) * _divisor(b)
        case ast.BinOp(a, ast.Add() | ast.Sub() | ast.Mod(), b):
            return gcd(_divisor(a), _divisor(b))
        case _:  # a dim may be anything, and so may a quotient
            return 1


def short(formula: str) -> str:
    """A formula without the parentheses that it does not need."""
    return ast.unparse(parsed(formula))


def evaluate(formula: str, sizes: Mapping[str, int]) -> int:
    """The value of a formula for these sizes of all dims in it.  Raises BadFormula."""
    code, dims = _compiled(formula)
    if missing := dims - sizes.keys():
        raise BadFormula(f"{formula!r} is over {', '.join(sorted(missing))}, too")
    try:
        return eval(code, {"__builtins__": {}}, dict(sizes))
    except ZeroDivisionError:
        raise BadFormula(f"{formula!r} divides by zero") from None


@lru_cache(maxsize=4096)
def _compiled(formula: str) -> tuple[CodeType, frozenset[str]]:
    tree = parsed(formula)
    dims = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return compile(ast.Expression(tree), "<formula>", "eval"), dims


@lru_cache(maxsize=4096)
def parsed(formula: str) -> ast.expr:
    """The tree of a formula, which has nothing else in it: it may come from a file.  Raises BadFormula."""
    try:
        tree = ast.parse(formula, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadFormula(f"{formula!r} is not a formula over sizes") from None
    for node in ast.walk(tree):
        dim = isinstance(node, ast.Name) and node.id in _PROBE
        number = isinstance(node, ast.Constant) and type(node.value) is int
        arithmetic = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.USub, ast.Load, *_OPERATORS))
        if not (dim or number or arithmetic) or (isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.USub)):
            raise BadFormula(f"{formula!r} is not a formula over sizes")
    return tree
