"""What the documents' experiments take from a GPU; `convgen reproduce NAME --from FILE` sets it beside their figures.

    python benchmarks/documents.py stride --batch 8 64 --json results/strides_h200.json
    python benchmarks/documents.py explicit --batch 64 --json results/explicit_h200.json

A row is a convolution, its columns are kernels of it, verified and then timed in turn, alone, with cuDNN and a GEMM
where a row has them: `us` is what `auto` takes, `NAME_us` a column's time.  Of explicit im2col, the launches that lower
x, multiply and finish are timed apart as well.  `lenet` times steps of examples/lenet instead.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu

from convgen import planner
from convgen.bench import baselines
from convgen.bench.backend import TorchBackend
from convgen.bench.build import Builder, Failure, Job
from convgen.bench.measure import Captured, Checker, buffer_sets, capture, launcher, time_in_turn
from convgen.bench.runner import alone
from convgen.frontend import load
from convgen.ir.plan import Gemm, Launch
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.reproduce.networks import NAMES, Layer, layers
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
LENET = Path(__file__).resolve().parent.parent / "examples" / "lenet"
#: Explicit im2col in one slice, however large the lowered matrix is.
WHOLE: Options = {"workspace_mb": 131072}
AUTO = {"": ("auto", {})}
FORMS = ("loop_free", "taps", "pixel")


@dataclass(frozen=True)
class Row:
    """A convolution, what else its row says, and its columns: a name, the strategy and its options."""

    problem: ConvProblem
    columns: dict[str, tuple[str, Options]]
    about: dict[str, Any]
    libraries: tuple[str, ...] = ("cudnn",)

    @property
    def jobs(self) -> list[Job]:
        return [Job(self.problem, TARGET, *column, planned=True) for column in self.columns.values()]


def problem(layer: Layer, n: int, name: str, dtype: str = "f16") -> ConvProblem:
    return load(layer.spec(name, n, dtype))[0].problem


# ---- the experiments -----------------------------------------------------------------------------


def networks(n: int) -> Iterator[Row]:
    """Every convolution of the seven networks: Zhou et al., figure 17."""
    for found in whole(n):
        yield Row(found, AUTO, {})


def explicit(n: int) -> Iterator[Row]:
    """The same layers by explicit im2col: figure 2a."""
    for found in whole(n):
        yield Row(found, AUTO | {"explicit": ("im2col", WHOLE)}, {}, ())


def whole(n: int) -> Iterator[ConvProblem]:
    """Every convolution of the seven networks, once."""
    found = dict.fromkeys(layer for name in NAMES for layer in layers(name))
    for layer in dict.fromkeys(replace(layer, projection=False) for layer in found):
        yield problem(layer, n, "layer")


#: Of figures 4a and 18a: what the layer is called, and the layer at stride 1.
STRIDED = {
    "3 channels, 7x7": Layer(3, 224, 64, 7, pad=3),
    "64 channels, 3x3": Layer(64, 56, 64, 3, pad=1),
    "128 channels, 3x3": Layer(128, 56, 128, 3, pad=1),
    "256 channels, 3x3": Layer(256, 28, 256, 3, pad=1),
    "128 channels, 5x5": Layer(128, 28, 128, 5, pad=2),
    "256 channels, 1x1": Layer(256, 56, 256),
}


def stride(n: int) -> Iterator[Row]:
    """Strides 1, 2 and 4; mma_gemm, whose loads see addresses, in three orders of gemm_k: figures 4a and 18a."""
    orders = ("channel_first", "channel_last", "taps_inner")
    columns = AUTO | {order: ("implicit_gemm", {"kernel": "mma_gemm", "order": order}) for order in orders}
    columns["explicit"] = "im2col", WHOLE
    for (name, layer), at in itertools.product(STRIDED.items(), (1, 2, 4)):
        p = problem(replace(layer, stride=at), n, "layer")
        yield Row(p, columns, {"layer": name, "stride": at, "outputs": p.y.size}, ("cudnn", "gemm"))


def reuse(n: int) -> Iterator[Row]:
    """Taps inside of channels, and channels inside of taps, otherwise alike; and a halo tile: figure 18b."""
    seen: set[ConvProblem] = set()
    for name in NAMES:
        for layer in layers(name):
            p = problem(layer, n, "layer")
            if layer.r > 1 and layer.stride == 1 and layer.c >= 16 and p not in seen:
                seen.add(p)
                columns = {"halo": ("tma_halo", {})} | _both_orders(p, "tma_im2col", "channels_inner")
                columns |= _both_orders(p, "implicit_gemm", "channel_first", kernel="mma_gemm")
                yield Row(p, AUTO | columns, {"layer": f"{name} {layer.c}, {layer.h}x{layer.h}, {layer.r}x{layer.r}"})


def _both_orders(p: ConvProblem, strategy: str, order: str, **fixed: str) -> dict[str, tuple[str, Options]]:
    """What is chosen for an order of gemm_k, and the same configuration with taps inside; nothing where either cannot
    be."""
    found = planner.choose(p, TARGET, strategy, {"order": order, **fixed})
    config: Any = found.strategy.plan(p, TARGET, found.options).layout
    options = {**config.config.options, **fixed}
    other = options | {"order": "taps_inner"}
    if found.strategy.obstacles(p, TARGET, other):
        return {}
    return {f"{strategy}_{order}": (strategy, options), f"{strategy}_taps_inner": (strategy, other)}


#: Of figure 14a: 8 channels.
FEW = Layer(8, 128, 128, 3, pad=1)
TILE: Options = {"kernel": "tma_im2col", "tile.m": 128, "tile.n": 128, "order": "channels_inner", "swap_ab": 0}


def multi_tile(n: int) -> Iterator[Row]:
    """Taps in a stage or a k block, for few channels: figures 14a and 14b."""
    p = problem(FEW, n, "layer")
    for taps in (1, 3, 9):
        options = TILE | {"tile.k": 16, "k_blocks": taps, "stages": 2}
        yield Row(p, {"taps": ("tma_im2col", options)}, {"c": FEW.c, "r": FEW.r, "taps": taps, "part": "stage"}, ())
    for span in (32, 64):
        about = {"c": FEW.c, "r": FEW.r, "taps": span // FEW.c, "part": "k block"}
        options = {"kernel": "mma_gemm", "tile.k": span, "tile.m": 128, "tile.n": 128, "order": "channel_first"}
        yield Row(p, {"taps": ("implicit_gemm", options)}, about, ())
    for r, c in itertools.product((3, 5), (4, 8, 16, 32, 64, 128)):
        p = problem(Layer(c, 128, 128, r, pad=r // 2), n, "layer")
        taps = max(t for t in range(1, min(128 // c, r) + 1) if r * r % t == 0)
        columns = dict(AUTO)
        if c >= 8:  # TMA's rows are of 16 bytes
            fixed = TILE | {"tile.k": min(64, max(16, c))}
            counts = {"one": 1, "merged": taps} if taps > 1 else {"one": 1}
            columns |= {name: ("tma_im2col", fixed | {"k_blocks": count}) for name, count in counts.items()}
        yield Row(p, columns, {"c": c, "r": r, "taps": taps, "part": "strategy"}, ())


def naive(n: int) -> Iterator[Row]:
    """A loop over windows, and everything else, in float32 and NCHW: the netcl wiki's page."""
    for layer in (Layer(64, 56, 64, 3, pad=1), Layer(128, 28, 128, 3, pad=1), Layer(256, 14, 256, 3, pad=1)):
        columns = {name: (name, dict[str, Any]()) for name in ("im2col", "implicit_gemm", "winograd")}
        columns["direct"] = "direct", {"tile": 1}
        p = in_planes(layer, n, "f32")
        yield Row(p, AUTO | columns, {"layer": f"{layer.c} channels, {layer.h}x{layer.h}"}, ("cudnn_planes",))


def in_planes(layer: Layer, n: int, dtype: str, op: str = "fprop") -> ConvProblem:
    """Images in NCHW, filters in KCRS, as Caffe and netcl have them."""
    asked = "" if op == "fprop" else f"op {op}"
    text = (
        f"conv layer {{ {asked}  input x: {dtype}[n={n}, c={layer.c}, h={layer.h}, w={layer.h}]"
        f"  filter w: {dtype}[k={layer.k}, c={layer.c}, r={layer.r}, s={layer.r}]  output y: {dtype}[n, k, p, q]"
        f"  stride {layer.stride}  pad {layer.pad} }}"
    )
    return load(text)[0].problem


#: Zhang's modified LeNet.
LENET_LAYERS = {"conv1": Layer(1, 28, 20, 5), "conv2": Layer(20, 12, 50, 5)}


def forms(n: int) -> Iterator[Row]:
    """Zhang's table 4: LeNet's convolutions and gradients in float32, each form of im2col; and im2col alone."""
    for (name, layer), op in itertools.product(LENET_LAYERS.items(), ("fprop", "wgrad", "dgrad")):
        lowers = (
            {f: ("im2col", {"form": f}) for f in FORMS} if op != "dgrad" else {"col2im": ("im2col", dict[str, Any]())}
        )
        yield Row(in_planes(layer, n, "f32", op), AUTO | lowers, {"layer": name, "op": op}, ("cudnn_planes",))
    for layer in (*LENET_LAYERS.values(), Layer(64, 56, 64, 3, pad=1), Layer(256, 14, 256, 3, pad=1)):
        text = (
            f"conv layer {{ op im2col  input x: f32[n={n}, c={layer.c}, h={layer.h}, w={layer.h}]"
            f"  filter w: f32[r={layer.r}, s={layer.r}]  lowered m: f32[n, c*r*s, p*q]  pad {layer.pad} }}"
        )
        p = load(text)[0].problem
        about = {"layer": f"{layer.c} channels, {layer.h}x{layer.h}, {layer.r}x{layer.r}", "op": "im2col"}
        yield Row(p, {f: ("im2col", {"form": f}) for f in FORMS}, about | {"bytes": p.min_bytes}, ())


EXPERIMENTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "networks": networks,
    "explicit": explicit,
    "stride": stride,
    "reuse": reuse,
    "multi-tile": multi_tile,
    "naive": naive,
    "forms": forms,
}
LIBRARIES: dict[str, Callable[[ConvProblem, TorchBackend], list[Captured]]] = {
    "cudnn": baselines.convolution,
    "cudnn_planes": baselines.convolution_in_planes,
    "gemm": baselines.gemm,
}

# ---- measuring -----------------------------------------------------------------------------------


def measure(rows: list[Row], backend: TorchBackend) -> Iterator[dict[str, Any]]:
    with Builder() as builder:
        built = builder.build_all(job for row in rows for job in row.jobs)
        for row in rows:
            yield figures(row, {name: next(built)[1] for name in row.columns}, backend)
            backend.release()


def figures(row: Row, kernels: dict[str, Artifact | Failure], backend: TorchBackend) -> dict[str, Any]:
    p = row.problem
    found: dict[str, Any] = row.about | {"spec": str(p), "n": p.n, "macs": p.macs, "kernels": {}}
    sets, checker = buffer_sets(p, backend), Checker(p, backend, ends=True)
    entrants = {}
    for name, artifact in kernels.items():
        if isinstance(artifact, Failure):
            found["kernels"][name] = artifact.message
            continue
        m = artifact.manifest
        found["kernels"][name] = f"{m.strategy}: {m.config}"
        if not (report := checker(Kernel(artifact), m.arithmetic)):
            raise SystemExit(f"{p.name} {name}: {report}\n{p}")
        if name == "taps":
            found["shared_bytes"] = max(step.shared_bytes for step in m.steps if isinstance(step, Launch))
        pieces = {name: alone(artifact), **(parts(artifact) if name == "explicit" else {})}
        entrants |= {n: [capture(launcher(Kernel(a), sets), len(sets), backend)] for n, a in pieces.items()}
    entrants |= {name: LIBRARIES[name](p, backend) for name in row.libraries}
    times = zip(entrants, time_in_turn(list(entrants.values()), backend), strict=True)
    found |= {f"{name}_us" if name else "us": round(timing.us, 3) for name, timing in times}
    print({key: value for key, value in found.items() if key not in ("spec", "kernels", "macs")}, flush=True)
    return found


def parts(artifact: Artifact) -> dict[str, Artifact]:
    """What explicit im2col does before its GEMM, the GEMM, and what it does behind it."""
    steps = artifact.manifest.steps
    (at,) = [i for i, step in enumerate(steps) if isinstance(step, Gemm)]
    cut = {"lower": steps[:at], "gemm_part": steps[at : at + 1], "finish": steps[at + 1 :]}
    return {name: replace(artifact, manifest=replace(artifact.manifest, steps=s)) for name, s in cut.items() if s}


def lenet(batches: list[int], steps: int = 200) -> Iterator[dict[str, Any]]:
    """Zhang's table 3: steps a second of examples/lenet, and of the same network by torch with cuDNN."""
    import cupy
    import numpy as np

    sys.path.insert(0, str(LENET))
    from digits import draw
    from lenet import LeNet

    for batch in batches:
        x, labels = map(cupy.asarray, draw(batch, np.random.default_rng(batch)))
        row: dict[str, Any] = {"batch": batch}
        for name in (None, "im2col"):
            step = partial(LeNet(cupy, name).step, x, labels)
            row[f"{name or 'auto'}_per_s"] = rate(step, steps, cupy.cuda.Device().synchronize)
        row["torch_per_s"] = rate(*torch_step(x, labels, steps))
        print(row, flush=True)
        yield row


def torch_step(x: Any, labels: Any, steps: int) -> tuple[Callable[[], Any], int, Callable[[], Any]]:
    import torch
    from torch import nn

    network = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Dropout(), nn.Linear(500, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    images, wanted = torch.as_tensor(x, device="cuda"), torch.as_tensor(labels, device="cuda")

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), wanted)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, steps, torch.cuda.synchronize


def rate(step: Callable[[], Any], steps: int, wait: Callable[[], Any]) -> float:
    """Steps a second, the median of five runs."""
    for _ in range(20):
        step()
    seconds = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(steps // 5):
            step()
        wait()
        seconds.append(time.perf_counter() - start)
    return round(steps / 5 / sorted(seconds)[2], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "lenet"])
    parser.add_argument("--batch", nargs="+", type=int, default=[64])
    parser.add_argument("--first", type=int, help="so many rows alone: a trial")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch", *(["cupy"] if args.experiment == "lenet" else []))
    backend = TorchBackend()
    if args.experiment == "lenet":
        rows = list(lenet(args.batch))
    else:
        wanted = [row for n in args.batch for row in EXPERIMENTS[args.experiment](n)]
        rows = list(measure(wanted[: args.first], backend))
    if args.json:
        copy = {"copy_gb_per_s": round(baselines.peaks("f16", backend).gb_per_s)} if args.experiment == "forms" else {}
        records.write(args.json, experiment=args.experiment, rows=rows, **copy)


if __name__ == "__main__":
    main()
