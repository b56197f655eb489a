"""Kernels of two checkouts, timed in turn in one process on one GPU: what a rebuild did to speed.

    git worktree add ../before f0c76ad
    python benchmarks/side_by_side.py ../before --batch 8 64 --out benchmarks/results/side_by_side_h200.json

The other checkout compiles the suites that it has by its own `convgen compile`; its cubins and manifests are loaded
here.  `ratio` is this checkout's time over the other's; the mean is geometric.  Layers whose cubins are the same are
not timed.  Kernels are launched back to back in a CUDA graph, over several sets of arrays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import of_suite

from convgen.bench import suites
from convgen.bench.backend import TorchBackend
from convgen.bench.measure import buffer_sets, capture, launcher, time_in_turn
from convgen.bench.results import geomean
from convgen.ir.problem import ConvProblem
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import SCHEMA, Manifest

ROOT = Path(__file__).parents[1]
#: Suites of one file, whose batch is the let n.
NETWORKS = [name for name in suites.names() if (ROOT / "specs" / f"{name}.conv").is_file()]


def compiled(tree: Path, suite: str, n: int, folder: Path) -> dict[str, Artifact]:
    """The kernels of a suite by name, as a checkout compiles them."""
    out = folder / f"{suite}-{n}"
    subprocess.run(
        [sys.executable, "-m", "convgen", "compile", f"specs/{suite}.conv", "-D", f"n={n}", "-o", str(out)],
        cwd=tree, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    found = {}
    for manifest in out.glob("*.json"):
        source, cubin = manifest.with_suffix(".cu").read_text(), manifest.with_suffix(".cubin").read_bytes()
        found[manifest.stem] = Artifact("", read(manifest.read_text()), source, cubin, "", "")
    return found


def read(text: str) -> Manifest:
    """A manifest, or one of schema 2 or later: since then, fields were added to it, and none has another meaning."""
    data = {"further": [], "in_place": [], "dynamic": None} | json.loads(text)
    for tensor in (*data["reads"], *data["operands"], data["result"]):
        tensor.setdefault("pitch", None)
    return Manifest.from_json(json.dumps(data | {"schema": SCHEMA}))


def compare(problem: ConvProblem, kernels: dict[str, Artifact], backend: TorchBackend) -> dict[str, Any]:
    """A row: both times, or that both are the same kernel."""
    row: dict[str, Any] = {which: {"config": a.manifest.config} for which, a in kernels.items()}
    if len({a.cubin for a in kernels.values()}) == 1:
        return row | {"same": True}
    sets = buffer_sets(problem, backend)
    entrants = [[capture(launcher(Kernel(a), sets), len(sets), backend)] for a in kernels.values()]
    for which, timing in zip(kernels, time_in_turn(entrants, backend), strict=True):
        row[which]["us"] = round(timing.us, 3)
    return row | {"ratio": round(row["after"]["us"] / row["before"]["us"], 4)}


def rows(args: argparse.Namespace, backend: TorchBackend) -> Iterator[dict[str, Any]]:
    trees = {"before": args.other.resolve(), "after": ROOT}
    both_have = [suite for suite in args.suite if (args.other / "specs" / f"{suite}.conv").is_file()]
    asked = [(which, suite, n) for suite in both_have for n in args.batch for which in trees]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda a: compiled(trees[a[0]], a[1], a[2], Path(folder) / a[0]), asked))
    kernels = dict(zip(asked, made, strict=True))
    for suite, n in itertools.product(both_have, args.batch):
        for problem in of_suite(suite, n):
            both = {which: kernels[which, suite, n][problem.name] for which in trees}
            row = {"layer": f"{suite}/{problem.name}", "n": n, **compare(problem, both, backend)}
            if "ratio" in row:
                print(f"{row['layer']:28} n={row['n']:<4d} {row['ratio']:.3f}", flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--suite", nargs="+", default=NETWORKS)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    args = parser.parse_args()
    need_gpu("torch")
    backend = TorchBackend()
    found = list(rows(args, backend))
    ratios = {f"{r['layer']} n={r['n']}": r["ratio"] for r in found if "ratio" in r}
    same = sum("same" in r for r in found)
    print(f"{same} kernels are the same, {len(ratios)} others:")
    if ratios:
        worst = max(ratios, key=lambda name: ratios[name])
        print(f"geometric mean {geomean(ratios.values()):.4f}, at most {ratios[worst]:.3f} ({worst})")
    if args.out:
        mean = geomean(ratios.values()) if ratios else 1.0
        records.write(args.out, other=args.other.name, same=same, mean=round(mean, 4), rows=found)


if __name__ == "__main__":
    main()
