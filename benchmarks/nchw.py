"""Layers in NCHW, in and out, beside cuDNN on the same NCHW tensors, its own transposes included.

    python benchmarks/nchw.py --suite resnet50 --batch 8 64 --candidates 4 --json results.json
    python benchmarks/nchw.py --type f32 --json float32.json           # cuDNN without TF32

Of each layer it takes what `auto` chooses, launched alone and, as `chained`, behind the launch before it, and the
candidates of each strategy that are asked for.  Results are verified against the float64 reference, then everything
is timed in turn, also the launch that lays operands out anew by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import of_suite

from convgen.bench import baselines
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import Captured, Checker, buffer_sets, capture, launcher, time_in_turn
from convgen.bench.results import geomean
from convgen.bench.runner import alone
from convgen.ir.plan import Launch
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

STRATEGIES = ("tma_im2col", "tma_halo", "implicit_gemm")


def in_planes(problem: ConvProblem, dtype: str) -> ConvProblem:
    """The problem with x, w and y in NCHW order, of a type."""
    sp = problem.spatial

    def moved(tensor: Tensor, *order: str) -> Tensor:
        return replace(tensor, dtype=dtype, dims=order, extents=tuple(map(tensor.extent, order)))

    return replace(
        problem,
        x=moved(problem.x, "n", "c", *sp.input),
        w=moved(problem.w, "k", "c", *sp.filter),
        y=moved(problem.y, "n", "k", *sp.output),
    )


def layers(suite: str, n: int, dtype: str) -> Iterator[ConvProblem]:
    return (in_planes(p, dtype) for p in of_suite(suite, n))


def jobs(problem: ConvProblem, count: int) -> Iterator[tuple[str, Job]]:
    target = TARGETS["sm_90a"]
    yield "auto", Job(problem, target, "auto", {}, planned=True)
    for name in STRATEGIES:
        strategy = strategies.STRATEGIES[name]
        if strategy.obstacles(problem, target, {}):
            continue
        offered: list[Options] = strategy.candidates(problem, target)[:count]  # type: ignore[attr-defined]
        for i, options in enumerate(offered):
            yield f"{name} {i}", Job(problem, target, name, options)


def preparation(artifact: Artifact) -> Artifact | None:
    """The launch in front of the main kernel by itself."""
    steps = artifact.manifest.steps
    if not isinstance(steps[0], Launch) or not steps[0].entry.endswith("_prepare"):
        return None
    return replace(artifact, manifest=replace(artifact.manifest, steps=steps[:1]))


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    backend = TorchBackend()
    problems = [p for suite in args.suite for n in args.batch for p in layers(suite, n, args.type)]
    problems = [p for p in problems if not args.only or p.name in args.only]
    wanted = [dict(jobs(p, args.candidates)) for p in problems]
    with Builder() as builder:
        built = builder.build_all(job for row in wanted for job in row.values())
        for p, row in zip(problems, wanted, strict=True):
            yield layer(p, {name: next(built)[1] for name in row}, backend)
            backend.release()


def layer(p: ConvProblem, kernels: dict[str, Artifact | Failure], backend: TorchBackend) -> dict[str, Any]:
    sets = buffer_sets(p, backend)
    checker = Checker(p, backend)
    entrants: dict[str, list[Captured]] = {"cudnn": baselines.convolution_in_planes(p, backend)}
    columns: dict[str, dict[str, Any]] = {}
    seen: dict[str, str] = {}
    for name, artifact in kernels.items():
        if isinstance(artifact, Failure):
            columns[name] = {"failure": artifact.message}
            continue
        if artifact.key in seen:
            columns[name] = {"as": seen[artifact.key]}
            continue
        seen[artifact.key] = name
        m = artifact.manifest
        columns[name] = {"strategy": m.strategy, "config": m.config, "reason": m.reason}
        kernel = Kernel(artifact)
        report = checker(kernel, m.arithmetic)
        if not report:
            columns[name]["wrong"] = report.message
            continue
        entrants[name] = [capture(launcher(Kernel(alone(artifact)), sets), len(sets), backend)]
        if name == "auto":
            entrants["chained"] = [capture(launcher(kernel, sets), len(sets), backend)]
        before = preparation(artifact)
        if before and "prepare" not in entrants:
            moved = sum(w.bytes for w in m.workspaces) * 2
            columns["prepare"] = {"bytes": moved}
            entrants["prepare"] = [capture(launcher(Kernel(before), sets), len(sets), backend)]
    times = dict(zip(entrants, time_in_turn(list(entrants.values()), backend), strict=True))
    for name, timing in times.items():
        columns.setdefault(name, {})["us"] = round(timing.us, 3)
    row = {"layer": p.name, "n": p.n, "spec": str(p), "columns": columns}
    print(line(row), flush=True)
    return row


def best(row: dict[str, Any]) -> str:
    kernels = [c for c in row["columns"] if c not in ("cudnn", "prepare", "chained") and "us" in row["columns"][c]]
    return min(kernels, key=lambda c: row["columns"][c]["us"])


def line(row: dict[str, Any]) -> str:
    columns = row["columns"]
    cudnn, fastest = columns["cudnn"]["us"], best(row)
    text = f"{row['layer']:14} n={row['n']:<3} cuDNN {cudnn:8.2f}  "
    for name in ("auto", fastest):
        if "us" in columns[name]:
            us = columns[name]["us"]
            text += f"{name} {us:8.2f} {cudnn / us:5.2f}x {columns[name]['strategy']:13} "
    if "prepare" in columns:
        us = columns["prepare"]["us"]
        text += f" prepare {us:7.2f} us {columns['prepare']['bytes'] / us / 1e6:5.2f} TB/s"
    text += "".join(f" {name}={c['us']:.2f}" for name, c in columns.items() if name[-1].isdigit() and "us" in c)
    wrong = [name for name, c in columns.items() if "wrong" in c or "failure" in c]
    return text + "".join(f"\n    {name}: {columns[name].get('wrong') or columns[name]['failure']}" for name in wrong)


def summarize(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times faster than cuDNN: geometric mean, least, and of how many layers."""
    found = {}
    for what in ("auto", "chained", "best"):
        ratios = [
            r["columns"]["cudnn"]["us"] / r["columns"][best(r) if what == "best" else what]["us"]
            for r in rows
            if what == "best" or "us" in r["columns"].get(what, {})
        ]
        if mean := geomean(ratios):
            found[what] = {"geomean": round(mean, 3), "least": round(min(ratios), 3), "layers": len(ratios)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["resnet50"])
    parser.add_argument("--only", nargs="+", default=[], help="layers by name")
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--type", choices=("f16", "bf16", "f32"), default="f16")
    parser.add_argument("--candidates", type=int, default=0, help="how many of each strategy to time besides")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    rows = list(measure(args))
    summary = {f"n={n}": summarize([r for r in rows if r["n"] == n]) for n in args.batch}
    print(json.dumps(summary, indent=1))
    if args.json:
        records.write(args.json, summary=summary, rows=rows)
    return any("wrong" in c for r in rows for c in r["columns"].values())


if __name__ == "__main__":
    sys.exit(main())
