"""implicit_gemm and depthwise beside cuDNN, on the layers that TMA does not serve.

    python benchmarks/implicit_gemm.py --suite stems --batch 8 64 --candidates 10 --json results.json
    python benchmarks/implicit_gemm.py --suite aligned --also tile.m=192,tile.n=128,warps.m=4,warps.n=2

Every kernel is verified against the float64 reference (at a batch of at most two; at the full batch against
cuDNN's own result) before it is timed.  A row of the JSON is one layer at one batch: cuDNN's time on
channels_last tensors (and on NCHW tensors where the layer is in NCHW), the default configuration's time, and
that of every candidate that was asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu

from convgen.bench import baselines
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Job
from convgen.bench.measure import Checker, buffer_sets, set_count, time_graph, time_kernel
from convgen.ir.problem import SPATIAL, ConvProblem, Op, identifier
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

#: What a full-size result may differ from cuDNN's by, in units of the result's rms: both round to fp16.
AGREEMENT = 0.02
#: Bytes a second that an H200 copies.
COPY_GB_PER_S = 4300


@dataclass(frozen=True)
class Layer:
    name: str
    c: int
    k: int
    size: int
    filter: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    layout: str = "nhwc"


SUITES: dict[str, tuple[Layer, ...]] = {
    "stems": (
        Layer("resnet50/conv1", 3, 64, 224, 7, 2, 3),
        Layer("vgg16/conv1_1", 3, 64, 224, 3, 1, 1),
        Layer("alexnet/conv1", 3, 64, 224, 11, 4, 2),
        Layer("zfnet/conv1", 3, 96, 224, 7, 2, 1),
        Layer("yolov2/conv1", 3, 32, 416, 3, 1, 1),
    ),
    "unaligned": (
        Layer("yolov2/conv22", 1024, 425, 13, 1),
        Layer("lenet/conv1", 1, 20, 28, 5),
        Layer("lenet/conv2", 20, 50, 12, 5),
    ),
    "depthwise": (
        Layer("mbv2_dw_32_112", 32, 32, 112, 3, 1, 1, 32),
        Layer("mbv2_dw_96_112_s2", 96, 96, 112, 3, 2, 1, 96),
        Layer("mbv2_dw_144_56", 144, 144, 56, 3, 1, 1, 144),
        Layer("mbv2_dw_192_28", 192, 192, 28, 3, 1, 1, 192),
        Layer("mbv2_dw_192_28_s2", 192, 192, 28, 3, 2, 1, 192),
        Layer("mbv2_dw_384_14", 384, 384, 14, 3, 1, 1, 384),
        Layer("mbv2_dw_960_7", 960, 960, 7, 3, 1, 1, 960),
        Layer("convnext_dw_96_56", 96, 96, 56, 7, 1, 3, 96),
        Layer("convnext_dw_192_28", 192, 192, 28, 7, 1, 3, 192),
        Layer("convnext_dw_384_14", 384, 384, 14, 7, 1, 3, 384),
        Layer("convnext_dw_768_7", 768, 768, 7, 7, 1, 3, 768),
        Layer("dw_5x5_240_28", 240, 240, 28, 5, 1, 2, 240),
        Layer("dw_5x5_672_14", 672, 672, 14, 5, 1, 2, 672),
    ),
    "grouped": (
        Layer("resnext_g32_128_56", 128, 128, 56, 3, 1, 1, 32),
        Layer("resnext_g32_256_28", 256, 256, 28, 3, 1, 1, 32),
        Layer("resnext_g32_512_14", 512, 512, 14, 3, 1, 1, 32),
        Layer("resnext_g32_1024_7", 1024, 1024, 7, 3, 1, 1, 32),
        Layer("resnext_g32_256_56_s2", 256, 256, 56, 3, 2, 1, 32),
        Layer("resnext_g32_512_28_s2", 512, 512, 28, 3, 2, 1, 32),
        Layer("resnext_g32_1024_14_s2", 1024, 1024, 14, 3, 2, 1, 32),
    ),
    "nchw": (
        Layer("resnet50/conv1", 3, 64, 224, 7, 2, 3, 1, "nchw"),
        Layer("resnet50/res2_3x3", 64, 64, 56, 3, 1, 1, 1, "nchw"),
        Layer("resnet50/res2_1x1_c", 64, 256, 56, 1, 1, 0, 1, "nchw"),
        Layer("resnet50/res3_3x3", 128, 128, 28, 3, 1, 1, 1, "nchw"),
        Layer("resnet50/res4_3x3", 256, 256, 14, 3, 1, 1, 1, "nchw"),
        Layer("vgg16/conv3_2", 256, 256, 56, 3, 1, 1, 1, "nchw"),
    ),
    "aligned": (
        Layer("resnet50/res2_3x3", 64, 64, 56, 3, 1, 1),
        Layer("resnet50/res3_3x3", 128, 128, 28, 3, 1, 1),
        Layer("resnet50/res4_3x3", 256, 256, 14, 3, 1, 1),
        Layer("resnet50/res5_3x3", 512, 512, 7, 3, 1, 1),
        Layer("googlenet/3a_5x5", 16, 32, 28, 5, 1, 2),
        Layer("vgg16/conv3_2", 256, 256, 56, 3, 1, 1),
    ),
}  # fmt: skip


def problem(layer: Layer, n: int) -> ConvProblem:
    sp = SPATIAL[2]
    out = (layer.size + 2 * layer.pad - layer.filter) // layer.stride + 1
    extent = {"n": n, "c": layer.c, "k": layer.k} | dict.fromkeys(sp.input, layer.size)
    extent |= dict.fromkeys(sp.filter, layer.filter) | dict.fromkeys(sp.output, out)
    orders = {"nhwc": ("nhwc", "krsc", "npqk"), "nchw": ("nchw", "kcrs", "nkpq")}[layer.layout]
    c_of = {"x": layer.c, "w": layer.c // layer.groups, "y": 1}
    x, w, y = (
        Tensor(r, r, "f16", tuple(order), tuple(c_of[r] if d == "c" else extent[d] for d in order))
        for r, order in zip("xwy", orders, strict=True)
    )
    two = lambda v: (v, v)  # noqa: E731
    return ConvProblem(
        identifier(layer.name), Op.FPROP, n, layer.c, layer.k, two(layer.size), two(layer.filter), two(out),
        two(layer.stride), (1, 1), two(layer.pad), two(layer.pad), layer.groups, x, w, y,
    )  # fmt: skip


def nchw_tensors(p: ConvProblem, tensor: Tensor, array: Any) -> Any:
    """A torch tensor as PyTorch's convolution wants it: n c h w in shape, the memory as it is."""
    order = [tensor.dims.index(d) for d in {"x": "nchw", "w": "kcrs", "y": "nkpq"}[tensor.role]]
    return array.permute(order)


def cudnn_nchw(p: ConvProblem, backend: TorchBackend) -> float:
    """cuDNN's microseconds on contiguous NCHW tensors."""
    torch, sets = backend.torch, set_count(p.min_bytes)
    with backend.stream():
        x = [backend.normal(p.x).contiguous() for _ in range(sets)]
        w = [backend.normal(p.w).contiguous() for _ in range(sets)]
    held = [None] * sets

    def run(i: int) -> None:
        held[i] = torch.convolution(x[i], w[i], None, p.stride, p.pad_lo, p.dilation, False, (0, 0), p.groups)

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False):
        return min(time_graph(run, sets, backend).us for _ in range(2))


def agrees(kernel: Kernel, p: ConvProblem, backend: TorchBackend) -> str:
    """Empty where the result of random inputs at the full batch is cuDNN's."""
    torch = backend.torch
    with backend.stream():
        x, w = backend.normal(p.x), backend.normal(p.w)
        out = backend.poisoned(p.y)
        kernel(x, w, out=out)
        expected = torch.convolution(
            nchw_tensors(p, p.x, x),
            nchw_tensors(p, p.w, w),
            None,
            p.stride,
            p.pad_lo,
            p.dilation,
            False,
            (0, 0),
            p.groups,
        )
        got = nchw_tensors(p, p.y, out)
        rms = expected.float().square().mean().sqrt().item()
        worst = 0.0
        for i in range(p.n):
            difference = (got[i].float() - expected[i].float()).abs().max().item()
            worst = max(worst, difference if difference == difference else float("inf"))
    return "" if worst <= AGREEMENT * rms else f"differs from cuDNN by {worst / rms:.3g} rms"


def said(text: str) -> Options:
    """Options from their text: names and values, between commas."""
    pairs = (word.split("=") for word in text.split(","))
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def chosen(strategy: str, p: ConvProblem, args: argparse.Namespace) -> list[Options]:
    """The default's options, then those that were asked for and serve, then the most promising candidates."""
    where, found = TARGETS[args.target], strategies.STRATEGIES[strategy]
    asked = [o for o in ({}, *args.also) if not found.obstacles(p, where, o)]
    planned = [found.plan(p, where, o).config.options for o in asked]  # type: ignore[attr-defined]
    offered = found.candidates(p, where) if args.candidates else []  # type: ignore[attr-defined]
    others = [o for o in offered if o not in planned and (not args.kernel or o.get("kernel") in args.kernel)]
    return [o for i, o in enumerate(planned) if o not in planned[:i]] + others[: args.candidates]


def jobs(layers: list[Layer], args: argparse.Namespace) -> Iterator[tuple[Layer, int, str, Options]]:
    for layer in layers:
        for n in args.batch:
            strategy = args.strategy or ("depthwise" if layer.groups == layer.c > 1 else "implicit_gemm")
            if strategy not in strategies.NAMES or strategies.STRATEGIES[strategy].obstacles(
                problem(layer, n), TARGETS[args.target], {}
            ):
                strategy = "implicit_gemm"
            for options in chosen(strategy, problem(layer, n), args):
                yield layer, n, strategy, options


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    backend = TorchBackend()
    target = TARGETS[args.target]
    layers = [layer for suite in args.suite for layer in SUITES[suite]]
    work = list(jobs(layers, args))
    small = {n: min(n, 2) for n in args.batch}
    rows: list[dict[str, Any]] = []
    baseline: dict[tuple[str, str, int], dict[str, float]] = {}
    checkers: dict[tuple[str, str, int], Checker] = {}
    with Builder() as builder:
        wanted = []
        for layer, n, strategy, options in work:
            wanted.append(Job(problem(layer, n), target, strategy, options))
            wanted.append(Job(problem(layer, small[n]), target, strategy, options))
        built = builder.build_all(wanted)
        for layer, n, strategy, options in work:
            full, check = next(built)[1], next(built)[1]
            p, q = problem(layer, n), problem(layer, small[n])
            key = (layer.name, layer.layout, n)
            if key not in baseline:
                baseline[key] = {"cudnn_us": baselines.cudnn(replace(p, **nhwc(layer, n)), backend).us}
                if layer.layout == "nchw":
                    baseline[key]["cudnn_nchw_us"] = cudnn_nchw(p, backend)
            row: dict[str, Any] = {
                "layer": layer.name,
                "layout": layer.layout,
                "n": n,
                "strategy": strategy,
                "options": dict(options),
                "default": all((r["layer"], r["layout"], r["n"]) != key for r in rows),
            }
            row |= baseline[key]
            row["roof_us"] = round(p.min_bytes / COPY_GB_PER_S / 1e3, 2)
            rows.append(row)
            if not isinstance(full, Artifact) or not isinstance(check, Artifact):
                row["failure"] = (full if not isinstance(full, Artifact) else check).message
                print(line(row), flush=True)
                continue
            kernel = Kernel(full)
            row["config"] = full.manifest.config
            row["registers"] = [r.registers for r in full.manifest.resources.values()]
            row["spills"] = [r.spill_stores for r in full.manifest.resources.values()]
            small_key = (layer.name, layer.layout, small[n])
            if small_key not in checkers:
                checkers[small_key] = Checker(q, backend)
            report = checkers[small_key](Kernel(check), check.manifest.arithmetic)
            wrong = "" if report else str(report)
            row["wrong"] = wrong or agrees(kernel, p, backend)
            row["us"] = time_kernel(kernel, buffer_sets(p, backend), backend, 20 * row["cudnn_us"]).us
            print(line(row), flush=True)
            backend.release()
    return rows


def nhwc(layer: Layer, n: int) -> dict[str, Tensor]:
    p = problem(replace(layer, layout="nhwc"), n)
    return {"x": p.x, "w": p.w, "y": p.y}


def line(row: dict[str, Any]) -> str:
    head = f"{row['layer']:24} {row['layout']} n={row['n']:<3} cuDNN {row['cudnn_us']:8.2f}"
    if "cudnn_nchw_us" in row:
        head += f" (NCHW {row['cudnn_nchw_us']:8.2f})"
    if "us" not in row:
        return f"{head}  {row['options']}: {row['failure']}"
    default = " default" if row["default"] else ""
    faults = (" SPILLS" if any(row["spills"]) else "") + (f" WRONG {row['wrong']}" if row["wrong"] else "")
    against = row.get("cudnn_nchw_us", row["cudnn_us"])
    return (
        f"{head}  {row['us']:8.2f} us {against / row['us']:5.2f}x  {100 * row['roof_us'] / row['us']:4.0f}% of copy"
        f"  {row['config']}{default}{faults}"
    )


def best(rows: list[dict[str, Any]]) -> str:
    """One line a layer: the default, and the best candidate."""
    lines = []
    for key in dict.fromkeys((r["layer"], r["layout"], r["n"]) for r in rows):
        mine = [r for r in rows if (r["layer"], r["layout"], r["n"]) == key and "us" in r and not r["wrong"]]
        if not mine:
            lines.append(f"{key[0]:24} {key[1]} n={key[2]}: nothing right")
            continue
        first = next((r for r in mine if r["default"]), None)
        fastest = min(mine, key=lambda r: r["us"])
        against = fastest.get("cudnn_nchw_us", fastest["cudnn_us"])
        default = f"default {first['us']:8.2f} ({against / first['us']:.2f}x), " if first else ""
        lines.append(
            f"{key[0]:24} {key[1]} n={key[2]:<3} cuDNN {against:8.2f}, {default}"
            f"best {fastest['us']:8.2f} ({against / fastest['us']:.2f}x) {fastest['config']}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=sorted(SUITES), default=sorted(SUITES))
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--candidates", type=int, default=0, help="how many candidates to time besides the default")
    parser.add_argument("--also", nargs="+", type=said, default=[], help="options to time where a layer allows them")
    parser.add_argument("--kernel", nargs="+", default=[], help="candidates of these kernels alone")
    parser.add_argument("--strategy", help="in place of the layer's own")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    rows = measure(args)
    print("\n" + best(rows))
    if args.json:
        records.write(args.json, rows=rows)
    return any(r.get("wrong") for r in rows)


if __name__ == "__main__":
    sys.exit(main())
