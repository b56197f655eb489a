"""Kernels of dynamic sizes beside those of fixed sizes, on a suite's layers, and what a new size costs the host.

    python benchmarks/dynamic.py --suite resnet50 --json results.json

Of each layer that tma_im2col (or --strategy, which may be auto) serves with `dynamic n h w` (or --dims):

- `same`: the dynamic kernel, planned for a batch and timed at it, and the fixed one of the same configuration;
- `classes`: the kernel with up to four plans for batches from 1 to --most, timed at each of --batch, beside the best
  plan for that batch (what `auto` takes);
- `new size`: the host's time of a call with a size that the kernel has not had, and of the same call again.

Results are verified against the float64 reference, then all of a batch is timed in turn, each launch alone.
With --model, the cost models' estimates of `classes` and of the best plan stand for times; that needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import of_suite

from convgen import planner
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import Checker, buffer_sets, capture, launcher, time_in_turn
from convgen.bench.results import geomean
from convgen.bench.runner import alone
from convgen.ir.estimates import between
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.kernels.config import Options
from convgen.planner import classes
from convgen.runtime.artifacts import Artifact
from convgen.runtime.dynamic import joined
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
NEW_SIZES = 50


def compared(layer: ConvProblem, strategy: str) -> tuple[str, Options] | None:
    """The strategy and the configuration that are compared with themselves; None where none serves dynamic sizes."""
    if strategy == "auto":
        chosen = planned(layer, planner.choose)
    elif strategies.STRATEGIES[strategy].obstacles(layer, TARGET, {}):
        return None
    else:
        chosen = strategies.STRATEGIES[strategy].plan(layer, TARGET, {})
    return chosen.strategy, chosen.options


def layers(suites: Iterable[str], dims: Sequence[str], strategy: str) -> list[ConvProblem]:
    """Those that are served, each geometry once."""
    found: dict[str, ConvProblem] = {}
    for suite in suites:
        for problem in of_suite(suite, 8):
            sized = replace(problem, dynamic=tuple(d for d in ("n", *problem.spatial.input) if d in dims))
            if problem.op is Op.FPROP and compared(sized, strategy):
                found.setdefault(str(replace(sized, name="layer")), sized)
    return list(found.values())


def planned(problem: ConvProblem, choose: Callable[..., planner.Choice]) -> Plan:
    choice = choose(problem, TARGET, "auto", {})
    return choice.strategy.plan(problem, TARGET, choice.options)


def class_plans(layer: ConvProblem, most: int, choose: Callable[..., planner.Choice]) -> dict[int, Plan]:
    """Those of a kernel for batches from 1 to `most`, by the batches that they were planned for."""
    images = range(1, most + 1)
    plans = {n: planned(layer.with_images(n), choose) for n in classes.compared(images)}
    return {n: plans[n] for n in classes.chosen(plans, images)}


def expected(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of estimates, where nothing was measured."""
    for p in layers(args.suite, args.dims, args.strategy):
        if args.only and p.name not in args.only:
            continue
        found = class_plans(p, args.most, planner.untuned)
        for n in args.batch:
            best = planned(p.with_images(n).static, planner.untuned).us
            us = min(between(plan.estimates, n) for plan in found.values())
            print(f"{p.name:16} n={n:<3} best {best:.2f} classes {us:.2f} of {list(found)}", flush=True)
            yield {"layer": p.name, "n": n, "best": round(best, 3), "classes": round(us, 3), "planned": list(found)}


def jobs(layer: ConvProblem, batches: Iterable[int], most: int, strategy: str) -> dict[str, Job]:
    """By name: what `auto` takes for each batch, the dynamic kernels for the classes, and two of one configuration."""
    found = {}
    for n in batches:
        fixed = layer.with_images(n).static
        found[f"best {n}"] = Job(fixed, TARGET, "auto", {}, planned=True)
        both = compared(layer.with_images(n), strategy)
        assert both, "layers have been asked"
        found[f"fixed {n}"] = Job(fixed, TARGET, *both)
        found[f"dynamic {n}"] = Job(layer.with_images(n), TARGET, *both)
    for n in class_plans(layer, most, planner.choose):
        found[f"class {n}"] = Job(layer.with_images(n), TARGET, "auto", {}, planned=True)
    return found


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    backend = TorchBackend()
    found = [p for p in layers(args.suite, args.dims, args.strategy) if not args.only or p.name in args.only]
    wanted = [jobs(p, args.batch, args.most, args.strategy) for p in found]
    with Builder() as builder:
        built = builder.build_all(job for row in wanted for job in row.values())
        for p, row in zip(found, wanted, strict=True):
            kernels = {name: next(built)[1] for name in row}
            if failed := [k.message for k in kernels.values() if isinstance(k, Failure)]:
                raise SystemExit(f"{p.name}: {failed[0]}")
            yield from layer_rows(p, kernels, args, backend)  # type: ignore[arg-type]
            backend.release()


def layer_rows(
    p: ConvProblem, kernels: dict[str, Artifact], args: argparse.Namespace, backend: TorchBackend
) -> Iterator[dict[str, Any]]:
    of_classes = [Kernel(alone(kernels[name])) for name in kernels if name.startswith("class ")]
    for n in args.batch:
        at = p.with_images(n).static
        sets, checker = buffer_sets(at, backend), Checker(at, backend)
        entrants = {name: Kernel(alone(kernels[f"{name} {n}"])) for name in ("best", "fixed", "dynamic")}
        entrants["classes"] = joined(of_classes)
        wrong = [f"{name}: {r.message}" for name, k in entrants.items() if not (r := checker(k, k.manifest.arithmetic))]
        timings = time_in_turn([[capture(launcher(k, sets), len(sets), backend)] for k in entrants.values()], backend)
        row: dict[str, Any] = {"layer": p.name, "n": n, "wrong": wrong}
        row |= {name: round(t.us, 3) for name, t in zip(entrants, timings, strict=True)}
        row["configuration"] = kernels[f"fixed {n}"].manifest.config
        print(f"{p.name:16} n={n:<3} " + " ".join(f"{name} {row[name]:.2f}" for name in entrants), *wrong, flush=True)
        yield row
    yield {"layer": p.name, "new size": new_size(Kernel(kernels[f"dynamic {args.batch[0]}"]), p, backend)}


def new_size(kernel: Kernel, p: ConvProblem, backend: TorchBackend) -> dict[str, float]:
    """Microseconds of the host: medians, and the longest."""
    first, again = [], []
    for n in range(1, NEW_SIZES + 1):
        (buffers,) = buffer_sets(p.with_images(n).static, backend, 1)[:1]
        for times in (first, again):
            start = time.perf_counter()
            kernel(*buffers.inputs, out=buffers.out)
            times.append((time.perf_counter() - start) * 1e6)
        backend.release()
    found = {"first": statistics.median(first), "longest": max(first[1:]), "again": statistics.median(again)}
    print(f"{p.name:16} new size: " + ", ".join(f"{name} {us:.0f} us" for name, us in found.items()), flush=True)
    return {name: round(us, 1) for name, us in found.items()}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and the worst of dynamic over fixed, and of classes over best, by batch."""
    found: dict[str, Any] = {}
    for over, under in (("dynamic", "fixed"), ("classes", "best")):
        by_batch: dict[int, list[float]] = {}
        for row in rows:
            if over in row:
                by_batch.setdefault(row["n"], []).append(row[over] / row[under])
        every = [ratio for ratios in by_batch.values() for ratio in ratios]
        for name, ratios in (("all", every), *by_batch.items()):
            if mean := geomean(ratios):
                found[f"{over} over {under}, n={name}"] = {"mean": round(mean, 4), "worst": round(max(ratios), 4)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["resnet50"])
    parser.add_argument("--only", nargs="+", default=[], help="layers by name")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 2, 8, 32, 64])
    parser.add_argument(
        "--dims", nargs="+", default=["n", "d", "h", "w"], help="that are dynamic, where a layer has them"
    )
    parser.add_argument("--strategy", default="tma_im2col", help="whose kernels are compared with themselves, or auto")
    parser.add_argument("--most", type=int, default=64, help="the largest batch that classes are chosen for")
    parser.add_argument("--model", action="store_true", help="estimates in place of times, without tuned choices")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    if args.model and args.json:
        parser.error("--json is for what was measured; --model prints estimates")
    if not args.model:
        need_gpu("torch")
    rows = list((expected if args.model else measure)(args))
    summary = summarize(rows)
    print(json.dumps(summary, indent=1))
    if args.json:
        records.write(args.json, summary=summary, rows=rows)
    return any(row.get("wrong") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
