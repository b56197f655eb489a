"""One layout for every spec: `convgen fmt`, and formatting in editors.

Only white space changes, so the words, and with them the meaning, stay the same; every comment stays beside or above
the words that it follows or precedes.  Line breaks inside a block are the author's, except that a conv block and its
tensors have lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from lark import Token

from convgen.diagnostics import Report, Span, SpecError
from convgen.frontend import ast, wording
from convgen.frontend.parser import parse
from convgen.frontend.tokens import END, tokens

_INDENT, _CONTINUED = 2, 4
_COMMENT = re.compile(r"#[^\n]*|\n")
#: Ends of lines, which also end the grammar's comments, on other systems.
_OTHER_END = re.compile(r"\r\n?")
_OPENING, _CLOSING = frozenset({"LSQB", "LPAR"}), frozenset({"RSQB", "RPAR"})
#: Statements that begin a line.
_OWN_LINE = frozenset({"LET", "CONV", "INPUT", "FILTER", "OUTPUT", "LOWERED"})


def formatted(text: str, path: str = "<text>") -> str:
    """The text in the one layout.  Raises SpecError where it does not follow the grammar."""
    text = _OTHER_END.sub("\n", text.removeprefix("\ufeff"))
    report = Report()
    spec = parse(text, report)
    if len(report):
        raise SpecError(report.diagnostics, path, text)
    lines = _aligned(list(_Lines(text, spec)))
    return "\n".join(lines).strip("\n") + "\n"


@dataclass
class _Line:
    """The formatted words of a line, and the comment after them; a line without either is blank."""

    code: str = ""
    comment: str = ""


class _Marks:
    """Where statements begin, which names are called, and which minus signs have one operand: by (line, column)."""

    def __init__(self, spec: ast.Spec, words: list[Token]) -> None:
        self.statements: set[tuple[int, int]] = set()
        self.calls: set[tuple[int, int]] = set()
        self.unary: set[tuple[int, int]] = set()
        at = {_position(word): i for i, word in enumerate(words)}
        options_end = (0, 0)
        for node in _nodes(spec):
            if isinstance(node, ast.EpilogueSetting):  # `result` is a word of the language there alone
                self.statements |= {_position(words[at[_start(r.span)] - 1]) for r in node.results}
            match node:
                case ast.Setting():
                    self.statements.add(_start(node.keyword.span))
                case ast.Assignment():
                    self.statements.add(_start(node.span))
                case ast.Call():
                    self.calls.add(_start(node.function.span))
                case ast.Unary():
                    first = at[_start(node.span)]
                    self.unary.add(next(_position(w) for w in words[first:] if w.type != "LPAR"))
                case ast.Option():
                    before = words[at[_start(node.span)] - 1]
                    group, _, member = node.name.text.partition(".")
                    if not member:
                        self.statements.add(_start(node.span))
                    elif before == group and _position(before) >= options_end:
                        self.statements.add(_position(before))
                    options_end = node.span.end_line, node.span.end_column
        self.statements |= {_position(w) for w in words if w.type in ("LET", "CONV", "OPERAND")}


def _nodes(node: object) -> Iterator[object]:
    """A node of the syntax tree and all below it."""
    if isinstance(node, tuple):
        for part in node:
            yield from _nodes(part)
    elif is_dataclass(node) and not isinstance(node, Span):
        yield node
        for f in fields(node):
            yield from _nodes(getattr(node, f.name))


def _position(word: Token) -> tuple[int, int]:
    return word.line or 0, word.column or 0


def _start(span: Span) -> tuple[int, int]:
    return span.line, span.column


@dataclass
class _Block:
    """Braces that are open: what they belong to, and whether they have lines of their own."""

    kind: str
    spread: bool


class _Lines:
    """The lines of a text: iterate."""

    def __init__(self, text: str, spec: ast.Spec) -> None:
        self._text = text
        self._words = tokens(text)
        self._marks = _Marks(spec, self._words)
        self._blocks: list[_Block] = []
        self._square = 0
        self._closed_spread = False
        self._statement = ""  # the word that the statement at hand begins with
        self._line = _Line()
        self._done: list[_Line] = []

    def __iter__(self) -> Iterator[_Line]:
        before: Token | None = None
        for i, word in enumerate(self._words):
            comments, breaks = self._gap(before, word)
            if self._breaks(before, word, breaks, bool(comments)):
                self._end()
            self._blank(word, breaks)
            if word.type == END:
                break
            self._put(before, word)
            self._track(i, word)
            before = word
        self._end()
        return iter(self._done)

    def _gap(self, before: Token | None, word: Token) -> tuple[list[str], int]:
        """Writes the comments between two words; gives them, and how many line breaks follow the last."""
        start = (before.end_pos or 0) if before is not None else 0
        comments, breaks = [], 0
        for found in _COMMENT.findall(self._text[start : word.start_pos]):
            if found == "\n":
                breaks += 1
                continue
            if breaks or before is None:
                self._end()
                if breaks > 1:
                    self._open_up()
            comments.append(found)
            self._line.comment = found.rstrip()
            if not self._line.code:
                self._line.code = " " * (_INDENT * len(self._blocks))
            self._end()
            breaks = 0
        return comments, breaks

    def _breaks(self, before: Token | None, word: Token, breaks: int, after_comment: bool) -> bool:
        """Whether a word begins a line."""
        if before is None or after_comment:
            return True
        inner = self._blocks[-1] if self._blocks else None
        if before.type == "LBRACE" or word.type == "RBRACE":
            return inner is not None and inner.spread
        if word.type == "LBRACE":
            return False
        if _position(word) in self._marks.statements and {word.type, self._statement} & _OWN_LINE:
            return True
        return breaks > 0 or (before.type == "RBRACE" and self._closed_spread)

    def _blank(self, word: Token, breaks: int) -> None:
        """Keeps at most one blank line, none at the start or end of a block, and one before a conv block."""
        if not self._line.code and word.type not in ("RBRACE", END):
            behind_code = bool(self._done) and bool(self._done[-1].code.strip())
            if breaks > 1 or (word.type == "CONV" and behind_code):
                self._open_up()

    def _open_up(self) -> None:
        """Adds a blank line, where it does not begin a file or a block, and there is none."""
        if self._done and not self._done[-1].code.endswith("{") and self._done[-1] != _Line():
            self._done.append(_Line())

    def _put(self, before: Token | None, word: Token) -> None:
        if self._line.code:
            assert before is not None
            self._line.code += self._space(before, word) + word
            return
        depth = len(self._blocks) - (word.type == "RBRACE")
        whole = _position(word) in self._marks.statements or word.type == "RBRACE" or word.type in _CLOSING
        self._line.code = " " * (_INDENT * depth + (0 if whole else _CONTINUED)) + word

    def _space(self, before: Token, word: Token) -> str:
        """Between two words of a line."""
        if word.type in ("COMMA", "COLON", "LSQB", *_CLOSING) or before.type in _OPENING:
            return ""
        if _position(before) in self._marks.unary:
            return ""
        if word.type == "LPAR" and _position(before) in self._marks.calls:
            return ""
        operators = {before.type, word.type} & (wording.OPERATORS | {"ASSIGN", "NOT"})
        if operators and not (_position(word) in self._marks.unary and before.type in ("COMMA", "LBRACE", "NAME")):
            return "" if self._tight else " "
        if before.type == "INPUT" or (_position(word) in self._marks.statements and before.type != "LBRACE"):
            return "  "
        return " "

    @property
    def _tight(self) -> bool:
        """Whether signs stand without blanks: where several values share a line."""
        in_epilogue = bool(self._blocks) and self._blocks[-1].kind in ("PROLOGUE", "EPILOGUE")
        return self._square > 0 or (bool(self._blocks) and not in_epilogue)

    def _track(self, at: int, word: Token) -> None:
        """Tracks the brackets that are open after a word."""
        self._closed_spread = False
        if _position(word) in self._marks.statements:
            self._statement = word.type
        if word.type == "LBRACE":
            kinds = [self._words[i].type for i in (at - 1, at - 2) if i >= 0]
            kind = next((k for k in kinds if k in ("CONV", "PROLOGUE", "EPILOGUE", "STRATEGY")), "")
            self._blocks.append(_Block(kind, kind == "CONV" or self._is_spread(at)))
        elif word.type == "RBRACE":
            self._closed_spread = self._blocks.pop().spread
        else:
            self._square += (word.type == "LSQB") - (word.type == "RSQB")

    def _is_spread(self, at: int) -> bool:
        """Whether the braces that open at a place have a line break between them."""
        depth = 0
        for word in self._words[at:]:
            depth += (word.type == "LBRACE") - (word.type == "RBRACE")
            if depth == 0:
                return word.line != self._words[at].line
        return True

    def _end(self) -> None:
        """Ends the current line, unless it is empty."""
        if self._line.code.strip() or self._line.comment:
            self._done.append(self._line)
        self._line = _Line()


def _aligned(lines: list[_Line]) -> list[str]:
    """Lines as text; trailing comments of consecutive lines start in the same column."""
    texts: list[str] = []
    run: list[_Line] = []
    for line in [*lines, _Line()]:
        if line.code.strip() and line.comment:
            run.append(line)
            continue
        column = max((len(one.code) for one in run), default=0) + 2
        texts += [f"{one.code:{column}}{one.comment}" for one in run]
        run = []
        texts.append(f"{line.code}{line.comment}".rstrip())
    return texts
