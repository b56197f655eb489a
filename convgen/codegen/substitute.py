"""Replaces a name in C text by a number, and simplifies the zeros and ones that result.

With 0 for i, `acc[i], tile + i * 64` becomes `acc[0], tile`, and `step != 0 || i > 0` becomes `step != 0`.  Only what a
reader would see at once goes: terms that vanish, factors of one, comparisons of two numbers.  Comments stay.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"(\s*)(//[^\n]*|\"(?:\\.|[^\"\\])*\"|[A-Za-z_]\w*|\d[\w.]*|<<=|>>=|\+\+|--|->|::|<<|>>|&&|\|\||[-+*/%&|^<>=!]=|\S|$)"
)
_ATOM = re.compile(r"[A-Za-z_0-9]")
_CLOSES = {"(": ")", "[": "]", "<": ">"}
_OPENS = {close: opens for opens, close in _CLOSES.items()}
_PRODUCT = ("*", "/", "%")
#: Words of the types that expressions are cast to.
_TYPES = frozenset(
    ["int", "long", "unsigned", "float", "double", "u8", "u16", "u32", "u64", "s8", "f16", "bf16", "const", "*"]
)
#: What a sum may begin behind, and end before.
_BETWEEN = frozenset(["", ",", "?", ":", ";", "<", ">", "<=", ">=", "==", "!=", "&&", "||", "<<", ">>"])
_BEGINS = _BETWEEN | {"(", "[", "{", "=", "+=", "-=", "return"}
_ENDS = _BETWEEN | {")", "]", "}", "+", "-", "&", "|", "^"}

_HOW = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}
_COMPARISON = re.compile(r"(^|[({,=?] ?|\|\| |&& |return )(\d+) ([<>=!]=|[<>]) (\d+)(?=[),;]| \|\|| &&| \?)")
_NEUTRAL = re.compile(r"\bfalse \|\| | \|\| false\b(?= \|\||[),;])|\btrue && | && true\b(?= &&|[),;])")


def substitute(text: str, name: str, value: int) -> str:
    """C text with a number, not negative, for a name that nothing in it declares or changes."""
    tokens = _Tokens(text)
    while (at := tokens.find(name)) is not None:
        tokens.put(at, str(value))
        if value == 0:
            tokens.vanish(at)
        elif value == 1:
            tokens.drop_factor(at)
    compared = _COMPARISON.sub(lambda m: m[1] + str(_HOW[m[3]](int(m[2]), int(m[4]))).lower(), tokens.text())
    return _NEUTRAL.sub("", compared)


class _Tokens:
    """Tokens of C text, each with the white space before it."""

    def __init__(self, text: str) -> None:
        self._pairs = [[space, token] for space, token in _TOKEN.findall(text)]

    def text(self) -> str:
        return "".join(space + token for space, token in self._pairs)

    def _at(self, i: int) -> str:
        return self._pairs[i][1] if 0 <= i < len(self._pairs) else ""

    def _is_atom(self, i: int) -> bool:
        return _ATOM.match(self._at(i)) is not None and self._at(i) != "return"

    def _ends_operand(self, i: int) -> bool:
        return self._is_atom(i) or self._at(i) in (")", "]")

    def find(self, name: str) -> int | None:
        found = (i for i, (_, token) in enumerate(self._pairs) if token == name and self._at(i - 1) not in (".", "->"))
        return next(found, None)

    def put(self, at: int, token: str) -> None:
        self._pairs[at][1] = token

    def _delete(self, start: int, end: int) -> None:
        """Deletes tokens; what follows them at the start of an expression moves to where they began."""
        space = self._pairs[start][0]
        del self._pairs[start:end]
        if self._at(start - 1) in _BEGINS:
            self._pairs[start][0] = space

    # ---- zeros and ones ------------------------------------------------------------------------

    def drop_factor(self, one: int) -> None:
        """Drops a factor of 1 from a product."""
        if self._at(one + 1) == "*" and self._at(one - 1) not in ("/", "%"):
            space = self._pairs[one][0]
            del self._pairs[one : one + 2]
            self._pairs[one][0] = space
        elif self._at(one - 1) == "*" and self._ends_operand(one - 2):
            del self._pairs[one - 1 : one + 1]

    def vanish(self, zero: int) -> None:
        """Drops the product that has the zero as a factor from the sum that it is a term of."""
        start, end = self._product(zero)
        if end - start > 1:
            self._pairs[start:end] = [[self._pairs[start][0], "0"]]
        before, after = self._at(start - 1), self._at(start + 1)
        summed = before in ("+", "-") and (after in _ENDS or after.startswith("//"))
        if self._ends_operand(start - 2) and (summed or (before == "|" and after in (")", "]", ",", ";", "|"))):
            self._delete(start - 1, start + 1)
            self._unwrap(start - 2)
        elif before in _BEGINS and after in ("+", "|"):
            self._delete(start, start + 2)
            self._unwrap(start)
        else:
            self._unwrap(start)

    def _product(self, at: int) -> tuple[int, int]:
        """The first and the end of the tokens of a product, all of which vanishes with a factor; of the factor alone
        where it divides."""
        start, end = at, at + 1
        while self._at(start - 1) in (("*",) if start == at else _PRODUCT) and self._ends_operand(start - 2):
            first = self._operand_start(start - 2)
            if first is None:
                return at, at + 1
            start = first
        if self._at(start - 1) in _PRODUCT:
            return at, at + 1
        while self._at(end) in _PRODUCT:
            last = self._operand_end(end + 1)
            if last is None:
                return at, at + 1
            end = last
        return start, end

    def _unwrap(self, at: int) -> None:
        """Drops the innermost parentheses around a token, where what they hold is now an operand or a product."""
        found = self._around(at)
        if found is None:
            return
        start, end = found
        operators = {self._at(i) for i in self._top_level(start + 1, end) if not self._is_operand_part(i)}
        before = self._at(start - 1)
        if operators - set(_PRODUCT) or self._ends_operand(start - 1) or self._is_atom(end + 1):
            return
        if before in (">", "!", "~") or (operators and before in _PRODUCT):
            return
        self._pairs[start + 1][0] = self._pairs[start][0]
        del self._pairs[end], self._pairs[start]
        if end - start == 2 and self._at(start) == "0":
            self.vanish(start)

    # ---- brackets and operands -----------------------------------------------------------------

    def _is_operand_part(self, i: int) -> bool:
        return self._is_atom(i) or self._at(i) in ("(", ")", "[", "]", ".")

    def _top_level(self, start: int, end: int) -> list[int]:
        depth, found = 0, []
        for i in range(start, end):
            depth -= self._at(i) in (")", "]")
            if depth == 0:
                found.append(i)
            depth += self._at(i) in ("(", "[")
        return found

    def _around(self, at: int) -> tuple[int, int] | None:
        """The innermost brackets around a token, where these are parentheses."""
        depth = 0
        for i in range(at, -1, -1):
            if self._at(i) in (")", "]") and i != at:
                depth += 1
            elif self._at(i) in ("(", "["):
                if depth == 0:
                    end = self._match(i, 1)
                    return (i, end) if self._at(i) == "(" and end is not None else None
                depth -= 1
            elif self._at(i) in ("{", "}", ";"):
                break
        return None

    def _match(self, at: int, way: int) -> int | None:
        """The bracket that closes, or opens, the one at hand."""
        pairs: dict[str, str] = _CLOSES if way > 0 else _OPENS
        opens, closes, depth, i = self._at(at), pairs[self._at(at)], 0, at
        while 0 <= i < len(self._pairs):
            depth += (self._at(i) == opens) - (self._at(i) == closes)
            if depth == 0:
                return i
            i += way
        return None

    def _operand_end(self, at: int) -> int | None:
        """The end of the operand that begins with a token; None where it is not one that we know."""
        if not self._is_atom(at):
            return self._bracket_end(at) if self._at(at) == "(" else None
        end: int | None = at + 1
        while end is not None and (follows := self._postfix(end)) is not None:
            end = follows(end)
        return end

    def _bracket_end(self, at: int) -> int | None:
        end = self._match(at, 1)
        if end is None or self._is_atom(end + 1) or self._at(end + 1) == "(":  # a cast
            return None
        # a cast of something with a sign, which is no sum
        return None if all(self._at(i) in _TYPES for i in range(at + 1, end)) else end + 1

    def _postfix(self, at: int) -> Callable[[int], int | None] | None:
        if self._at(at) in (".", "->", "::"):
            return lambda i: i + 2
        if self._at(at) in ("(", "[") or (self._at(at) == "<" and not self._pairs[at][0]):
            return lambda i: None if (end := self._match(i, 1)) is None else end + 1
        return None

    def _operand_start(self, at: int) -> int | None:
        """The first token of the operand that ends with one."""
        if self._at(at) in (")", "]"):
            opens = self._match(at, -1)
            if opens is None or self._at(opens - 1) == ">":
                return None
            return self._operand_start(opens - 1) if self._ends_operand(opens - 1) else opens
        if self._at(at - 1) in (".", "->", "::"):
            return self._operand_start(at - 2)
        return None if self._at(at - 1) == ")" else at
