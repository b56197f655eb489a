"""What tuning is worth: networks of specs/recent by the choices that ship, and by the cost models alone, beside cuDNN.

    python benchmarks/untuned.py --batch 1 8 --out benchmarks/results/untuned_recent_h200.json
    python benchmarks/untuned.py --batch 64 --networks resnext50 yolov8s --out untuned.json

Both kernels of a layer and cuDNN are timed in turn, alone, as `convgen bench` times; results are not compared with a
reference.  `untuned_over_ships` is the time of the one over that of the other; means are geometric.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import ROOT, of_suite

from convgen import planner
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Job
from convgen.bench.results import Row, geomean
from convgen.bench.runner import Bench, Column, Entry
from convgen.ir.problem import ConvProblem
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
#: A layer is measured at batches whose tensors fit this.
MOST_BYTES = 16e9


def entry(problem: ConvProblem, gpu: str) -> Entry:
    """A layer by what `auto` takes on the GPU, and would take where nothing was measured."""
    untuned = planner.untuned(problem, TARGET, "auto", {})
    columns = {
        "ships": Column(Job(problem, TARGET, "auto", {}, planned=True, gpu=gpu)),
        "untuned": Column(Job(problem, TARGET, untuned.strategy.name, untuned.options)),
    }
    return Entry(problem.name, columns)


def record(network: str, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"network": network, "layer": row.name, "n": row.n, "cudnn_us": row.cudnn_us}
    for name, result in row.results.items():
        found[name] = {"us": result.us, "strategy": result.strategy, "config": result.config}
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the layers that have all three times."""
    whole = [row for row in rows if row["cudnn_us"] and row["ships"]["us"] and row["untuned"]["us"]]
    over = {name: [row["cudnn_us"] / row[name]["us"] for row in whole] for name in ("ships", "untuned")}
    return {
        "layers": len(whole),
        "untuned_over_ships": geomean(row["untuned"]["us"] / row["ships"]["us"] for row in whole),
        **{f"{name}_speedup": geomean(found) for name, found in over.items()},
        **{f"{name}_below_0.95": sum(x < 0.95 for x in found) for name, found in over.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in (ROOT / "specs/recent").glob("*.conv"))
    parser.add_argument("--networks", nargs="+", default=names, metavar="NAME", help="(default: all)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, help="JSON, written anew behind each layer")
    args = parser.parse_args()
    need_gpu("torch")
    backend = TorchBackend()
    gpu = backend.environment()["gpu"]
    rows: list[dict[str, Any]] = []
    summaries: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool, Builder() as builder:
        bench = Bench(backend, builder.build_all, verify=False)
        for n in args.batch:
            suites = [(name, p) for name in args.networks for p in of_suite(f"recent/{name}", n)]
            layers = [(name, p) for name, p in suites if p.min_bytes <= MOST_BYTES]
            entries = list(pool.map(entry, (p for _, p in layers), [gpu] * len(layers), chunksize=4))
            found: list[dict[str, Any]] = []
            for (name, _), row in zip(layers, bench.rows(entries), strict=True):
                found.append(record(name, row))
                if args.out:
                    records.write(args.out, summary=summaries, rows=rows + found)
            rows += found
            summaries[f"batch {n}"] = summary(found)
            print(f"batch {n}: {summaries[f'batch {n}']}", flush=True)
            if args.out:
                records.write(args.out, summary=summaries, rows=rows)


if __name__ == "__main__":
    main()
