"""What a measurement writes down: its figures, and where, when and of what they were taken."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convgen.bench.backend import TorchBackend
from convgen.bench.results import command, commit


def write(path: Path, **figures: Any) -> None:
    """JSON: commit, command, date, GPU and versions of libraries, then the figures."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"commit": commit(), "command": command(), "date": date, **TorchBackend().environment()}
    path.write_text(json.dumps(about | figures, indent=1) + "\n")
