"""What files of benchmarks/results say: of `convgen bench` and benchmarks/strides.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convgen import driver
from convgen.bench.results import geomean
from convgen.reproduce.networks import NAMES, Layer, layers
from convgen.reproduce.outcome import Outcome, Series
from convgen.spec import Spec, UsageError


def networks(record: Mapping[str, Any]) -> Outcome:
    """Figure 17: the time of each network's convolutions, all of them, beside cuDNN's.  Raises UsageError."""
    measured: dict[Layer, tuple[float, float]] = {}
    batches = set()
    for row in record["rows"]:
        if row["us"] and row["cudnn_us"]:
            measured[_layer(row["spec"])] = row["us"], row["cudnn_us"]
            batches.add(row["n"])
    if len(batches) != 1:
        raise UsageError(
            "the results are not of one batch\nhint: convgen bench --suite vgg16,resnet50 -D n=8 --out FILE"
        )
    found = {name: _weighed(layers(name), measured) for name in NAMES}
    found = {name: sums for name, sums in found.items() if sums[0]}
    ours, cudnn, covered = zip(*found.values(), strict=True)
    ratios = [b / a for a, b in zip(ours, cudnn, strict=True)]
    return Outcome(
        f"Networks' convolutions on one {record['gpu']}, batch {batches.pop()}, commit {record['commit'][:7]}",
        "network",
        list(found),
        (
            Series("convgen, ms", [us / 1e3 for us in ours], 3),
            Series("cuDNN, ms", [us / 1e3 for us in cudnn], 3),
            Series("cuDNN / convgen", ratios),
            Series("covered, percent", [100 * share for share in covered], 1),
        ),
        "cuDNN's time / convgen's",
        (
            f"Geometric mean {geomean(ratios):.2f}. Layers alone, times their number; covered is the share of the "
            "network's multiply-adds that was measured.",
            "The document: 0.99 on a V100.",
        ),
        drawn=("cuDNN / convgen",),
    )


def _layer(text: str) -> Layer:
    """Of a spec.  Layers that no network here has (grouped, not square) are like none of theirs."""
    (compilation,) = driver.load(Spec(text))
    p = compilation.request.problem
    square = p.rank == 2 and all(len({*axes}) == 1 for axes in (p.input, p.filter, p.stride, (*p.pad_lo, *p.pad_hi)))
    if not square or p.groups > 1 or {*p.dilation} != {1}:
        return Layer(0, 0, 0)
    return Layer(p.c, p.input[0], p.k, p.filter[0], p.stride[0], p.pad_lo[0])


def _weighed(
    found: Mapping[Layer, int], measured: Mapping[Layer, tuple[float, float]]
) -> tuple[float, float, float]:  # fmt: skip
    """Our time, cuDNN's, and the share of multiply-adds that these are of."""
    ours = cudnn = macs = whole = 0.0
    for layer, count in found.items():
        plain = Layer(layer.c, layer.h, layer.k, layer.r, layer.stride, layer.pad)
        whole += count * layer.macs
        if plain in measured:
            a, b = measured[plain]
            ours, cudnn, macs = ours + count * a, cudnn + count * b, macs + count * layer.macs
    return ours, cudnn, macs / whole


def stride(record: Mapping[str, Any]) -> Outcome:
    """Figures 4a and 18a: results of benchmarks/strides.py, layers whose channels fill tensor cores."""
    rows = [row for row in record["rows"] if not row["layer"].startswith("3_channels")]
    labels, series = list[str](), dict[str, list[float | None]]()
    for n, at in sorted({(row["n"], row["stride"]) for row in rows}):
        found = [row for row in rows if (row["n"], row["stride"]) == (n, at)]
        labels.append(f"{n}, {at}")
        values = {
            "convgen, time per output": geomean(row["per_output"] for row in found),
            "cuDNN, time per output": geomean(row["cudnn_per_output"] for row in found),
            "cuDNN / convgen": geomean(row["cudnn_us"] / row["us"] for row in found),
        }
        for name, value in values.items():
            series.setdefault(name, []).append(value)
    return Outcome(
        f"Strides on one {record['gpu']}, geometric means of {len({row['layer'] for row in rows})} layers, commit "
        f"{record['commit'][:7]}",
        "batch, stride",
        labels,
        [Series(name, values) for name, values in series.items()],
        "relative to stride 1",
        (
            "Time per output is relative to the layer's own at stride 1.",
            "The document, on a V100: 1.43 at stride 2 and 2.5 at stride 4 for cuDNN (30% and 60% fewer FLOPS);",
            "its kernel is 1.20 times as fast as cuDNN beyond stride 1.",
        ),
        drawn=("convgen, time per output", "cuDNN, time per output"),
    )
