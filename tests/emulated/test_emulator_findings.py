"""Every kind of mistake is found at its line; the same kernel without the mistake runs clean.

kernels/wrong/*.cu are wrong where a line says `// expect: kind` (several kinds where time decides which shows),
and right where FIXED is defined.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from handwritten import KERNELS, run, tiled, whole_source

from convgen.emulator import EmulationError
from convgen.emulator.trace import recording

WRONG = sorted((KERNELS / "wrong").glob("*.cu"))
SEEDS = (0, 1, 2, 3)


def emulate(path: Path, fixed: bool, seed: int) -> str:
    body = path.read_text(encoding="utf-8")
    source = whole_source(body, {"FIXED": 1} if fixed else {})
    shape = {key: int(value) for key, value in re.findall(r"(block|grid|cluster|dependent)=(\d+)", body.split("\n")[0])}
    buffers = {
        "tile": np.zeros((64, 64), np.float16),
        "in": np.arange(4096, dtype=np.uint32),
        "out": np.zeros(4096, np.uint32),
    }
    shape.setdefault("grid", shape.get("cluster", 1))
    tile = tiled("out" if "map=out" in body else "tile", "f16", (64, 64), (64, 64), swizzle=128)
    run(source, "wrong", (tile, "in", "out"), buffers, shared_bytes=32768, seed=seed, inputs=["in"], **shape)
    return source


def expected(source: str) -> set[tuple[str, int]]:
    return {
        (kind, number)
        for number, line in enumerate(source.splitlines(), 1)
        if (found := re.search(r"// expect: (.*)$", line))
        for kind in found[1].split(" or ")
    }


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_found_at_its_line(path: Path):
    source = whole_source(path.read_text(encoding="utf-8"))
    for seed in SEEDS:
        with pytest.raises(EmulationError) as error:
            emulate(path, fixed=False, seed=seed)
        found = {(f.kind, f.line) for f in error.value.findings}
        assert found & expected(source), error.value
        assert all(f.source_line in source for f in error.value.findings)


def test_what_is_undefined_is_recorded_once():
    with recording() as launches, pytest.raises(EmulationError, match="overflow"):
        emulate(KERNELS / "wrong" / "offset_overflows.cu", fixed=False, seed=0)
    assert len(launches) == 1


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_clean_once_fixed(path: Path):
    for seed in SEEDS:
        emulate(path, fixed=True, seed=seed)
