"""Declared names: unique, of bounded length, and not reserved."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.diagnostics import Report, Span
from convgen.frontend import ast

MAX_LENGTH = 64
#: What a tensor that a kernel takes cannot be called, since Python passes it by its name, among these.  C's words are
#: free: in generated code every name has a prefix.
ARGUMENTS = dict.fromkeys(
    ("self", "out", "stream", "workspace", "seed", "progress", "sms"), "an argument of every kernel in Python"
)


class Names:
    """The names of one scope.  `reserved` says what a name already stands for."""

    def __init__(self, report: Report, reserved: Mapping[str, str] | None = None) -> None:
        self._report = report
        self._reserved = reserved or {}
        self._declared: dict[str, Span] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._declared

    def span(self, name: str) -> Span | None:
        """Where a name is declared."""
        return self._declared.get(name)

    def declare(self, name: ast.Name, shown: str = "", taken: Mapping[str, str] | None = None) -> bool:
        """Whether the name is new and may be used; if not, that is reported.  `shown` is the name in full
        where the spec writes a part of it; `taken` are names that are reserved for its kind alone."""
        text = shown or name.text
        reserved = {**self._reserved, **(taken or {})}
        if len(text) > MAX_LENGTH:
            message = f"a name has at most {MAX_LENGTH} characters; `{text[:24]}...` has {len(text)}"
            self._report.error("E006", message, name.span)
        elif text in self._declared:
            hint = f"the first is on line {self._declared[text].line}"
            self._report.error("E101", f"`{text}` is declared twice", name.span, hint)
        elif text in reserved:
            hint = "choose another name"
            self._report.error("E006", f"`{text}` is {reserved[text]}", name.span, hint)
        else:
            self._declared[text] = name.span
            return True
        return False
