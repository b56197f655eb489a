"""Mutates generated kernels of every family, and says how many of the mutants the emulator notices.

    python tests/mutation.py                              all of them: hours of one core
    python tests/mutation.py --names split wgrad --kinds moved  goldens and classes by parts of their names
    python tests/mutation.py --log mutants.jsonl          what became of each, one a line; what it has is not run again
    python tests/mutation.py --share 0.2                  a fifth of them, the same in every run
    python tests/mutation.py --stale                      excuses that cover no mutant: a comment was rephrased

A mutant is noticed when a seed brings a finding or a wrong result.  The others are listed: harmless, where
tests/emulated/excuses.py says why, or missed.  The exit code is 1 where one is missed without an excuse.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / tier) for tier in ("text", "emulated")]

if TYPE_CHECKING:
    from mutate import Mutant

#: Mutants that wait for a process at most: each holds a whole kernel's text.
AHEAD = 500


def key(name: str, mutant: Mutant) -> str:
    return f"{name} {mutant}"


def drawn(name: str, mutant: Mutant, share: float) -> bool:
    """Whether a sample of this share has the mutant: by its hash, so that a larger sample has all of a smaller one."""
    return zlib.crc32(key(name, mutant).encode()) < share * 2**32


def run(
    names: Iterable[str], kinds: Sequence[str], share: float, seeds: int, processes: int, log: Path | None
) -> Iterator[tuple[str, Mutant, str]]:
    """Each mutant's golden, itself and what becomes of it."""
    from mutation_cases import UNNOTICED

    rows = map(json.loads, log.read_text().splitlines()) if log and log.exists() else ()
    known = {row["mutant"]: row["verdict"] for row in rows}
    with ProcessPoolExecutor(processes) as pool:
        pending: deque[tuple[str, Mutant | None, Future[str] | None]] = deque()

        def settled(most: int) -> Iterator[tuple[str, Mutant, str]]:
            while len(pending) > most:
                name, mutant, future = pending.popleft()
                if mutant is None:
                    if future and (verdict := future.result()) != UNNOTICED:
                        pool.shutdown(wait=False, cancel_futures=True)
                        raise SystemExit(f"{name} itself is not clean: {verdict}")
                    continue
                verdict = future.result() if future else known[key(name, mutant)]
                if future and log:
                    with log.open("a") as file:
                        file.write(json.dumps({"mutant": key(name, mutant), "verdict": verdict}) + "\n")
                yield name, mutant, verdict

        for name, mutant, text in work(names, kinds, share, known):
            pending.append((name, mutant, pool.submit(verdict_of, name, text, seeds) if text else None))
            yield from settled(AHEAD)
        yield from settled(0)


def work(
    names: Iterable[str], kinds: Sequence[str], share: float, known: Container[str]
) -> Iterator[tuple[str, Mutant | None, str]]:
    """The mutants of each golden and their texts, "" where it is known what becomes of them.  A golden of which some
    are not comes first itself, with no mutant."""
    from mutate import mutants
    from mutation_cases import case

    for name in names:
        source = case(name).source
        chosen = [m for m in mutants(source) if any(k in m.kind for k in kinds) and drawn(name, m, share)]
        texts = ["" if key(name, m) in known else m.text for m in chosen]
        if any(texts):
            yield name, None, source
        for mutant, text in zip(chosen, texts, strict=True):
            yield name, mutant, text


def verdict_of(name: str, text: str, seeds: int) -> str:
    from mutation_cases import case

    return case(name).isolated_verdict(text, range(seeds))


def main(arguments: argparse.Namespace) -> int:
    from excuses import HARMLESS, UNSEEN
    from mutate import OPERATORS
    from mutation_cases import FAMILIES, NOT_COMPILED, UNNOTICED

    family = {n: f for f, names in FAMILIES.items() for n in names if any(part in n for part in arguments.names)}
    log = Path(arguments.log) if arguments.log else None
    counts: Counter[tuple[str, str, str]] = Counter()
    missed = 0
    for name, mutant, verdict in run(
        family, arguments.kinds, arguments.share, arguments.seeds, arguments.processes, log
    ):
        if verdict == NOT_COMPILED:
            continue
        harmless = next((e for e in HARMLESS if e.covers(mutant)), None)
        unseen = next((e for e in UNSEEN if e.covers(mutant)), None)
        if verdict != UNNOTICED:
            outcome = "noticed"
            if harmless:
                print(f"noticed ({verdict}), and excused as harmless: {key(name, mutant)}", flush=True)
        elif harmless:
            outcome = "harmless"
        else:
            outcome = "missed"
            missed += not unseen
            print("missed" + (", as excused" if unseen else ""), key(name, mutant), flush=True)
        counts[family[name], mutant.kind, outcome] += 1
    print(table(counts, dict.fromkeys(family.values()), OPERATORS))
    return int(missed > 0)


def stale() -> int:
    """Lists the excuses that cover no mutant of any family.  Nothing is run: minutes of one core."""
    from excuses import HARMLESS, UNSEEN
    from mutate import mutants
    from mutation_cases import FAMILIES, MODES, compilation, shrunk, untuned

    left = [*HARMLESS, *UNSEEN]
    for name in (name for names in FAMILIES.values() for name in names):
        with untuned():
            source = compilation(MODES.get(name) or shrunk(name)).source
        for mutant in mutants(source):
            left = [excuse for excuse in left if not excuse.covers(mutant)]
    for excuse in left:
        print(excuse)
    return int(bool(left))


def table(counts: Counter[tuple[str, str, str]], families: Iterable[str], kinds: Iterable[str]) -> str:
    """Noticed of the wrong ones, by family and class."""

    def cell(chosen: Iterable[tuple[str, str]]) -> str:
        pairs = [*chosen]
        noticed = sum(counts[f, k, "noticed"] for f, k in pairs)
        wrong = noticed + sum(counts[f, k, "missed"] for f, k in pairs)
        return f"{noticed} of {wrong}" if wrong else ""

    families, kinds = [*families], [*kinds]
    rows = [["", *kinds, "all", "harmless"]]
    for family in families:
        harmless = sum(counts[family, k, "harmless"] for k in kinds)
        rows.append([family, *(cell([(family, k)]) for k in kinds), cell((family, k) for k in kinds), str(harmless)])
    total = [cell((f, k) for f in families) for k in kinds]
    all_harmless = sum(n for (_, _, outcome), n in counts.items() if outcome == "harmless")
    rows.append(["all", *total, cell((f, k) for f in families for k in kinds), str(all_harmless)])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=[""], metavar="PART", help="of goldens")
    parser.add_argument("--kinds", nargs="+", default=[""], metavar="PART", help="of classes")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, a sample of them (1: all)")
    parser.add_argument("--seeds", type=int, default=16, help="until a mutant counts as not noticed (16)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--log", metavar="FILE", help="keep what became of each mutant, and read it")
    parser.add_argument("--stale", action="store_true", help="list excuses that cover no mutant, and run nothing")
    given = parser.parse_args()
    sys.exit(stale() if given.stale else main(given))
