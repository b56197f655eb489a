"""Measures many configurations of many convolutions, for `fit_cost.py`: the suites' layers and random geometries.

    python benchmarks/sweep.py --db sweep.sqlite --seed 1 --random 60 --part 1/2 --seconds 225
    python benchmarks/sweep.py --db sweep.sqlite --specs slow.conv

Of each convolution and strategy it takes the configurations that the cost model likes best, the best of each kind,
and some legal ones at random.  They are compiled in parallel and timed one by one; the best few are timed again in
turn, and their median counts.  Results are not compared with a reference: rows are `timed`, and `auto` takes none of
them.  Whatever is in the database already is left out, so that a run goes on where another stopped.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from at_hand import need_gpu
from geometries import random_problems, suites

from convgen.bench.build import Builder, Failure, Job
from convgen.frontend import load
from convgen.ir.problem import ConvProblem
from convgen.kernels import registry, strategies
from convgen.kernels.base import Options
from convgen.kernels.search import search
from convgen.planner import database
from convgen.planner.database import Database, Measurement, Status
from convgen.targets import TARGETS, Target
from convgen.tune.worker import CandidateFailed, Worker

#: What two configurations of a kind have in common; the model is surer within a kind than between kinds.
KINDS: dict[str, tuple[str, ...]] = {
    "tma_im2col": ("swap_ab", "consumers", "schedule", "blocks", "k_blocks", "split_k", "shared", "stream_k"),
    "tma_halo": ("swap_ab", "schedule", "consumers", "images", "weight_stages"),
}
#: Configurations of each strategy: the best, the best of other kinds, legal ones at random.
BEST, OTHER_KINDS, RANDOM = 7, 8, 3
#: Values of tma_im2col's options of which the best so many are measured, whatever the model thinks of them.
FORCED: tuple[Options, ...] = ({"stream_k": 1}, {"split_k": 2}, {"split_k": 3}, {"split_k": 4}, {"split_k": 5})
EACH = 2
#: Random ones are at most so many times slower, by the model, than the best.
SLOWEST = 4.0
#: Times that a candidate this much slower than the convolution's best is not worth timing well.
HOPELESS = 3.0
#: The best so many are timed again, so often.
AGAIN, TIMES = 3, 2


def configurations(problem: ConvProblem, target: Target, rng: random.Random) -> Iterator[tuple[str, Options]]:
    """Strategies and options to measure, those of promise first."""
    for name, fields in KINDS.items():
        if strategies.load(name).obstacles(problem, target, {}):
            continue
        times = _times(name, problem, target)
        ranked = list(times)
        chosen = dict.fromkeys(ranked[:BEST])
        kinds: dict[tuple[object, ...], object] = {}
        for config in ranked:
            kinds.setdefault(tuple(getattr(config, f) for f in fields), config)
        chosen |= dict.fromkeys(list(kinds.values())[: OTHER_KINDS + BEST])
        chosen = dict.fromkeys(list(chosen)[: BEST + OTHER_KINDS])
        legal = [c for c in ranked if c not in chosen and times[c] < SLOWEST * times[ranked[0]]]
        chosen |= dict.fromkeys(rng.sample(legal, min(RANDOM, len(legal))))
        if name == "tma_im2col":
            chosen |= dict.fromkeys(_rare(problem, target, ranked[0]))
        yield from ((name, c.options) for c in chosen)
    gemm = strategies.load("implicit_gemm")
    if not gemm.obstacles(problem, target, {}):
        default = gemm.plan(problem, target, {}).options
        others = [o for o in gemm.candidates(problem, target) if o != default]
        yield from (("implicit_gemm", o) for o in (default, *others[:1]))


def _times(name: str, problem: ConvProblem, target: Target) -> dict[Any, float]:
    """Microseconds of every legal configuration, the fastest first."""
    return {t.layout.config: t.us for t in search(registry.kernel(name), problem, target, {}).ranked()}


def _rare(problem: ConvProblem, target: Target, best: Any) -> Iterator[Any]:
    """Of the best: bands of tiles and clusters of four, which are not among the ranked; and the best of some values."""
    for changes in ({"raster": 8}, {"cluster": 4, "multicast": "b"}):
        config = replace(best, **changes)
        if not strategies.load("tma_im2col").obstacles(problem, target, config.options):
            yield config
    for fixed in FORCED:
        ranked = search(registry.kernel("tma_im2col"), problem, target, fixed).ranked()
        yield from (timing.layout.config for timing in islice(ranked, EACH))


def problems(args: argparse.Namespace) -> list[ConvProblem]:
    """The convolutions of this part, shuffled, without repetition."""
    if args.specs:
        every = [request.problem for path in args.specs for request in load(path.read_text(), str(path))]
    else:
        every = [*suites(tuple(args.batch)), *random_problems(args.seed, args.random)]
    distinct = list({database.key(p): p for p in every}.values())
    random.Random(args.seed).shuffle(distinct)
    part, parts = map(int, args.part.split("/"))
    return distinct[part - 1 :: parts]


def sweep(args: argparse.Namespace) -> None:  # noqa: C901 - one loop, with what may go wrong in it
    target, end = TARGETS["sm_90a"], time.monotonic() + args.seconds
    rng = random.Random(args.seed)
    work = problems(args)
    with Database(args.db) as db, Worker(seconds=20.0) as worker, Builder() as builder:
        gpu = worker.call("name")
        known = {(m.key, *m.candidate) for m in db.measurements(gpu=gpu)}

        def jobs() -> Iterator[Job]:
            ahead = ThreadPoolExecutor(1)  # while the GPU measures
            offers = [ahead.submit(lambda p: list(configurations(p, target, rng)), problem) for problem in work]
            try:
                for problem, offer in zip(work, offers, strict=True):
                    key = database.key(problem)
                    for strategy, options in offer.result():
                        if (key, strategy, database.canonical(options)) not in known:
                            yield Job(problem, target, strategy, options)
            finally:
                ahead.shutdown(wait=False, cancel_futures=True)

        built = groupby(builder.build_all(jobs()), key=lambda made: made[0].problem)
        for count, (problem, group) in enumerate(built, 1):
            times: dict[int, tuple[Job, Any, list[float]]] = {}
            best = float("inf")
            for i, (job, artifact) in enumerate(group):
                if time.monotonic() > end:
                    break
                us, status, detail = None, Status.TIMED, ""
                try:
                    if isinstance(artifact, Failure):
                        raise CandidateFailed(artifact.message)
                    us, detail = worker.call("time", problem, artifact, HOPELESS * best), artifact.manifest.config
                    best = min(best, us)
                    times[i] = job, artifact, [us]
                except CandidateFailed as e:
                    status, detail = Status.FAILED, str(e)
                    print(f"{problem.name} {job.strategy} {job.options}: {e}", flush=True)
                db.record(_measurement(job, gpu, status, us, detail))
            if time.monotonic() > end:
                break
            first = sorted(times.values(), key=lambda row: row[2][0])[:AGAIN]
            for _, artifact, taken in first * TIMES:
                with suppress(CandidateFailed):
                    taken.append(worker.call("time", problem, artifact, float("inf")))
            for job, artifact, taken in first:
                us = statistics.median(taken)
                db.record(_measurement(job, gpu, Status.TIMED, us, artifact.manifest.config))
            if not first:
                continue
            job, artifact, taken = first[0]
            left = end - time.monotonic()
            print(
                f"[{count}/{len(work)}] {problem.name} n={problem.n}: {len(times)} measured, "
                f"best {statistics.median(taken):.2f} us {job.strategy} {artifact.manifest.config}; {left:.0f} s left",
                flush=True,
            )
        print(f"{len(db.measurements())} measurements in {args.db}")


def _measurement(job: Job, gpu: str, status: Status, us: float | None, detail: str) -> Measurement:
    key = database.key(job.problem)
    return Measurement(key, gpu, job.strategy, job.options, status, us, detail, database.now())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True, help="the database to add to")
    parser.add_argument("--seed", type=int, default=1, help="of the geometries and the choice among the legal")
    parser.add_argument("--random", type=int, default=60, help="how many geometries to draw")
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64], help="batches of the suites")
    parser.add_argument("--specs", type=Path, nargs="*", help="the convolutions of these, instead of all others")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth convolution, from the Ith")
    parser.add_argument("--seconds", type=float, default=225.0)
    args = parser.parse_args()
    need_gpu()
    sweep(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
