"""Generated source, and what convgen says of it, against the goldens in generated/.

Each file of specs/golden is one plan that is worth reading: its source is kept as NAME.cu, its formulas
and plan as NAME.txt.  A change of a template or a map shows there, line by line.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_goldens import GEOMETRIES

from convgen import driver
from convgen.explain import explain
from convgen.kernels import strategies
from convgen.report.pictures import shared_rows
from convgen.spec import read

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "generated"
SPECS = sorted((ROOT / "specs" / "golden").glob("*.conv"))


def compilation(path: Path) -> driver.Compilation:
    (only,) = driver.load(driver.Spec(*read(path)))
    return only


@pytest.fixture(params=SPECS, ids=lambda path: path.stem)
def found(request, monkeypatch) -> driver.Compilation:
    """A golden's compilation, without anything that was tuned on this machine."""
    monkeypatch.setattr("convgen.planner.database.ranked", lambda *_, **__: iter(()))
    return compilation(request.param)


def test_source(found, golden):
    golden.check(GENERATED / f"{found.name}.cu", found.source)


def test_formulas_and_plan(found, golden):
    golden.check(GENERATED / f"{found.name}.txt", str(explain(found.request, found.plan)))


def test_a_golden_names_its_convolution_strategy_and_target(found):
    assert found.name in [path.stem for path in SPECS]
    assert found.request.strategy in strategies.NAMES
    assert found.request.target


def test_the_table_of_shared_memory_adds_up_to_what_the_launch_asks_for(found):
    """But for what aligns its base; sums that lie in place of stages count where they are more."""
    rows = shared_rows(found.plan)
    inside = {name: size for name, size in rows.items() if "in place of" not in name}
    stages = sum(size for name, size in inside.items() if " stages x " in name)
    more = max(sum(rows.values()) - sum(inside.values()) - stages, 0)
    assert not rows or found.plan.launch().shared_bytes == 1024 + sum(inside.values()) + more


def test_no_golden_is_left_behind(golden):
    golden.only(GENERATED, [f"{path.stem}.{kind}" for path in SPECS for kind in ("cu", "txt")])


def test_every_golden_has_a_small_geometry():
    """On which tests/emulated/test_golden_plans.py emulates its plan."""
    names = {path.stem for path in SPECS}
    missing, left = sorted(names - GEOMETRIES.keys()), sorted(GEOMETRIES.keys() - names)
    assert not missing, f"tests/emulated/small_goldens.py: give a small geometry to {', '.join(missing)}"
    assert not left, f"tests/emulated/small_goldens.py: there is no golden of {', '.join(left)}"


def test_every_strategy_has_a_golden():
    assert {compilation(path).request.strategy for path in SPECS} == set(strategies.NAMES)
