"""The results of a benchmark: rows, their figures, summaries, and the JSON file that keeps them."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convgen import __version__
from convgen.bench.measure import MOST_SETS, REST, ROTATED_BYTES, ROUNDS, SHORTEST_MS

#: How everything in a file was measured.
METHOD = (
    f"CUDA-graph replay in one process, median of replays of {SHORTEST_MS:.3g} ms or more; N(0,1) data; inputs and "
    f"outputs rotated over {ROTATED_BYTES / 1e6:.0f} MB ({MOST_SETS} sets at most). All columns and baselines of a "
    f"layer side by side: {ROUNDS} rounds, in turn, each behind a rest of {REST:.0f} times its work, the order "
    "reversed from round to round; the best round counts. cuDNN through PyTorch: channels_last, benchmark=True, tuned "
    "anew for each round. Kernels are launched alone, but for the column `chain`, where each starts behind the one "
    "before it (dependent launch). GEMM: torch.matmul of the lowered problem's size. FLOPs count the halo; roofline: "
    "the larger of FLOPs over a large GEMM's rate and least bytes over a large copy's rate, both measured in the same "
    "run."
)


@dataclass(frozen=True)
class Result:
    """One kernel on one convolution, and what cuDNN takes for the same.  `us` is None where there is no right
    kernel, `note` says why; `cudnn_us` is None where cuDNN was not measured."""

    strategy: str
    config: str = ""
    reason: str = ""
    us: float | None = None
    spread: float | None = None
    verified: bool | None = None  # None: not checked
    note: str = ""
    cudnn_us: float | None = None

    @property
    def speedup(self) -> float | None:
        """cuDNN's time over ours."""
        return ratio(self.cudnn_us, self.us)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"speedup": self.speedup}


@dataclass(frozen=True)
class Row:
    """One convolution.  `results` by column (`auto`, a strategy's name, `chain`, `fused`), the first is the row's own.

    `cudnn` says what cuDNN's time, beside the row's own, is of; a baseline that was not measured is None, `notes`
    say why.
    """

    name: str
    op: str
    n: int
    spec: str
    flops: int
    min_bytes: int
    results: Mapping[str, Result]
    cudnn: str = ""
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
    def cudnn_us(self) -> float | None:
        return self.own.cudnn_us

    @property
    def tflops(self) -> float | None:
        return self.flops / self.us / 1e6 if self.us and self.flops else None

    @property
    def speedup(self) -> float | None:
        """cuDNN's time over ours."""
        return self.own.speedup

    @property
    def speedup_over_gemm(self) -> float | None:
        return ratio(self.gemm_us, self.us)

    @property
    def roofline_share(self) -> float | None:
        """The least time that the GPU's measured peaks allow, over ours."""
        return ratio(self.roofline_us, self.us)

    def as_dict(self) -> dict[str, Any]:
        derived = ("us", "cudnn_us", "tflops", "speedup", "speedup_over_gemm", "roofline_share")
        results = {column: result.as_dict() for column, result in self.results.items()}
        return asdict(self) | {"results": results} | {name: getattr(self, name) for name in derived}


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def geomean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values present; None if there are none."""
    logs = [math.log(v) for v in values if v]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Summary:
    """A column over the rows that have both times: geometric means, layers faster than cuDNN, the slowest beside it."""

    layers: int
    speedup: float | None
    speedup_over_gemm: float | None
    compared: int
    faster: int
    worst: str | None
    worst_speedup: float | None
    missing: tuple[str, ...]  # rows without a right kernel


def summarize(rows: Iterable[Row], column: str | None = None) -> Summary:
    """Summarizes the named column, or each row's own."""
    found = [(row, row.results[column] if column else row.own) for row in rows if not column or column in row.results]
    compared = [(result.speedup, row.name) for row, result in found if result.speedup]
    worst = min(compared, default=(None, None))
    return Summary(
        len(found),
        geomean(result.speedup for _, result in found),
        geomean(ratio(row.gemm_us, result.us) for row, result in found),
        len(compared),
        sum(speedup > 1 for speedup, _ in compared),
        worst[1],
        worst[0],
        tuple(row.name for row, result in found if result.us is None),
    )


def columns(rows: Iterable[Row]) -> list[str]:
    """Every column but the rows' own."""
    return list(dict.fromkeys(column for row in rows for column in list(row.results)[1:]))


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
                "summary": asdict(summarize(self.rows)),
                "columns": {column: asdict(summarize(self.rows, column)) for column in columns(self.rows)},
                "rows": [row.as_dict() for row in self.rows],
            },
            indent=1,
        )


#: What stands before a file or a last folder: of an absolute path, and of JSON, which results are.
_FOLDERS = re.compile(r"(^|=)(/(.*/)?(?=[^/])|[^=]*/(?=[^/]*\.json$))")


def command() -> str:
    """The command line, without this machine's folders, which mean nothing elsewhere."""
    script, *words = sys.argv
    if Path(script).name == "__main__.py":  # python -m convgen
        script = Path(script).parent.name
    return shlex.join(_FOLDERS.sub(r"\1", word) for word in (script, *words))


def commit() -> str | None:
    """CONVGEN_COMMIT where it is set, else the checkout's commit, marked where files differ from it."""
    if stated := os.environ.get("CONVGEN_COMMIT"):
        return stated
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
        return None
