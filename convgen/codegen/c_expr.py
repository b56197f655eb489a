"""Integer expressions as C text.

C's / and % round towards zero, ours towards minus infinity: where a dividend may be negative the text
calls `floor_div` or `floor_mod` (templates/helpers.cuh.j2), otherwise the plain operators.

Symbols are ints, as a rule.  A product or a sum that may leave 32 bits is made in 64: its first operand is cast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sympy import Add, Expr, Integer, Mul, Pow, Symbol

from convgen.ir.integer import PADDED, Ranges, bounds, factors, floordiv, mod

_ADD, _MUL, _ATOM = 1, 2, 3


#: A number that is so many strides at most is told by them.
MOST_STRIDES = 8
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True)
class Names:
    """Names that stand for the numbers of an expression, and a callback for each name that the text mentions.

    A factor is a stride, or a few; so is a constant of a sum, a few of each.  What an index is divided by has a name by
    its value, what a remainder is taken of by that of the division before it, too: {(28, 14): ("P",)} for m / 28 % 14.
    """

    strides: Mapping[int, str] = field(default_factory=dict)
    divisors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    moduli: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    mention: Callable[[str], None] = lambda name: None

    def factors(self, number: int) -> list[str]:
        """A number as a product of names and perhaps a small number; the number itself if there is no such product."""
        for stride in sorted(self.strides, reverse=True):
            times, rest = divmod(number, stride)
            if not rest and 1 <= times <= MOST_STRIDES:
                self.mention(self.strides[stride])
                return [*([str(times)] if times > 1 else []), self.strides[stride]]
        return [str(number)]

    def summands(self, number: int) -> list[str]:
        """Products, of which a positive number is the sum; itself where it is not one of a few strides of each kind.  A
        few of a stride of 32 bits that take 64 are a number: C multiplies in 32."""
        parts = []
        whole = number
        for stride in sorted(self.strides, reverse=True):
            times, number = divmod(number, stride)
            parts += [times * stride] if times else []
            if times > MOST_STRIDES or stride <= INT_MAX < times * stride:
                return [str(whole)]
        found = [" * ".join(self.factors(part)) for part in parts]
        return [*found, *([str(number)] if number else [])]

    def divisor(self, quotient: Expr) -> str:
        """C text of a quotient's or a remainder's divisor; empty if it has no name."""
        a, b = quotient.args
        if not isinstance(b, Integer):
            return ""
        if isinstance(quotient, floordiv):
            found = self.divisors.get(int(b), ())
        else:
            before = a.args[1] if isinstance(a, floordiv) else Integer(1)
            found = self.moduli.get((int(before), int(b)), ()) if isinstance(before, Integer) else ()
        for name in found:
            self.mention(name)
        text = " * ".join(found)
        return f"({text})" if len(found) > 1 else text


NO_NAMES = Names()


def c_expr(e: Expr, ranges: Ranges, symbols: str = "int", names: Names = NO_NAMES) -> str:
    """C text of e.  Symbols are printed by name, and so are numbers that have one; `symbols` is the symbols' C type."""
    return _Printer(ranges, symbols == "int", names).text(e)[0]


def leaves_int(e: Expr, ranges: Ranges) -> bool:
    """Whether a product, or an intermediate sum, may not fit an int."""
    ends = [bounds(t, ranges) for t in (e.args if isinstance(e, Add) else [e])]
    return sum(min(low, 0) for low, _ in ends) < INT_MIN or sum(max(high, 0) for _, high in ends) > INT_MAX


@dataclass(frozen=True)
class _Printer:
    """Gives the text of an expression and how tightly it binds; of 64 bits where `cast` asks for them."""

    ranges: Ranges
    ints: bool
    names: Names

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
            if isinstance(t, Integer) and text:
                sign = "-" if negative else "+"
                return "".join([text, *(f" {sign} {part}" for part in self.names.summands(abs(int(t))))]), _ADD
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
        texts = [self._wrap(f, _ATOM, cast and i == 0) for i, f in enumerate(parts)]
        if isinstance(parts[-1], Integer) and parts[-1] > 1 and len(parts) > 1:
            texts[-1:] = self.names.factors(int(parts[-1]))
        return " * ".join(texts), _MUL

    def _quotient(self, e: Expr) -> tuple[str, int]:
        a, b = e.args
        if bounds(a, self.ranges)[0] < 0:
            name = "floor_div" if isinstance(e, floordiv) else "floor_mod"
            return f"{name}({self.text(a)[0]}, {self.text(b)[0]})", _ATOM
        sign = "/" if isinstance(e, floordiv) else "%"
        return f"{self._wrap(a, _ATOM)} {sign} {self.names.divisor(e) or self._wrap(b, _ATOM)}", _MUL

    def _wrap(self, e: Expr, level: int, cast: bool = False) -> str:
        text, own = self.text(e, cast)
        return text if own >= level else f"({text})"


def _cast(text: str, cast: bool) -> str:
    return f"(long long){text}" if cast else text


def _coefficient(t: Expr) -> int:
    return int(t.as_coeff_Mul()[0])
