"""What epilogues cost: residuals, gates, scales and biases on the layers that close ResNet-50's blocks.

    python benchmarks/epilogues.py --batch 8 64 256 --out benchmarks/results/epilogues_h200.json

A layer's kernels are timed in turn, as `convgen bench` times: alone, and chained, each launch starting behind the one
before it.  An operand shaped like the result, or a further result, should cost its bytes at 90% of the rate of a large
copy (read and write, measured in the same run): `limit` is the plain kernel's time and that.  Operands with a value for
each channel, or for each image and channel, should cost 2% and 3%.  `share` is the limit over the time.  Means are
geometric, each layer as often as the network has it.  Results are compared with exact integers; the exit code is 1
where one is wrong.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import of_suite, with_epilogue
from nchw import in_planes

from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import (
    Captured,
    buffer_sets,
    capture,
    cut_images,
    image_parts,
    launcher,
    time_graph,
    time_in_turn,
)
from convgen.bench.runner import alone
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import decode, references
from convgen.ir.tensor import Tensor
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

#: The layers that close a block, and how many blocks they close.
LAYERS = {"res2_1x1_c": 3, "res3_1x1_c": 4, "res4_1x1_c": 6, "res5_1x1_c": 3}
#: Share of a large copy's rate at which operands shaped like the result are to be read.
RATE = 0.9
COPIED = 1 << 30  # bytes, read and written


@dataclass(frozen=True)
class Variant:
    """An epilogue, `{y}` being y's dims; what it may take at most, as a multiple of the plain kernel's time."""

    text: str
    most: float = 1.0


VARIANTS = {
    "plain": Variant(""),
    "bias": Variant("operand b: f32[k]  y = relu(acc + b)", 1.02),
    "scale": Variant("operand s: f32[k]  operand b: f32[k]  y = relu(acc * s + b)", 1.02),
    "gate": Variant("operand e: f16[n, k]  y = acc * e", 1.03),
    "residual": Variant("operand s: f32[k]  operand b: f32[k]  operand z: f16[{y}]  y = relu(acc * s + b + z)"),
    "two": Variant(
        "operand s: f32[k]  operand b: f32[k]  operand z: f16[{y}]  operand u: f16[{y}]  y = relu(acc * s + b + z + u)"
    ),
    "f32": Variant("operand s: f32[k]  operand b: f32[k]  operand z: f32[{y}]  y = relu(acc * s + b + z)"),
    "bf16": Variant("operand b: f32[k]  operand z: bf16[{y}]  y = relu(acc + b + z)"),
    "mask": Variant("operand z: s8[{y}]  y = acc * z"),
    "second result": Variant("operand b: f32[k]  result t: f16[{y}]  t = acc + b  y = relu(t)"),
    "residual, two results": Variant(
        "operand b: f32[k]  operand z: f16[{y}]  result t: f16[{y}]  t = acc + b + z  y = relu(t)"
    ),
    "gated residual": Variant("operand e: f16[n, k]  operand z: f16[{y}]  y = relu(acc * e + z)", 1.03),
}


def layers(args: argparse.Namespace) -> Iterator[tuple[ConvProblem, int]]:
    """Each with its number in the network."""
    for n in args.batch:
        for problem in of_suite(args.suite, n):
            if problem.name in args.only:
                laid_out = in_planes(problem, problem.x.dtype) if args.layout == "nchw" else problem
                yield laid_out, LAYERS.get(problem.name, 1)


def shaped_like_y(problem: ConvProblem) -> int:
    """Bytes of operands and further results that have as many elements as y."""
    return sum(t.bytes for t in (*problem.operands, *problem.further) if t.size == problem.y.size)


def copy_rate(backend: TorchBackend) -> float:
    """Bytes a microsecond, read and written, by a kernel: in a graph, a plain copy may go to a slower copy engine."""
    buffer = Tensor("buffer", "x", "f32", ("n",), (COPIED // 4,))
    with backend.stream():
        source, target = backend.normal(buffer), backend.poisoned(buffer)
    return 2 * COPIED / time_graph(lambda _: backend.torch.neg(source, out=target), 1, backend).us


def integers(tensor: Tensor, backend: TorchBackend) -> Any:
    """Small ones, so that every sum is exact in float16."""
    values = backend.torch.randint(-1, 2, tensor.shape, device="cuda")
    return values.to(backend.dtype(tensor.dtype))


def exact(problem: ConvProblem, kernel: Kernel, backend: TorchBackend) -> bool:
    """Whether a kernel's results are those of integer arithmetic, in every element."""
    tensors = problem.arguments
    with backend.stream():
        inputs = [integers(t, backend) for t in tensors]
        outs = tuple(map(backend.poisoned, problem.results))
        kernel(*inputs, out=outs if problem.further else outs[0])
        for part, first in image_parts(problem):
            cut = {
                t.buffer: cut_images(t, part.n, first, backend.as_xp(a)) for t, a in zip(tensors, inputs, strict=True)
            }
            for t, out, expected in zip(problem.results, outs, references(part, cut, backend.xp), strict=True):
                got = decode(cut_images(t, part.n, first, backend.as_xp(out)), t.dtype, backend.xp)
                if not bool((got == expected).all()):
                    return False
    return True


def layer(
    problem: ConvProblem, count: int, kernels: dict[str, Artifact | Failure], rate: float, backend: TorchBackend
) -> dict[str, Any]:
    """A row: every variant's kernel, time alone and chained, and how far it is from what it should cost."""
    columns: dict[str, dict[str, Any]] = {}
    entrants: dict[tuple[str, str], list[Captured]] = {}
    for name, artifact in kernels.items():
        if isinstance(artifact, Failure):
            columns[name] = {"failure": artifact.message}
            continue
        own = with_epilogue(problem, VARIANTS[name].text)
        m, kernel = artifact.manifest, Kernel(artifact)
        columns[name] = {"strategy": m.strategy, "config": m.config, "reason": m.reason, "bytes": shaped_like_y(own)}
        columns[name]["exact"] = exact(own, kernel, backend)
        sets = buffer_sets(own, backend)
        for how, launched in (("alone", Kernel(alone(artifact))), ("chained", kernel)):
            entrants[name, how] = [capture(launcher(launched, sets), len(sets), backend)]
    times = zip(entrants, time_in_turn(list(entrants.values()), backend), strict=True)
    found = {key: timing.us for key, timing in times}
    for (name, how), us in found.items():
        limit = found["plain", how] * VARIANTS[name].most + columns[name]["bytes"] / (RATE * rate)
        columns[name][how] = {"us": round(us, 3), "limit": round(limit, 3), "share": round(limit / us, 4)}
    row = {"layer": problem.name, "n": problem.n, "count": count, "spec": str(problem), "columns": columns}
    print(line(row), flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    text = f"{row['layer']:12} n={row['n']:<4d}"
    for name, column in row["columns"].items():
        if "failure" in column:
            text += f"  {name}: {column['failure']}"
            continue
        wrong = "" if column["exact"] else " WRONG"
        text += f"\n  {name:15} " + "  ".join(
            f"{how} {column[how]['us']:8.2f} us of {column[how]['limit']:8.2f} ({100 * column[how]['share']:5.1f}%)"
            for how in ("alone", "chained")
        )
        text += f"{wrong}  {column['strategy']}: {column['config']}  [{column['reason'].partition(':')[0]}]"
    return text


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each variant at each batch: the geometric mean and the least of limit over time, and of how many layers."""
    found: dict[str, Any] = {}
    for n in sorted({row["n"] for row in rows}):
        for name in VARIANTS:
            for how in ("alone", "chained"):
                shares = [
                    (row["columns"][name][how]["share"], row["count"])
                    for row in rows
                    if row["n"] == n and how in row["columns"].get(name, {})
                ]
                if layers := sum(count for _, count in shares):
                    mean = math.exp(sum(count * math.log(share) for share, count in shares) / layers)
                    least = min(share for share, _ in shares)
                    found[f"n={n} {name} {how}"] = {"mean": round(mean, 4), "least": least, "layers": layers}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--suite", default="resnet50")
    parser.add_argument("--only", nargs="+", default=list(LAYERS), help="layers by name")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--layout", default="nhwc", choices=("nhwc", "nchw"))
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--out", type=Path, help="write every figure as JSON")
    args = parser.parse_args()
    need_gpu("torch")
    backend = TorchBackend()
    environment = backend.environment()
    variants = list(dict.fromkeys(("plain", *args.variants)))
    problems = list(layers(args))
    job = Job(problems[0][0], TARGETS["sm_90a"], args.strategy, {}, planned=True, gpu=environment["gpu"])
    rate = copy_rate(backend)
    print(f"a copy of {COPIED / 1e9:.2f} GB reads and writes {rate / 1e6:.2f} TB/s")
    rows = []
    with Builder() as builder:
        jobs = (replace(job, problem=with_epilogue(p, VARIANTS[name].text)) for p, _ in problems for name in variants)
        built = builder.build_all(jobs)
        for problem, count in problems:
            rows.append(layer(problem, count, {name: next(built)[1] for name in variants}, rate, backend))
            backend.release()
    summary = summarize(rows)
    for what, figures in summary.items():
        print(f"{what:30} {100 * figures['mean']:6.1f}% of the limit's speed, at least {100 * figures['least']:6.1f}%")
    if args.out:
        records.write(args.out, copy_bytes_per_us=rate, rate=RATE, summary=summary, rows=rows)
    return int(any(not column.get("exact") for row in rows for column in row["columns"].values()))


if __name__ == "__main__":
    sys.exit(main())
