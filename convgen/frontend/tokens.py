"""Text to words: the grammar's tokens, and tokens for text that is not part of the language."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import lark
from lark import Lark, Token, UnexpectedCharacters
from lark.grammar import Rule
from lark.lexer import TerminalDef

from convgen import resources
from convgen.cache import Cache

#: Kinds of words besides the grammar's: a character, or a word of letters, that the language does not have; digits and
#: letters in one, such as 0x10; a comment of another language; the end of the file (lark's name).
STRAY, MIXED, COMMENT, END = "STRAY", "MIXED", "COMMENT", "$END"
#: Kinds of words that have one text, signs and keywords that messages show: lark's names, and the grammar's.
TEXTS = {
    "ASSIGN": "=", "COLON": ":", "COMMA": ",", "LBRACE": "{", "RBRACE": "}", "LSQB": "[", "RSQB": "]", "LPAR": "(",
    "RPAR": ")", "PLUS": "+", "MINUS": "-", "STAR": "*", "SLASH": "/", "PERCENT": "%", "NOT": "!", "LET": "let",
    "CONV": "conv", "OPERAND": "operand", "RESULT": "result",
}  # fmt: skip


@cache
def grammar() -> Lark:
    """The parser of the grammar.  Its tables are kept as JSON, which takes a fifth of the time to load, and unlike
    lark's own cache (a pickle) cannot run anything."""
    text = (resources.directory("grammar") / "conv.lark").read_text(encoding="utf-8")
    kept, key = Cache(), "grammar-" + hashlib.sha256(f"{lark.__version__} {text}".encode()).hexdigest()
    if found := kept.get(key):
        return Lark._load_from_dict(**json.loads(found[_TABLES], object_hook=_whole_keys))
    made = Lark(text, parser="lalr", lexer="basic", maybe_placeholders=False)
    data, memo = made.memo_serialize([TerminalDef, Rule])
    kept.put(key, {_TABLES: json.dumps({"data": data, "memo": memo}).encode()})
    return made


#: The file of the grammar's cache entry.
_TABLES = "tables.json"


def _whole_keys(table: dict[str, Any]) -> dict[str | int, Any]:
    """A table with the integers that lark had for keys: in JSON all keys are strings."""
    return {int(key) if key.isdecimal() else key: value for key, value in table.items()}


def tokens(text: str) -> list[Token]:
    """The words of a text.  The last is the end of the file."""
    found: list[Token] = []
    lexed = list(_lexed(text))
    at = 0
    while at < len(lexed):
        end = _comment_end(lexed, at)
        if end > at:
            found.append(_joined(COMMENT, lexed[at:end]))
        else:
            end = _word_end(lexed, at)
            found.append(lexed[at] if end == at + 1 else _joined(_kind(lexed[at:end]), lexed[at:end]))
        at = end
    return _with_logic(_with_of(_with_result(_with_prologue(_with_dynamic(found)))))


#: Kinds that a dim or a size ends with.
_ENDS_SIZE = frozenset({"NAME", "INT", "RPAR"})


def _with_of(words: list[Token]) -> list[Token]:
    """The words, where each `of` after a dim or a size in brackets has its own kind."""
    found: list[Token] = []
    inside = False
    for word in words:
        if inside and word.value == "of" and found[-1].type in _ENDS_SIZE:
            word = Token.new_borrow_pos("OF", "of", word)
        inside = word.type == "LSQB" or (inside and word.type not in ("RSQB", "LBRACE", "RBRACE", "COLON"))
        found.append(word)
    return found


#: Words that other languages write for signs: each kind that one of them stands behind, or None.
_LOGIC = {"and": _ENDS_SIZE | {"FLOAT"}, "or": _ENDS_SIZE | {"FLOAT"}, "not": None}
_BEGINS_VALUE = frozenset({"NAME", "INT", "FLOAT", "LPAR", "MINUS", "NOT"})


def _with_logic(words: list[Token]) -> list[Token]:
    """The words, where each `and`, `or` and `not` that stands for a sign is a stray; those that are names are followed
    by a sign or an assignment."""
    for i, word in enumerate(words):
        if word.type != "NAME" or word.value not in _LOGIC:
            continue
        behind, following = _LOGIC[word.value], words[i + 1 : i + 3]
        joins = behind is None or (words[i - 1].type in behind and words[i - 1].end_line == word.line)
        value = following[0].type in _BEGINS_VALUE and following[0].line == word.line
        if joins and value and following[-1].type not in ("ASSIGN", "COLON"):
            words[i] = Token.new_borrow_pos(STRAY, str(word), word)
    return words


#: Kinds after which a setting may begin: the last words of others, and the brace of the block.
_ENDS_SETTING = _ENDS_SIZE | {"FLOAT", "RSQB", "LBRACE", "RBRACE"}


def _depths(words: list[Token]) -> Iterator[int]:
    """How many blocks are open after each word, even if a conv block lacks its brace, or a block has two."""
    depth = 0
    for i, word in enumerate(words):
        opens = word.type == "LBRACE" and words[i - 1].type != "LBRACE"
        depth += opens - (word.type == "RBRACE")
        if word.type == "CONV" and words[i + 1].type in ("NAME", "LBRACE"):
            depth = int(all(w.type != "LBRACE" for w in words[i + 1 : i + 4]))
        yield depth


def _with_dynamic(words: list[Token]) -> list[Token]:
    """The words, where each `dynamic` that begins a setting of a convolution has its own kind; elsewhere it is a size,
    or a tensor."""
    for i, (word, depth) in enumerate(zip(words[:-1], _depths(words), strict=False)):
        following = words[i + 1]
        named = following.type == "NAME" and words[i + 2].type not in ("ASSIGN", "COLON")
        begins = words[i - 1].type in _ENDS_SETTING and (named or following.type.lower() in (following.value, "rbrace"))
        if word.type == "NAME" and word.value == "dynamic" and depth == 1 and begins:
            words[i] = Token.new_borrow_pos("DYNAMIC", "dynamic", word)
    return words


def _with_prologue(words: list[Token]) -> list[Token]:
    """The words, where each `prologue` that opens a block of a convolution has its own kind."""
    for i, (word, depth) in enumerate(zip(words[:-1], _depths(words), strict=False)):
        if word.type != "NAME" or word.value != "prologue" or depth != 1:
            continue
        opens = words[i + 1].type == "LBRACE" and words[i - 1].type != "STRATEGY"
        first = next(w for w in islice(words, i + 1, None) if w.type != STRAY)
        if opens or (first.type == "OPERAND" and words[i - 1].type in _ENDS_SETTING):  # or without its brace
            words[i] = Token.new_borrow_pos("PROLOGUE", "prologue", word)
    return words


def _with_result(words: list[Token]) -> list[Token]:
    """The words, where each `result` before a tensor's name and colon in an epilogue has its own kind."""
    inside = False
    for i, (word, depth) in enumerate(zip(words, _depths(words), strict=True)):
        if word.type == "LBRACE":
            inside = inside or (depth == 2 and words[i - 1].type == "NAME" and words[i - 2].type != "STRATEGY")
        elif word.type in ("EPILOGUE", "RBRACE"):
            inside = word.type == "EPILOGUE"
        elif inside and word.value == "result" and [w.type for w in words[i + 1 : i + 3]] == ["NAME", "COLON"]:
            words[i] = Token.new_borrow_pos("RESULT", "result", word)
    return words


_WORD_OR_CHARACTER = re.compile(r"\w+|.", re.DOTALL)


def _lexed(text: str) -> Iterator[Token]:
    """The grammar's tokens, and between them strays."""
    thread = grammar().parse_interactive(text).lexer_thread
    assert thread.state is not None
    position = thread.state.line_ctr
    while True:
        try:
            yield from thread.lex(None)
            break
        except UnexpectedCharacters:
            stray = _WORD_OR_CHARACTER.match(text, position.char_pos)
            assert stray is not None
            start, line, column = position.char_pos, position.line, position.column
            position.feed(stray[0])
            yield Token(STRAY, stray[0], start, line, column, position.line, position.column, position.char_pos)
    end = position.line, position.column
    yield Token(END, "", len(text), *end, *end, len(text))


_WORDS = frozenset({"NAME", "INT", "FLOAT"})


def _is_word(token: Token) -> bool:
    """Whether it is of letters and digits."""
    return token.type in _WORDS or token.type.lower() == token.value or (token.type == STRAY and token[0].isalnum())


def _touch(a: Token, b: Token) -> bool:
    return a.end_pos == b.start_pos


def _word_end(words: list[Token], at: int) -> int:
    """The end of the words that form one word with the word at a position."""
    end = at + 1
    if _is_word(words[at]):
        while end < len(words) and _touch(words[end - 1], words[end]) and _is_word(words[end]):
            end += 1
    return end


def _kind(parts: list[Token]) -> str:
    return STRAY if any(p.type == STRAY for p in parts) else MIXED


def _comment_end(words: list[Token], at: int) -> int:
    """The end of a C comment that begins at a position: the end of the line, or of `*/`; `at` if none begins there, as
    in Python's `n//2`."""
    signs = "".join(words[at : at + 2])
    if signs not in ("//", "/*") or not _touch(words[at], words[at + 1]):
        return at
    if signs == "//" and words[at + 2].type in ("INT", "LPAR") and at and _touch(words[at - 1], words[at]):
        return at
    end = at + 2
    if signs == "/*":
        for last in range(end, len(words) - 1):
            if words[last] == "*" and words[last + 1] == "/" and _touch(words[last], words[last + 1]):
                return last + 2
    while words[end].type != END and words[end].line == words[at].line:
        end += 1
    return end


def _joined(kind: str, parts: list[Token]) -> Token:
    first, last = parts[0], parts[-1]
    text = "".join(parts[:2] if kind == COMMENT else parts)
    return Token(
        kind, text, first.start_pos, first.line, first.column, last.end_line, last.end_column, last.end_pos
    )  # fmt: skip


# --- what characters stand for ---

#: Characters of which people mean another: its kind and text, or "" for one that may go without loss.
_MEANT: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("&", "and"), ("AND", "&&")),
    **dict.fromkeys(("|", "or"), ("OR", "||")),
    "not": ("NOT", "!"),
    "×": ("STAR", "*"),
    "·": ("STAR", "*"),
    "÷": ("SLASH", "/"),
    "−": ("MINUS", "-"),
    "–": ("MINUS", "-"),
    "—": ("MINUS", "-"),
    "≤": ("COMPARE", "<="),
    "≥": ("COMPARE", ">="),
    "≠": ("COMPARE", "!="),
    **dict.fromkeys(";\\'\"`´“”„‘’«»", ("", "")),
}
_KINDS = {text: kind for kind, text in TEXTS.items() if len(text) == 1} | dict.fromkeys("<>", "COMPARE")


def meant(token: Token) -> tuple[str, str] | None:
    """Kind and text of the sign that a stray character stands for; both empty if it stands for none and can be dropped;
    None if unknown."""
    if token.type != STRAY:
        return None
    if (found := _MEANT.get(token)) or len(token) != 1:
        return found
    wide = unicodedata.normalize("NFKC", token)  # of signs in the width of Chinese characters
    if wide in _KINDS:
        return _KINDS[wide], wide
    return None if token.isprintable() and not token.isspace() else ("", "")
