"""Kernels whose tensor maps have L2 fetch 256 or 128 bytes together, and as planned, in turn.

    python benchmarks/l2_promotion.py --random 60 --suites 40 --out l2_promotion.json
    python benchmarks/l2_promotion.py --random 40 --ops dgrad wgrad --batch 8

The maps alone differ, not the kernels: a map's promotion is not compiled in.  Random geometries take what the cost
models choose, suites' layers what ships.  Results are not verified here, but by the tests of both.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import records
from at_hand import need_gpu
from backward import by_operators
from geometries import random_problems, suites

from convgen import planner
from convgen.bench import backend as backends
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import buffer_sets, capture, launcher, time_in_turn
from convgen.bench.results import geomean
from convgen.bench.runner import alone
from convgen.ir.plan import Launch, Param
from convgen.ir.problem import ConvProblem
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
#: Bytes; None is what the plan has.
PROMOTIONS = (256, 128, None)


@dataclass(frozen=True)
class Row:
    """A layer's microseconds with each of PROMOTIONS."""

    group: str
    name: str
    op: str
    n: int
    spec: str
    strategy: str
    config: str
    us: tuple[float, ...]


def promoted(artifact: Artifact, promotion: int | None) -> Artifact:
    """The same kernel, all of whose maps have this promotion."""

    def changed(param: Param) -> Param:
        return replace(param, map=replace(param.map, l2_promotion=promotion)) if param.map and promotion else param

    steps = tuple(
        replace(step, params=tuple(map(changed, step.params))) if isinstance(step, Launch) else step
        for step in artifact.manifest.steps
    )
    return replace(artifact, manifest=replace(artifact.manifest, steps=steps))


def problems(args: argparse.Namespace) -> Iterator[tuple[str, Job]]:
    """Each layer's group, and its kernel to build."""
    drawn = random.Random(args.seed)
    groups = {"random": list(random_problems(args.seed, args.random, True, 96))}
    for n in args.batch:
        layers = list(suites((n,)))
        groups[f"suites, batch {n}"] = drawn.sample(layers, min(args.suites, len(layers)))
    every = [(f"{group}, {p.op}", p) for group, some in groups.items() for p in by_operators(some, args.ops)]
    drawn.shuffle(every)
    for group, problem in every:
        yield group, Job(problem, TARGET, *chosen(problem, group.startswith("random")))


def chosen(problem: ConvProblem, untuned: bool) -> tuple[str, dict]:
    choose = planner.untuned if untuned else planner.choose
    choice = choose(problem, TARGET, "auto", {})
    return choice.strategy.name, dict(choice.options)


def mean(rows: list[Row], i: int) -> float:
    """Geometric mean of the time with promotion `i` over that with the first."""
    return geomean(row.us[i] / row.us[0] for row in rows) or math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=60, help="how many geometries to draw")
    parser.add_argument("--suites", type=int, default=30, help="how many of the suites' layers, of each batch")
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64], help="batches of the suites")
    parser.add_argument("--ops", nargs="*", default=["fprop"], choices=["fprop", "dgrad", "wgrad"])
    parser.add_argument("--seed", type=int, default=1, help="of the geometries, and of the layers that are taken")
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    args = parser.parse_args()
    need_gpu()
    backend, rows = backends.at_hand(), []
    work = list(problems(args))
    with Builder() as builder:
        for (group, _), (job, built) in zip(work, builder.build_all(job for _, job in work), strict=True):
            if isinstance(built, Failure):
                print(f"{job.problem.name}: {built.message}")
                continue
            first = alone(built)
            if not any(param.map for step in first.manifest.steps if isinstance(step, Launch) for param in step.params):
                continue
            sets = buffer_sets(job.problem, backend)
            kernels = [Kernel(promoted(first, promotion)) for promotion in PROMOTIONS]
            graphs = [[capture(launcher(kernel, sets), len(sets), backend)] for kernel in kernels]
            us = tuple(timing.us for timing in time_in_turn(graphs, backend))
            p, m = job.problem, built.manifest
            rows.append(Row(group, p.name, str(p.op), p.n, str(p), m.strategy, m.config, us))
            print(f"{p.name:32s} {p.op} n={p.n:<3d} {' '.join(f'{t:8.2f}' for t in us)} us  {m.strategy}", flush=True)
            backend.release()
    for group in sorted({row.group for row in rows}):
        some = [row for row in rows if row.group == group]
        print(
            f"{group}: {len(some)} layers, 128 {mean(some, 1):.4f}, as planned {mean(some, 2):.4f} of the time with 256"
        )
    if args.out:
        records.write(args.out, promotions=PROMOTIONS, rows=[asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
