"""Measures many configurations of many convolutions, for `fit_cost.py` and `fit_jointly.py`.

    python benchmarks/sweep.py --db sweep.sqlite --random 60 --seconds 225
    python benchmarks/sweep.py --db sweep.sqlite --whole --batch 8 --seconds 400
    python benchmarks/sweep.py --db sweep.sqlite --suites --batch 8 --ops dgrad wgrad
    python benchmarks/sweep.py --db sweep.sqlite --specs slow.conv

Convolutions: the suites' layers, every layer of the seven networks, those of specs, geometries at random, or their
gradients, of inputs beyond first layers.  Of each it takes what `auto` takes, the configurations that the cost models
like best, each strategy's best, and the best with a value of an option that the models may misjudge.  They are
measured, verified and kept as `convgen tune` does, on all GPUs at hand.  What is in the database already is left out,
so that a run goes on where another stopped.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from functools import partial
from pathlib import Path

from at_hand import need_gpu
from backward import by_operators
from documents import whole
from geometries import random_problems, suites

from convgen import planner
from convgen.cli import console
from convgen.cli.tune import Progress
from convgen.frontend import load
from convgen.ir.problem import ConvProblem
from convgen.kernels import registry, strategies
from convgen.kernels.base import Options
from convgen.kernels.search import search
from convgen.planner import database
from convgen.planner.database import Database
from convgen.targets import TARGETS
from convgen.tune import machine
from convgen.tune.candidates import Candidate, chosen, stated
from convgen.tune.search import prepare
from convgen.tune.spread import Spread

TARGET = TARGETS["sm_90a"]
#: Configurations of each convolution, all at most so many times slower, by the models, than the best.
MOST, WITHIN = 7, 1.6
#: Values of tma_im2col's options of which the best is measured, too, where it seems at most so many times slower.
FORCED: tuple[Options, ...] = (
    *({"split_k": n} for n in range(1, 6)), {"stream_k": 1}, {"blocks": 2}, {"cluster": 2}, {"resident": 0},
    {"resident": 1}, {"order": "taps_inner"}, {"schedule": "pingpong", "cluster": 2},
)  # fmt: skip
FORCED_WITHIN = 1.8
#: Images of a random geometry.
MOST_IMAGES = 96


def configurations(problem: ConvProblem) -> list[Candidate]:
    """Those of promise first, without repetition."""
    offers: list[tuple[float, Candidate]] = []
    for name in strategies.AUTO:
        strategy = strategies.STRATEGIES[name]
        if not strategy.obstacles(problem, TARGET, {}):
            offers += [(us, (name, o)) for us, o in strategy.timed(problem, TARGET, MOST, of_a_kind=3) if us < math.inf]
    offers.sort(key=lambda row: row[0])
    if not offers:
        return []
    least = offers[0][0]
    found = [offer for us, offer in offers if us <= WITHIN * least][:MOST]
    first = {name: (us, (name, options)) for us, (name, options) in reversed(offers)}
    found += [offer for us, offer in first.values() if us <= FORCED_WITHIN * least]
    for fixed in FORCED:
        best = search(registry.kernel("tma_im2col"), problem, TARGET, fixed).best
        if best and best.us <= FORCED_WITHIN * least:
            found.append(("tma_im2col", best.layout.config.options))
    settled = [stated(problem, TARGET, candidate) for candidate in found]
    if ships := chosen(problem, TARGET, lambda: planner.choose(problem, TARGET, "auto", {})):
        settled.insert(0, ships)
    return list({(name, database.canonical(options)): (name, options) for name, options in settled}.values())


def problems(args: argparse.Namespace) -> list[ConvProblem]:
    """The convolutions, shuffled, without repetition."""
    every: list[ConvProblem] = []
    for n in args.batch:
        every += suites((n,)) if args.suites else ()
        every += whole(n) if args.whole else ()
        for path in args.specs:
            every += [request.problem for request in load(path.read_text(), str(path), {"n": n})]
    every += random_problems(args.seed, args.random, args.any_channels, MOST_IMAGES)
    distinct = list({database.key(p): p for p in by_operators(every, args.ops)}.values())
    random.Random(args.seed).shuffle(distinct)
    return distinct


def sweep(args: argparse.Namespace) -> None:
    work = problems(args)
    with machine.local(args.jobs) as machines, Database(args.db) as db:
        offers = list(machines.each(configurations, work))
        gpus = dict.fromkeys(member.gpu for member in machines.members)
        of = partial(prepare, target=TARGET, db=db)
        tasks = [of(p, candidates=c, gpu=gpu.name) for gpu in gpus for p, c in zip(work, offers, strict=True) if c]
        named = {f"{i}: {task.problem.name} n={task.problem.n}": task for i, task in enumerate(tasks)}
        with console.progress_bar("tuning") as advance:
            progress = Progress(named, len(machines.members), advance)
            Spread(tasks, machines, args.db, progress, args.seconds).run()
        print(f"{len(db.measurements())} measurements in {args.db}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True, help="the database to add to")
    parser.add_argument("--suites", action="store_true", help="the suites' layers")
    parser.add_argument("--whole", action="store_true", help="every layer of the seven networks")
    parser.add_argument("--specs", type=Path, nargs="*", default=[], help="the convolutions of these specs")
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64], help="batches of all but the random ones")
    parser.add_argument("--ops", nargs="*", default=["fprop"], choices=["fprop", "dgrad", "wgrad"])
    parser.add_argument("--random", type=int, default=0, help="how many geometries to draw")
    parser.add_argument("--any-channels", action="store_true", help="and not only multiples of 8 of C and K")
    parser.add_argument("--seed", type=int, default=1, help="of the geometries, and of the order")
    parser.add_argument("--seconds", type=float, default=225.0)
    parser.add_argument("--jobs", type=int, help="compiling processes")
    args = parser.parse_args()
    need_gpu()
    sweep(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
