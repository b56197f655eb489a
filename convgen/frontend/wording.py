"""The wording of syntax errors: names of the grammar's tokens, and remedies for the usual mistakes."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from lark import Token

from convgen.diagnostics import quote
from convgen.frontend.tokens import COMMENT, END, TEXTS

SETTINGS = (
    "input", "filter", "output", "lowered", "stride", "pad", "dilation",
    "groups", "accumulate", "epilogue", "op", "strategy", "target",
)  # fmt: skip
#: Settings that declare the tensors of a convolution.
TENSORS = frozenset({"input", "filter", "output", "lowered"})
KEYWORDS = (*SETTINGS, "let", "conv", "operand")
#: Settings whose words are names elsewhere, each with how it is written.
CONTEXTUAL = {
    "dynamic": "write `dynamic` with nothing but names of dims: `dynamic n h w`; extents belong to the input's dims",
    "prologue": "put the block in braces: `prologue { ... }`",
}

#: Options that are groups: `tile m=128 n=64`.
GROUPS = ("tile", "warps")

SETTING_KINDS = frozenset(word.upper() for word in SETTINGS)
#: Kinds that begin or end a statement.
STARTERS = SETTING_KINDS | {"LET", "CONV", "OPERAND", "RESULT", "PROLOGUE", "DYNAMIC", "RBRACE", END}
#: Kinds that a name which is given here stands behind.
DECLARING = frozenset({"LET", "CONV", "INPUT", "FILTER", "OUTPUT", "LOWERED", "OPERAND", "RESULT"})
#: Words before braces.
BLOCKS = ("prologue", "epilogue", "strategy")
#: The settings that take amounts by axis, as they are written.
AXES = {"stride": "stride h=2 w=1", "pad": "pad h=1 w=(0, 2)", "dilation": "dilation h=2 w=1"}

#: Groups of kinds that messages name as one.
_VALUE = frozenset({"INT", "FLOAT", "NAME", "LPAR", "MINUS", "NOT"})
OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "COMPARE", "AND", "OR"})
#: Kinds of signs that an operator, or a value, stands for.
_OF_VALUES = (_VALUE | OPERATORS) - {"LPAR", "STAR"}
#: What a name is, by the word in front of it, or else by the last keyword.
_NAMES_AFTER = {
    "LET": "a name", "CONV": "a name for the conv", "INPUT": "a name for the tensor", "FILTER": "a name for the tensor",
    "OUTPUT": "a name for the tensor", "LOWERED": "a name for the matrix", "OPERAND": "a name for the operand",
    "RESULT": "a name for the result", "DYNAMIC": "a dim",
    "COLON": "an element type", "LSQB": "a dim", "STAR": "a dim", "TARGET": "the name of a target",
    "ACCUMULATE": "an element type", "STRATEGY": "the name of a strategy",
}  # fmt: skip
_NAMES_IN = {
    "op": "an operator", "strategy": "an option", "epilogue": "an assignment", "operand": "an assignment",
    "stride": "an axis", "pad": "an axis", "dilation": "an axis",
}  # fmt: skip


def expected(kinds: Collection[str], before: str, keyword: str) -> str:
    """Words for the tokens that the grammar allows after a token of a kind, in the statement of a keyword."""
    words, left = [], set(kinds)
    if left >= _VALUE:
        words.append("a value")
        left -= _VALUE
    if left & OPERATORS and left & OPERATORS != {"STAR"}:
        words.append("an operator")
        left -= OPERATORS | {"LPAR"}
    if left >= SETTING_KINDS:
        words.append("a setting")
        left -= SETTING_KINDS
    if "NAME" in left:
        after = "a dim" if before == "COMMA" and keyword != "op" else _NAMES_AFTER.get(before)
        words.append(after or _NAMES_IN.get(keyword, "a name"))
    if "INT" in left:
        words.append("`1`")
    words += [f"`{text}`" for kind, text in TEXTS.items() if kind in left - _OF_VALUES]
    if END in left:
        words.append("the end of the file")
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def found(token: Token) -> str:
    if token.type == END:
        return "the end of the file"
    return f"the keyword `{token}`" if token in KEYWORDS else quote(token)


def stray(token: Token) -> str:
    """The message for text that is not part of the language: a comment, a character, a word with one."""
    first = next((c for c in token if not c.isascii()), token[0])
    if token.type == COMMENT or (first.isascii() and first.isprintable()):
        return f"{quote(token)} is not part of the language"
    name = f"U+{ord(first):04X} {unicodedata.name(first, '')}".strip()
    shown = f"{quote(token)} ({name})" if first.isprintable() else name
    return f"{shown} is not part of the language"


COMMENT_HINT = "a comment begins with `#`"
POWER = "there is no power operator: write the product"

#: What to write for characters that people type out of habit.
HABITS = {
    **dict.fromkeys(("&", "and"), "write `&&`"),
    **dict.fromkeys(("|", "or"), "write `||`"),
    ";": "statements need no terminator",
    **dict.fromkeys("'\"`´“”„‘’«»", "names and numbers are written without quotes"),
    "\\": "a statement can simply continue on the next line",
    "?": "write `select(condition, x, y)`",
    "^": POWER,
    "$": "use a `let` by its bare name",
}
