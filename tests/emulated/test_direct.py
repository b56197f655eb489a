"""direct, emulated: every operator over random geometries, layouts, types and epilogues."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, sliced
from runs import check_plan
from strategy_problems import PRODUCTS, direct_problems

from convgen.ir.problem import Op
from convgen.kernels import strategies
from convgen.kernels.direct.kernel import PRODUCTS as DIRECT_PRODUCTS
from convgen.kernels.parts import lowering
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["direct"]

TARGET = TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("op", Op)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_problem(op: Op, data: st.DataObject) -> None:
    problem = data.draw(direct_problems(op).flatmap(sliced))
    tiles = [{"tile": t} for t in (1, 2, 4, 8) if not STRATEGY.obstacles(problem, TARGET, {"tile": t})]
    check_plan(STRATEGY, problem, data.draw(st.sampled_from(tiles)), data.draw(SEEDS))


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("tile", [2, 8])
@pytest.mark.parametrize("groups", [1, 2])
def test_tiles(op: Op, tile: int, groups: int) -> None:
    problem = make(op, 2, 16, 16, (5, 4), (3, 2), stride=(2, 1), pad=((1, 0), (1, 1)), groups=groups, dtype="f16")
    check_plan(STRATEGY, problem, {"tile": tile}, tile)


@settings(max_examples=6, deadline=None)
@given(problem=st.sampled_from(list(Op)).flatmap(direct_problems), seed=SEEDS)
def test_64_bit_indices_give_the_same(problem, seed: int) -> None:
    limit, lowering.INT_LIMIT = lowering.INT_LIMIT, 0
    try:
        source = check_plan(STRATEGY, problem, {}, seed)
    finally:
        lowering.INT_LIMIT = limit
    assert "const long long index = " in source and "const int index" not in source


def test_the_largest_tile_that_leaves_enough_threads() -> None:
    large = make("fprop", 8, 16, 64, (56, 56), (3, 3), pad=1)
    small = make("fprop", 1, 16, 64, (14, 14), (3, 3), pad=1)
    odd = make("fprop", 8, 16, 63, (56, 56), (3, 3), pad=1)
    tiles = [STRATEGY.plan(p, TARGET, {}).config.tile for p in (large, small, odd)]  # type: ignore[attr-defined]
    assert tiles == [8, 1, 1]
    assert set(DIRECT_PRODUCTS) == set(PRODUCTS)
