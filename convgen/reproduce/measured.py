"""Findings from benchmarks/results about networks, and about layers in float16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convgen import driver
from convgen.bench.results import geomean
from convgen.diagnostics import listing
from convgen.reproduce.networks import NAMES, Layer, layers
from convgen.reproduce.outcome import Outcome, Series
from convgen.spec import Spec, UsageError

#: What the documents print is mostly a mean.
MEAN, V100 = "geometric mean", "document (V100)"
#: Of cuDNN, by stride.
_FIGURE_4A = {1: 1.0, 2: 1.43, 4: 2.5}


def _on_v100(labels: int, mean: float) -> Series:
    """The document's mean, behind so many labels that it prints no value for."""
    return Series(V100, [*[None] * labels, mean], printed=True)


#: What to do about results that show no network.
_MEASURE = "hint: convgen bench --suite vgg16,resnet50 -D n=8 --out FILE"


def networks(record: Mapping[str, Any]) -> Outcome:
    """Figure 17: the time of each network's convolutions, all of them, beside cuDNN's.  Raises UsageError."""
    measured: dict[Layer, tuple[float, float]] = {}
    batches = set()
    for row in record["rows"]:
        if row["us"] and row["cudnn_us"]:
            measured[_layer(row["spec"])] = row["us"], row["cudnn_us"]
            batches.add(row["n"])
    if len(batches) != 1:
        raise UsageError(f"the results are not of one batch\n{_MEASURE}")
    found = {name: _weighed(layers(name), measured) for name in NAMES}
    found = {name: sums for name, sums in found.items() if sums[0]}
    if not found:
        raise UsageError(f"none of the results is of a layer of {listing(NAMES, 'or')}\n{_MEASURE}")
    ours, cudnn, covered = zip(*found.values(), strict=True)
    ratios = [b / a for a, b in zip(ours, cudnn, strict=True)]
    return Outcome(
        f"Networks' convolutions on one {record['gpu']}, batch {batches.pop()}, commit {record['commit'][:7]}",
        "network",
        [*found, MEAN],
        (
            Series("convgen, ms", [*(us / 1e3 for us in ours), None], 3),
            Series("cuDNN, ms", [*(us / 1e3 for us in cudnn), None], 3),
            Series("cuDNN / convgen", [*ratios, geomean(ratios)]),
            _on_v100(len(ratios), 0.99),
            Series("covered, percent", [*(100 * share for share in covered), None], 1),
        ),
        "cuDNN's time / convgen's",
        (
            "Layers alone, times their number; covered is the share of the network's multiply-adds that was measured.",
            "The document's kernel is as fast as cuDNN's at stride 1, and faster at others.",
        ),
        drawn=("cuDNN / convgen", V100),
    )


def _layer(text: str) -> Layer:
    """A spec's layer.  Layers that no network here has (grouped, not square) are like none of theirs."""
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
        whole += count * layer.macs
        if found_us := measured.get(_plain(layer)):
            a, b = found_us
            ours, cudnn, macs = ours + count * a, cudnn + count * b, macs + count * layer.macs
    return ours, cudnn, macs / whole


def explicit(record: Mapping[str, Any]) -> Outcome:
    """Figure 2a: each network's time by explicit im2col, and its parts, over that of what convgen takes."""
    columns = ("us", "lower_us", "gemm_part_us", "finish_us", "explicit_us")
    measured = {_layer(row["spec"]): [row.get(name, 0.0) for name in columns] for row in record["rows"]}
    names, shares = [], []
    for name in NAMES:
        counted = [(layers(name)[layer], measured.get(_plain(layer))) for layer in layers(name)]
        if all(found for _, found in counted):
            whole = [sum(count * found[i] for count, found in counted if found) for i in range(len(columns))]
            names.append(name)
            shares.append([us / whole[0] for us in whole[1:]])
    if not names:
        raise UsageError("the results have no network whole\nhint: measure again, without --first")
    parts = ("lowering", "GEMM", "finishing")
    series = [Series(title, [*(share[i] for share in shares), None]) for i, title in enumerate(parts)]
    whole = [share[-1] for share in shares]
    series += [Series("explicit im2col", [*whole, geomean(whole)]), _on_v100(len(whole), 1.28)]
    return Outcome(
        f"Networks by explicit im2col on one {record['gpu']}, batch {_batch(record)}, commit {record['commit'][:7]}",
        "network",
        [*names, MEAN],
        [s for s in series if any(s.values)],
        "relative to implicit",
        (
            "All convolutions of a network, each alone, times their number.",
            "The GEMM is cuBLAS's, of the lowered matrix; `auto` multiplies without one.",
            "The document: of its 1.28 the GEMM is 1.0. An H200's tensor cores are eight times as fast as a V100's,",
            "and its memory five times: bytes of the lowered matrix weigh more.",
        ),
    )


def _plain(layer: Layer) -> Layer:
    """Whether it is a projection does not matter to its time."""
    return replace(layer, projection=False)


def _batch(record: Mapping[str, Any]) -> int:
    """Raises UsageError where the results are of several."""
    batches = {row["n"] for row in record["rows"]}
    if len(batches) != 1:
        raise UsageError("the results are not of one batch\nhint: measure one alone")
    return batches.pop()


#: Columns of benchmarks/documents.py stride, and their names.
_STRIDED = {
    "us": "convgen",
    "channel_first_us": "channel-first",
    "channel_last_us": "channel-last",
    "taps_inner_us": "taps inside",
    "explicit_us": "explicit",
    "gemm_us": "GEMM alone",
    "cudnn_us": "cuDNN",
}


def stride(record: Mapping[str, Any]) -> Outcome:
    """Figures 4a and 18a: layers whose channels fill tensor cores."""
    rows = [row for row in record["rows"] if not row["layer"].startswith("3 channels")]
    first = {(row["layer"], row["n"]): row for row in rows if row["stride"] == 1}
    labels, series = list[str](), dict[str, list[float | None]]()
    for n, at in sorted({(row["n"], row["stride"]) for row in rows}):
        found = [row for row in rows if (row["n"], row["stride"]) == (n, at)]
        labels.append(f"{n}, {at}")
        for column, name in _STRIDED.items():
            per_output = (
                row[column] / row["outputs"] / first[row["layer"], n][column] * first[row["layer"], n]["outputs"]
                for row in found
            )
            series.setdefault(name, []).append(geomean(per_output))
        series.setdefault(V100, []).append(_FIGURE_4A.get(at))
        series.setdefault("cuDNN / convgen", []).append(geomean(row["cudnn_us"] / row["us"] for row in found))
    return Outcome(
        f"Strides on one {record['gpu']}, geometric means of {len({row['layer'] for row in rows})} layers, commit "
        f"{record['commit'][:7]}",
        "batch, stride",
        labels,
        [Series(name, values, printed=name == V100) for name, values in series.items()],
        "time per output, relative to stride 1",
        (
            "Time per output is relative to the layer's own at stride 1. The orders of gemm_k are those of mma_gemm.",
            "The document's is cuDNN's (30% and 60% fewer FLOPS); its kernel is 1.20 times as fast beyond stride 1.",
            "At batch 8 layers of stride 4 are too small to fill an H200, whatever the kernel.",
        ),
        drawn=("convgen", "cuDNN", V100),
    )


#: A kernel's two orders of gemm_k in benchmarks/documents.py reuse.
_ORDERS = {
    "tma_im2col": ("tma_im2col_channels_inner_us", "tma_im2col_taps_inner_us"),
    "mma_gemm": ("implicit_gemm_channel_first_us", "implicit_gemm_taps_inner_us"),
}


def reuse(record: Mapping[str, Any]) -> Outcome:
    """Figure 18b: the gain from walking the taps inside the channels, and from keeping a halo tile."""
    # where a k block does not divide the channels, mma_gemm gathers single elements, which has nothing to do with reuse
    rows = [row for row in record["rows"] if _layer(row["spec"]).c % 64 == 0]
    values: dict[str, list[float | None]] = {
        f"{kernel}, taps inside": [row[a] / row[b] if a in row and b in row else None for row in rows]
        for kernel, (a, b) in _ORDERS.items()
    }
    a, _ = _ORDERS["tma_im2col"]
    values["tma_halo"] = [row[a] / row["halo_us"] if a in row else None for row in rows]
    return Outcome(
        f"Reuse between taps on one {record['gpu']}, batch {_batch(record)}, commit {record['commit'][:7]}",
        "layer",
        [*(row["layer"] for row in rows), MEAN],
        [
            *(Series(name, [*found, geomean(v for v in found if v)]) for name, found in values.items()),
            _on_v100(len(rows), 1.167),
        ],
        "times as fast as channels inside of taps",
        (
            "Layers of a multiple of 64 channels. The first two are the same configuration in another order;",
            "tma_halo is beside tma_im2col.",
            "The document's kernel reads x through L1; TMA and cp.async read it from L2, which holds it in any order.",
        ),
    )


def multi_tile(record: Mapping[str, Any]) -> Outcome:
    """Figure 14a: taps that a stage or a k block holds, their shared memory and speed."""
    rows = [row for row in record["rows"] if row["part"] != "strategy"]
    return Outcome(
        f"Taps at once, for 8 channels, on one {record['gpu']}, batch {_batch(record)}, commit {record['commit'][:7]}",
        "taps",
        [f"{row['taps']} in a {row['part']}" for row in rows],
        (
            Series("shared memory, KiB", [row["shared_bytes"] / 1024 for row in rows], 0),
            Series("TFLOPS", [_tflops(row, "taps_us") for row in rows], 1),
        ),
        "TFLOPS",
        (
            "In a stage of tma_im2col each tap is a k block of 16 channels, 8 of which are zeros;",
            "a k block of mma_gemm is filled with the channels of several taps. All else is the same.",
            "The document: workspace in proportion, with diminishing return (systolic array).",
        ),
        drawn=("TFLOPS",),
    )


def channels(record: Mapping[str, Any]) -> Outcome:
    """Figure 14b: MIN(128 / C, W_F) taps in a stage, beside one."""
    rows = [row for row in record["rows"] if row["part"] == "strategy"]
    return Outcome(
        f"Few channels on one {record['gpu']}, batch {_batch(record)}, commit {record['commit'][:7]}",
        "C, taps of a filter row",
        [f"{row['c']}, {row['r']}" for row in rows],
        (
            Series("one tap, TFLOPS", [_tflops(row, "one_us") for row in rows], 1),
            Series("several, TFLOPS", [_tflops(row, "merged_us") for row in rows], 1),
            Series("convgen's choice, TFLOPS", [_tflops(row, "us") for row in rows], 1),
        ),
        "TFLOPS",
        (
            "One tap in a stage of tma_im2col, and MIN(128 / C, W_F) where that divides the taps; C = 4 has no rows of",
            "16 bytes. Its time goes by the rows that TMA loads, not by stages; what convgen takes for few channels,",
            "kernels that keep lines or a halo tile, loads each row once.",
        ),
    )


def _tflops(row: Mapping[str, Any], column: str) -> float | None:
    return 2 * row["macs"] / row[column] / 1e6 if column in row else None
