"""Infinities, NaNs and other special values, emulated: what becomes of them is what the reference says.

What is infinite or NaN reaches the outputs whose window and group have it, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from runs import emulated
from small_goldens import GEOMETRIES, shrunk
from special_values import EPILOGUES, EXPRESSIONS, FILLED, expected, of_all_values, with_specials
from tma_specs import compilation

from convgen.ir import verify
from convgen.ir.plan import Plan
from convgen.ir.problem import Op
from convgen.kernels import strategies
from convgen.targets import TARGETS

DIRECT = strategies.STRATEGIES["direct"]


@pytest.mark.parametrize(("name", "result"), EPILOGUES)
def test_epilogues(name: str, result: str) -> None:
    problem, arrays = of_all_values(EXPRESSIONS[name], result)
    out, source = emulated(DIRECT, problem, {}, arrays)
    report = verify.check(problem, arrays, out)
    assert report, f"{report}\n{source}"


@pytest.mark.parametrize("factor", [0, 1])
@pytest.mark.parametrize("case", FILLED)
def test_zeros_of_their_own(case: str, factor: int, seed: int) -> None:
    name, problem, options = FILLED[case]
    role = problem.reads[factor].role
    arrays = with_specials(problem, role, seed)
    arrays[role].flat[-1] = np.inf  # at the end of rows and images, too
    strategy = strategies.STRATEGIES[name]
    out, source = emulated(strategy, problem, options, arrays)
    arithmetic = strategy.plan(problem, TARGETS["sm_90a"], options).arithmetic
    report = verify.compare(problem, out, expected(problem, arrays, arithmetic))
    assert report, f"{report}\nseed {seed}\n{source}"
    assert "window_sum" in source or "filter_sum" in source


def _reaching(plan: Plan, factors: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """Inputs whose special values decide some outputs and not all: rare draws decide none, where taps meet padding."""
    problem = plan.problem
    for draw in range(seed, seed + 8):
        arrays = with_specials(problem, factors[0], draw)
        if problem.op is Op.FPROP:  # x's reach the outputs of a window, w's those of a channel: most have one or none
            arrays |= {role: with_specials(problem, role, draw + 1)[role] for role in factors[1:]}
        special = expected(problem, arrays, plan.arithmetic).special
        if special.any() and not special.all():
            return arrays
    raise AssertionError(f"eight draws from seed {seed} on without a special value to see")


@pytest.mark.parametrize("name", GEOMETRIES)
def test_golden_plans(name: str, seed: int) -> None:
    made = compilation(shrunk(name)).uncompiled()
    problem = made.plan.problem
    factors = [t.role for t in problem.reads if t.element.is_float]
    if not factors:
        pytest.skip("integers have no special values")
    arrays = _reaching(made.plan, factors, seed)
    results = made.emulate(*arrays.values(), sms=GEOMETRIES[name].sms)
    out = results[0] if problem.further else results
    right = expected(problem, arrays, made.plan.arithmetic)
    assert right.special.any() and not right.special.all()
    report = verify.compare(problem, out, right)
    assert report, f"{report}\nseed {seed}\n{made.source}"
