"""Mutants of a generated kernel: one wait, count, barrier or index changed, as a person might have got it wrong.

    python tests/emulated/mutate.py kernel.cu          lists them

`mutants(source)` works on the text of any generated source: it knows the names of PTX functions, and finds out by
itself which variables are phases and which are places in a ring.  An operator of OPERATORS makes one class.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mutate_values
from kernel_text import Change, Source, Span, one

#: Calls that wait, arrive, expect, fence or commit.  `sync_...` are the kernels' own names for a named barrier.
SYNCHRONISES = re.compile(
    r"\b(?:mbarrier_(?:wait_parity|arrive|arrive_expect_tx)(?:_cluster)?|cluster_(?:arrive|arrive_relaxed|wait)"
    r"|fence_\w+|wgmma_(?:fence|commit_group|wait_group)|bulk_(?:commit_group|wait_group(?:_read)?)"
    r"|cp_async_(?:commit_group|wait_group)|__syncthreads|__syncwarp|bar_sync|sync_\w+|griddepcontrol_wait)(?=[<(])"
)
#: A statement that is one call, where a condition holds.
CALL = re.compile(r"(?:if \([^{}]*?\) )?(\w+)(?:<[^<>]*>)?\([^{}]*\);")
#: What does not change which memory is seen, or only declares: a call moves past it for nothing.
TRANSPARENT = re.compile(r"(?:const|constexpr|int|u32|bool|float|u64)\b[^;]*;|griddepcontrol_launch_dependents\(\);")


@dataclass(frozen=True)
class Mutant:
    """`kind` is the class, `what` the change in words, `line` where (1-based), `above` the two lines above it, `text`
    the whole source after."""

    kind: str
    what: str
    line: int
    above: str
    was: str
    now: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}, line {self.line}: {self.was.strip()}  ->  {self.now.strip()}"


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a source, class by class; no two are the same but for spaces and comments."""
    source = Source(text)
    seen = {_essence(text)}
    for kind, operator in OPERATORS.items():
        for change in operator(source):
            mutant = _apply(source, kind, change)
            if (essence := _essence(mutant.text)) not in seen:
                seen.add(essence)
                yield mutant


def _essence(text: str) -> str:
    return re.sub(r"//[^\n]*|\s+", "", text)


def _apply(source: Source, kind: str, change: Change) -> Mutant:
    text, place = source.text, change.edits[0][0].start
    for span, new in sorted(change.edits, key=lambda edit: -edit[0].start):
        text = text[: span.start] + new + text[span.end :]
    line = source.text.count("\n", 0, place)
    lines = source.text.splitlines()
    above = "\n".join(lines[line - 2 : line])
    return Mutant(kind, change.what, line + 1, above, lines[line], text.splitlines()[line], text)


# ---- the classes -----------------------------------------------------------------------------------------


def removed(source: Source) -> Iterator[Change]:
    """A wait, arrival, fence or commit that is not there."""
    for call in source.calls(SYNCHRONISES):
        yield one(f"{call.name} removed", call, "(void)0")


def moved(source: Source) -> Iterator[Change]:
    """The same, on the other side of the statement before or behind it."""
    for block in source.blocks:
        for i, statement in enumerate(block):
            alone = CALL.fullmatch(source[statement])
            if not alone or not SYNCHRONISES.match(source.code, statement.start + alone.start(1)):
                continue
            own = source.text[statement.start : statement.end]
            after = next((s for s in block[i + 1 :] if not TRANSPARENT.fullmatch(source[s])), None)
            before = next((s for s in reversed(block[:i]) if not TRANSPARENT.fullmatch(source[s])), None)
            for where, other in (("behind", after), ("before", before)):
                if other and not re.search(r"\breturn\b|\bcontinue\b", source[other]):
                    place = other.end if where == "behind" else other.start
                    new = f" {own}" if where == "behind" else f"{own}\n"
                    change = f"{alone[1]} moved {where} {_name(source[other])}"
                    yield Change(change, ((statement, ""), (Span(place, place), new)))


def _name(statement: str) -> str:
    """The call that a statement is, or the word that it begins with."""
    found = CALL.fullmatch(statement)
    return found[1] if found else next(iter(re.findall(r"(?m)^\s*(\w+)", statement)), "block")


def depth(source: Source) -> Iterator[Change]:
    """One group more may stay under way."""
    for call in source.calls(r"\b\w+_wait_group(?:_read)?(?=<)"):
        yield one("one more pending", call.template, f"{source[call.template]} + 1")


def parity(source: Source) -> Iterator[Change]:
    """The phase before, or the one after."""
    names = set()
    for call in source.calls(r"\bmbarrier_wait_parity(?=\()"):
        argument = source[call.arguments[1]]
        names |= set(re.findall(r"\b[a-z]\w*", argument))
        yield one("parity flipped", call.arguments[1], f"({argument}) ^ 1")
    for name in sorted(n for n in names if any(source.find(rf"\b{n} \^= 1;"))):
        for found in source.find(rf"\b{name} \^= 1;"):
            yield one("phase not flipped", Span(*found.span()), "(void)0;")
        for found in source.find(rf"\b(?:int|u32) {name} = ([01]);"):
            yield one("first phase flipped", Span(*found.span(1)), f"{found[1]} ^ 1")


def count(source: Source) -> Iterator[Change]:
    """A barrier that waits for another number of threads, arrivals or bytes."""
    for call in source.calls(r"\bmbarrier_init(?=\()"):
        arrivals = source[call.arguments[1]]
        yield one("one arrival more", call.arguments[1], f"({arrivals}) + 1")
        if arrivals != "1":
            yield one("one arrival fewer", call.arguments[1], f"({arrivals}) - 1")
    for call in source.calls(r"\bmbarrier_arrive_expect_tx(?=\()"):
        for sign in "+-":
            yield one(f"bytes {sign} 16", call.arguments[1], f"{source[call.arguments[1]]} {sign} 16")
    for call in source.calls(r"\bmbarrier_arrive(?:_cluster)?(?=\()"):
        yield one("arrives twice", call, f"{source[call]}, {source[call]}")
    for call in source.calls(r"\bbar_sync(?=<)"):
        number, threads = source[call.template].split(", ")
        for sign in "+-":
            yield one(f"threads {sign} 32", call.template, f"{number}, {threads} {sign} 32")


def barrier(source: Source) -> Iterator[Change]:
    """Another barrier of the same kernel."""
    numbers = sorted({source[call.template].split(",")[0] for call in source.calls(r"\bbar_sync(?=<)")})
    for call in source.calls(r"\bbar_sync(?=<)"):
        number, threads = source[call.template].split(",")
        other = numbers[(numbers.index(number) + 1) % len(numbers)]
        yield one(f"barrier {other} for {number}", call.template, f"{other},{threads}")
    placed = {name for call in source.calls(r"\bmbarrier_init(?=\()") for name in _offsets(source[call.arguments[0]])}
    names, inits = sorted(placed), [*source.calls(r"\bmbarrier_init(?=\()")]
    for name in names:
        other = names[(names.index(name) + 1) % len(names)]
        for found in source.find(rf"\b{name}\b"):
            if not any(call.start < found.start() < call.end for call in inits):
                yield one(f"{other} for {name}", Span(*found.span()), other)


def _offsets(address: str) -> list[str]:
    """Names of constants that an address adds up: base + full_barriers + 8 * i."""
    return [term for term in address.split(" + ")[1:] if re.fullmatch(r"[A-Za-z]\w+", term)]


def stage(source: Source) -> Iterator[Change]:
    """The neighbor in a ring of stages, or in a pair of buffers."""
    extents = _ring_extents(source)
    for extent in extents:
        for found in source.find(rf"\+\+(\w+) == ({extent})\)"):
            yield one("wraps early", Span(*found.span(2)), f"{extent} - 1")
            yield from _uses(source, found[1], extent)
        for found in source.find(rf"\b(\w+) % ({extent})\b"):
            yield one("next stage", Span(*found.span(1)), f"({found[1]} + 1)")
        for found in source.find(rf"(?<!<)\b({extent} - (\d))\b"):
            yield one("one stage fewer", Span(*found.span(1)), f"{extent} - {int(found[2]) + 1}")
    phases = {
        n
        for call in source.calls(r"\bmbarrier_wait_parity(?=\()")
        for n in re.findall(r"\w+", source[call.arguments[1]])
    }
    for found in source.find(r"(?<=\n) *(\w+ = \w+);"):
        yield one("not carried on", Span(*found.span(1)), "(void)0")
    for found in source.find(r"\b(\w+) \^= 1;"):
        if found[1] not in phases:
            yield one("buffer not changed", Span(*found.span()), "(void)0;")
            yield from _uses(source, found[1], "2")


def _ring_extents(source: Source) -> list[str]:
    """Constants that count stages: of mbarriers that a loop initializes, of groups that stay pending."""
    found = set()
    for call in source.calls(r"\bmbarrier_init(?=\()"):
        loops = re.findall(r"for \(int \w+ = 0; \w+ < ([^;]*);", source.code[: call.start])
        found |= set(re.findall(r"[A-Za-z]\w*", loops[-1] if loops else ""))
    for call in source.calls(r"\bcp_async_wait_group(?=<)"):
        found |= set(re.findall(r"[A-Za-z]\w*", source[call.template]))
    return sorted(found)


def _uses(source: Source, name: str, extent: str) -> Iterator[Change]:
    """Where a place in a ring is used, and where it begins."""
    for found in source.find(rf"\bint {name} = (\d+);"):
        yield one("first place", Span(*found.span(1)), f"({found[1]} + 1) % {extent}")
    for found in source.find(rf"(?<!\+\+)(?<!int )\b{name}\b(?! \^= | = | == )"):
        yield one("next place", Span(*found.span()), f"(({name} + 1) % {extent})")


def cluster(source: Source) -> Iterator[Change]:
    """Blocks of a cluster that go on without the others, or meet the wrong one."""
    for found in source.find(r"\bcluster_arrive(?:_relaxed)?\(\);\s*cluster_wait\(\);"):
        yield one("the cluster's barrier is the block's", Span(*found.span()), "__syncthreads();")
        yield one("no barrier of the cluster", Span(*found.span()), "")
    for call in source.calls(r"\bcluster_arrive(?=\()"):
        yield one("relaxed arrival", call, "cluster_arrive_relaxed()")
    for call in source.calls(r"\b(?:mbarrier_arrive_cluster|st_shared_cluster_\w+)(?=\()"):
        yield one("another block", call.arguments[1], f"({source[call.arguments[1]]}) ^ 1")
    for call in source.calls(r"\btma_load_\w+_multicast(?=\()"):
        mask = source[call.arguments[-1]]
        yield one("multicast to one block fewer", call.arguments[-1], f"u16(({mask}) & (({mask}) - 1))")


def registers(source: Source) -> Iterator[Change]:
    """Registers that nobody has given back.  A warpgroup that asks for none, or fewer, is only slower."""
    for call in source.calls(r"\bsetmaxnreg_(?:inc|dec)(?=<)"):
        direction = {"setmaxnreg_inc": "setmaxnreg_dec", "setmaxnreg_dec": "setmaxnreg_inc"}[call.name]
        yield one("8 registers more", call.template, f"{source[call.template]} + 8")
        yield one("the other direction", Span(call.start, call.start + len(call.name)), direction)
        yield one("half a warpgroup", call, f"if (threadIdx.x % 128 < 64) {source[call]}")
        if call.name == "setmaxnreg_dec":
            yield one("gives nothing back", call, "(void)0")


def guard(source: Source) -> Iterator[Change]:
    """A condition that holds once more, or once less; loops are left alone."""
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
    loops = [Span(found.start(), source.closing(found.end() - 1)) for found in source.find(r"\b(?:for|while) \(")]
    for found in source.find(r" (<=?|>=?) "):
        if not any(loop.start < found.start() < loop.end for loop in loops):
            yield one(f"{other[found[1]]} for {found[1]}", Span(*found.span(1)), other[found[1]])


OPERATORS: dict[str, Callable[[Source], Iterator[Change]]] = {
    "removed": removed,
    "moved": moved,
    "wait depth": depth,
    "parity": parity,
    "count": count,
    "barrier": barrier,
    "stage": stage,
    "cluster": cluster,
    "registers": registers,
    "guard": guard,
    **mutate_values.OPERATORS,
}


if __name__ == "__main__":
    for mutant in mutants(Path(sys.argv[1]).read_text(encoding="utf-8")):
        print(mutant)
