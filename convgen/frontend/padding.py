"""Padding by a word, as other libraries have it, and what it is in numbers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from convgen import habits
from convgen.diagnostics import Report
from convgen.frontend import ast


class Axis(NamedTuple):
    """What is known of an axis before it is padded: its dim and extent, the extent of the window, the stride."""

    dim: str
    extent: int | None
    window: int | None
    stride: int | None


def word(amounts: Iterable[ast.Expr], lets: Container[str]) -> ast.Reference | None:
    """A word for padding among amounts that should be numbers."""
    names = (e for e in amounts if isinstance(e, ast.Reference) and e.name not in lets)
    return next((e for e in names if habits.plain(e.name) in habits.PADDINGS.keys() | habits.FILLS), None)


def report_word(name: ast.Reference, axes: Sequence[Axis], report: Report) -> None:
    """Reports it, with the numbers that it stands for."""
    report.error("E102", f"`pad` takes numbers, not `{name.name}`", name.span, _hint(name.name, axes))


def _hint(name: str, axes: Sequence[Axis]) -> str:
    rule = habits.PADDINGS.get(habits.plain(name))
    if rule is None:
        return "padding is made of zeros: say how many, as in `pad 1`"
    amounts: dict[str, tuple[int, int]] = {}
    for axis in axes:
        if axis.extent is None or axis.window is None or axis.stride is None:
            return "say how many zeros, as in `pad 1`, or by axis `pad h=1 w=(0, 2)`"
        amounts[axis.dim] = rule.amounts(axis.extent, axis.window, axis.stride)
    if not any(map(any, amounts.values())):
        return "without padding, leave `pad` out"
    return f"for {rule.doc}, write `{_written(amounts)}`"


def _written(amounts: Mapping[str, tuple[int, int]]) -> str:
    """The setting."""
    texts = {dim: str(low) if low == high else f"({low}, {high})" for dim, (low, high) in amounts.items()}
    if len(set(texts.values())) == 1:
        return f"pad {next(iter(texts.values()))}"
    return "pad " + " ".join(f"{dim}={text}" for dim, text in texts.items())
