"""Integer expressions as C text.

C's / and % round towards zero, ours towards minus infinity: where a dividend may be negative the text
calls `floor_div` or `floor_mod` (templates/helpers.cuh.j2), otherwise the plain operators.

Symbols are ints, as a rule.  A product or a sum that may leave 32 bits is made in 64: its first operand is cast.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Add, Expr, Integer, Mul, Pow, Symbol

from convgen.ir.integer import PADDED, Ranges, bounds, factors, floordiv, mod

_ADD, _MUL, _ATOM = 1, 2, 3


INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def c_expr(e: Expr, ranges: Ranges, symbols: str = "int") -> str:
    """C text of e.  Symbols are printed by name; `symbols` is their C type."""
    return _Printer(ranges, symbols == "int").text(e)[0]


def leaves_int(e: Expr, ranges: Ranges) -> bool:
    """Whether a product, or a sum on its way, may not fit an int."""
    ends = [bounds(t, ranges) for t in (e.args if isinstance(e, Add) else [e])]
    return sum(min(low, 0) for low, _ in ends) < INT_MIN or sum(max(high, 0) for _, high in ends) > INT_MAX


@dataclass(frozen=True)
class _Printer:
    """Gives the text of an expression and how tightly it binds; of 64 bits where `cast` asks for them."""

    ranges: Ranges
    ints: bool

    def text(self, e: Expr, cast: bool = False) -> tuple[str, int]:
        if isinstance(e, Integer):
            return str(int(e)), _ATOM if e >= 0 else _ADD
        if isinstance(e, Symbol):
            return _cast(e.name, cast), _ATOM
        if isinstance(e, Add | Mul | Pow):
            cast = cast or (self.ints and leaves_int(e, self.ranges))
            return self._sum(e, cast) if isinstance(e, Add) else self._product(e, cast)
        if isinstance(e, floordiv | mod):
            text, level = self._quotient(e)
            return (_cast(text if level == _ATOM else f"({text})", cast), _ATOM) if cast else (text, level)
        if type(e) in PADDED:
            return _cast(f"{type(e).__name__}({', '.join(self.text(a)[0] for a in e.args)})", cast), _ATOM
        raise TypeError(f"no C text for {e!r}")

    def _sum(self, e: Add, cast: bool) -> tuple[str, int]:
        # positive terms first, symbols before the constant: reads as a person writes it
        terms = sorted(e.args, key=lambda t: (t.is_Integer, _coefficient(t) < 0, -abs(_coefficient(t)), str(t)))
        text = ""
        for t in terms:
            negative = _coefficient(t) < 0
            part, level = self.text(-t if negative else t, cast and not text)
            if negative:
                part = f"({part})" if level == _ADD else part
                text = f"{text} - {part}" if text else f"-{part}"
            else:
                text = f"{text} + {part}" if text else part
        return text, _ADD

    def _product(self, e: Expr, cast: bool) -> tuple[str, int]:
        parts = sorted(factors(e), key=lambda f: (f.is_Integer, str(f)))
        if parts[-1] == -1:
            part, level = self.text(Mul(*parts[:-1]), cast)
            return f"-{part if level > _ADD else f'({part})'}", _ADD
        return " * ".join(self._wrap(f, _ATOM, cast and i == 0) for i, f in enumerate(parts)), _MUL

    def _quotient(self, e: Expr) -> tuple[str, int]:
        a, b = e.args
        if bounds(a, self.ranges)[0] < 0:
            name = "floor_div" if isinstance(e, floordiv) else "floor_mod"
            return f"{name}({self.text(a)[0]}, {self.text(b)[0]})", _ATOM
        sign = "/" if isinstance(e, floordiv) else "%"
        return f"{self._wrap(a, _ATOM)} {sign} {self._wrap(b, _ATOM)}", _MUL

    def _wrap(self, e: Expr, level: int, cast: bool = False) -> str:
        text, own = self.text(e, cast)
        return text if own >= level else f"({text})"


def _cast(text: str, cast: bool) -> str:
    return f"(long long){text}" if cast else text


def _coefficient(t: Expr) -> int:
    return int(t.as_coeff_Mul()[0])
