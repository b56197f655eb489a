"""What a fixed order costs: filters' gradients whose slices are added by a second kernel, beside atomic additions.

    python benchmarks/atomics.py --batch 64 --budget 150 --out benchmarks/results/atomics_n64_h200.json
    python benchmarks/atomics.py --batch 64 --budget 150 --out benchmarks/results/atomics_n64_h200.json --append
    python benchmarks/atomics.py --batch 8 --result f16 --suites resnet50 --layers 1x1

Of each layer of the seven networks with 8 channels or more: `tma_wgrad` as `auto` takes it, the same in every run, and
with `sums atomic` the same tile with several numbers of slices, and what the cost model likes best.  All are timed in
turn, launched back to back as in a network, zeros and further launches included.  `share` is the time of the
fastest atomic one over that of the fixed order: how much of its speed this has.  Every kernel is checked against the
float64 reference, and on whole numbers, whose sums are exact in any order, to the bit against the fixed order's.

Results are f32 unless --result says otherwise: blocks then add to the gradient itself, where no `row_taps` wants a
look at the whole sum; to f16, as the suites have it, they go through a workspace, and one more launch converts it.
Configurations are those that were tuned for f16.  The exit code is 1 where a kernel is missing or wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from backward import TARGET, layers
from geometries import NETWORKS

from convgen import planner
from convgen.bench.backend import Array, Backend, TorchBackend
from convgen.bench.build import Failure, Job, build, follow_parent
from convgen.bench.measure import Checker, buffer_sets, capture, launcher, time_in_turn
from convgen.bench.results import geomean
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.planner.database import canonical
from convgen.runtime.artifacts import Artifact
from convgen.runtime.errors import LaunchError
from convgen.runtime.kernel import Kernel

#: Of the kernel, among those for gradients of filters.
STRATEGY, KERNEL = "tma_im2col", "tma_wgrad"
LEAST_CHANNELS = 8
#: Whole numbers as far from zero as this, and calls back to back that must get their sums right.
MOST, CALLS = 2, 3


@dataclass(frozen=True)
class Entry:
    """A layer's kernels: the fixed order's first, then those with atomic additions."""

    name: str
    problem: ConvProblem
    built: tuple[Artifact | Failure, ...]


# ---- what is measured: in processes of their own ---------------------------------------------------------


def gradients(suites: Sequence[str], n: int, parts: Sequence[str], result: str) -> list[tuple[str, ConvProblem]]:
    """The distinct layers' gradients of filters, by name, of a type."""
    found = layers(suites, [n], ["wgrad"], parts)
    return [(name, replace(p, w=replace(p.w, dtype=result))) for name, p in found if p.c >= LEAST_CHANNELS]


def ordered(problem: ConvProblem, gpu: str) -> Options:
    """What `auto` takes of the kernel, for a result of the factors' type.  Raises CannotServe."""
    tuned = replace(problem, w=replace(problem.w, dtype=problem.x.dtype))
    choice = planner.choose(tuned, TARGET, STRATEGY, {}, gpu)
    return choice.strategy.stated(tuned, TARGET, choice.options)


def atomic(problem: ConvProblem, options: Options) -> list[Options]:
    """Legal configurations with atomic additions: of the same tile with fewer, as many and more slices, without a
    cluster that shares them, and the cost model's best, with and without boxes that serve several taps."""
    strategy = strategies.STRATEGIES[STRATEGY]
    slices, split_k = int(options["slices"]), int(options["split_k"])
    counts = [2, 3, 4] if slices == 1 else [max(slices // 2, 2), slices, 2 * slices]
    found = [{**options, "sums": "atomic", "slices": count} for count in counts]
    if split_k > 1:
        found.append({**found[0], "split_k": 1, "slices": split_k * slices})
    asked: list[Options] = [{"kernel": KERNEL, "sums": "atomic"}]
    asked += [{**asked[0], "row_taps": 0, "halo": 0}] if options["row_taps"] or options["halo"] else []
    found += [dict(strategy.stated(problem, TARGET, o)) for o in asked if not strategy.obstacles(problem, TARGET, o)]
    legal = [o for o in found if not strategy.obstacles(problem, TARGET, o)]
    return list({canonical(o): o for o in legal}.values())


def built(name: str, problem: ConvProblem, gpu: str) -> Entry:
    """A layer's kernels, compiled."""
    try:
        fixed = ordered(problem, gpu)
        chosen = [fixed, *atomic(problem, fixed)]
    except Exception as e:  # also a defect: one layer's must not end a run of many
        return Entry(name, problem, (Failure(f"{type(e).__name__}: {e}"),))
    jobs = (Job(problem, TARGET, STRATEGY, options, planned=True) for options in chosen)
    return Entry(name, problem, tuple(map(build, jobs)))


def entries(named: Sequence[tuple[str, ConvProblem]], gpu: str, jobs: int) -> Iterator[Entry]:
    """The layers in order, built ahead in so many processes; when the iterator is closed, the others are left out."""
    context = multiprocessing.get_context("spawn")  # a forked child would inherit the CUDA context
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=follow_parent)
    try:
        waiting: list[Future[Entry]] = [pool.submit(built, name, problem, gpu) for name, problem in named]
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# ---- measuring -------------------------------------------------------------------------------------------


def whole_numbers(problem: ConvProblem, backend: Backend) -> list[Array]:
    """Small ones for every tensor that is read."""
    found = [backend.normal(t) for t in problem.reads]
    for array in map(backend.as_xp, found):
        array[...] = backend.xp.clip(backend.xp.rint(array), -MOST, MOST)
    return found


def last_of(kernel: Callable[..., object], problem: ConvProblem, inputs: Sequence[Array], backend: Backend) -> Array:
    """The result of the last of several calls, none of which may add to what the one before it left."""
    out = backend.poisoned(problem.result)
    for _ in range(CALLS):
        kernel(*inputs, out=out)
    return backend.as_xp(out)


def checked(
    problem: ConvProblem, artifacts: Sequence[Artifact], kernels: Sequence[Callable[..., object]], backend: Backend
) -> list[str]:
    """What is wrong with each kernel; empty where nothing is."""
    checker = Checker(problem, backend)
    reports = [checker(kernel, a.manifest.arithmetic) for a, kernel in zip(artifacts, kernels, strict=True)]
    with backend.stream():
        inputs = whole_numbers(problem, backend)
        right = last_of(kernels[0], problem, inputs, backend)
        same = [bool((last_of(kernel, problem, inputs, backend) == right).all()) for kernel in kernels]
    return [
        report.message if not report else "" if equal else "whole numbers are not added exactly"
        for report, equal in zip(reports, same, strict=True)
    ]


def measure(entry: Entry, backend: Backend) -> dict[str, Any]:
    """A row: both times, the share, and every kernel's; without them, where the fixed order's kernel or all with atomic
    additions are missing or wrong."""
    problem = entry.problem
    row: dict[str, Any] = {"layer": entry.name, "n": problem.n, "result": problem.w.dtype}
    notes = [b.message for b in entry.built if isinstance(b, Failure)]
    artifacts = [b for b in entry.built if not isinstance(b, Failure)]
    if isinstance(entry.built[0], Failure) or len(artifacts) < 2:
        return row | {"notes": notes or ["no configuration with atomic additions"]}
    kernels = [Kernel(a) for a in artifacts]
    faults = checked(problem, artifacts, kernels, backend)
    notes += [f"{a.manifest.config}: {fault}" for a, fault in zip(artifacts, faults, strict=True) if fault]
    right = [pair for pair, fault in zip(zip(artifacts, kernels, strict=True), faults, strict=True) if not fault]
    if faults[0] or len(right) < 2:
        return row | {"notes": notes}
    sets = buffer_sets(problem, backend)
    entrants = [[capture(launcher(kernel, sets), len(sets), backend)] for _, kernel in right]
    timings = time_in_turn(entrants, backend)
    taken = [
        {"config": a.manifest.config, "launches": len(a.manifest.steps), "us": round(timing.us, 3)}
        for (a, _), timing in zip(right, timings, strict=True)
    ]
    return row | compared(taken[0], taken[1:]) | ({"notes": notes} if notes else {})


def compared(fixed: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the fixed order and of the fastest of the others."""
    fastest = min(others, key=lambda one: one["us"])
    return {
        "deterministic_us": fixed["us"], "atomic_us": fastest["us"], "share": round(fastest["us"] / fixed["us"], 4),
        "deterministic": fixed["config"], "atomic": fastest["config"], "launches": fastest["launches"],
        "others": list(others),
    }  # fmt: skip


# ---- the table -------------------------------------------------------------------------------------------


def line(row: Mapping[str, Any]) -> str:
    name = f"{row['layer']:30} n={row['n']:<3d} {row['result']}"
    if "share" not in row:
        return f"{name}  {'; '.join(row['notes'])}"
    times = f"fixed order {row['deterministic_us']:8.2f} us  atomic {row['atomic_us']:8.2f}  share {row['share']:.3f}"
    return f"{name}  {times}  {row['atomic']}"


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the rows with both times: how many, the geometric mean of their shares, the least and its layer."""
    shares = {f"{row['layer']} n={row['n']} {row['result']}": row["share"] for row in rows if "share" in row}
    if not shares:
        return {"layers": 0}
    least = min(shares, key=lambda name: shares[name])
    mean = geomean(shares.values())
    assert mean is not None
    return {"layers": len(shares), "mean": round(mean, 4), "least": shares[least], "least_layer": least}


def wrong(row: Mapping[str, Any]) -> bool:
    """Whether a kernel is missing, or gave a wrong result."""
    return "notes" in row


def kept(path: Path | None, append: bool) -> list[dict[str, Any]]:
    """The rows of a file that a run adds to."""
    if not (append and path and path.exists()):
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def run(args: argparse.Namespace, backend: Backend, start: float) -> list[dict[str, Any]]:
    """The rows, those that are kept first; each is written as soon as it is measured."""
    rows = kept(args.out, args.append)
    known = {(row["layer"], row["n"], row["result"]) for row in rows}
    named = [one for n in args.batch for one in gradients(args.suites, n, args.layers, args.result)]
    named = [(name, p) for name, p in named if (name, p.n, args.result) not in known]
    source = entries(named, backend.environment()["gpu"], args.jobs)
    try:
        for entry in source if named else ():
            if time.monotonic() - start > args.budget:
                break
            try:
                row = measure(entry, backend)
            except (LaunchError, *backend.out_of_memory) as e:
                text = f"{type(e).__name__}: {e}"
                row = {"layer": entry.name, "n": entry.problem.n, "result": args.result, "notes": [text]}
            backend.release()
            rows.append(row)
            print(line(row), flush=True)
            if args.out:
                records.write(args.out, summary=summarize(rows), rows=rows)
    finally:
        source.close()
    left = len(named) + len(known) - len(rows)
    print(f"{left} layers are left for --append" if left else "all layers are measured")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=list(NETWORKS))
    parser.add_argument("--layers", nargs="+", default=[""], help="those that have one of these in their names")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--result", default="f32", choices=["f16", "f32"], help="the gradient's type (default: f32)")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="start no row after this time")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=max(cores - 2, 1), help="processes that build (default: cores - 2)")
    parser.add_argument("--out", type=Path, help="write every figure as JSON, row by row")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has, and measure the others")
    args = parser.parse_args()
    start = time.monotonic()
    need_gpu("torch")
    rows = run(args, TorchBackend(), start)
    summary = summarize(rows)
    if summary["layers"]:
        print(
            f"{summary['layers']} layers: geometric mean of the shares {summary['mean']:.4f}, "
            f"least {summary['least']:.4f} ({summary['least_layer']})"
        )
    return int(any(map(wrong, rows)))


if __name__ == "__main__":
    sys.exit(main())
