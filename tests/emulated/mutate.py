"""Mutants of a generated kernel: one synchronisation removed or weakened, one index or phase shifted.

    python tests/emulated/mutate.py kernel.cu          lists them

`mutants(source)` works on the text of any generated source; what it looks for stands in the tables below.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Calls that wait, arrive, expect, fence or commit: each is removed.
REMOVED = re.compile(
    r"\b(?:mbarrier_(?:wait_parity|arrive|arrive_expect_tx)(?:_cluster)?|cluster_(?:arrive|wait)"
    r"|fence_\w+|wgmma_(?:fence|commit_group|wait_group)|bulk_(?:commit_group|wait_group(?:_read)?)"
    r"|cp_async_(?:commit_group|wait_group)|__syncthreads|__syncwarp|bar_sync|sync_\w+)(?:<[^<>]*>)?\("
)
#: A count of groups that may stay under way: one more is allowed.
PENDING = re.compile(r"(_wait_group(?:_read)?<)(\d+)(>)")
#: Which stage, buffer or step: shifted by one, modulo `INDEX_EXTENT`.
INDEX = re.compile(r"\b(stage|previous|epi_tile|slot)\b")
INDEX_EXTENT = {"stage": "stages", "previous": "stages", "slot": "stages", "epi_tile": "2"}
#: Which phase: flipped.
PHASE = re.compile(r"\b(parity|phase|turn)\b")
#: Bytes that a barrier is told to expect: 16 fewer.
EXPECTED = re.compile(r"(mbarrier_arrive_expect_tx\([^;]*)\);")
#: Where the kernel's own text begins in a generated file.
KERNEL = "// ---- kernel"


@dataclass(frozen=True)
class Mutant:
    """`kind` is what was done, `line` where (1-based), `was` the line before, `text` the whole source after."""

    kind: str
    line: int
    was: str
    now: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: {self.was.strip()}  ->  {self.now.strip()}"


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in the order of its lines."""
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.startswith(KERNEL)), 0)
    for i in range(start, len(lines)):
        seen = set()
        for kind, now in _changes(lines[i]):
            if now != lines[i] and now not in seen:
                seen.add(now)
                yield Mutant(kind, i + 1, lines[i], now, "".join([*lines[:i], now, *lines[i + 1 :]]))


def _changes(line: str) -> Iterator[tuple[str, str]]:
    code = line.split("//")[0]
    if re.match(r"\s*(?:__device__|extern|constexpr|#)", code):
        return
    for found in REMOVED.finditer(code):
        end = _closing(code, found.end())
        yield "removed", line[: found.start()] + "(void)0" + line[end:]
    for found in PENDING.finditer(code):
        yield "one more pending", line[: found.start(2)] + str(int(found[2]) + 1) + line[found.end(2) :]
    for found in EXPECTED.finditer(code):
        yield "fewer bytes", line[: found.end(1)] + " - 16);" + line[found.end() :]
    for found in INDEX.finditer(code):
        yield from _shifted(line, code, found, f"(({found[1]} + 1) % {INDEX_EXTENT[found[1]]})")
    for found in PHASE.finditer(code):
        yield from _shifted(line, code, found, f"({found[1]} ^ 1)")


def _shifted(line: str, code: str, found: re.Match[str], other: str) -> Iterator[tuple[str, str]]:
    """A use is replaced; an update or a first value is changed."""
    name = found[1]
    before, after = code[: found.start()], code[found.end() :]
    if re.match(r"\s*\^=\s*1;", after):
        yield "phase not flipped", before + "(void)0;" + line[found.end() :].split(";", 1)[1]
    elif value := re.match(r"\s*=\s*([^=;]+);", after):
        if name == "previous" or re.search(r"-\s*1\s*$", value[1]):
            return  # what it is set to is a use of its own
        changed = f"({value[1]}) ^ 1" if PHASE.fullmatch(name) else f"(({value[1]}) + 1) % {INDEX_EXTENT[name]}"
        kind = "first phase" if PHASE.fullmatch(name) else "first index"
        yield kind, line[: found.end()] + f" = {changed};" + line[found.end() + value.end() :]
    elif before.rstrip().endswith("++"):
        if wrap := re.match(r"\s*==\s*(\w+)\)", after):
            yield "wraps early", line[: found.end()] + f" == {wrap[1]} - 1)" + line[found.end() + wrap.end() :]
    elif not re.match(r"\s*[<>=!]=", after):
        yield ("phase" if PHASE.fullmatch(name) else "index"), line[: found.start()] + other + line[found.end() :]


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that was opened before `start` has been closed."""
    depth, i = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return i


if __name__ == "__main__":
    for mutant in mutants(Path(sys.argv[1]).read_text(encoding="utf-8")):
        print(mutant)
