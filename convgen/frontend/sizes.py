"""Sizes: integer expressions over `let` names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.frontend.dims import SETTING_OF, dim_meant
from convgen.frontend.names import Names
from convgen.ir.size import whole

#: All computed values stay below; extents and the like have their own limits.
MAX_VALUE = (1 << 63) - 1
#: Extents, strides and so on fit an int of generated code.
MAX_INT = (1 << 31) - 1

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}


class Sizes:
    """The lets of a file, and the value of expressions over them."""

    def __init__(self, spec: ast.Spec, defines: Mapping[str, int], report: Report) -> None:
        self._report, self._defines = report, defines
        self._declared = {let.name.text for let in spec.lets} | spec.lost - {ast.ANY}
        #: Whether no let has lost its name: any that is not known may be its.
        self.complete = ast.ANY not in spec.lost
        #: The value of each let so far; None if it has an error, which is then reported.
        self._values: dict[str, int | None] = dict.fromkeys(spec.lost - {ast.ANY})
        self._define(defines)
        names = Names(report)
        for let in spec.lets:
            if names.declare(let.name) and let.name.text not in defines:
                self._values[let.name.text] = self.evaluate(let.value)

    def _define(self, defines: Mapping[str, int]) -> None:
        for name, value in defines.items():
            number = None
            if not self.complete and name not in self._declared:
                pass
            elif (found := whole(value)) is None:
                self._report.error("E103", f"defined {name}={value!r:.40}, which is not a whole number")
            elif abs(found) > MAX_VALUE:
                self._report.error("E005", f"defined {name}: the number {_beyond(found)}")
            elif name not in self._declared:
                message = f"defined {name}={found}, and the file has no `let {name}`"
                self._report.error("E103", message, None, self._no_let(name, found))
                continue
            else:
                number = found
            self._values[name] = number

    def _no_let(self, name: str, value: int) -> str:
        """The hint for a define without a let: the let, dim or setting that is meant."""
        if like := habits.did_you_mean(name, self._declared, habits.LETS):
            return like
        if meant := dim_meant(name):
            role, dim = meant
            use = dim if dim == name else f"{dim}={name}"
            is_dim = "is a dim" if dim == name else f"is dim `{dim}`"
            where = f"`{name}` {is_dim} of the {SETTING_OF[role]}"
            hint = f"{where}: for a define to set it, write `let {name} = {value}` and `{use}` there"
            return hint + f"; the file's lets are {listing(sorted(self._declared), 'and')}" * bool(self._declared)
        if instead := habits.NO_SETTINGS.get(habits.plain(name)):
            return instead
        if self._declared:
            return f"the file's lets are {listing(sorted(self._declared), 'and')}"
        return "the file has no let; write `let n = 8` and use `n` as a size"

    def __contains__(self, name: object) -> bool:
        """Whether the file declares a let of that name."""
        return name in self._declared

    def refuse(self, size: ast.Expr) -> str | None:
        """The hint for a size that is out of range: the let that it comes from, no other use of which is reported."""
        if not isinstance(size, ast.Reference):
            return None
        name = size.name
        value, self._values[name] = self._values[name], None
        return f"the define {name}={value} sets it" if name in self._defines else f"`let {name}` sets it"

    def like(self, name: str) -> str | None:
        """The let that stands for a dim under another name."""
        others = (let for let in self._declared if habits.LETS.get(habits.plain(let), habits.plain(let)) == name)
        return min(others, default=None)

    def evaluate(self, e: ast.Expr, hints: Mapping[str, str] | None = None) -> int | None:
        """The value of an expression; None if it has an error, which is then reported.

        `hints` says what is meant by names that are not lets."""
        match e:
            case ast.Number():
                return self._number(e)
            case ast.Reference():
                return self._reference(e, hints or {})
            case ast.Unary(op="-"):
                value = self.evaluate(e.operand, hints)
                return None if value is None else -value
            case ast.Binary() if e.op in _ARITHMETIC:
                left, right = self.evaluate(e.left, hints), self.evaluate(e.right, hints)
                return None if left is None or right is None else self._binary(e, left, right)
            case ast.Unary() | ast.Binary():
                self._not_a_size(e, f"`{e.op}`")
            case ast.Call():
                self._not_a_size(e, f"`{e.function.text}`")
        return None

    def _not_a_size(self, e: ast.Expr, what: str, hint: str | None = None) -> None:
        hint = hint or "sizes are whole numbers, lets and + - * / %"
        self._report.error("E105", f"a size cannot use {what}", e.span, hint)

    def _number(self, e: ast.Number) -> int | None:
        if not e.is_whole:
            value = float(e.text)
            hint = f"write `{value:.0f}`" if value.is_integer() and value < MAX_INT else None
            self._not_a_size(e, f"`{e.text:.32}`" if hint else f"the fraction {e.text:.32}", hint)
            return None
        digits = e.text.lstrip("0") or "0"
        if len(digits) > 19 or int(digits) > MAX_VALUE:
            self._report.error("E005", f"the number is too large; the limit is {MAX_VALUE}", e.span)
            return None
        return int(digits)

    def _reference(self, e: ast.Reference, hints: Mapping[str, str]) -> int | None:
        if e.name in self._values:
            return self._values[e.name]
        if not self.complete and e.name not in self._declared:
            return None
        if e.name in self._declared:
            self._report.error(
                "E102", f"`{e.name}` is used before its `let`", e.span, "a let can use only the lets above it"
            )
        else:
            hint = hints.get(e.name) or self._report.did_you_mean(e.name, self._declared)
            hint = hint or f"declare it: `let {e.name} = ...`"
            self._report.error("E102", f"no let is named `{e.name}`", e.span, hint)
        return None

    def _binary(self, e: ast.Binary, left: int, right: int) -> int | None:
        if e.op in ("/", "%") and right == 0:
            self._report.error("E104", f"division by zero: {left} {e.op} 0", e.span)
            return None
        if e.op == "/" and left % right:
            self._report.error(
                "E104", f"{left} / {right} is not a whole number", e.span, "a division must leave no remainder"
            )
            return None
        value = _ARITHMETIC[e.op](left, right)
        if abs(value) > MAX_VALUE:
            self._report.error("E104", f"the result {_beyond(value)}", e.span)
            return None
        return value


def _beyond(value: int) -> str:
    """The error of a number that exceeds the limits."""
    return f"is too large; the limit is {MAX_VALUE}" if value > 0 else f"is too small; the limit is {-MAX_VALUE}"
