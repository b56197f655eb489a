"""What a benchmark found: rows, their figures, summaries, and the JSON file that keeps them."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convgen import __version__

#: How everything in a file was measured.
METHOD = (
    "CUDA-graph replay in one process, median of replays of 1.5 ms or more; N(0,1) data; inputs and outputs rotated "
    "over 150 MB (32 sets at most). cuDNN through PyTorch: channels_last, benchmark=True, best of three re-tunes. "
    "GEMM: torch.matmul of the lowered problem's size. FLOPs count the halo; roofline: the larger of FLOPs over a "
    "large GEMM's rate and least bytes over a large copy's rate, both measured in the same run."
)


@dataclass(frozen=True)
class Result:
    """One strategy on one convolution.  `us` is None where there is no right kernel; `note` says why."""

    strategy: str
    config: str = ""
    reason: str = ""
    us: float | None = None
    spread: float | None = None
    verified: bool | None = None  # None: not checked
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One convolution.  `results` by what was asked for (`auto`, a strategy's name), the first is the row's own.

    `cudnn` says what cuDNN's time is of; a baseline that was not measured is None, `notes` say why.
    """

    name: str
    op: str
    n: int
    spec: str
    flops: int
    min_bytes: int
    results: Mapping[str, Result]
    cudnn: str = ""
    cudnn_us: float | None = None
    gemm_us: float | None = None
    roofline_us: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> Result:
        return next(iter(self.results.values()))

    @property
    def us(self) -> float | None:
        return self.own.us

    @property
    def tflops(self) -> float | None:
        return self.flops / self.us / 1e6 if self.us and self.flops else None

    @property
    def speedup(self) -> float | None:
        """cuDNN's time over ours."""
        return ratio(self.cudnn_us, self.us)

    @property
    def speedup_over_gemm(self) -> float | None:
        return ratio(self.gemm_us, self.us)

    @property
    def roofline_share(self) -> float | None:
        """The least time that the GPU's measured peaks allow, over ours."""
        return ratio(self.roofline_us, self.us)

    def as_dict(self) -> dict[str, Any]:
        derived = ("us", "tflops", "speedup", "speedup_over_gemm", "roofline_share")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def geomean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of what is there; None of nothing."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Summary:
    """Over the rows that have both times: geometric means, layers faster than cuDNN, the slowest beside it."""

    layers: int
    speedup: float | None
    speedup_over_gemm: float | None
    compared: int
    faster: int
    worst: str | None
    worst_speedup: float | None
    missing: tuple[str, ...]  # rows without a right kernel


def summarise(rows: Iterable[Row]) -> Summary:
    rows = list(rows)
    compared = [(row.speedup, row.name) for row in rows if row.speedup]
    worst = min(compared, default=(None, None))
    return Summary(
        len(rows),
        geomean(row.speedup for row in rows),
        geomean(row.speedup_over_gemm for row in rows),
        len(compared),
        sum(speedup > 1 for speedup, _ in compared),
        worst[1],
        worst[0],
        tuple(row.name for row in rows if row.us is None),
    )


@dataclass
class Run:
    """A benchmark: where and how it was made, and its rows as they come."""

    environment: Mapping[str, str]
    command: str
    peaks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by element type
    rows: list[Row] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> str:
        return json.dumps(
            {
                **self.environment,
                "convgen": __version__,
                "commit": commit(),
                "command": self.command,
                "date": self.date,
                "method": METHOD,
                "peaks": self.peaks,
                "summary": asdict(summarise(self.rows)),
                "rows": [row.as_dict() for row in self.rows],
            },
            indent=1,
        )


def commit() -> str | None:
    """The checkout's commit, marked where files differ from it; CONVGEN_COMMIT where there is no checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if not (root / ".git").exists():
            raise FileNotFoundError(root)
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("CONVGEN_COMMIT")
