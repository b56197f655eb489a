"""Integer expressions with floor division, modulo and padded positions, and their simplification by ranges.

sympy holds the trees.  Its own `floor` and `Mod` rewrite behind one's back, so division and modulo are
opaque functions here, and every rule that is applied to them is written below.  All symbols are
integers of a known range; `simplify` uses those ranges, and the result is equal to its argument for
every assignment within them (tested against brute force).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import sympy
from sympy import Add, Expr, Integer, Mul, Pow, Symbol

#: Inclusive bounds of each symbol.
Ranges = Mapping[Symbol, tuple[int, int]]


class floordiv(sympy.Function):
    """floor(a / b) for b > 0."""

    nargs = 2
    is_integer = True
    precedence = 45  # between sympy's Add (40) and Mul (50): parenthesized in a product, bare in a sum

    @classmethod
    def eval(cls, a, b):
        if b == 1:
            return a
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) // int(b))
        return None

    def _sympystr(self, printer):
        a, b = self.args
        return f"{_operand(printer, a)} / {_operand(printer, b)}"


class mod(sympy.Function):
    """a - b * floor(a / b) for b > 0: always in [0, b)."""

    nargs = 2
    is_integer = True
    precedence = 45  # between sympy's Add (40) and Mul (50): parenthesized in a product, bare in a sum

    @classmethod
    def eval(cls, a, b):
        if b == 1:
            return Integer(0)
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) % int(b))
        return None

    def _sympystr(self, printer):
        a, b = self.args
        return f"{_operand(printer, a)} % {_operand(printer, b)}"


class _Padded(sympy.Function):
    """The element of an axis of n that stands at position a, which may lie beyond the axis on either side."""

    nargs = 2
    is_integer = True


class reflect(_Padded):
    """Mirrored at the first and the last element: for -n < a < 2n - 1."""

    @classmethod
    def eval(cls, a, n):
        return Integer(_reflect(int(a), int(n))) if a.is_Integer and n.is_Integer else None


class replicate(_Padded):
    """The nearest element."""

    @classmethod
    def eval(cls, a, n):
        return Integer(_replicate(int(a), int(n))) if a.is_Integer and n.is_Integer else None


class circular(_Padded):
    """Wraps around: a modulo n, for -n <= a < 2n."""

    @classmethod
    def eval(cls, a, n):
        return Integer(int(a) % int(n)) if a.is_Integer and n.is_Integer else None


def _reflect(a, n):
    return n - 1 - abs(n - 1 - abs(a))


def _replicate(a, n):
    return (abs(a) - abs(a - (n - 1)) + n - 1) // 2


#: The functions of padded positions, and their values for integers or arrays.
PADDED = {reflect: _reflect, replicate: _replicate, circular: lambda a, n: a % n}


def _operand(printer, e: Expr) -> str:
    text = printer._print(e)
    return text if e.is_Symbol or (e.is_Integer and e >= 0) else f"({text})"


def symbol(name: str) -> Symbol:
    return Symbol(name, integer=True)


#: The limit of numbers that an int counts.
INT_MAX = 2**31 - 1


class Extent(Symbol):
    """A dim's extent that a call decides: from 1 to INT_MAX, called by the dim in capitals."""

    def __new__(cls, dim: str) -> Extent:
        return super().__new__(cls, dim.upper(), integer=True)


def factors(e: Expr) -> list[Expr]:
    """The factors of a product, a power's base as often as it counts."""
    found: list[Expr] = []
    for f in Mul.make_args(e):
        found += [f.base] * int(f.exp) if isinstance(f, Pow) else [f]
    return found


def expand_terms(e: Expr) -> list[tuple[int, Expr]]:
    """e as a sum of integer coefficient times expression; the constant has the expression 1."""
    found = []
    for term in Add.make_args(e):
        coefficient, rest = term.as_coeff_Mul()
        found.append((int(coefficient), rest))
    return found


def _sum(terms: Iterable[tuple[int, Expr]]) -> Expr:
    return Add(*(Integer(c) * t for c, t in terms))


# ---- ranges ------------------------------------------------------------------------------------


def bounds(e: Expr, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of an expression by interval arithmetic.  Raises KeyError for an unknown symbol."""
    if isinstance(e, Integer):
        return int(e), int(e)
    if isinstance(e, Symbol):
        return (1, INT_MAX) if isinstance(e, Extent) else ranges[e]
    if isinstance(e, Add):
        parts = [bounds(a, ranges) for a in e.args]
        return sum(p[0] for p in parts), sum(p[1] for p in parts)
    if isinstance(e, Mul | Pow):
        lo, hi = 1, 1
        for f in factors(e):
            x, y = bounds(f, ranges)
            corners = (lo * x, lo * y, hi * x, hi * y)
            lo, hi = min(corners), max(corners)
        return lo, hi
    if isinstance(e, floordiv):
        lo, hi = bounds(e.args[0], ranges)
        divisors = bounds(e.args[1], ranges)
        quotients = [a // b for a in (lo, hi) for b in divisors]
        return min(quotients), max(quotients)
    if isinstance(e, mod):
        lo, hi = bounds(e.args[0], ranges)
        least, most = bounds(e.args[1], ranges)
        if least == most and lo // most == hi // most:
            return lo % most, hi % most
        return 0, min(hi, most - 1) if lo >= 0 else most - 1
    if isinstance(e, _Padded):
        return 0, bounds(e.args[1], ranges)[1] - 1
    raise TypeError(f"no bounds for {e!r}")


# ---- simplification ----------------------------------------------------------------------------


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """An expression equal to e for all symbols within `ranges`, of no more operations."""
    simple = _fold_constants(_simplify(e, ranges), ranges)
    return simple if count_operations(simple) <= count_operations(e) else e


def _simplify(e: Expr, ranges: Ranges) -> Expr:
    if isinstance(e, Symbol):
        lo, hi = ranges.get(e, (0, 1))
        return Integer(lo) if lo == hi else e
    if not e.args:
        return e
    args = [_simplify(a, ranges) for a in e.args]
    if isinstance(e, floordiv) and args[1].is_Integer:
        return _floordiv(args[0], int(args[1]), ranges)
    if isinstance(e, mod) and args[1].is_Integer:
        return _mod(args[0], int(args[1]), ranges)
    if isinstance(e, _Padded) and _is_inside(args[0], args[1], ranges):
        return args[0]
    result = e.func(*args)
    return _recombine(result, ranges) if isinstance(result, Add) else result


def _is_inside(a: Expr, n: Expr, ranges: Ranges) -> bool:
    """Whether a padded position always lies within the axis itself."""
    lo, hi = bounds(a, ranges)
    return n.is_Integer and lo >= 0 and hi < int(n)


def _floordiv(a: Expr, d: int, ranges: Ranges) -> Expr:
    """floor(a / d), a simplified."""
    if d == 1:
        return a
    lo, hi = bounds(a, ranges)
    if lo // d == hi // d:
        return Integer(lo // d)
    whole, rest = _take_multiples(a, d)
    if whole != 0:
        # floor((d*x + r) / d) = x + floor(r / d)
        return whole + _floordiv(rest, d, ranges)
    if split := _split_small_rest(a, d, ranges):
        # floor((g*x + r) / (g*d')) = floor(x / d') for 0 <= r < g
        g, x, _ = split
        return _floordiv(x, d // g, ranges)
    if isinstance(a, floordiv) and a.args[1].is_Integer:
        # floor(floor(x / f) / d) = floor(x / (f*d))
        return _floordiv(a.args[0], int(a.args[1]) * d, ranges)
    if isinstance(a, mod) and a.args[1].is_Integer and int(a.args[1]) % d == 0:
        # floor((x % (d*f)) / d) = floor(x / d) % f
        return _mod(_floordiv(a.args[0], d, ranges), int(a.args[1]) // d, ranges)
    return floordiv(a, Integer(d))


def _mod(a: Expr, d: int, ranges: Ranges) -> Expr:
    """a - d * floor(a / d), a simplified."""
    if d == 1:
        return Integer(0)
    lo, hi = bounds(a, ranges)
    if lo // d == hi // d:
        return a - (lo // d) * d
    reduced = _reduce_terms(a, d)
    if reduced != a:
        return _mod(reduced, d, ranges)
    if split := _split_small_rest(a, d, ranges):
        # (g*x + r) % (g*d') = g * (x % d') + r for 0 <= r < g
        g, x, rest = split
        outside = g * _mod(x, d // g, ranges) + rest
        if count_operations(outside) <= count_operations(a) + 1:
            return outside
    return mod(a, Integer(d))


def _take_multiples(a: Expr, d: int) -> tuple[Expr, Expr]:
    """a = d * whole + rest: the terms that d divides, and of the constant all that it can."""
    whole, rest = [], []
    for c, t in expand_terms(a):
        q, r = divmod(c, d)
        if t == 1:
            whole.append((q, t))
            rest.append((r, t))
        elif r == 0:
            whole.append((q, t))
        else:
            rest.append((c, t))
    return _sum(whole), _sum(rest)


def _reduce_terms(a: Expr, d: int) -> Expr:
    """An expression congruent to a modulo d: multiples of d go, coefficients shrink, an inner modulo goes
    where d divides its steps."""
    terms = []
    for c, t in expand_terms(a):
        if isinstance(t, mod) and t.args[1].is_Integer and c * int(t.args[1]) % d == 0:
            terms += expand_terms(c * t.args[0])
        elif t == 1 or abs(c) >= d:
            terms.append((c % d, t))
        else:
            terms.append((c, t))
    return _sum(terms)


def _split_small_rest(a: Expr, d: int, ranges: Ranges) -> tuple[int, Expr, Expr] | None:
    """(g, x, rest) with a = g * x + rest, 0 <= rest < g, where g > 1 divides d: the largest such g."""
    terms = expand_terms(a)
    for g in sorted({math.gcd(d, c) for c, t in terms if t != 1}, reverse=True):
        if g == 1:
            return None
        rest = _sum((c, t) for c, t in terms if c % g and t != 1)
        constant = sum(c for c, t in terms if t == 1)
        lo, hi = bounds(rest, ranges)
        # the constant's part that stays with the rest: the least that lifts it to 0 or above
        kept = -lo + (constant + lo) % g
        if hi + kept < g:
            x = _sum((c // g, t) for c, t in terms if c % g == 0 and t != 1) + (constant - kept) // g
            return g, x, rest + kept
    return None


def _recombine(e: Expr, ranges: Ranges) -> Expr:
    """Fuse the pieces of one index that meet again in a sum.

    c*d*floor(a/d) + c*(a%d) = c*a, also where d is an expression, and c*d*(floor(a/d) % f) + c*(a%d) = c*(a % (d*f)).
    """
    terms = expand_terms(e)
    for i, (c, t) in enumerate(terms):
        if isinstance(t, mod) and not t.args[1].is_Integer:
            whole = (c, t.args[1] * floordiv(*t.args))
            if whole in terms:
                return _recombine(e - c * t - c * whole[1] + c * t.args[0], ranges)
        if not (isinstance(t, mod) and t.args[1].is_Integer):
            continue
        a, d = t.args[0], int(t.args[1])
        outer = [(j, u) for j, (c2, u) in enumerate(terms) if c2 == c * d]
        if not outer:
            continue
        quotient = _floordiv(a, d, ranges)
        for j, u in outer:
            if u == quotient:
                fused = a
            elif isinstance(u, mod) and u.args[0] == quotient and u.args[1].is_Integer:
                fused = _mod(a, d * int(u.args[1]), ranges)
            else:
                continue
            rest = [terms[k] for k in range(len(terms)) if k not in (i, j)]
            return _recombine(_sum(rest) + c * fused, ranges)
    return e


def _fold_constants(e: Expr, ranges: Ranges) -> Expr:
    """q + floor((a + r) / d) = floor((a + r + q*d) / d): one addition for two, unless it makes a dividend
    negative, which costs more in C."""
    if not e.has(floordiv):
        return e
    e = e.func(*(_fold_constants(a, ranges) for a in e.args))
    q, rest = e.as_coeff_Add()
    for c, t in expand_terms(rest) if q else ():
        if c == 1 and isinstance(t, floordiv) and t.args[1].is_Integer and t.args[0].as_coeff_Add()[0] != 0:
            dividend = t.args[0] + q * t.args[1]
            if q > 0 or bounds(dividend, ranges)[0] >= 0:
                return rest - t + floordiv(dividend, t.args[1])
    return e


# ---- counting and evaluating -------------------------------------------------------------------


def count_operations(e: Expr) -> int:
    """Additions, multiplications, divisions and modulos that evaluating e takes."""
    if not e.args:
        return 0
    if isinstance(e, Mul | Pow):
        parts = factors(e)
        negated = parts[0] == -1  # a negated term is a subtraction of its sum
        return sum(map(count_operations, parts)) + len(parts) - 1 - negated
    inner = sum(map(count_operations, e.args))
    return inner + len(e.args) - 1 if isinstance(e, Add) else inner + 1


def evaluate(e: Expr, values: Mapping[Symbol, object]):
    """Value of e with each symbol replaced by an integer or a NumPy integer array."""
    if isinstance(e, Integer):
        return int(e)
    if isinstance(e, Symbol):
        return values[e]
    if isinstance(e, Add):
        first, *others = (evaluate(a, values) for a in e.args)
        return sum(others, first)
    if isinstance(e, Mul | Pow):
        return math.prod((evaluate(f, values) for f in factors(e)), start=1)
    if isinstance(e, floordiv | mod):
        a, b = (evaluate(x, values) for x in e.args)
        return a // b if isinstance(e, floordiv) else a % b
    if isinstance(e, _Padded):
        return PADDED[type(e)](*(evaluate(x, values) for x in e.args))
    raise TypeError(f"cannot evaluate {e!r}")
