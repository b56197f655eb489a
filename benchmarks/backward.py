"""Gradients of the input and of the filter beside cuDNN's, over the layers of the suites.

    python benchmarks/backward.py --batch 8 64 --out benchmarks/results/backward_h200.json
    python benchmarks/backward.py --suites resnet50 --ops wgrad --candidates 12
    python benchmarks/backward.py --suites resnet50 --layers 1x1 --ops wgrad --candidates 3 --also cluster=2,multicast=a

All columns of a layer and cuDNN are timed in turn, as `convgen bench` times them: `auto` is launched alone, `chain`
behind the launch before it, as in a network; with `--candidates`, so many configurations that the cost model thinks
best are timed, too, and `best` is the fastest column: what `convgen tune` would find; with `--also`, as many more that
have these options.  Every kernel is checked against
the float64 reference.  `speedup` is cuDNN's time over ours; means are geometric, by kind of layer.  First layers get
no gradient of their input.  The exit code is 1 where a kernel is missing or wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import NETWORKS, of_suite

from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Job
from convgen.bench.results import Row, geomean
from convgen.bench.runner import Bench, Column, Entry
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.kernels.config import Options
from convgen.targets import TARGETS

SUITES = (*NETWORKS, "strided", "grouped", "mobilenet_v2", "convnext")
OPS = (Op.DGRAD, Op.WGRAD)
TARGET = TARGETS["sm_90a"]
#: Input channels of a first layer, at most.
FEW_CHANNELS = 4


def kind(problem: ConvProblem) -> str:
    """What means are taken over: cuDNN treats these alike, and so do we."""
    if problem.groups > 1:
        return "depthwise" if problem.groups == problem.c else "grouped"
    if problem.c <= FEW_CHANNELS:
        return "first layers"
    return "strided" if set(problem.stride) != {1} else "unit stride"


def by_operators(problems: Iterable[ConvProblem], ops: Iterable[str]) -> Iterator[ConvProblem]:
    """Each problem by each operator: gradients without its epilogue, and none of a first layer's input."""
    for op, problem in itertools.product(map(Op, ops), list(problems)):
        if op is not Op.DGRAD or kind(problem) != "first layers":
            yield problem if problem.op == op else replace(problem, op=op, epilogue=None)


def layers(
    suites: Sequence[str], batches: Sequence[int], ops: Sequence[str], parts: Sequence[str] = ("",)
) -> Iterator[tuple[str, ConvProblem]]:
    """The distinct layers' gradients, by name: of layers that have one of the parts in theirs."""
    known: set[str] = set()
    for suite in suites:
        for n in batches:
            for forward in (f for f in of_suite(suite, n) if any(part in f.name for part in parts)):
                for problem in by_operators([replace(forward, name="layer", epilogue=None)], ops):
                    if problem.digest not in known:
                        known.add(problem.digest)
                        yield f"{suite}/{forward.name}", replace(problem, name=forward.name)


def asked(text: str) -> dict[str, int | str]:
    """Options from the command line: cluster=2,multicast=a."""
    pairs = (word.split("=") for word in text.split(","))
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def offers(problem: ConvProblem, most: int, options: Options) -> list[tuple[float, str, Options]]:
    """The best configurations that have the options, of each strategy's kernels: estimate, strategy, all options."""
    return [
        (found.us, strategy.name, {"kernel": search.kernel.name, **found.layout.config.options})
        for strategy in strategies.STRATEGIES.values()
        if not strategy.obstacles(problem, TARGET, options)
        for search in strategy.searches(problem, TARGET, options)
        for found in search.candidates(most)
    ]


def entry(name: str, problem: ConvProblem, candidates: int, gpu: str, also: Sequence[Options] = ()) -> Entry:
    """`auto` alone and in a chain, and the candidates in a chain, with those that have other options."""
    job = Job(problem, TARGET, "auto", {}, planned=True, gpu=gpu)
    columns = {"auto": Column(job), "chain": Column(job, chained=True)}
    offered = [
        (us, strategy.name, options)
        for strategy in strategies.STRATEGIES.values()
        if not strategy.obstacles(problem, TARGET, {})
        for options in strategy.candidates(problem, TARGET)[:candidates]
        if (us := strategy.estimate(problem, TARGET, options)) < float("inf")
    ]
    chosen = sorted(offered, key=lambda row: row[0])[:candidates]
    for more in also:
        chosen += sorted(offers(problem, candidates, more), key=lambda row: row[0])[:candidates]
    for i, (_, strategy, options) in enumerate(chosen):
        columns[f"candidate {i + 1}"] = Column(Job(problem, TARGET, strategy, options, planned=True), chained=True)
    return Entry(name, columns)


def best(row: Row) -> str:
    """The column of the fastest kernel, those launched alone aside."""
    timed = {name: result.us for name, result in row.results.items() if result.us and name != "auto"}
    return min(timed, key=lambda name: timed[name], default="chain")


def line(row: Row) -> str:
    chain, fastest = row.results["chain"], row.results[best(row)]
    if row.us is None or chain.us is None:
        return f"{row.name:24} {row.op:5} n={row.n:<3} {row.own.note}"
    return (
        f"{row.name:24} {row.op:5} n={row.n:<3} auto {row.us:8.2f} us  chain {chain.us:8.2f}"
        f"  cuDNN {row.cudnn_us or 0:8.2f}  {row.speedup or 0:5.2f}x  chain {chain.speedup or 0:5.2f}x"
        f"  best {fastest.speedup or 0:5.2f}x  {chain.strategy}: {chain.config}"
        + (f"  (best: {fastest.strategy}: {fastest.config})" if fastest is not chain else "")
    )


def summarize(rows: Sequence[tuple[ConvProblem, Row]]) -> dict[str, Any]:
    """Of each operator, batch and kind: how many layers, mean and least speedup, alone, in a chain, and of the best."""
    found: dict[str, Any] = {}
    for key in sorted({(row.op, row.n, kind(problem)) for problem, row in rows}):
        own = [row for problem, row in rows if (row.op, row.n, kind(problem)) == key]
        columns: dict[str, Any] = {}
        for name in ("auto", "chain", "best"):
            speedups = [s for row in own if (s := row.results[best(row) if name == "best" else name].speedup)]
            if speedups:
                columns[name] = {"mean": geomean(speedups), "least": min(speedups), "layers": len(speedups)}
        found[f"{key[0]} n={key[1]} {key[2]}"] = columns
    return found


def show(summary: Mapping[str, Any]) -> None:
    for what, columns in summary.items():
        text = "  ".join(f"{name} {c['mean']:5.2f}x (least {c['least']:4.2f}x)" for name, c in columns.items())
        print(f"{what:32} {max((c['layers'] for c in columns.values()), default=0):3d} layers  {text}")


def wrong(row: Row) -> bool:
    """Whether a kernel is missing or wrong; a candidate may be too large for the GPU at hand."""
    return any(r.verified is False for r in row.results.values()) or row.us is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=list(SUITES))
    parser.add_argument("--layers", nargs="+", default=[""], help="those that have one of these in their names")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--ops", nargs="+", default=[str(op) for op in OPS], choices=[str(op) for op in OPS])
    parser.add_argument("--kinds", nargs="+", default=[], help='of layers, such as "first layers" or strided')
    parser.add_argument("--candidates", type=int, default=0, help="how many the cost model thinks best are timed, too")
    parser.add_argument(
        "--also", nargs="+", type=asked, default=[], help="options of more candidates: split_k=2,blocks=1"
    )
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    args = parser.parse_args()
    need_gpu("torch")
    backend = TorchBackend()
    gpu = backend.environment()["gpu"]
    named = list(layers(args.suites, args.batch, args.ops, args.layers))
    named = [row for row in named if not args.kinds or kind(row[1]) in args.kinds]
    rows: list[tuple[ConvProblem, Row]] = []
    with suppress(KeyboardInterrupt), Builder() as builder:  # what was measured is kept, and the exit code tells
        bench = Bench(backend, builder.build_all)
        entries = [entry(name, problem, args.candidates, gpu, args.also) for name, problem in named]
        for (_, problem), row in zip(named, bench.rows(entries), strict=True):
            rows.append((problem, row))
            print(line(row), flush=True)
    summary = summarize(rows)
    show(summary)
    if args.out:
        figures = [row.as_dict() | {"kind": kind(problem), "best": best(row)} for problem, row in rows]
        records.write(args.out, summary=summary, rows=figures)
    return int(len(rows) < len(named) or any(wrong(row) for _, row in rows))


if __name__ == "__main__":
    sys.exit(main())
