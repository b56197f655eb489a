"""Findings from benchmarks/results about LeNet, im2col's forms, and strategies compared with a loop, in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convgen.bench.results import geomean
from convgen.reproduce.outcome import Outcome, Series
from convgen.spec import UsageError

#: Forms of im2col, and whose they are.
FORMS = {"loop_free": "loop-free (Zhang)", "taps": "two loops (Caffe)", "pixel": "a pixel (netcl)"}


#: What im2col and a GEMM gain over a loop, by the page.
_GAIN = {"least": 5.0, "most": 20.0}


def naive(record: Mapping[str, Any]) -> Outcome:
    """The page's claims on im2col and Winograd: float32, NCHW."""
    rows = record["rows"]
    columns = {"im2col": "im2col_us", "implicit GEMM": "implicit_gemm_us", "Winograd": "winograd_us"}
    series = [Series(name, [row["direct_us"] / row[column] for row in rows], 1) for name, column in columns.items()]
    series.append(Series("cuDNN", [row["direct_us"] / row["cudnn_planes_us"] for row in rows], 1))
    return Outcome(
        f"Strategies beside a loop on one {record['gpu']}, batch {rows[0]['n']}, commit {record['commit'][:7]}",
        "layer, 3x3",
        [row["layer"] for row in rows],
        (
            Series("a loop a thread, us", [row["direct_us"] for row in rows], 0),
            *series,
            *(Series(f"document, {name}", [value] * len(rows), 0, printed=True) for name, value in _GAIN.items()),
        ),
        "times as fast as a loop",
        (
            "float32, NCHW. The loop is strategy direct with an output a thread; cuDNN without TF32.",
            "The document's 5 to 20 times are im2col's; a loop that a GPU's caches serve is not so naive.",
        ),
        drawn=(*(s.name for s in series), *(f"document, {name}" for name in _GAIN)),
    )


def forms(record: Mapping[str, Any]) -> Outcome:
    """im2col alone: bytes read and written a second."""
    rows = [row for row in record["rows"] if row["op"] == "im2col"]
    copy = record.get("copy_gb_per_s")
    if not rows or not copy:
        raise UsageError("the results have no im2col alone\nhint: measure again, without --first")
    return Outcome(
        f"Forms of im2col on one {record['gpu']}, batch {rows[0]['n']}, commit {record['commit'][:7]}",
        "layer",
        [row["layer"] for row in rows],
        [
            Series(f"{name}, {unit}", [row["bytes"] / row[f"{form}_us"] / 1e3 * scale for row in rows], 0)
            for form, name in FORMS.items()
            for unit, scale in (("GB/s", 1.0), ("percent of a copy", 100 / copy))
        ],
        "GB/s",
        (f"float32, x in NCHW, a column for each pixel. A copy of 1 GiB moves {copy} GB/s.",),
        drawn=tuple(f"{name}, GB/s" for name in FORMS.values()),
    )


#: Of table 4: Caffe's milliseconds and the author's, on an NVIDIA K80.
_TABLE_4 = {
    ("conv1", "forward"): (6.01, 4.63),
    ("conv1", "backward"): (11.49, 10.26),
    ("conv2", "forward"): (10.90, 9.54),
    ("conv2", "backward"): (14.00, 10.94),
}


def lenet_layers(record: Mapping[str, Any]) -> Outcome:
    """Table 4: a forward pass, and both gradients (of conv1, the filter's alone: nothing reads the images')."""
    rows = {(row["layer"], row["op"]): row for row in record["rows"]}
    passes = {
        ("conv1", "forward"): ["fprop"],
        ("conv1", "backward"): ["wgrad"],
        ("conv2", "forward"): ["fprop"],
        ("conv2", "backward"): ["wgrad", "dgrad"],
    }

    def total(layer: str, ops: list[str], column: str) -> float:
        return sum(rows[layer, op].get(column, rows[layer, op].get("col2im_us", 0.0)) for op in ops)

    columns = {f"{form}_us": name for form, name in FORMS.items()} | {"us": "convgen", "cudnn_planes_us": "cuDNN"}
    if any((layer, op) not in rows for (layer, _), ops in passes.items() for op in ops):
        raise UsageError("the results lack layers of LeNet\nhint: measure again, without --first")
    batch = rows["conv1", "fprop"]["n"]
    return Outcome(
        f"LeNet's convolutions on one {record['gpu']}, batch {batch}, commit {record['commit'][:7]}",
        "pass",
        [" ".join(key) for key in passes],
        (
            *(
                Series(f"{name}, us", [total(layer, ops, column) for (layer, _), ops in passes.items()], 1)
                for column, name in columns.items()
            ),
            Series("Caffe on a K80, us", [1e3 * _TABLE_4[key][0] for key in passes], 0, printed=True),
            Series("Zhang on a K80, us", [1e3 * _TABLE_4[key][1] for key in passes], 0, printed=True),
        ),
        "us",
        ("float32, NCHW; a form lowers x for the forward pass and the filter's gradient, col2im sums the image's.",),
        logarithmic=True,
    )


#: Of table 3: steps a second of Caffe and the author, by batch.
_TABLE_3 = {32: (85.2, 100.1), 64: (44.3, 53.3), 128: (22.8, 27.2), 256: (11.6, 13.7)}


def lenet(record: Mapping[str, Any]) -> Outcome:
    """Table 3: steps of training a second."""
    rows = record["rows"]
    columns = {"auto_per_s": "convgen", "im2col_per_s": "convgen, im2col", "torch_per_s": "torch, cuDNN"}
    printed = [_TABLE_3.get(row["batch"], (None, None)) for row in rows]
    ratio = geomean(row["auto_per_s"] / row["im2col_per_s"] for row in rows)
    return Outcome(
        f"Steps a second of LeNet on one {record['gpu']}, commit {record['commit'][:7]}",
        "batch",
        [str(row["batch"]) for row in rows],
        (
            *(Series(name, [row[column] for row in rows], 1) for column, name in columns.items()),
            Series("Caffe on a K80", [found[0] for found in printed], 1, printed=True),
            Series("Zhang on a K80", [found[1] for found in printed], 1, printed=True),
        ),
        "steps a second",
        (
            f"examples/lenet, whose layers but the convolutions are CuPy's: {ratio:.2f} times as fast as with im2col.",
            "On an H200 a step's kernels take less time than Python does to launch them.",
        ),
    )
