"""Integer expressions as C text.

C's / and % round towards zero, ours towards minus infinity: where a dividend may be negative the text
calls `floor_div` or `floor_mod` (templates/helpers.cuh.j2), otherwise the plain operators.
"""

from __future__ import annotations

from sympy import Add, Expr, Integer, Mul, Pow, Symbol

from convgen.ir.integer import Ranges, bounds, factors, floordiv, mod

_ADD, _MUL, _ATOM = 1, 2, 3


def c_expr(e: Expr, ranges: Ranges) -> str:
    """C text of e.  Symbols are printed by name."""
    return _print(e, ranges)[0]


def _print(e: Expr, ranges: Ranges) -> tuple[str, int]:
    if isinstance(e, Integer):
        return str(int(e)), _ATOM if e >= 0 else _ADD
    if isinstance(e, Symbol):
        return e.name, _ATOM
    if isinstance(e, Add):
        # positive terms first, symbols before the constant: reads as a person writes it
        terms = sorted(e.args, key=lambda t: (t.is_Integer, _coefficient(t) < 0, -abs(_coefficient(t)), str(t)))
        text = ""
        for t in terms:
            if _coefficient(t) < 0:
                part, level = _print(-t, ranges)
                part = f"({part})" if level == _ADD else part
                text = f"{text} - {part}" if text else f"-{part}"
            else:
                part, _ = _print(t, ranges)
                text = f"{text} + {part}" if text else part
        return text, _ADD
    if isinstance(e, Mul | Pow):
        parts = sorted(factors(e), key=lambda f: (f.is_Integer, str(f)))
        if parts[-1] == -1:
            part, level = _print(Mul(*parts[:-1]), ranges)
            return f"-{part if level > _ADD else f'({part})'}", _ADD
        return " * ".join(_wrap(f, ranges, _ATOM) for f in parts), _MUL
    if isinstance(e, floordiv | mod):
        a, b = e.args
        negative = bounds(a, ranges)[0] < 0
        if negative:
            name = "floor_div" if isinstance(e, floordiv) else "floor_mod"
            return f"{name}({_print(a, ranges)[0]}, {_print(b, ranges)[0]})", _ATOM
        sign = "/" if isinstance(e, floordiv) else "%"
        return f"{_wrap(a, ranges, _ATOM)} {sign} {_wrap(b, ranges, _ATOM)}", _MUL
    raise TypeError(f"no C text for {e!r}")


def _wrap(e: Expr, ranges: Ranges, level: int) -> str:
    text, own = _print(e, ranges)
    return text if own >= level else f"({text})"


def _coefficient(t: Expr) -> int:
    return int(t.as_coeff_Mul()[0])
