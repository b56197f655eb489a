"""Every golden source compiles for its target, without a spill, and without ptxas making it slow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convgen.runtime import nvrtc
from convgen.targets import TARGETS

GENERATED = Path(__file__).parents[2] / "generated"


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*.cu")), ids=lambda path: path.stem)
def test_golden(path):
    source = path.read_text(encoding="utf-8")
    (target,) = re.findall(r"^// target   (\S+)$", source, re.MULTILINE)
    made = nvrtc.compile_source(source, TARGETS[target])  # raises on an error, and on C75xx
    assert set(made.resources) == set(re.findall(r"\b(convgen_\w+)\(", source))
    spilled = {name: r for name, r in made.resources.items() if r.spill_stores or r.spill_loads or r.stack}
    assert not spilled
    assert "warning" not in made.log
