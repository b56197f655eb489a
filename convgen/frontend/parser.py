"""Text to syntax tree, by lark's LALR parser, with every syntax error of the file.

After an error the parser drops the statement at hand and goes on at the next one: a setting, an operand,
an assignment at the start of a line, a closing brace, a `let` or a `conv`.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import Any

import lark
from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken
from lark.grammar import Rule
from lark.lexer import TerminalDef

from convgen import resources
from convgen.cache import Cache
from convgen.diagnostics import Report, Span, did_you_mean, listing, quote
from convgen.frontend import ast, wording
from convgen.frontend.build import Build, span_of


def parse(text: str, report: Report) -> ast.Spec:
    """The tree of what parses; what does not is in the report."""
    return _Parse(text, report).run()


@cache
def _lark() -> Lark:
    """The parser of the grammar.  Its tables are kept as JSON, which takes a fifth of the time to load, and unlike
    lark's own cache (a pickle) cannot run anything."""
    grammar = (resources.directory("grammar") / "conv.lark").read_text(encoding="utf-8")
    kept, key = Cache(), "grammar-" + hashlib.sha256(f"{lark.__version__} {grammar}".encode()).hexdigest()
    if found := kept.get(key):
        return Lark._load_from_dict(**json.loads(found[_TABLES], object_hook=_whole_keys))
    made = Lark(grammar, parser="lalr", lexer="basic", maybe_placeholders=False)
    data, memo = made.memo_serialize([TerminalDef, Rule])
    kept.put(key, {_TABLES: json.dumps({"data": data, "memo": memo}).encode()})
    return made


#: The file of the grammar's cache entry.
_TABLES = "tables.json"


def _whole_keys(table: dict[str, Any]) -> dict[str | int, Any]:
    """A table with the integers that lark had for keys: in JSON all keys are strings."""
    return {int(key) if key.isdecimal() else key: value for key, value in table.items()}


_LETTERS = re.compile(r"\w+|.", re.DOTALL)


def _tokens(text: str) -> Iterator[Token]:
    """The words of a text; what is no word comes as a STRAY token.  The last is the end of the file."""
    thread = _lark().parse_interactive(text).lexer_thread
    assert thread.state is not None
    position = thread.state.line_ctr
    while True:
        try:
            yield from thread.lex(None)
            break
        except UnexpectedCharacters:
            stray = _LETTERS.match(text, position.char_pos)
            assert stray is not None
            line, column = position.line, position.column
            position.feed(stray[0])
            yield Token(wording.STRAY, stray[0], stray.start(), line, column, position.line, position.column)
    yield Token(wording.END, "", len(text), position.line, position.column, position.line, position.column)


class _Parse:
    """One parse: feeds words to lark's parser, and after an error finds the word to go on with."""

    def __init__(self, text: str, report: Report) -> None:
        self._report = report
        self._words = list(_tokens(text))
        self._parser = _lark().parse_interactive("")
        self._faults: list[tuple[int, int]] = []  # line and column of each error

    def run(self) -> ast.Spec:
        at, failed = 0, -1
        while True:
            word = self._words[at]
            try:
                tree = self._parser.feed_token(word)
            except UnexpectedToken:
                # a word that was to go on with and fails again is skipped
                failed = at = self._resume(at + 1 if at == failed else self._explain(at))
                continue
            if word.type == wording.END:
                return self._spec(tree)
            at += 1

    def _spec(self, tree: Tree) -> ast.Spec:
        items = Build(self._report).transform(tree).children
        lets = tuple(i for i in items if isinstance(i, ast.Let))
        convs = tuple(i for i in items if isinstance(i, ast.Conv) and not self._is_faulty(i))
        pairs = zip(self._words, self._words[1:], strict=False)
        named = {str(name) for let, name in pairs if let.type == "LET" and name.type == "NAME"}
        if not any(w.type == "CONV" for w in self._words) and not self._faults:
            hint = "write `conv NAME { input ... filter ... output ... }`"
            self._report.error("E007", "the file has no conv block", None, hint)
        return ast.Spec(lets, convs, frozenset(named - {let.name.text for let in lets}))

    def _is_faulty(self, conv: ast.Conv) -> bool:
        first = bisect_left(self._faults, (conv.span.line, conv.span.column))
        return first < len(self._faults) and self._faults[first] < (conv.span.end_line, conv.span.end_column)

    # what went wrong

    def _explain(self, at: int) -> int:
        """Report the error at a word; the first word that may be one to go on with."""
        word, before = self._words[at], self._words[at - 1] if at else None
        self._faults.append((span_of(word).line, span_of(word).column))
        if word.type == wording.STRAY:
            touches = before is not None and before.type == "NAME" and before.end_pos == word.start_pos
            start = before if touches and word[0].isalnum() else None
            span = span_of(start).to(span_of(word)) if start else span_of(word)
            hint = wording.stray_hint(word)
            if word == "." and touches and self._keyword_before(at) == "strategy":
                hint = f"an option of a group is written `{before} {self._words[at + 1]}=...`"
            self._report.error("E001", wording.stray(word, start or ""), span, hint)
            return at
        kinds, opened = self._parser.accepts(), self._open_braces()
        if "RBRACE" in kinds and word.type in (wording.END, "LET", "CONV"):
            brace = self._values[opened[-1]]
            place = f"{wording.found(word)} in line {word.line}" if word.type != wording.END else wording.found(word)
            self._report.error("E003", f"`{{` is not closed: expected `}}` before {place}", span_of(brace))
            return at
        message = f"expected {wording.expected(kinds, before.type if before else '', self._keyword_before(at))}"
        span = span_of(word)
        if before is not None:
            message += f" after {quote(before)}"
            if word.line != before.end_line and not kinds & wording.STARTERS:  # the line before is not complete
                end = span_of(before)
                span = Span(end.end_line, end.end_column, end.end_line, end.end_column + 1)
        self._report.error("E002", f"{message}, found {wording.found(word)}", span, self._hint(at, kinds))
        return at + self._is_keyword_as_name(at, kinds)

    def _hint(self, at: int, kinds: set[str]) -> str | None:
        word, before = self._words[at], self._words[at - 1] if at else None
        opened = self._open_braces()
        keywords = [k for k in wording.KEYWORDS if k.upper() in kinds]
        keyword = self._keyword_before(at)
        same_line = before is not None and word.line == before.end_line
        if kinds >= wording.SETTING_KINDS and (word.type == "OPERAND" or self._is_assigned(at)):
            return "operands and assignments stand inside of `epilogue { ... }`"
        if word.type == "NAME" and keywords:
            if before is not None and "LBRACE" in kinds and keyword == "strategy":
                return f"options stand in braces: `strategy {before} {{ {word} ... }}`"
            known = None
            if "LET" in kinds and self._is_assigned(at):
                known = f"write `let {word} = ...`"
            elif kinds >= wording.SETTING_KINDS:
                known = f"the settings are {listing(wording.SETTINGS, 'and')}"
            return did_you_mean(word, keywords) or known
        if (
            word in wording.KEYWORDS
            and len(opened) > 1
            and "RBRACE" in kinds
            and before
            and word.line != before.end_line
        ):
            return f"the block that opens in line {self._values[opened[-1]].line} is not closed"
        if word in wording.KEYWORDS and "NAME" in kinds and "OPERAND" not in kinds and same_line:
            return f"`{word}` is a keyword; choose another name"
        signs = "".join(self._words[at - 1 : at + 2] if before is not None else self._words[:2])
        if word.type in ("SLASH", "STAR") and ("//" in signs or "/*" in signs):
            return wording.COMMENT
        if word.type == "STAR" and before == "*":
            return wording.POWER
        if word.type == "RBRACE" and not opened:
            return "this brace closes nothing"
        if word.type == "ASSIGN" and before in wording.SETTINGS:
            return f"settings are written without `=`: `{before} ...`"
        if kinds == {"NAME"} and before is not None and before.type in ("CONV", "LET"):
            return "a name is of ASCII letters, digits and _, and does not start with a digit"
        if (kinds == {"LSQB"} or (before and before.type == "LSQB")) and keyword == "operand":
            return "an operand is written with its dims, such as `f32[k]`; a scalar has none: `f32[]`"
        if word.type == "COMMA" and keyword == "strategy" and len(opened) > 1:
            return "options stand side by side, without commas"
        if kinds == {"ASSIGN"} and before is not None and before.type == "NAME" and len(opened) > 1:
            return "a function is called with parentheses, `relu(acc)`; values are joined by operators"
        if word.type == "COMPARE" and "PLUS" in kinds and "COMPARE" not in kinds:
            return "comparisons are joined by `&&`: `0 < acc && acc < 1`"
        if word.type in ("INT", "COMMA") and keyword in ("stride", "pad", "dilation") and opened:
            return "one value for all axes, or a value by axis: `stride h=2 w=1`, `pad h=(0,1)`"
        return None

    def _is_keyword_as_name(self, at: int, kinds: set[str]) -> bool:
        """Whether a keyword stands where a name should: on the next line it begins a statement of its own."""
        return (
            kinds == {"NAME"}
            and self._words[at] in wording.KEYWORDS
            and self._words[at].line == self._words[at - 1].line
        )

    def _is_assigned(self, at: int) -> bool:
        return self._words[at].type == "NAME" and self._words[at + 1].type == "ASSIGN"

    def _keyword_before(self, at: int) -> str:
        words = (str(self._words[i]) for i in range(at - 1, -1, -1))
        return next((word for word in words if word in wording.KEYWORDS), "")

    # where to go on

    @property
    def _values(self) -> list:
        """The parser's stack: words and trees of what is not yet complete."""
        return self._parser.parser_state.value_stack

    def _open_braces(self) -> list[int]:
        """Where on the stack the blocks that are not closed begin."""
        opened = []
        for i, value in enumerate(self._values):
            if isinstance(value, Token) and value.type == "LBRACE":
                opened.append(i)
            elif isinstance(value, Token) and value.type == "RBRACE":
                opened.pop()
        return opened

    def _resume(self, at: int) -> int:
        """Drop the statement at hand and find the word to go on with."""
        self._drop_to(len(self._open_braces()))
        skipped = 0  # braces opened since
        for i in range(at, len(self._words)):
            word = self._words[i]
            level = len(self._open_braces())
            if word.type in (wording.END, "LET", "CONV"):
                self._drop_to(0)
                return i
            if word.type == "LBRACE":
                skipped += 1
            elif word.type == "RBRACE" and skipped:
                skipped -= 1
            elif skipped or not level:
                continue
            elif word.type in wording.SETTING_KINDS:
                self._drop_to(1)
                return i
            elif word.type == "RBRACE" or (level == 2 and (word.type == "OPERAND" or self._starts_assignment(i))):
                return i
        raise AssertionError("the last word is the end of the file")

    def _starts_assignment(self, at: int) -> bool:
        return self._is_assigned(at) and self._words[at].line != self._words[at - 1].end_line

    def _drop_to(self, level: int) -> None:
        """Forget what is on the stack after the complete statements of a level of braces."""
        braces = self._open_braces()
        keep = braces[level - 1] + 1 if level else 0
        if keep < len(self._values) and isinstance(self._values[keep], Tree):
            keep += 1  # the statements so far
        del self._values[keep:]
        del self._parser.parser_state.state_stack[keep + 1 :]
