"""Integer expressions with floor division and modulo, and their simplification by ranges.

sympy holds the trees.  Its own `floor` and `Mod` rewrite behind one's back, so division and modulo are
two opaque functions here, and every rule that is applied to them is written below.  All symbols are
integers of a known range; `simplify` uses those ranges, and the result is equal to its argument for
every assignment within them (tested against brute force).
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from sympy import Add, Expr, Integer, Mul, Symbol

#: Inclusive bounds of each symbol.
Ranges = Mapping[Symbol, tuple[int, int]]


class floordiv(sympy.Function):
    """floor(a / b) for b > 0."""

    nargs = 2
    is_integer = True
    precedence = 45  # between sympy's Add (40) and Mul (50): parenthesised in a product, bare in a sum

    @classmethod
    def eval(cls, a, b):
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
    precedence = 45  # between sympy's Add (40) and Mul (50): parenthesised in a product, bare in a sum

    @classmethod
    def eval(cls, a, b):
        if isinstance(a, Integer) and isinstance(b, Integer):
            return Integer(int(a) % int(b))
        return None

    def _sympystr(self, printer):
        a, b = self.args
        return f"{_operand(printer, a)} % {_operand(printer, b)}"


def _operand(printer, e: Expr) -> str:
    text = printer._print(e)
    return text if e.is_Symbol or (e.is_Integer and e >= 0) else f"({text})"


def symbol(name: str) -> Symbol:
    return Symbol(name, integer=True)


def bounds(e: Expr, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of an expression by interval arithmetic.  Raises KeyError for an unknown symbol."""
    if isinstance(e, Integer):
        return int(e), int(e)
    if isinstance(e, Symbol):
        return ranges[e]
    if isinstance(e, Add):
        parts = [bounds(a, ranges) for a in e.args]
        return sum(p[0] for p in parts), sum(p[1] for p in parts)
    if isinstance(e, Mul):
        lo, hi = 1, 1
        for a in e.args:
            x, y = bounds(a, ranges)
            corners = (lo * x, lo * y, hi * x, hi * y)
            lo, hi = min(corners), max(corners)
        return lo, hi
    if isinstance(e, floordiv):
        lo, hi = bounds(e.args[0], ranges)
        d_lo, d_hi = bounds(e.args[1], ranges)
        corners = [a // b for a in (lo, hi) for b in (d_lo, d_hi)]
        return min(corners), max(corners)
    if isinstance(e, mod):
        lo, hi = bounds(e.args[0], ranges)
        d_hi = bounds(e.args[1], ranges)[1]
        if e.args[1].is_Integer and lo // d_hi == hi // d_hi:
            return lo % d_hi, hi % d_hi
        return 0, d_hi - 1
    raise TypeError(f"no bounds for {e!r}")


def _terms(e: Expr) -> list[tuple[int, Expr]]:
    """e as a sum of integer coefficient times expression; the constant has the expression 1."""
    found = []
    for term in Add.make_args(e):
        coefficient, rest = term.as_coeff_Mul()
        if not isinstance(coefficient, Integer):
            coefficient, rest = Integer(1), term
        found.append((int(coefficient), rest))
    return found


def _sum(terms: list[tuple[int, Expr]]) -> Expr:
    return Add(*(Integer(c) * t for c, t in terms))


def _split_by(e: Expr, d: int) -> tuple[Expr, Expr]:
    """e = d * quotient + rest, taking out of every term what d divides."""
    quotient, rest = [], []
    for c, t in _terms(e):
        q, r = divmod(c, d)
        if q:
            quotient.append((q, t))
        if r:
            rest.append((r, t))
    return _sum(quotient), _sum(rest)


def _common_divisor(e: Expr, d: int) -> int:
    """Largest g that divides d and every non-constant coefficient of e."""
    g = d
    for c, t in _terms(e):
        if t != 1:
            g = int(sympy.igcd(g, c))
    return g


def _simplify_floordiv(a: Expr, d: int, ranges: Ranges) -> Expr:
    if d == 1:
        return a
    lo, hi = bounds(a, ranges)
    if lo // d == hi // d:
        return Integer(lo // d)
    quotient, rest = _split_by(a, d)
    if quotient != 0:
        # floor((d*q + r) / d) = q + floor(r / d)
        return quotient + _simplify_floordiv(rest, d, ranges)
    g = _common_divisor(a, d)
    if g > 1:
        # floor((g*x + r) / (g*e)) = floor(x / e) for 0 <= r < g; _split_by leaves 0 <= r < d
        inner, _ = _split_by(a, g)
        return _simplify_floordiv(inner, d // g, ranges)
    if isinstance(a, floordiv) and a.args[1].is_Integer:
        return _simplify_floordiv(a.args[0], int(a.args[1]) * d, ranges)
    return floordiv(a, Integer(d))


def _simplify_mod(a: Expr, d: int, ranges: Ranges) -> Expr:
    if d == 1:
        return Integer(0)
    lo, hi = bounds(a, ranges)
    if lo // d == hi // d:
        return a - (lo // d) * d
    _, rest = _split_by(a, d)
    if rest != a:
        return _simplify_mod(rest, d, ranges)
    if isinstance(a, mod) and a.args[1].is_Integer and int(a.args[1]) % d == 0:
        return _simplify_mod(a.args[0], d, ranges)
    g = _common_divisor(a, d)
    if g > 1:
        # (g*x + r) % (g*e) = g * (x % e) + r for 0 <= r < g
        inner, rest = _split_by(a, g)
        return g * _simplify_mod(inner, d // g, ranges) + rest
    return mod(a, Integer(d))


def _recombine(e: Expr, ranges: Ranges) -> Expr:
    """Fuse the pieces of one index that meet again in a sum.

    c*d*floor(a/d) + c*(a%d) = c*a, and c*d*(floor(a/d) % f) + c*(a%d) = c*(a % (d*f)).
    """
    if not isinstance(e, Add):
        return e
    terms = _terms(e)
    for i, (c, t) in enumerate(terms):
        if not (isinstance(t, mod) and t.args[1].is_Integer):
            continue
        a, d = t.args[0], int(t.args[1])
        quotient = _simplify_floordiv(a, d, ranges)
        for j, (c2, t2) in enumerate(terms):
            if i == j or c2 != c * d:
                continue
            if t2 == quotient:
                fused: Expr = a
            elif isinstance(t2, mod) and t2.args[0] == quotient and t2.args[1].is_Integer:
                fused = _simplify_mod(a, d * int(t2.args[1]), ranges)
            else:
                continue
            rest = [terms[k] for k in range(len(terms)) if k not in (i, j)]
            return _recombine(_sum(rest) + c * fused, ranges)
    return e


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """An equal expression with fewer operations, for all symbols within `ranges`."""
    if not e.args:
        lo_hi = ranges.get(e) if isinstance(e, Symbol) else None
        return Integer(lo_hi[0]) if lo_hi and lo_hi[0] == lo_hi[1] else e
    args = [simplify(a, ranges) for a in e.args]
    if isinstance(e, floordiv) and args[1].is_Integer:
        return _simplify_floordiv(args[0], int(args[1]), ranges)
    if isinstance(e, mod) and args[1].is_Integer:
        return _simplify_mod(args[0], int(args[1]), ranges)
    return _recombine(sympy.expand(e.func(*args)), ranges)


def count_operations(e: Expr) -> int:
    """Additions, multiplications, divisions and modulos that evaluating e takes."""
    if not e.args:
        return 0
    inner = sum(count_operations(a) for a in e.args)
    if isinstance(e, Mul) and e.args[0] == -1:
        return inner + max(len(e.args) - 2, 0)  # a negated term is a subtraction of its sum
    if isinstance(e, Add | Mul):
        return inner + len(e.args) - 1
    return inner + 1


def evaluate(e: Expr, values: Mapping[Symbol, object]):
    """Value of e with each symbol replaced by an integer or a NumPy integer array."""
    if isinstance(e, Integer):
        return int(e)
    if isinstance(e, Symbol):
        return values[e]
    args = [evaluate(a, values) for a in e.args]
    if isinstance(e, Add):
        return sum(args[1:], args[0])
    if isinstance(e, Mul):
        product = args[0]
        for a in args[1:]:
            product = product * a
        return product
    if isinstance(e, floordiv):
        return args[0] // args[1]
    if isinstance(e, mod):
        return args[0] % args[1]
    raise TypeError(f"cannot evaluate {e!r}")
