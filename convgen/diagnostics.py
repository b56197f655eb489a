"""Diagnostics: what is wrong, where, and what to do.

Every check in convgen reports through these records, so that all errors of a file come at once and
look alike, on a terminal and as JSON.  A `Diagnostic` has a stable code (`CODES` says what each means),
a span in the spec where there is one, and a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A region of a spec: 1-based line and column, end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Diagnostic:
    """One finding.  `code` is a key of `CODES`; `span` is None where no place in the spec is to blame."""

    code: str
    message: str
    span: Span | None = None
    hint: str | None = None
    severity: str = "error"


class ConvgenError(Exception):
    """Base of every error that convgen raises for a user's mistake or an unfit environment.

    `exit_code` is what the command line returns: 1 for diagnostics, 2 for usage.
    """

    exit_code = 1


class SpecError(ConvgenError):
    """A spec with errors: all of them, with the text that they point into."""

    def __init__(self, diagnostics, path: str = "<text>", text: str = ""):
        self.diagnostics, self.path, self.text = tuple(diagnostics), path, text
        super().__init__("\n".join(f"{d.code}: {d.message}" for d in self.diagnostics))
