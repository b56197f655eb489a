"""What syntax errors leave of a file: statements without a fault, and what is known of the others.

A check that needs a lost statement is left out, since its result might be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from lark import Token

from convgen.diagnostics import Span
from convgen.frontend import ast
from convgen.frontend.place import setting_meant


@dataclass(frozen=True)
class Region:
    """Words that make no statement, in the order of the text."""

    words: tuple[Token, ...]

    @property
    def start(self) -> tuple[int, int]:
        line, column = self.words[0].line, self.words[0].column
        assert line and column
        return line, column

    @property
    def names(self) -> frozenset[str]:
        return frozenset(str(w) for w in self.words if w.type == "NAME")

    def within(self, span: Span) -> bool:
        return (span.line, span.column) <= self.start < (span.end_line, span.end_column)

    def is_behind(self, span: Span) -> bool:
        """Whether it begins in the line in which something ends, and may belong to it."""
        return self.start >= (span.end_line, span.end_column) and self.start[0] == span.end_line


class _Statement(Protocol):
    @property
    def span(self) -> Span: ...


S = TypeVar("S", bound=_Statement)


def mark(items: Sequence[object], regions: Sequence[Region]) -> ast.Spec:
    """The file of these lets and conv blocks."""
    stated = [i for i in items if isinstance(i, ast.Let)]
    lets, _ = _sound(stated, regions)
    convs = tuple(_conv(i, [r for r in regions if r.within(i.span)]) for i in items if isinstance(i, ast.Conv))
    pairs = [pair for r in regions for pair in zip(r.words, r.words[1:], strict=False)]
    names = {str(name) for keyword, name in pairs if keyword.type == "LET"}
    names |= {let.name.text for let in stated}
    return ast.Spec(lets, convs, frozenset(names - {let.name.text for let in lets}))


def _sound(statements: Iterable[S], regions: Sequence[Region]) -> tuple[tuple[S, ...], tuple[S, ...]]:
    """The statements that no region belongs to, and the others."""
    sound: list[S] = []
    spoiled: list[S] = []
    ordered = sorted(statements, key=lambda s: (s.span.line, s.span.column))
    for i, statement in enumerate(ordered):
        behind = ordered[i + 1].span if i + 1 < len(ordered) else None
        at = (behind.line, behind.column) if behind else (1 << 62, 0)
        spoils = any(r.is_behind(statement.span) and r.start < at for r in regions)
        (spoiled if spoils else sound).append(statement)
    return tuple(sound), tuple(spoiled)


def _conv(conv: ast.Conv, regions: Sequence[Region]) -> ast.Conv:
    if not regions:
        return conv
    inner = {id(s): [r for r in regions if r.within(s.span)] for s in conv.settings}
    within = [r for found in inner.values() for r in found]
    own = [r for r in regions if r not in within]
    sound, spoiled = _sound(conv.settings, own)
    lost = {s.keyword.text for s in spoiled}
    for region in own:
        first = region.words[0]
        lost.add("conv" if first.type == "CONV" else setting_meant(first) or "")
    settings = tuple(_setting(s, inner[id(s)]) for s in sound)
    return replace(conv, settings=settings, lost=frozenset(lost - {s.keyword.text for s in settings}))


def _setting(setting: ast.Setting, regions: Sequence[Region]) -> ast.Setting:
    if not regions:
        return setting
    if isinstance(setting, ast.PointwiseSetting):
        body, spoiled = _sound(setting.body, regions)
        operands, broken = _sound(setting.operands, regions)
        results, unfinished = _sound(setting.results, regions)
        names = {a.name.text for a in spoiled} | {t.name.text for t in (*broken, *unfinished)}
        lost = frozenset(names.union(*(r.names for r in regions)))
        return replace(setting, body=body, operands=operands, results=results, lost=lost)
    if isinstance(setting, ast.StrategySetting):
        return replace(setting, options=_sound(setting.options, regions)[0])
    return setting
