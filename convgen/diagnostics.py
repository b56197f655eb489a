"""Diagnostics: what is wrong, where, and what to do.

Every check in convgen reports through these records, so that all errors of a file come at once and
look alike, on a terminal and as JSON.  A `Diagnostic` has a stable code (`CODES` says what each means),
a span in the spec where there is one, and a hint.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from convgen.hypertext import preformatted

if TYPE_CHECKING:
    from rich.text import Text

#: Files of convgen's own frames, and of the properties in between.
_OWN = (os.path.join(os.path.dirname(__file__), ""), functools.__file__)

#: What each code means.  A code is never given another meaning.
CODES: dict[str, str] = {
    # the text
    "E001": "a character that is not part of the language",
    "E002": "the text does not follow the grammar",
    "E003": "a block is not closed",
    "E004": "an expression is nested too deeply",
    "E005": "a number is too large",
    "E006": "a name that cannot be used: reserved, or too long",
    "E007": "the file has no conv block",
    # names and sizes
    "E101": "a name is declared twice",
    "E102": "a size uses an unknown name",
    "E103": "a define (-D) that no let declares, or whose value is not a whole number",
    "E104": "arithmetic without a whole result: a remainder, a division by zero, an overflow",
    "E105": "a size uses something other than whole numbers, lets and + - * / %",
    # settings
    "E201": "a setting is missing",
    "E202": "a setting is given twice",
    "E203": "a dim that does not belong there",
    "E204": "a dim is given twice",
    "E205": "an unknown element type, or one that cannot be used there",
    "E206": "element types that cannot be combined",
    "E207": "an extent is neither given nor can it be inferred",
    "E208": "extents disagree",
    "E209": "a value is out of range",
    "E210": "groups do not divide the channels",
    "E211": "the output is empty: the window is larger than the padded input",
    "E212": "a tensor has too many elements",
    "E213": "an unknown operator, or operators that cannot be combined",
    "E214": "a lowered matrix that no operator uses, or whose axes lack a dim",
    "E215": "a slice of something other than the last dim's channels, or of fewer channels than it has",
    "E216": "padding of an unknown kind, or of NaN in integers",
    "E217": "a dim that cannot be dynamic, or dynamic dims where sizes have to be fixed",
    # the epilogue and the prologue
    "E301": "an epilogue or a prologue uses a name that it cannot read",
    "E302": "an epilogue or a prologue calls an unknown function",
    "E303": "a function is called with the wrong number of arguments",
    "E304": "an epilogue or a prologue does not assign each of its results once, or does not end with one",
    "E305": "an epilogue or a prologue belongs to no operator of its block",
    "E306": "an operand or a local is never used",
    "E307": "an epilogue or a prologue uses an operator that only sizes have",
    # strategy and target
    "E401": "the strategy cannot serve the convolution",
    "E402": "an unknown strategy",
    "E403": "an unknown option",
    "E404": "an option has an invalid value",
    "E405": "an unknown target",
}


#: Codes of text in the wrong place.
_SYNTAX = frozenset({"E001", "E002", "E003"})
_UNKNOWN_EXTENT = "E207"


@dataclass(frozen=True)
class Span:
    """A region of a spec: 1-based line and column, end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, end: Span) -> Span:
        """A span from the start of this one to the end of another."""
        return Span(self.line, self.column, end.end_line, end.end_column)

    def overlaps(self, other: Span) -> bool:
        """Whether a character is in both."""
        start = max((self.line, self.column), (other.line, other.column))
        return start < min((self.end_line, self.end_column), (other.end_line, other.end_column))


@dataclass(frozen=True)
class Diagnostic:
    """One finding.  `code` is a key of `CODES`; `span` is None where no place in the spec is to blame."""

    code: str
    message: str
    span: Span | None = None
    hint: str | None = None
    severity: str = "error"


class RenamedWarning(FutureWarning):
    """A spec has a name that is no longer the language's, at a place."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.span = span


class ConvgenError(Exception):
    """Base of every error that convgen raises for a user's mistake or an unfit environment.

    `exit_code` is what the command line returns: 1 for diagnostics, 2 for usage.
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """A notebook's view: only the message, which says what to do; the code that found the error does not."""
        return [f"{type(self).__name__}: {self}"]


class SpecError(ConvgenError):
    """A spec with errors: all of them, in the order of the text that they point into."""

    def __init__(self, diagnostics: Iterable[Diagnostic], path: str = "<text>", text: str = "") -> None:
        self.diagnostics, self.path, self.text = tuple(diagnostics), path, text
        super().__init__(self.diagnostics, path, text)

    def __str__(self) -> str:
        return format_text(self.diagnostics, self.text, self.path)

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()

    def _repr_html_(self) -> str:
        return preformatted(str(self))


#: Fields of a span, as in JSON.
_PLACE = ("line", "column", "end_line", "end_column")


def format_text(diagnostics: Iterable[Diagnostic], text: str, path: str) -> str:
    """Diagnostics as a person reads them: path:line:column, the source line, a caret under the whole span, a hint."""
    return "".join(part for part, _ in _parts(diagnostics, text, path)).rstrip("\n")


def format_rich(diagnostics: Iterable[Diagnostic], text: str, path: str) -> Text:
    """The same in colors, for `rich.console.Console.print`."""
    from rich.text import Text

    return Text.assemble(*_parts(diagnostics, text, path), no_wrap=True)


def format_json(diagnostics: Iterable[Diagnostic], path: str) -> str:
    """Diagnostics for editors: a JSON list of objects.  Where there is no span, its four numbers are null."""
    rows = []
    for d in diagnostics:
        row = {"code": d.code, "severity": d.severity, "message": d.message, "hint": d.hint, "path": path}
        rows.append(row | {key: getattr(d.span, key, None) for key in _PLACE})
    return json.dumps(rows, indent=2)


def parse_json(text: str) -> tuple[Diagnostic, ...]:
    """The diagnostics that `format_json` wrote."""
    return tuple(
        Diagnostic(
            row["code"],
            row["message"],
            None if row["line"] is None else Span(*(row[key] for key in _PLACE)),
            row["hint"],
            row["severity"],
        )
        for row in json.loads(text)
    )


#: Columns of a source line that are shown; longer lines are cut around the span.
_WIDTH = 120


def _parts(diagnostics: Iterable[Diagnostic], text: str, path: str) -> Iterator[tuple[str, str]]:
    """Pieces of the rendering, each with its rich style."""
    lines = text.removeprefix("\ufeff").split("\n")
    for d in diagnostics:
        place = f"{path}:{d.span.line}:{d.span.column}" if d.span else path
        yield f"{_printable(place)}: ", "bold"
        yield f"{d.severity}[{d.code}]", "bold red" if d.severity == "error" else "bold yellow"
        yield f": {_printable(d.message)}\n", "bold"
        margin = "      | "
        if d.span and d.span.line <= len(lines):
            source, carets = _excerpt(lines[d.span.line - 1].rstrip("\r"), d.span)
            yield f"{d.span.line:5} | ", "blue"
            yield f"{source}\n", ""
            yield margin, "blue"
            yield f"{carets}\n", "bold red"
        if d.hint:
            yield "      = ", "blue"
            yield f"hint: {_printable(d.hint)}\n", "cyan"


def _excerpt(line: str, span: Span) -> tuple[str, str]:
    """An excerpt of a source line, and the carets under the span's part of it."""
    start = min(span.column - 1, len(line))
    end = len(line) if span.end_line > span.line else min(span.end_column - 1, len(line))
    first = 0 if len(line) <= _WIDTH else max(0, min(start - _WIDTH // 4, len(line) - _WIDTH))
    last = min(len(line), first + _WIDTH)
    before, under, after = line[first:start], line[start : min(end, last)], line[min(end, last) : last]
    if first:
        before = "... " + before[4:]
    if last < len(line):
        after = after + " ..."
    carets = " " * _columns(_printable(before)) + "^" * max(1, _columns(_printable(under)))
    return _printable(before + under + after), carets


def _printable(text: str) -> str:
    """Text that a terminal shows as it is: a blank for a tab, a mark for every other control character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


def _columns(text: str) -> int:
    """Columns that a terminal takes to show the text."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint where one of the known names is close."""
    close = closest(name, known)
    return f"did you mean `{close}`?" if close else None


#: Unknown names of a file that are compared with those that it knows.
_MOST_GUESSES = 50
#: How much of two words is the same, of 1, where one may be a misspelling of the other.
_CLOSE = 0.6


def closest(name: str, known: Iterable[str]) -> str | None:
    """Another name that is close, whatever its case and the dashes before it; of several as close, the first.  None
    where one that differs in numbers alone is closest."""
    from difflib import SequenceMatcher

    bare = {k.lstrip("-").lower(): k for k in known if k != name}
    matcher = SequenceMatcher(b=name.lstrip("-").lower())
    found, most = "", _CLOSE
    for word in bare:
        matcher.set_seq1(word)
        # words that cannot be as close are passed over, since a ratio takes long and a file may have thousands
        if matcher.real_quick_ratio() < most or matcher.quick_ratio() < most:
            continue
        ratio = matcher.ratio()
        if ratio > most or (ratio == most and not found):
            found, most = word, ratio
    return bare[found] if found and not _is_another_number(name, bare[found]) else None


def _is_another_number(a: str, b: str) -> bool:
    """Whether names differ in numbers alone: sm_75 is not sm_90 with a slip of the finger, as im3col is im2col."""
    if [not c.isdigit() and c for c in a] != [not c.isdigit() and c for c in b]:
        return False
    return not all(a[i - 1 : i].isalpha() and a[i + 1 : i + 2].isalpha() for i, c in enumerate(a) if c != b[i])


def quote(text: str) -> str:
    """Text of a spec as messages show it: in backticks, cut where it is long."""
    return f"`{text if len(text) <= 32 else text[:29] + '...'}`"


def listing(names: Sequence[object], last: str = "or") -> str:
    """ "a", "a or b", "a, b or c", each in backticks; the middle of many is left out."""
    quoted = [f"`{n}`" for n in names]
    if len(quoted) > 16:
        quoted[4:-1] = ["..."]
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}" if len(quoted) > 1 else "".join(quoted)


def _shortened(message: str) -> str:
    """Names are as long as the spec makes them; messages are not."""
    return message if len(message) <= 400 else f"{message[:200]} ... {message[-180:]}"


class Report:
    """Collects diagnostics while a file is read."""

    def __init__(self) -> None:
        self._found: dict[Diagnostic, None] = {}
        self._renamed: dict[tuple[Span, str], None] = {}
        self._guesses = 0

    def __len__(self) -> int:
        return len(self._found)

    def has(self, *codes: str, since: int) -> bool:
        """Whether an error with one of these codes came after the first `since` ones."""
        return any(d.code in codes for d in itertools.islice(self._found, since, None))

    def did_you_mean(self, name: str, known: Iterable[str]) -> str | None:
        """A hint where one of the known names is close, for the first unknown names of a file: a file may know
        thousands, and each takes a comparison."""
        self._guesses += 1
        return did_you_mean(name, known) if self._guesses <= _MOST_GUESSES else None

    def renamed(self, what: str, now: str, span: Span) -> None:
        """A name that the language had, which is read as the present one for a release."""
        self._renamed[span, f"{what} is now `{now}`"] = None

    @property
    def warnings(self) -> tuple[tuple[Span, str], ...]:
        """The warnings about a file that has no errors: places and messages."""
        return tuple(self._renamed)

    def error(self, code: str, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self._found.setdefault(Diagnostic(code, _shortened(message), span, hint and _shortened(hint)))

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The diagnostics in the order of the text, those without a place first.  Words that do not fit get only
        one."""
        faults = [d.span for d in self._found if d.span and d.code in _SYNTAX]
        found = [
            d for d in self._found
            if d.code in _SYNTAX or d.span is None or not any(d.span.overlaps(fault) for fault in faults)
        ]  # fmt: skip
        return _once(sorted(found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)))


def _once(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Extents that nothing gives are said once: a `let` that a file lacks is missing in each of its convolutions."""
    alike: dict[object, list[Diagnostic]] = {}
    for d in found:
        alike.setdefault((d.message, d.hint) if d.code == _UNKNOWN_EXTENT else d, []).append(d)
    said = []
    for first, *others in alike.values():
        more = f", here and in {len(others)} more place{'s' * (len(others) > 1)}" if others else ""
        said.append(replace(first, message=first.message + more))
    return tuple(said)


def warn(text: str | Warning, category: type[Warning] = UserWarning, through: tuple[str, ...] = ()) -> None:
    """Warns of the program's own line that led here, through convgen and what lies in folders `through`."""

    def is_passed(frame: FrameType) -> bool:
        made = frame.f_globals.get("__name__", "").startswith("convgen.")  # a dataclass's __init__ is in no file
        return made or frame.f_code.co_filename.startswith((*_OWN, *through))

    level, frame = 1, sys._getframe()
    while frame.f_back and is_passed(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
