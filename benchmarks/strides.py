"""What a stride costs: time per output at strides 1, 2 and 4, ours and cuDNN's.

    python benchmarks/strides.py --batch 64 --json results/strides_h200.json

An implicit GEMM does the same work for an output whatever the stride, but a larger stride makes the inputs of
neighboring outputs overlap less.  `auto` chooses our kernel at each stride; a row is one layer at one stride,
`per_output` is its nanoseconds an output over those at stride 1.  Compare figure 4 of "Characterizing and
Demystifying the Implicit Convolution Algorithm on Commercial Matrix-Multiplication Accelerators" (2021).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from implicit_gemm import Layer, problem

from convgen.bench import baselines
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Job
from convgen.bench.measure import buffer_sets, check, time_kernel
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

LAYERS = (
    Layer("3 channels, 7x7", 3, 64, 224, 7, pad=3),
    Layer("64 channels, 3x3", 64, 64, 56, 3, pad=1),
    Layer("128 channels, 3x3", 128, 128, 56, 3, pad=1),
    Layer("256 channels, 3x3", 256, 256, 28, 3, pad=1),
    Layer("128 channels, 5x5", 128, 128, 28, 5, pad=2),
    Layer("256 channels, 1x1", 256, 256, 56, 1),
)
STRIDES = (1, 2, 4)


def measure(n: int) -> list[dict[str, Any]]:
    """A row a layer and stride, in their order.  Raises SystemExit where a kernel is wrong or missing."""
    backend, target = TorchBackend(), TARGETS["sm_90a"]
    work = [(layer, stride, problem(replace(layer, stride=stride), n)) for layer in LAYERS for stride in STRIDES]
    rows: list[dict[str, Any]] = []
    first: dict[str, float] = {}
    with Builder() as builder:
        for (layer, stride, p), (_, built) in zip(
            work, builder.build_all(Job(p, target, "auto", {}, planned=True) for _, _, p in work), strict=True
        ):
            if not isinstance(built, Artifact):
                raise SystemExit(f"{layer.name}, stride {stride}: {built.message}")
            kernel = Kernel(built)
            if not (report := check(kernel, p, backend)):
                raise SystemExit(f"{layer.name}, stride {stride}: {report}")
            times = {
                "us": time_kernel(kernel, buffer_sets(p, backend), backend).us,
                "cudnn_us": baselines.cudnn(p, backend).us,
            }
            if stride == 1:
                first = {name: us / p.y.size for name, us in times.items()}
            row: dict[str, Any] = {"layer": layer.name, "n": n, "stride": stride, "outputs": p.y.size}
            row |= {"strategy": built.manifest.strategy, "config": built.manifest.config} | times
            row["per_output"] = times["us"] / p.y.size / first["us"]
            row["cudnn_per_output"] = times["cudnn_us"] / p.y.size / first["cudnn_us"]
            rows.append(row)
            print(line(row), flush=True)
            backend.release()
    return rows


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['layer']:20} n={row['n']:<3} stride {row['stride']}"
        f"  {row['us']:8.2f} us, {row['per_output']:5.2f} a result"
        f"  cuDNN {row['cudnn_us']:8.2f} us, {row['cudnn_per_output']:5.2f}  {row['strategy']}: {row['config']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", nargs="+", type=int, default=[64])
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    rows = [row for n in args.batch for row in measure(n)]
    if args.json:
        records.write(args.json, rows=rows)


if __name__ == "__main__":
    main()
