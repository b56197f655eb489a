"""A picture of a benchmark: speedup over cuDNN for each layer, and where each stands under the roofline.

matplotlib is an extra (`pip install convgen[bench]`).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from convgen.bench.baselines import Peaks
from convgen.bench.results import Row, Run, summarize
from convgen.diagnostics import ConvgenError
from convgen.spec import UsageError

FORMATS = (".png", ".svg")
_OURS, _BEHIND, _CUDNN, _GEMM, _LINE = "#2a6f97", "#e07a5f", "#8d99ae", "#f2cc8f", "#333333"


def check(path: Path) -> None:
    """Raises UsageError where `draw` cannot make what the path's suffix says; ConvgenError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path}: a picture's name ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConvgenError("a picture needs matplotlib\nhint: pip install 'convgen[bench]'") from None


def draw(run: Run, path: Path) -> bytes:
    """The picture's file, in the format of the path's suffix.  Raises as `check` does."""
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(8.0, 0.19 * len(run.rows) + 2), 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(1, 1.1))
    _speedups(above, run.rows)
    _roofline(below, run)
    figure.suptitle(f"convgen on {run.environment.get('gpu', 'a GPU')}, {run.date[:10]}", x=0.01, ha="left")
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix.lower().removeprefix("."), dpi=130)
    return file.getvalue()


def _speedups(axes: Any, rows: list[Row]) -> None:
    """A bar for each layer that cuDNN runs: cuDNN's time over ours."""
    compared = [(row.name, row.speedup) for row in rows if row.speedup]
    values = [speedup for _, speedup in compared]
    axes.bar(
        range(len(values)), [v - 1 for v in values], bottom=1, color=[_OURS if v >= 1 else _BEHIND for v in values]
    )
    axes.axhline(1, color=_LINE, linewidth=1)
    mean = summarize(rows).speedup
    if mean:
        axes.axhline(mean, color=_OURS, linewidth=1, linestyle="--", label=f"geometric mean {mean:.2f}")
        axes.legend(frameon=False, loc="upper right")
    axes.set_xticks(range(len(values)), [name for name, _ in compared], rotation=90, fontsize=6)
    axes.set_xlim(-0.7, max(len(values), 1) - 0.3)
    axes.set_ylabel("speedup over cuDNN")
    _plain(axes)


def _roofline(axes: Any, run: Run) -> None:
    """TFLOP/s over FLOPs a byte, with the peaks that were measured in the same run."""

    def rate(row: Row, us: float | None) -> float | None:
        return row.flops / us / 1e6 if us and row.flops else None

    rows = run.rows
    series = (
        ("cuDNN", _CUDNN, "o", [rate(row, row.cudnn_us) for row in rows]),
        ("GEMM of the same size", _GEMM, "s", [rate(row, row.gemm_us) for row in rows]),
        ("convgen", _OURS, "D", [row.tflops for row in rows]),
    )
    intensities = [row.flops / row.min_bytes for row in rows]
    for label, color, marker, rates in series:
        points = [(x, y) for x, y in zip(intensities, rates, strict=True) if y]
        if points:
            axes.scatter(*zip(*points, strict=True), s=16, c=color, marker=marker, label=label, linewidths=0)
    span = [x for row, x in zip(rows, intensities, strict=True) if row.flops]
    for dtype, measured in run.peaks.items():
        peaks = Peaks(**measured)
        ends = [min([*span, peaks.ridge]) / 1.3, peaks.ridge, max([*span, peaks.ridge]) * 1.3]
        axes.plot(ends, list(map(peaks.tflops_at, ends)), color=_LINE, linewidth=1)
        above = {"xytext": (0, 4), "textcoords": "offset points"}
        axes.annotate(f"{dtype}: {peaks.tflops:.0f} TFLOP/s", (ends[2], peaks.tflops), ha="right", **above)
        axes.annotate(f"{peaks.gb_per_s:.0f} GB/s", (ends[0], peaks.tflops_at(ends[0])), ha="left", **above)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOPs a byte of least traffic")
    axes.set_ylabel("TFLOP/s")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
