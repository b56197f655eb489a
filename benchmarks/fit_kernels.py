"""Fits the cost models of implicit_gemm's and depthwise's kernels to measurements, and says how well they choose.

    cd benchmarks/results && python ../fit_kernels.py implicit_gemm_{sweep,aligned,grouped_depthwise}_h200.json \\
        depthwise_{stream_sweep,tune}_h200.json bench_n{8,64}_h200.json unseen_h200.json candidates_h200.json

The rates of `convgen/kernels/*/cost.py` and `parts/line_cost.py` are fitted by least squares on the logarithm of the
time; the fast configurations of a layer count most.  A model's *regret* is the time of the configuration that it
chooses among the measured ones over the best of them.  *Unseen*: each layer, at all its batches, is judged by rates
that were fitted to the others.  `--no-fit` judges the rates as they stand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
from geometries import of_suite
from implicit_gemm import SUITES, problem
from scipy.optimize import least_squares

from convgen.bench import suites
from convgen.bench.results import geomean
from convgen.frontend import load
from convgen.ir.problem import ConvProblem
from convgen.kernels import registry, renamed
from convgen.kernels.base import Layout
from convgen.kernels.depthwise_direct import cost as depthwise_direct
from convgen.kernels.depthwise_stream import cost as depthwise_stream
from convgen.kernels.mma_gemm import cost as mma_gemm
from convgen.kernels.mma_wgrad import cost as mma_wgrad
from convgen.kernels.parts import line_cost
from convgen.kernels.search import search
from convgen.kernels.small_groups import cost as small_groups
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
LAYERS = {layer.name: layer for suite in SUITES.values() for layer in suite if layer.layout == "nhwc"}
#: Spilled bytes a thread from which on a measurement says little about the configuration.
MOST_SPILLS = 40
#: Launches of stream so long tell the rates of device memory, and little else.
LONG_US = 8.0
#: When gather's copies were dealt out over a step's slices.  A tile takes 18% less to 9% more time since (NOTES.md), so
#: that older measurements no longer tell its rates; implicit_gemm_aligned_before_h200.json, of that day but of the loop
#: before, is not to be fitted to.
GATHER_SINCE = "2026-11-22"
#: Rates that no fit may pass: bytes of device memory a microsecond, what a launch takes at least.
BOUNDS = {
    "memory": (3.0e6, 4.2e6), "start": (0.5, 3.0), "l2": (4.0e6, 12.0e6), "latency": (150.0, 2000.0),
    "reads": (3.3e6, 4.5e6), "writes": (3.3e6, 4.5e6),
}  # fmt: skip
#: Of mma_gemm's rates: nothing measured tells the others.
MMA = ("products", "shared", "step", "latency", "copy", "result", "store", "ragged", "memory", "start")
#: Of stream's rates: nothing measured tells the others.
STREAM = (
    "start", "beside", "latency", "issue", "alone", "shared", "slab", "filter", "sm_bytes", "pixel", "outside", "half",
    "again", "reads", "writes",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Where a kernel's rates are, and which of them the measurements can tell (empty: all)."""

    module: ModuleType
    name: str = "H200"
    told: tuple[str, ...] = ()

    @property
    def rates(self) -> Any:
        return getattr(self.module, self.name)

    def use(self, rates: Any) -> None:
        setattr(self.module, self.name, rates)


#: By kernel; depthwise_stream has rates for each of its ways to multiply.
MODELS = {
    "stem_mma": Model(line_cost, "MMA_LINES"),
    "stem_wgmma": Model(line_cost, "WGMMA_LINES"),
    "mma_gemm": Model(mma_gemm, told=MMA),
    "mma_wgrad": Model(mma_wgrad),
    "small_groups": Model(small_groups),
    "depthwise_direct": Model(depthwise_direct),
    "depthwise_stream": Model(depthwise_stream, "H200_FMA", STREAM),
    "depthwise_stream mma": Model(depthwise_stream, "H200_MMA", tuple(name for name in STREAM if name != "shared")),
}


def layout_of(kernel: str, problem: ConvProblem, options: Mapping[str, int | str]) -> Layout | None:
    """The layout that options ask for, which may have names of the time that they were measured at."""
    name = kernel.partition(" ")[0]
    row = next(row for row in registry.KERNELS if row.name == name)
    said = {k: v for k, v in renamed.options(row.strategy, options).items() if k != "kernel"}
    found = search(row.kernel, problem, TARGET, said).best
    return found.layout if found else None


@dataclass(frozen=True)
class Row:
    kernel: str
    layer: str
    n: int
    problem: ConvProblem
    layout: Layout
    us: float

    @property
    def shape(self) -> tuple[object, ...]:
        """What a layer is, by whatever name and at whatever batch."""
        p = self.problem
        return p.c, p.k, p.input, p.filter, p.stride, p.groups

    @property
    def config(self) -> Any:
        return self.layout.config

    @property
    def estimate(self) -> float:
        return registry.kernel(self.kernel.partition(" ")[0]).time(self.layout)


def read(paths: Iterable[Path]) -> list[Row]:
    """Of the kernels that have rates: the candidates of `implicit_gemm.py` and `convgen tune`, and what
    `convgen bench` and `unseen.py` took."""
    files = [json.loads(path.read_text()) for path in paths]
    rows = [(file["date"], row) for file in files for row in _rows(file)]
    found = [(date, r) for date, row in rows for r in (_candidate(row) if "options" in row else _benched(row))]
    return [row for date, row in found if row.kernel != "mma_gemm" or date >= GATHER_SINCE]


def _rows(file: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A file's; those of `convgen tune` lie in tables, one for each kind of configuration.  Of those, launched behind
    one another, depthwise's alone: the models of the others stand for launches alone."""
    if "kinds" not in file:
        yield from file.get("unseen", file)["rows"]
    for kind in file.get("kinds", ()):
        for row in kind["rows"] if kind["strategy"] == "depthwise" else ():
            options = dict(zip(kind["columns"], row, strict=True))
            about = {name: options.pop(name) for name in ("layer", "n", "us")}
            yield {**about, "strategy": kind["strategy"], "options": {**kind["fixed"], **options}, "spills": ()}


@cache
def layer_problem(name: str, n: int) -> ConvProblem | None:
    """Of `implicit_gemm.py`'s layers, or of a suite's: SUITE/NAME."""
    if name in LAYERS:
        return problem(LAYERS[name], n)
    suite, _, own = name.partition("/")
    return next((p for p in _suite(suite, n) if p.name == own), None)


@cache
def _suite(name: str, n: int) -> tuple[ConvProblem, ...]:
    return tuple(of_suite(name, n)) if name in suites.names() else ()


def _candidate(row: dict[str, Any]) -> Iterator[Row]:
    options = renamed.options(row["strategy"], row["options"])
    kernel = str(options.get("kernel", "depthwise_direct" if row["strategy"] == "depthwise" else ""))
    if row["strategy"] == "depthwise" and options.get("math"):
        kernel = "depthwise_stream mma" if options["math"] == "mma" else "depthwise_stream"
    known = kernel in MODELS and sum(row["spills"]) < MOST_SPILLS
    p = load(row["spec"])[0].problem if known and "spec" in row else known and layer_problem(row["layer"], row["n"])
    if p and (layout := layout_of(kernel, p, options)):
        yield Row(kernel, row["layer"], row["n"], p, layout, row["us"])


def _benched(row: dict[str, Any]) -> Iterator[Row]:
    """Where `auto` took depthwise_stream's fma or mma_gemm, whose configurations are read back from their text."""
    results, p = row["results"], load(row["spec"])[0].problem
    auto = results["auto"]
    numbers = list(map(int, re.findall(r"\d+", auto["config"])))
    # stream's model stands for launches back to back; the other kernels are always launched alone
    if auto["config"].startswith("fma:") and "chain" in results and results["chain"]["us"] > LONG_US:
        names = ("tile.p", "tile.q", "vector", "band", "strip", "slice", "stages", "threads", "blocks")
        kernel, us, given = "depthwise_stream", results["chain"]["us"], {"math": "fma"}
    elif auto["config"].startswith("gather"):
        names = ("tile.m", "tile.n", "tile.k", "warps.m", "warps.n", "stages", "split_k")
        kernel, us, given = "mma_gemm", auto["us"], {"order": "channel_first", "split_k": 1}
    else:
        return
    if layout := layout_of(kernel, p, given | dict(zip(names, numbers, strict=False))):
        yield Row(kernel, row["name"], row["n"], p, layout, us)


def fit(model: Model, rows: Sequence[Row]) -> None:
    """Sets a kernel's rates to the best for these rows."""
    rates = model.rates
    named = {name: value for name, value in asdict(rates).items() if not model.told or name in model.told}
    best = {(r.layer, r.n): min(o.us for o in rows if (o.layer, o.n) == (r.layer, r.n)) for r in rows}
    weights = numpy.array([(best[r.layer, r.n] / r.us) ** 2 for r in rows])
    start = numpy.array(list(named.values()))
    limits = [BOUNDS.get(name, (0.0, math.inf)) for name in named]
    scale = numpy.where(start > 0, start, 1.0)
    low, high = (numpy.array(side) / scale for side in zip(*limits, strict=True))

    def use(x: numpy.ndarray) -> None:
        model.use(replace(rates, **dict(zip(named, (x * scale).tolist(), strict=True))))

    def errors(x: numpy.ndarray) -> numpy.ndarray:
        use(x)
        return weights * numpy.log([r.estimate / r.us for r in rows])

    inside = numpy.clip(start / scale, low + 1e-3, high - 1e-3)
    use(least_squares(errors, inside, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=40).x)


def unseen(model: Model, rows: Sequence[Row]) -> list[float]:
    """Estimates of each row by rates that were fitted to the other layers."""
    rates, found = model.rates, [0.0] * len(rows)
    for shape in {row.shape for row in rows}:
        model.use(rates)
        fit(model, [row for row in rows if row.shape != shape])
        for i, row in enumerate(rows):
            if row.shape == shape:
                found[i] = row.estimate
    model.use(rates)
    return found


def report(rows: Sequence[Row], estimates: Sequence[float]) -> str:
    layers: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for row, estimate in zip(rows, estimates, strict=True):
        layers[row.layer, row.n].append((estimate, row.us))
    regrets = {k: min(own)[1] / min(us for _, us in own) for k, own in layers.items() if len(own) > 1}
    error = math.sqrt(sum(math.log(e / r.us) ** 2 for r, e in zip(rows, estimates, strict=True)) / len(rows))
    if not regrets:
        return f"error {error:.1%}"
    worst = max(regrets, key=lambda layer: regrets[layer])
    mean = geomean(regrets.values()) - 1
    return f"error {error:.1%}, regret {mean:.1%}, at worst {regrets[worst] - 1:.1%} ({worst[0]}, n={worst[1]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--kernel", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--no-fit", action="store_true")
    args = parser.parse_args()
    rows = read(args.results)
    for kernel in args.kernel:
        own, model = [r for r in rows if r.kernel == kernel], MODELS[kernel]
        if not own:
            continue
        print(f"{kernel}: {len(own)} rows of {len({r.layer for r in own})} layers")
        print(f"  as in cost.py: {report(own, [r.estimate for r in own])}")
        if not args.no_fit:
            print(f"  unseen:        {report(own, unseen(model, own))}")
            fit(model, own)
            print(f"  fitted:        {report(own, [r.estimate for r in own])}")
            print("  " + ", ".join(f"{name}={value:.4g}" for name, value in asdict(model.rates).items()))


if __name__ == "__main__":
    main()
