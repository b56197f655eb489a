"""Draws what epilogues cost, from the results: each kind's time over the plain kernel's, beside what its bytes allow.

    python benchmarks/epilogue_picture.py --out docs/epilogues_h200.svg

Geometric means over ResNet-50's sixteen residual layers, launched alone.  A mark shows the target: the plain kernel's
time and the operands' bytes at 90% of the copy rate, or for operands of a channel or of an image's channel the few
percent that they may take.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from convgen.bench.results import geomean
from convgen.picture import Picture

RESULTS = Path(__file__).parent / "results"
#: As results name them, and what they compute.
KINDS = {
    "bias": "bias: relu(acc + b)", "scale": "scale: relu(acc * s + b)", "gate": "[n, k] gate: acc * e",
    "residual": "residual: relu(acc * s + b + z)", "bf16": "residual in bf16", "f32": "residual in f32",
    "two": "two residuals", "mask": "8-bit mask: acc * z", "gated residual": "gated residual: relu(acc * e + z)",
}  # fmt: skip
#: Batches, and their colors.
BATCHES = {8: "a", 64: "b", 256: "c"}
_WIDTH, _LEFT, _BAR, _GAP, _SCALE = 760, 250, 11, 12, 203


def over_plain(rows: list[dict], kind: str, n: int, what: Callable[[dict], float]) -> float:
    """The geometric mean over layers of a column's figure over the plain kernel's time."""
    own = [(row["columns"], row["count"]) for row in rows if row["n"] == n]
    ratios = [what(c[kind]["alone"]) / c["plain"]["alone"]["us"] for c, count in own for _ in range(count)]
    mean = geomean(ratios)
    assert mean is not None
    return mean


def draw() -> str:
    """The picture as SVG."""
    record = json.loads((RESULTS / "epilogues_h200.json").read_text(encoding="utf-8"))
    rows, gpu = record["rows"], record["gpu"]
    of_kind = _BAR * len(BATCHES) + _GAP
    top, bottom = 58, 58 + of_kind * len(KINDS)
    about = f"Time of ResNet-50's residual layers with an epilogue over the plain kernel's, on one {gpu}"
    picture = Picture(_WIDTH, bottom + 24, about, alone=True)
    picture.text(10, 22, f"Time with an epilogue over the plain kernel's: one {gpu}, float16", "ink bold")
    picture.text(10, 42, "ResNet-50's sixteen residual layers, geometric mean; | marks the target", "quiet small")
    picture.text(_WIDTH - 10, 42, f"{record['date'][:10]}, commit {record['commit']}", "quiet small", "end")
    for step in range(5):
        times = 1 + step / 2
        at = _LEFT + (times - 1) * _SCALE
        picture.line(at, top, at, bottom, "quiet" if step == 0 else "grid")
        picture.text(at, bottom + 14, f"{times:g}x", "quiet small", "middle")
    y = top + _GAP / 2
    for kind, shown in KINDS.items():
        picture.text(_LEFT - 10, y + _BAR * 2, shown, "ink", "end")
        for n, color in BATCHES.items():
            took = over_plain(rows, kind, n, lambda alone: alone["us"])
            may = over_plain(rows, kind, n, lambda alone: alone["limit"])
            picture.rectangle(_LEFT, y, max((took - 1) * _SCALE, 1), _BAR - 1, color)
            picture.line(_LEFT + (may - 1) * _SCALE, y - 1, _LEFT + (may - 1) * _SCALE, y + _BAR, "ink")
            picture.text(
                _LEFT + (max(took, may) - 1) * _SCALE + 6, y + _BAR - 2, f"{took:.2f}x, {n} images", "quiet small"
            )
            y += _BAR
        y += _GAP
    return f"{picture}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.parse_args().out.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
