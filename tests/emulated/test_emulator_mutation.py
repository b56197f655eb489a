"""Remove or weaken one synchronisation of a tma_im2col kernel, or shift one index or phase: it is noticed.

A mutant is noticed when the emulator has a finding or the result is wrong.  Those that do no harm, and those
that are wrong but can't be noticed, stand in the tables with the reason; docs/emulator.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest
from mutate import Mutant, mutants
from problems import make

from convgen.emulator import EmulationError, emulate
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.targets import TARGETS

STRATEGY = strategies.load("tma_im2col")
#: Until a mutant is noticed; few need more than the first.
SEEDS = 48
LEAST_NOTICED = 0.95


@dataclass(frozen=True)
class Case:
    """A kernel small enough to be quick, with more work than its pipeline holds at once."""

    name: str
    problem: ConvProblem
    options: dict[str, int | str]
    sms: int


CASES = (
    Case(
        "cooperative",
        make(n=1, c=64, k=256, input=(12, 12), filter=(3, 3), pad=1),
        {"tile.m": 128, "tile.n": 128, "tile.k": 64, "stages": 3, "consumers": 2, "schedule": "cooperative"},
        sms=1,
    ),
    Case(
        "pingpong",
        make(n=2, c=64, k=128, input=(12, 12), filter=(2, 3), pad=1),
        {"tile.m": 64, "tile.n": 128, "tile.k": 64, "stages": 4, "consumers": 2, "schedule": "pingpong"},
        sms=1,
    ),
    Case(
        "split",
        make(n=1, c=128, k=128, input=(12, 12), filter=(3, 3), pad=1),
        {"tile.m": 64, "tile.n": 64, "tile.k": 64, "stages": 2, "consumers": 1, "split_k": 2},
        sms=2,
    ),
)


@dataclass(frozen=True)
class Excuse:
    """Mutants by kind and by a pattern of the line before; why they need not, or cannot, be noticed."""

    kind: str
    was: str
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        return self.kind == mutant.kind and re.search(self.was, mutant.was) is not None


#: The kernel is still right.
HARMLESS = (
    Excuse("first index", r"int epi_tile = 0;", "the two epilogue tiles of a consumer change names"),
    Excuse("index", r"epi_tile_base = .*\bepi_tile\)", "the two epilogue tiles of a consumer change names"),
)
#: The kernel is wrong, and the emulator can't see it.
UNSEEN = (
    Excuse(
        "removed",
        r"__syncwarp\(\);",
        "the warp may be divided when it comes to an aligned instruction; lanes are emulated one by one and always "
        "meet there",
    ),
)


def noticed(case: Case, plan: Plan, source: str, arrays: dict[str, np.ndarray], seeds: Iterable[int]) -> bool:
    for seed in seeds:
        y = verify.poison(np.empty(case.problem.y.shape, numpy_dtype(case.problem.y.dtype)))
        try:
            emulate(source, plan.steps, {**arrays, "y": y}, seed=seed, sms=case.sms)
        except EmulationError:
            return True
        if not verify.check(case.problem, arrays, y):
            return True
    return False


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_mutants_are_noticed(case: Case):
    target = TARGETS["sm_90a"]
    assert not STRATEGY.obstacles(case.problem, target, case.options)
    plan = STRATEGY.plan(case.problem, target, case.options)
    source = STRATEGY.render(plan)
    arrays = verify.random_inputs(case.problem, 0)
    assert not noticed(case, plan, source, arrays, range(6)), "the kernel itself is not clean"

    every = list(mutants(source))
    assert len(every) > 40
    harmless = [m for m in every if any(e.covers(m) for e in HARMLESS)]
    wrong = [m for m in every if m not in harmless]
    missed = [m for m in wrong if not noticed(case, plan, m.text, arrays, range(SEEDS))]
    assert 1 - len(missed) / len(wrong) >= LEAST_NOTICED, "\n".join(map(str, missed))
    unlisted = [m for m in missed if not any(e.covers(m) for e in UNSEEN)]
    assert not unlisted, "\n".join(["neither noticed nor excused:", *map(str, unlisted)])
    for mutant in harmless:
        assert not noticed(case, plan, mutant.text, arrays, range(3)), f"it does harm: {mutant}"
