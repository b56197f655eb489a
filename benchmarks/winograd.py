"""Strategy winograd on layers of 3x3 and unit stride, beside what `auto` takes and cuDNN: times, and errors.

    python benchmarks/winograd.py --suite vgg16 resnet50 --batch 8 64 --types f16 f32 --json results.json

Of each layer it takes what `auto` chooses and every form, transform and product that winograd offers, launched alone.
Results are verified against the float64 reference, and their relative L2 errors recorded; then everything is timed in
turn.  cuDNN multiplies float32 without TF32.
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
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.registry import kernel
from convgen.kernels.search import search
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
WINOGRAD = strategies.STRATEGIES["winograd"]


def typed(problem: ConvProblem, dtype: str) -> ConvProblem:
    return replace(problem, **{role: replace(problem.tensor(role), dtype=dtype) for role in "xwy"})  # type: ignore[arg-type]


def layers(suite: str, n: int, dtype: str) -> Iterator[ConvProblem]:
    """Those that winograd serves, each geometry once."""
    problems = (typed(problem, dtype) for problem in of_suite(suite, n))
    found = {str(replace(p, name="layer")): p for p in problems if not WINOGRAD.obstacles(p, TARGET, {})}
    return iter(found.values())


def jobs(problem: ConvProblem, candidates: int) -> Iterator[tuple[str, Job]]:
    yield "auto", Job(problem, TARGET, "auto", {}, planned=True)
    for tile in (2, 4):
        for product in ("tma_im2col", "mma_gemm"):
            options = {"tile": tile, "product": product}
            if not WINOGRAD.obstacles(problem, TARGET, options):
                yield f"F({tile}, 3) by {product}", Job(problem, TARGET, "winograd", options)
    fused = search(kernel("winograd_fused"), problem, TARGET, {}).candidates(candidates, of_a_kind=1)
    for place, candidate in enumerate(fused):
        name = "F(2, 3) fused" + f", {place + 1}" * (place > 0)
        yield name, Job(problem, TARGET, "winograd", {"kernel": "winograd_fused", **candidate.layout.config.options})


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    backend = TorchBackend()
    problems = [
        p for dtype in args.types for suite in args.suite for n in args.batch for p in layers(suite, n, dtype)
        if not args.only or p.name in args.only
    ]  # fmt: skip
    wanted = [dict(jobs(p, args.candidates)) for p in problems]
    with Builder() as builder:
        built = builder.build_all(job for row in wanted for job in row.values())
        for p, row in zip(problems, wanted, strict=True):
            yield layer(p, {name: next(built)[1] for name in row}, backend)
            backend.release()


def layer(p: ConvProblem, kernels: dict[str, Artifact | Failure], backend: TorchBackend) -> dict[str, Any]:
    sets, checker = buffer_sets(p, backend), Checker(p, backend)
    entrants: dict[str, list[Captured]] = {"cudnn": baselines.convolution(p, backend)}
    columns: dict[str, dict[str, Any]] = {"cudnn": {}}
    for name, artifact in kernels.items():
        if isinstance(artifact, Failure):
            columns[name] = {"failure": artifact.message}
            continue
        m, kernel = artifact.manifest, Kernel(artifact)
        report = checker(kernel, m.arithmetic)
        columns[name] = {
            "strategy": m.strategy, "config": m.config, "rel_l2": report.rel_l2,
            "workspace": sum(w.bytes for w in m.workspaces),
        }  # fmt: skip
        if not report:
            columns[name]["wrong"] = report.message
            continue
        entrants[name] = [capture(launcher(Kernel(alone(artifact)), sets), len(sets), backend)]
    for name, timing in zip(entrants, time_in_turn(list(entrants.values()), backend), strict=True):
        columns[name]["us"] = round(timing.us, 3)
    row = {"layer": p.name, "n": p.n, "dtype": p.x.dtype, "spec": str(p), "columns": columns}
    print(line(row), flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    columns = row["columns"]
    text = f"{row['layer']:12} {row['dtype']} n={row['n']:<3}"
    for name, c in columns.items():
        text += f" {name} {c['us']:.1f}" if "us" in c else f" {name} {c.get('wrong') or c.get('failure')}"
        text += f" ({c['rel_l2']:.1e})" if "rel_l2" in c else ""
    return text


def summarize(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The fastest of winograd beside auto and cuDNN: geometric means of how many times as fast."""
    found = {}
    for beside in ("auto", "cudnn"):
        ratios = []
        for columns in (row["columns"] for row in rows):
            own = [c["us"] for name, c in columns.items() if name.startswith("F(") and "us" in c]
            if own and "us" in columns[beside]:
                ratios.append(columns[beside]["us"] / min(own))
        if mean := geomean(ratios):
            found[beside] = round(mean, 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--only", nargs="+", default=[], help="layers by name")
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--types", nargs="+", default=["f16", "f32"])
    parser.add_argument("--candidates", type=int, default=1, help="of form fused: so many kinds, the best by the model")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    rows = list(measure(args))
    summary = {
        f"{dtype}, n={n}": summarize([r for r in rows if (r["dtype"], r["n"]) == (dtype, n)])
        for dtype in args.types for n in args.batch
    }  # fmt: skip
    print(json.dumps(summary, indent=1))
    if args.json:
        records.write(args.json, summary=summary, rows=rows)
    return any("wrong" in c or "failure" in c for r in rows for c in r["columns"].values())


if __name__ == "__main__":
    sys.exit(main())
