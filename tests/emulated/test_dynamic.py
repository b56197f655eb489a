"""Sizes that a call decides, emulated: one source for all of them, equal to the kernels of fixed sizes bit by bit."""

from __future__ import annotations

import pytest
from dynamic_problems import all_sizes, at, manifest, with_dynamic
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runs import emulated_plan
from strategy_problems import direct_problems

from convgen.ir import verify
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)


def planned(name: str, problem: ConvProblem, options: dict[str, int | str]) -> tuple[Plan, str]:
    strategy = strategies.load(name)
    obstacles = strategy.obstacles(problem, TARGET, options)
    assert not obstacles, obstacles
    plan = strategy.plan(problem, TARGET, options)
    return plan, strategy.render(plan)


def check_dynamic(
    name: str, problem: ConvProblem, sizes: list[dict[str, int]], seed: int, same: bool = False, **options: int | str
) -> None:
    """Fails unless the one source is right at each of the sizes; with `same`, it must give what the kernel of fixed
    sizes gives at the last."""
    plan, source = planned(name, problem, options)
    for some in sizes:
        fixed = at(problem, some)
        resized = manifest(plan).at(all_sizes(problem, some))
        arrays = verify.random_inputs(fixed, seed)
        of_fixed = Plan(fixed, TARGET, name, plan.config, resized.steps, resized.workspaces)
        out = emulated_plan(of_fixed, source, arrays, seed)
        report = verify.check(fixed, arrays, out, arithmetic=plan.arithmetic)
        assert report, f"{report}\nseed {seed}, sizes {some}\n{problem}\n{source}"
    if same:
        of_fixed, other = planned(name, fixed, plan.options)
        expected = emulated_plan(of_fixed, other, arrays, seed)
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (out, expected)), strict=True):
            assert a.tobytes() == b.tobytes(), f"{problem}\n{source}"


def sizes_of(problem: ConvProblem) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of the dynamic dims that leave an output."""
    drawn = st.fixed_dictionaries({d: st.integers(1, 4 if d == "n" else 9) for d in problem.dynamic})
    return drawn.filter(lambda sizes: min(all_sizes(problem, sizes).values()) > 0)


@pytest.mark.parametrize("op", [Op.FPROP, Op.DGRAD, Op.WGRAD])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_any_problem(op: Op, data: st.DataObject) -> None:
    problem = data.draw(direct_problems(op).filter(lambda p: not (p.padding.repeats or p.sums)))
    problem = with_dynamic(problem)
    assume(problem.dynamic)
    sizes = [data.draw(sizes_of(problem)) for _ in range(3)]
    check_dynamic("direct", problem, sizes, data.draw(SEEDS), same=op is Op.FPROP)
