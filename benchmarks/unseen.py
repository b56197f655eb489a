"""Geometries that nothing was tuned or fitted on: what `auto` takes by the cost models alone, beside cuDNN.

    python benchmarks/unseen.py --seed 2026 --count 40 --out benchmarks/results/unseen_h200.json
    python benchmarks/unseen.py --count 100 --any-channels --most-images 96 --batch
    python benchmarks/unseen.py --count 60 --ops dgrad wgrad --batch

Draws geometries (geometries.py), and measures them as `convgen bench` does: verified, in turn with cuDNN on
channels_last tensors: forward, or by the operators of --ops.  The suites' layers at --batch are measured in the same
run, without the tuning database too, for the geometric means to be compared.  The exit code is 1 where a result is
wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from at_hand import need_gpu
from backward import by_operators
from geometries import random_problems, suites

from convgen import planner
from convgen.bench import backend as backends
from convgen.bench.build import Builder, Job
from convgen.bench.results import Row, Run, command, summarize
from convgen.bench.runner import Bench, Column, Entry
from convgen.ir.problem import ConvProblem, Op
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]


def entries(problems: Iterable[ConvProblem]) -> list[Entry]:
    """Each with the kernel that the planner chooses where it knows no measurement."""
    found = []
    for problem in problems:
        choice = planner.untuned(problem, TARGET, "auto", {})
        found.append(Entry(problem.name, {"auto": Column(Job(problem, TARGET, choice.strategy.name, choice.options))}))
    return found


def show(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    for row in sorted(rows, key=lambda row: row.speedup or 0.0):
        if row.us and row.cudnn_us:
            figures = f"{row.us:8.2f} us  cuDNN {row.cudnn_us:8.2f}  {row.speedup:5.2f}x"
        else:
            figures = f"{row.own.note} {' '.join(row.notes)}"
        print(f"{row.name:32s} {row.op} n={row.n:<3d} {figures}  {row.own.strategy}: {row.own.config}")
    summary = summarize(rows)
    if not summary.compared:
        return
    print(f"{title}: geometric mean {summary.speedup:.3f}x, faster in {summary.faster} of {summary.compared}, ", end="")
    print(f"worst {summary.worst} {summary.worst_speedup:.2f}x, wrong or missing {list(summary.missing)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--any-channels", action="store_true", help="channels that are not multiples of 8, too")
    parser.add_argument("--most-images", type=int, default=64, metavar="N", help="the largest batch that is drawn")
    parser.add_argument(
        "--ops", nargs="+", default=[str(Op.FPROP)], choices=[str(op) for op in Op], help="of the unseen"
    )
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64], help="batches of the suites")
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    args = parser.parse_args()
    need_gpu("torch")
    backend = backends.at_hand()
    drawn = random_problems(args.seed, args.count, args.any_channels, args.most_images)
    samples = {"unseen": entries(by_operators(drawn, args.ops))}
    samples |= {f"suites, batch {n}": entries(suites((n,))) for n in args.batch}
    measured: dict[str, list[Row]] = {}
    with Builder() as builder:
        bench = Bench(backend, builder.build_all)
        for title, sample in samples.items():
            measured[title] = list(bench.rows(sample))
            show(title, measured[title])
    if args.out:
        runs = {
            title: json.loads(replace(Run(backend.environment(), command()), rows=rows).to_json())
            for title, rows in measured.items()
        }
        header = {key: value for key, value in runs["unseen"].items() if key not in ("rows", "summary", "columns")}
        kept = {title: {key: run[key] for key in ("summary", "rows")} for title, run in runs.items()}
        header |= {"seed": args.seed, "peaks": {dtype: asdict(peaks) for dtype, peaks in bench.peaks.items()}}
        args.out.write_text(json.dumps(header | kept, indent=1) + "\n")
    return int(any(row.us is None for rows in measured.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
