"""The tuning database that ships: every choice says all of its configuration, and its plan can be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from convgen.gpus import GPUS
from convgen.kernels import strategies
from convgen.planner import choose, database, shipping
from convgen.planner.database import Measurement, Status
from convgen.targets import TARGETS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from fit_cost import problem_of

TARGET = TARGETS["sm_90a"]
SHIPPED = database.read_all(database.PACKAGED)


def test_what_ships_was_measured_on_known_gpus_and_was_right():
    assert TARGET.gpu.name in {m.gpu for m in SHIPPED}
    assert {m.gpu for m in SHIPPED} <= GPUS.keys()
    assert {m.status for m in SHIPPED} == {Status.RIGHT}
    # in a chain of dependent launches, the least of them, 18 outputs of 72 channels, takes 0.98 us
    assert all(m.us and m.us > 0.9 for m in SHIPPED)


def test_what_ships_needs_no_library():
    """im2col multiplies by cuBLAS: tune with `--strategies` that are convgen's own, as benchmarks/retune.sh does."""
    assert not {m.strategy for m in SHIPPED} & set(strategies.UNFUSED)


def test_what_ships_is_the_best_of_each_strategy_alone(tmp_path: Path):
    assert shipping.export(SHIPPED, tmp_path / "again.sqlite") == len(SHIPPED)
    assert (tmp_path / "again.sqlite").read_bytes() == database.PACKAGED.read_bytes()


@pytest.mark.costly
@pytest.mark.parametrize("strategy", sorted({m.strategy for m in SHIPPED}))
def test_every_choice_is_legal_and_complete(strategy: str):
    """Options left out would be filled in by the cost model of the day, and so be others than those measured."""
    chosen = strategies.STRATEGIES[strategy]
    for m in SHIPPED:
        if m.strategy == strategy:
            problem = problem_of(m.key)
            assert not chosen.obstacles(problem, TARGET, m.options), m
            assert m.options == chosen.plan(problem, TARGET, m.options).options, m


def test_auto_takes_what_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, some):
    (tmp_path / "none.sqlite").touch()
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "none.sqlite"))
    best: dict[tuple[str, str], Measurement] = {}
    for m in SHIPPED:
        best[m.key, m.gpu] = min(best.get((m.key, m.gpu), m), m, key=lambda m: m.us or 0.0)
    for m in some(best.values()):
        choice = choose(problem_of(m.key), TARGET, "auto", {}, m.gpu)
        assert (choice.strategy.name, choice.options) == (m.strategy, m.options), m.key
