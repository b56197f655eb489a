"""direct on a GPU: every problem of other projects' tests, every type, tensors beyond 2^31 elements."""

from __future__ import annotations

import gpu_runs
import peers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import direct_problems, with_types

from convgen.ir.problem import Op

cupy = pytest.importorskip("cupy")
MOST_FLOP = 20e9


@pytest.mark.parametrize("case", peers.cases())
def test_peers(case: str, seed: int) -> None:
    gpu_runs.check(peers.problem(peers.cases()[case], MOST_FLOP), "direct", seed=seed)


@pytest.mark.parametrize("op", Op)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_problem(op: Op, data: st.DataObject) -> None:
    problem = data.draw(direct_problems(op))
    gpu_runs.check(problem, "direct", seed=data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("tile", [1, 2, 4, 8])
@pytest.mark.parametrize("op", [Op.FPROP, Op.DGRAD, Op.WGRAD])
def test_tiles(op: Op, tile: int, seed: int) -> None:
    problem = make(op, 4, 32, 64, (28, 27), (3, 3), stride=2, pad=1, groups=2)
    gpu_runs.check(problem, "direct", {"tile": tile}, seed)


@pytest.mark.usefixtures("much_memory")
def test_more_than_2_to_the_31_elements(seed: int) -> None:
    """The last images of a huge batch come out as they do alone."""
    few, many = 3, 2**31 // (32 * 32 * 32) + 3
    huge, small = (
        with_types(make("fprop", n, 32, 4, (32, 32), (3, 3), pad=1, dtype="s8"), y="s32") for n in (many, few)
    )
    assert huge.x.size > 2**31
    rng = cupy.random.default_rng(seed)
    w = rng.integers(-8, 9, huge.w.shape, dtype=cupy.int8)
    x = cupy.empty(huge.x.shape, cupy.int8)
    for part in cupy.array_split(x, 64):  # integers take 16 times their bytes on the way
        part[:] = rng.integers(-8, 9, part.shape, dtype=cupy.int8)
    all_of_it = gpu_runs.compiled(huge, "direct")(x, w)
    for where in (slice(0, few), slice(many - few, many)):
        alone = gpu_runs.compiled(small, "direct")(cupy.ascontiguousarray(x[where]), w)
        assert (all_of_it[where] == alone).all()
