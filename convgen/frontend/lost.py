"""What syntax errors leave of a file: statements without a fault, and what is known of the others.

A check that needs a lost statement is left out, since its result might be wrong.  So is one that needs to know which
dims a tensor lacks whose text was mended: the word that is gone may have been one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Protocol, TypeVar

from lark import Token

from convgen import habits
from convgen.diagnostics import Span
from convgen.frontend import ast, wording
from convgen.frontend.operators import OPERATORS
from convgen.frontend.place import setting_meant

#: Settings with braces, with brackets, and with neither.
_BLOCKS = frozenset({"prologue", "epilogue", "strategy"})
_PLAIN = frozenset({*wording.SETTINGS, *wording.CONTEXTUAL}) - _BLOCKS - wording.TENSORS
#: What begins a statement, wherever it stands.
_BEGINNING = wording.SETTING_KINDS | {"LET", "CONV", "OPERAND"}


@dataclass(frozen=True)
class Region:
    """Words that make no statement, in the order of the text."""

    words: tuple[Token, ...]

    @property
    def start(self) -> tuple[int, int]:
        return _start(self.words[0])

    @property
    def names(self) -> frozenset[str]:
        """The names in it; and `ANY` where the name that it would declare is not one."""
        first, *others = self.words
        declared = others[:1] if first.type in wording.DECLARING or first == "result" else [first]
        named = any(word.type == "NAME" for word in declared)
        return frozenset([str(w) for w in self.words if w.type == "NAME"] + [ast.ANY] * (not named))

    @property
    def settings(self) -> frozenset[str]:
        """The keywords of the settings that it may be: none of a word that is no setting's, and has a value."""
        first, *others = self.words
        if meant := "conv" if first.type == "CONV" else setting_meant(first):
            return frozenset({meant})
        known = len(first) > 1 and habits.plain(first) in habits.NO_SETTINGS
        valued = first.type == "NAME" and bool(others) and others[0].type in ("NAME", "INT", "FLOAT", "LBRACE")
        if (known or valued) and first not in OPERATORS:
            return frozenset()
        signs = {word.type for word in self.words}
        plain = _PLAIN if OPERATORS.keys() & set(self.words) else _PLAIN - {"op"}
        return _BLOCKS if "LBRACE" in signs else wording.TENSORS if "LSQB" in signs else plain

    @property
    def keywords(self) -> frozenset[str]:
        """The settings' keywords that occur anywhere in it."""
        return frozenset(str(word) for word in self.words if word.type in wording.SETTING_KINDS)

    def within(self, span: Span) -> bool:
        return _within(self.words[0], span)

    def is_behind(self, span: Span) -> bool:
        """Whether it begins in the line in which something ends, and may belong to it: with a keyword it does not."""
        if self.words[0].type in _BEGINNING:
            return False
        return self.start >= (span.end_line, span.end_column) and self.start[0] == span.end_line


def _start(word: Token) -> tuple[int, int]:
    assert word.line and word.column
    return word.line, word.column


def _within(word: Token, span: Span) -> bool:
    return (span.line, span.column) <= _start(word) < (span.end_line, span.end_column)


def _inside(word: Token, span: Span) -> bool:
    """Whether it is within, and not the first."""
    return _within(word, span) and _start(word) != (span.line, span.column)


class _Statement(Protocol):
    @property
    def span(self) -> Span: ...


def _begins(statement: _Statement | None) -> tuple[int, int]:
    """Where a statement begins; the end of the file if there is none."""
    return (statement.span.line, statement.span.column) if statement else (1 << 62, 0)


S = TypeVar("S", bound=_Statement)
#: Settings of which a part may be right where another is not.
_IN_PARTS = (ast.TensorSetting, ast.LoweredSetting, ast.PointwiseSetting, ast.StrategySetting)


def mark(
    items: Sequence[object], regions: Sequence[Region], mended: Sequence[Token], unclosed: Sequence[Token]
) -> ast.Spec:
    """The file of these lets and conv blocks; `mended` are the words before which, or in whose place, its text was, and
    `unclosed` braces of blocks that may have had more."""
    stated = [i for i in items if isinstance(i, ast.Let)]
    convs = [i for i in items if isinstance(i, ast.Conv)]
    lets, spoiled = _sound(stated, regions)
    names = _names([r for r in regions if _may_be_let(r, convs)], spoiled)
    outside = [r for r in regions if not any(r.within(conv.span) for conv in convs)]
    marked = []
    for conv, behind in itertools.zip_longest(convs, convs[1:]):
        found = _conv(conv, [r for r in regions if r.within(conv.span)], mended)
        more = wording.TENSORS if any(_within(brace, conv.span) for brace in unclosed) else frozenset()
        missing = more - {setting.keyword.text for setting in conv.settings}
        marked.append(replace(found, lost=found.lost | _cut_off(conv, behind, outside) | missing))
    return ast.Spec(lets, tuple(marked), names - {let.name.text for let in lets})


def _cut_off(conv: ast.Conv, behind: ast.Conv | None, outside: Iterable[Region]) -> frozenset[str]:
    """The keywords of settings between a conv's end and the next conv: its block was closed too early."""
    return frozenset[str]().union(*(r.keywords for r in outside if _begins(conv) <= r.start < _begins(behind)))


def _may_be_let(region: Region, convs: Iterable[ast.Conv]) -> bool:
    outside = not any(region.within(conv.span) for conv in convs)
    return any(word.type == "LET" or (outside and word.type == "ASSIGN") for word in region.words)


def _names(regions: Iterable[Region], spoiled: Iterable[_Statement]) -> frozenset[str]:
    """The names in regions and in the statements that these spoil, and `ANY` if a declaration has lost its name."""
    lost = (r.names - ({ast.ANY} if _behind(r, spoiled) else set()) for r in regions)
    return frozenset[str]().union(*lost, *map(_mentioned, spoiled))


def _mentioned(node: object) -> set[str]:
    """The names in a part of the tree."""
    if isinstance(node, ast.Name):
        return {node.text}
    if isinstance(node, ast.Reference):
        return {node.name}
    parts = node if isinstance(node, tuple) else vars(node).values() if is_dataclass(node) else ()
    return set[str]().union(*map(_mentioned, parts))


def _behind(region: Region, spoiled: Iterable[_Statement]) -> bool:
    """Whether it is the rest of one of these statements."""
    return any(region.is_behind(statement.span) for statement in spoiled)


def _sound(statements: Iterable[S], regions: Sequence[Region]) -> tuple[tuple[S, ...], tuple[S, ...]]:
    """The statements that no region belongs to, and the others."""
    sound: list[S] = []
    spoiled: list[S] = []
    ordered = sorted(statements, key=lambda s: (s.span.line, s.span.column))
    for i, statement in enumerate(ordered):
        at = _begins(ordered[i + 1] if i + 1 < len(ordered) else None)
        spoils = any(r.is_behind(statement.span) and r.start < at for r in regions)
        (spoiled if spoils else sound).append(statement)
    return tuple(sound), tuple(spoiled)


def _conv(conv: ast.Conv, regions: Sequence[Region], mended: Sequence[Token]) -> ast.Conv:
    inner = {id(s): [r for r in regions if r.within(s.span)] for s in conv.settings}
    within = [r for found in inner.values() for r in found]
    own = [r for r in regions if r not in within]
    sound, spoiled = _sound(conv.settings, own)
    unsure = [s for s in sound if not isinstance(s, _IN_PARTS) and any(_inside(w, s.span) for w in mended)]
    lost = {s.keyword.text for s in spoiled}.union(*(r.settings for r in own if not _behind(r, spoiled)))
    lost = lost.union(*(r.keywords for r in own))
    settings = tuple(_setting(s, inner[id(s)], mended, _misplaced(own)) for s in sound)
    lost = lost - {s.keyword.text for s in settings} | {s.keyword.text for s in unsure}
    return replace(conv, settings=settings, lost=frozenset(lost), names=_names(own, spoiled))


def _misplaced(regions: Iterable[Region]) -> frozenset[str]:
    """The names of operands that are declared there, outside of the epilogue."""
    pairs = (pair for region in regions for pair in itertools.pairwise(region.words))
    return frozenset(str(name) for word, name in pairs if word.type == "OPERAND" and name.type == "NAME")


def _setting(
    setting: ast.Setting, regions: Sequence[Region], mended: Sequence[Token], misplaced: frozenset[str]
) -> ast.Setting:
    if isinstance(setting, ast.TensorSetting):
        return replace(setting, tensor=_tensor(setting.tensor, mended))
    if isinstance(setting, ast.PointwiseSetting):
        body, spoiled = _sound(setting.body, regions)
        operands, broken = _sound(setting.operands, regions)
        results, unfinished = _sound(setting.results, regions)
        lost = _names(regions, [*spoiled, *broken, *unfinished]) | misplaced
        return replace(
            setting,
            body=body,
            operands=tuple(_tensor(t, mended) for t in operands),
            results=tuple(_tensor(t, mended) for t in results),
            lost=lost if regions or misplaced else None,
        )
    if isinstance(setting, ast.StrategySetting):
        return replace(setting, options=_sound(setting.options, regions)[0])
    return setting


def _tensor(tensor: ast.Tensor, mended: Sequence[Token]) -> ast.Tensor:
    return replace(tensor, sure=not any(_inside(word, tensor.span) for word in mended))
