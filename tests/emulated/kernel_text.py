"""The text of a generated kernel: calls with their arguments, statements in their blocks, all by place.

As much of C++ as the generator writes: brackets that match, a space around operators, `if`, `for` and `while`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

#: Where the kernel's own text begins in a generated file: helpers, and what calls them.
KERNEL = re.compile(r"^// ---- (?:helpers|kernel)", re.MULTILINE)
_CLOSING = {"(": ")", "{": "}", "[": "]", "<": ">"}


@dataclass(frozen=True)
class Span:
    start: int
    end: int


@dataclass(frozen=True)
class Call(Span):
    """name<template arguments>(arguments)"""

    name: str
    template: Span
    arguments: tuple[Span, ...]


@dataclass(frozen=True)
class Change:
    """Replacements of stretches of the text, of which the first says where the change is."""

    what: str
    edits: tuple[tuple[Span, str], ...]


def one(what: str, span: Span, new: str) -> Change:
    return Change(what, ((span, new),))


class Source:
    """A generated source, and the text of its kernels alone: the rest and comments are blank, so places agree."""

    def __init__(self, text: str) -> None:
        self.text = text
        start = found.start() if (found := KERNEL.search(text)) else 0
        blank = re.sub(r"[^\n]", " ", text[:start])
        self.code = blank + re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), text[start:])

    def find(self, pattern: str | re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Where a pattern is in the bodies of functions."""
        return (m for m in re.finditer(pattern, self.code) if self.inside(m.start()))

    def inside(self, place: int) -> bool:
        return any(body.start < place < body.end for body in self._bodies)

    def calls(self, pattern: str | re.Pattern[str]) -> Iterator[Call]:
        """Calls of functions whose names match."""
        for found in self.find(pattern):
            if re.match(
                r"(?:__device__|void)[^;{]*$", self.code[self.code.rfind("\n", 0, found.start()) + 1 : found.start()]
            ):
                continue  # a definition
            template = Span(found.end(), found.end())
            if self.code[found.end()] == "<":
                template = Span(found.end() + 1, self.closing(found.end()))
            opening = template.end + (template.end > template.start)
            if self.code[opening : opening + 1] != "(":
                continue
            closing = self.closing(opening)
            yield Call(found.start(), closing + 1, found[0], template, tuple(self._split(opening + 1, closing)))

    def closing(self, opening: int) -> int:
        """Where the bracket closes that opens here."""
        depth, bracket = 0, self.code[opening]
        for place in range(opening, len(self.code)):
            depth += (self.code[place] == bracket) - (self.code[place] == _CLOSING[bracket])
            if depth == 0:
                return place
        raise ValueError(f"nothing closes {self.code[opening : opening + 40]!r}")

    def __getitem__(self, span: Span) -> str:
        return self.code[span.start : span.end]

    @cached_property
    def blocks(self) -> list[list[Span]]:
        """The statements of every block, in order."""
        found = []
        for brace in re.finditer(r"\{", self.code):
            before = self.code[: brace.start()].rstrip()
            if before.endswith((")", "else", ";", "}", "{")) and self.inside(brace.end()):
                found.append(list(self._statements(brace.end())))
        return found

    @cached_property
    def _bodies(self) -> list[Span]:
        """Of functions: what stands in braces behind a list of parameters, and in no other."""
        found: list[Span] = []
        for brace in re.finditer(r"\)(?:\s*const)?\s*\{", self.code):
            if not found or brace.start() > found[-1].end:
                found.append(Span(brace.end() - 1, self.closing(brace.end() - 1)))
        return found

    def _statements(self, place: int) -> Iterator[Span]:
        while True:
            place = self._skip_space(place)
            if self.code[place] == "}":
                return
            end = self._statement_end(place)
            yield Span(place, end)
            place = end

    def _statement_end(self, place: int) -> int:
        """Where the statement that begins here ends: behind its semicolon or brace."""
        while self.code[place] == "#":
            place = self._skip_space(self.code.index("\n", place))
        if self.code[place] == "{":
            return self.closing(place) + 1
        if header := re.match(r"(?:if(?: constexpr)?|for|while) \(", self.code[place:]):
            end = self._statement_end(self._skip_space(self.closing(place + header.end() - 1) + 1))
            behind = self._skip_space(end)
            if header[0].startswith("if") and re.match(r"else\b", self.code[behind:]):
                return self._statement_end(self._skip_space(behind + 4))
            return end
        while (character := self.code[place]) != ";":
            place = self.closing(place) + 1 if character in "({[" else place + 1
        return place + 1

    def _skip_space(self, place: int) -> int:
        while self.code[place].isspace():
            place += 1
        return place

    def _split(self, start: int, end: int) -> Iterator[Span]:
        """At the commas that stand in no brackets."""
        depth, first = 0, start
        for place in range(start, end):
            depth += (self.code[place] in "([{") - (self.code[place] in ")]}")
            if self.code[place] == "," and depth == 0:
                yield Span(first, place)
                first = self._skip_space(place + 1)
        if self.code[start:end].strip():
            yield Span(first, end)
