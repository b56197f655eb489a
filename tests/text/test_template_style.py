"""Rules that templates and generated source keep (CONTRIBUTING.md, Style)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.j2"))
#: Folders of templates that are being rewritten, and follow when they are done.
BEING_REWRITTEN = ("mma_gemm", "mma_wgrad", "tma_wgrad")
SETTLED = [path for path in TEMPLATES if path.parent.name not in BEING_REWRITTEN]
KERNELS = sorted((ROOT / "convgen" / "kernels").rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_with(pattern: str, path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [f"{named(path)}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if re.search(pattern, line)]


@pytest.mark.parametrize("path", [*SETTLED, *KERNELS], ids=named)
def test_places_in_fragments_go_by_name(path):
    """`accumulator_row(lane)` and its like, which say what is where; their definitions alone say how."""
    if path.name != "helpers.cuh.j2":
        assert not lines_with(r"\blane (/|%) 4\b|% 32 (/|%) 4\b", path)
