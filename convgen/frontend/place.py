"""A place in a text where something may be wrong: the words around it, and tests of what they look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

from lark import Token

from convgen import habits
from convgen.diagnostics import closest, quote
from convgen.frontend import wording
from convgen.frontend.tokens import END
from convgen.ir.dtypes import TENSOR_DTYPES

#: Words that are looked back to, or ahead.
_REACH = 500
#: What people write too much of.
_TOO_MUCH = frozenset({"SLASH", "COMMA", "ASSIGN", "COLON", "RPAR", "RSQB"})
#: Signs that close brackets.
_CLOSING = ("RSQB", "RPAR")
#: Kinds that declare a tensor of the convolution.
_TENSORS = frozenset({"INPUT", "FILTER", "OUTPUT", "LOWERED"})
#: Kinds that a value follows.
_BEFORE_VALUE = wording.OPERATORS | {"ASSIGN", "NOT"}
#: Kinds that begin a statement of an epilogue alone.
_IN_EPILOGUE = frozenset({"OPERAND", "RESULT"})


def setting_meant(word: str) -> str | None:
    """The setting that a word is, or is another name or a misspelling of."""
    return _meant(word, (*wording.SETTINGS, *wording.CONTEXTUAL), habits.SETTINGS)


def _meant(word: str, known: Sequence[str], others: dict[str, str]) -> str | None:
    if word in known:
        return word
    if habits.plain(word) in habits.NO_SETTINGS:
        return None
    return others.get(habits.plain(word)) or closest(word, known)


@dataclass(frozen=True)
class Place:
    """A word that does not fit: `kinds` is what would, `braces` are those that are open, outermost first."""

    words: Sequence[Token]
    at: int
    kinds: frozenset[str]
    braces: tuple[Token, ...]

    @property
    def word(self) -> Token:
        return self.words[self.at]

    @property
    def before(self) -> Token | None:
        return self.words[self.at - 1] if self.at else None

    @property
    def after(self) -> Token | None:
        return self.words[self.at + 1] if self.at + 1 < len(self.words) else None

    @property
    def begins_line(self) -> bool:
        return self.before is None or self.word.line != self.before.end_line

    @property
    def ends_line(self) -> bool:
        return self.after is None or self.after.line != self.word.end_line

    @cached_property
    def keyword(self) -> str:
        """The last keyword before the word, in reach."""
        words = (str(self.words[i]) for i in range(self.at - 1, max(self.at - _REACH, 0) - 1, -1))
        return next((word for word in words if word in wording.KEYWORDS), "")

    @property
    def is_assigned(self) -> bool:
        return self.word.type == "NAME" and self.after is not None and self.after.type == "ASSIGN"

    @property
    def is_setting(self) -> bool:
        """Whether a setting may stand here."""
        return self.kinds >= wording.SETTING_KINDS

    @property
    def is_option(self) -> bool:
        """Whether another name of a setting is an option of a strategy: `kernel mma_gemm` declares no filter."""
        if self.word == "kernel":
            named = self.after is not None and self.after.type == "NAME"
            return named and not {":", "["} & set(self.rest_of_line())
        return self.word == "method" and self.after in habits.METHODS

    def lacks(self, kind: str) -> bool:
        """Whether a word of the kind may have been forgotten before this one."""
        if kind == "LBRACE":
            begins = self.word.type in wording.SETTING_KINDS or self.word.type in _IN_EPILOGUE or self.is_assigned
            return (self.kinds == {kind} and begins) or (kind in self.kinds and self.is_option_without_brace)
        if kind == "COMMA" and self.begins_line and not self.is_closed:
            return False
        if kind == "COLON" and self.before in TENSOR_DTYPES:  # the name follows the type, or is missing
            return False
        if kind == "LET" and (self.after is None or self.after.line != self.word.end_line):  # a name without a value
            return False
        return kind in self.kinds and (kind != "ASSIGN" or self.keyword == "let")

    @property
    def is_assigned_value(self) -> bool:
        """Whether the word assigns to a name that is a value in an epilogue."""
        return self.word.type == "ASSIGN" and "COMPARE" in self.kinds and self.in_epilogue

    @property
    def is_too_much(self) -> bool:
        """Whether the word may be a sign that should not be there; a bracket after a comma means that something is
        missing."""
        before = self.before.type if self.before is not None else ""
        if self.word.type == "LBRACE":
            return before == "LBRACE"
        if self.is_assigned_value:
            return False
        return self.word.type in _TOO_MUCH and not (self.word.type in ("RPAR", "RSQB") and before == "COMMA")

    @property
    def is_closed(self) -> bool:
        """Whether the bracket that is open before the word is closed after it."""
        signs = (word.type for word in self.words[self.at : self.at + _REACH])
        return next((s for s in signs if s in ("LSQB", "RSQB", "LBRACE", "RBRACE", END)), END) == "RSQB"

    @property
    def is_option_without_brace(self) -> bool:
        """Whether the word begins a strategy's options: a name after the strategy's in its line, in a block with an
        extra brace at its end."""
        behind = self.at > 1 and self.words[self.at - 2].type == "STRATEGY"
        return behind and self.word.type == "NAME" and not self.begins_line and self._has_brace_too_many

    @property
    def bracket_meant(self) -> str | None:
        """Kind of the bracket that a brace is typed for: one is open, and no block needs the brace."""
        meant = next((kind for kind in _CLOSING if kind in self.kinds), None)
        return meant if self.word.type == "RBRACE" and self._has_brace_too_many else None

    @property
    def _has_brace_too_many(self) -> bool:
        """Whether more braces follow, this one counted, than the open blocks need."""
        signs = Counter(w.type for w in takewhile(lambda w: w.type != "CONV", self.words[self.at :]))
        return signs["RBRACE"] > signs["LBRACE"] + len(self.braces)

    @property
    def is_behind_block(self) -> bool:
        """Whether the word can only follow the open block: it begins a statement that is not part of a block."""
        if self.word.type in wording.SETTING_KINDS:
            return len(self.braces) > 1 and not (self.after is not None and self.after.type == "ASSIGN")
        return bool(self.braces) and self.begins_item

    @property
    def is_let_in_block(self) -> bool:
        """Whether the word is a `let` that is meant inside the open block: one written behind it would begin its line
        where the block does, or before."""
        if self.word.type != "LET" or not self.braces or not self.word.column:
            return False
        if not self.begins_line:
            return self.in_epilogue
        first = next(w for w in self.words if w.line == self.braces[0].line)
        return self.word.column > (first.column or 0)

    @property
    def is_input_of_epilogue(self) -> bool:
        """Whether an operand is declared as an input: in an epilogue that is closed where it should be."""
        if self.word.type != "INPUT" or not self.in_epilogue:
            return False
        signs = Counter(w.type for w in takewhile(lambda w: w.type not in ("CONV", END), self.words[self.at :]))
        return signs["RBRACE"] == signs["LBRACE"] + len(self.braces)

    @property
    def in_epilogue(self) -> bool:
        """Whether the innermost block that is open is an epilogue, or a prologue."""
        at = next((i for i, w in enumerate(self.words) if self.braces and w is self.braces[-1]), 0)
        return at > 0 and self.words[at - 1].type in ("PROLOGUE", "EPILOGUE")

    @property
    def begins_item(self) -> bool:
        """Whether a let, a conv block or nothing more begins here."""
        called = self.after is not None and self.after.type == "LPAR"
        is_part = self.before is not None and self.before == "."  # of a file's name
        return self.word.type == END or (self.word.type in ("LET", "CONV") and not called and not is_part)

    @property
    def looks_like_item(self) -> bool:
        """Whether the word may be meant to begin one."""
        return self.is_assigned or (self.word.type == "NAME" and habits.plain(self.word) in habits.STATEMENTS)

    @property
    def declares(self) -> bool:
        """Whether the word stands where a name is given."""
        named = self.before is not None and self.before.type in wording.DECLARING
        return "NAME" in self.kinds and (named or self.is_assigned_keyword)

    @property
    def is_assigned_keyword(self) -> bool:
        """Whether a keyword is given a value in an epilogue."""
        assigned = self.after is not None and self.after.type == "ASSIGN"
        return assigned and self.word in wording.KEYWORDS and self.in_epilogue

    @property
    def is_keyword_for_name(self) -> bool:
        """Whether a keyword stands where a name is given, or read in an epilogue."""
        called = self.after is not None and self.after.type == "LPAR"
        is_value = self.in_epilogue and self.kinds >= {"NAME", "INT", "LPAR"} and not self.begins_line
        return self.word in wording.KEYWORDS and (self.declares or (is_value and not called))

    @property
    def separates_assignments(self) -> bool:
        """Whether a comma stands between two assignments of an epilogue: `t = acc + b, y = gelu(t)`."""
        behind = [word.type for word in self.words[self.at + 1 : self.at + 3]]
        ends = "OPERAND" in self.kinds  # where a statement may begin
        return self.word.type == "COMMA" and behind == ["NAME", "ASSIGN"] and ends and self.in_epilogue

    @property
    def is_operand_of_block(self) -> bool:
        """Whether an operand is declared in a conv block, outside of its epilogue."""
        of_tensor = [word.type for word in self.words[self.at + 1 : self.at + 3]] == ["NAME", "COLON"]
        return self.word.type == "OPERAND" and of_tensor and len(self.braces) == 1

    @property
    def is_keyword_as_name(self) -> bool:
        """Whether a keyword stands where a name should: on the next line, it would begin a new statement."""
        return self.kinds == {"NAME"} and self.word in wording.KEYWORDS and not self.begins_line

    @property
    def keyword_meant(self) -> str | None:
        """The keyword that a name in its place is another name or a misspelling of."""
        if self.word.type != "NAME":
            return None
        if self.is_setting:
            return None if self.is_option else setting_meant(self.word)
        if "LET" in self.kinds and not self.is_assigned:
            return _meant(self.word, ("conv", "let"), habits.STATEMENTS)
        return "operand" if "OPERAND" in self.kinds and closest(self.word, ("operand",)) else None

    @property
    def is_behind_value(self) -> bool:
        """Whether the line before ends with a value, so that this one may begin anew."""
        ends = ("NAME", "INT", "FLOAT", "RPAR", "RSQB", "MIXED")
        return self.before is not None and self.before.type in ends

    @property
    def looks_like_setting(self) -> bool:
        """Whether the word begins a line, or is meant as a setting, and something follows it there."""
        if self.word.type != "NAME" or self.after is None or self.after.line != self.word.end_line:
            return False
        if self.before is not None and self.before.type in _BEFORE_VALUE and not self.begins_line:
            return False
        others = habits.SETTINGS.keys() | habits.NO_SETTINGS.keys()
        known = len(self.word) > 1 and habits.plain(self.word) in others
        goes_on = self.after.type in ("ASSIGN", "COMMA", "RSQB", "RPAR")  # the statement of the line before
        return (known and self.after.type != "ASSIGN") or (self.begins_line and not goes_on)

    @property
    def is_followed_by_value(self) -> bool:
        """Whether the word is a name followed by another word in its line: only settings are written so."""
        after = self.after
        return (
            self.word.type == "NAME"
            and after is not None
            and after.type in ("NAME", "INT", "FLOAT")
            and (after.line == self.word.end_line)
        )

    @property
    def opens_block(self) -> bool:
        """Whether the word is a name followed by a brace."""
        return self.word.type == "NAME" and self.after is not None and self.after.type == "LBRACE"

    @property
    def setting_of_line(self) -> str | None:
        """The setting that a word is meant to begin, at the beginning of a line."""
        return setting_meant(self.word) if self.begins_line and self.is_followed_by_value else None

    @property
    def is_known_line(self) -> bool:
        """Whether the word begins a line as a setting of ours or of another project would."""
        known = len(self.word) > 1 and habits.plain(self.word) in habits.NO_SETTINGS
        return self.setting_of_line is not None or (known and self.begins_line and self.is_followed_by_value)

    def is_tensor(self, name: str) -> bool:
        """Whether the block declares a tensor of the name, other than an operand or a further result."""
        conv = max((i for i, w in enumerate(self.words[: self.at]) if w.type == "CONV"), default=0)
        declared = pairwise(self.words[conv : self.at])
        return any(word.type in _TENSORS and word_behind == name for word, word_behind in declared)

    def is_open(self, closing: Token) -> bool:
        """Whether there is a bracket in the block, before the word, that one like this would close."""
        depth = 0
        for word in reversed(self.words[: self.at]):
            if word.type in ("LBRACE", "RBRACE") or depth > 0:
                break
            depth += (word.type == closing.type.replace("R", "L", 1)) - (word.type == closing.type)
        return depth > 0

    def rest_of_line(self, skip: int = 1) -> str:
        """The words of its line, starting so many words after this one, up to the next `let` or the end of its
        block."""
        text, depth = "", 0
        for before, word in pairwise(self.words[self.at + skip - 1 :]):
            depth += (word.type == "LBRACE") - (word.type == "RBRACE")
            if word.line != self.word.line or depth < 0 or word.type == "LET":
                break
            text += (" " if text and before.end_pos != word.start_pos else "") + word
        return quote(text).strip("`")
