"""The emulator's reports: findings about a kernel, and missing prerequisites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgen.diagnostics import ConvgenError


@dataclass(frozen=True)
class Finding:
    """One thing that a kernel does wrong.

    `kind` is a stable word (the table in docs/emulator.md), `line` the line of the generated source, 1-based,
    0 where none is to blame; `block` is the flat index of the block, `threads` the threads' indices in it.
    """

    kind: str
    message: str
    line: int = 0
    source_line: str = ""
    block: int = 0
    threads: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        who = f" ({_ranges(self.threads)} of block {self.block})" if self.threads else ""
        shown = f"\n    {self.source_line}" if self.source_line else ""
        return f"{where}{self.kind}: {self.message}{who}{shown}"


class EmulationError(ConvgenError):
    """The kernel is wrong, or cannot be emulated; `findings` says how, in the order in which it showed."""

    def __init__(self, entry: str, findings: Sequence[Finding], seed: int = 0) -> None:
        self.entry, self.findings, self.seed = entry, tuple(findings), seed
        shown = "\n".join(map(str, self.findings))
        super().__init__(f"{entry} is wrong (emulated with seed {seed}):\n{shown}")


class NoHostCompiler(ConvgenError):
    """There is no C++17 compiler to compile the generated source with."""


def _ranges(numbers: Sequence[int]) -> str:
    """`threads 0-31, 64`"""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"thread{'s' if len(set(numbers)) > 1 else ''} {text}"
