"""Fits implicit_gemm's cost models to measurements, and says how well they choose.

    python benchmarks/fit_implicit_gemm.py benchmarks/results/implicit_gemm_sweep_h200.json

The rates of `convgen/strategies/implicit_gemm/cost.py` are fitted by least squares on the logarithm of the time; the
fast configurations of a layer count most.  A model's *regret* is the time of the configuration that it chooses among
the measured ones over the best of them.  `--no-fit` judges the rates as they stand.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy
from implicit_gemm import SUITES, problem
from scipy.optimize import least_squares

from convgen.bench.results import geomean
from convgen.ir.problem import ConvProblem
from convgen.strategies.implicit_gemm import KERNELS, cost
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
LAYERS = {layer.name: layer for suite in SUITES.values() for layer in suite if layer.layout == "nhwc"}
#: The rates of each kernel that has any, by their name in cost.py.
RATES = {"rows": "MMA_LINES", "rows_wgmma": "WGMMA_LINES", "gather": "GATHER"}
#: Spilled bytes a thread from which on a measurement says little about the configuration.
MOST_SPILLS = 40
#: Rates that no fit may pass: bytes of device memory a microsecond, what a launch takes at least.
BOUNDS = {"memory": (3.0e6, 4.2e6), "start": (1.2, 3.0), "l2": (4.0e6, 12.0e6)}


@dataclass(frozen=True)
class Row:
    kernel: str
    layer: tuple[str, int]
    problem: ConvProblem
    config: Any
    us: float

    @property
    def estimate(self) -> float:
        return float(KERNELS[self.kernel].time(self.problem, TARGET, self.config))


def read(paths: Sequence[Path]) -> list[Row]:
    found = []
    for row in (row for path in paths for row in json.loads(path.read_text())["rows"]):
        kernel = row["options"].get("kernel")
        if row["layer"] in LAYERS and kernel in RATES and sum(row["spills"]) < MOST_SPILLS:
            p = problem(LAYERS[row["layer"]], row["n"])
            config = KERNELS[kernel].choose(p, TARGET, row["options"])
            found.append(Row(kernel, (row["layer"], row["n"]), p, config, row["us"]))
    return found


def fit(rows: Sequence[Row], name: str) -> None:
    """Sets the rates `cost.<name>` to the best for these rows."""
    record = type(getattr(cost, name))
    best = {layer: min(r.us for r in rows if r.layer == layer) for layer in {r.layer for r in rows}}
    weights = numpy.array([(best[r.layer] / r.us) ** 2 for r in rows])
    start = numpy.array(astuple(getattr(cost, name)))
    limits = [BOUNDS.get(f.name, (0.0, math.inf)) for f in fields(record)]
    scale = numpy.where(start > 0, start, 1.0)
    low, high = (numpy.array(side) / scale for side in zip(*limits, strict=True))

    def errors(x: numpy.ndarray) -> numpy.ndarray:
        setattr(cost, name, record(*(x * scale)))
        return weights * numpy.log([r.estimate / r.us for r in rows])

    inside = numpy.clip(start / scale, low + 1e-3, high - 1e-3)
    found = least_squares(errors, inside, bounds=(low, high), loss="soft_l1", max_nfev=40)
    setattr(cost, name, record(*(found.x * scale)))


def report(rows: Sequence[Row], name: str) -> str:
    layers: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        layers[row.layer].append(row)
    regrets = {layer: min(own, key=lambda r: r.estimate).us / min(r.us for r in own) for layer, own in layers.items()}
    error = math.sqrt(sum(math.log(r.estimate / r.us) ** 2 for r in rows) / len(rows))
    worst = max(regrets, key=lambda layer: regrets[layer])
    rates = ", ".join(f"{f.name}={getattr(getattr(cost, name), f.name):.4g}" for f in fields(getattr(cost, name)))
    return (
        f"{rates}\n  {len(rows)} rows: error {error:.1%}, regret {geomean(regrets.values()) - 1:.1%}, "
        f"at worst {regrets[worst] - 1:.1%} ({worst[0]}, n={worst[1]})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--no-fit", action="store_true")
    args = parser.parse_args()
    rows = read(args.results)
    for kernel, name in RATES.items():
        own = [r for r in rows if r.kernel == kernel]
        if not args.no_fit:
            fit(own, name)
        print(f"{kernel}: {report(own, name)}")


if __name__ == "__main__":
    main()
