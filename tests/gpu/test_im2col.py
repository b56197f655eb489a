"""im2col on a GPU: gradients and lowered matrices of other projects' tests, slices, and cuBLAS's types."""

from __future__ import annotations

from dataclasses import replace

import gpu_runs
import peers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import PRODUCTS, matrix_problems, with_types

from convgen.ir.problem import Op

cupy = pytest.importorskip("cupy")
MOST_FLOP = 20e9
BACKWARD = (Op.DGRAD, Op.COL2IM)


@pytest.mark.parametrize("case", [name for name, case in peers.cases().items() if case["op"] != "fprop"])
def test_peers(case: str, seed: int) -> None:
    gpu_runs.check(peers.problem(peers.cases()[case], MOST_FLOP), "im2col", seed=seed)


@pytest.mark.parametrize("op", Op)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_problem(op: Op, data: st.DataObject) -> None:
    problem = data.draw(matrix_problems(op))
    options = {"method": data.draw(st.sampled_from(("gather", "scatter")))} if op in BACKWARD else {}
    gpu_runs.check(problem, "im2col", options, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("images_first", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("op", PRODUCTS)
def test_slices(op: Op, groups: int, images_first: bool, seed: int) -> None:
    problem = make(op, 16, 32, 64, (56, 55), (3, 3), pad=1, groups=groups)
    if images_first:  # NKPQ
        dims = ("n", "k", "p", "q")
        problem = replace(problem, y=replace(problem.y, dims=dims, extents=tuple(problem.y.extent(d) for d in dims)))
    for method in ("gather", "scatter") if op is Op.DGRAD else ("",):
        options = {"workspace_mb": 8} | ({"method": method} if method else {})
        assert "slices of up to" in gpu_runs.compiled(problem, "im2col", options).source
        gpu_runs.check(problem, "im2col", options, seed)


@pytest.mark.parametrize("form", ["taps", "pixel"])
def test_threads_that_copy_windows(form: str, seed: int) -> None:
    sliced = make("fprop", 16, 32, 64, (56, 55), (3, 3), pad=1, groups=2)
    gpu_runs.check(sliced, "im2col", {"form": form, "workspace_mb": 8}, seed)
    planes = make("im2col", 5, 20, 1, (61, 50), (5, 3), stride=(2, 1), pad=2, lowered="n*c*r*s,p*q", dtype="f32")
    gpu_runs.check(planes, "im2col", {"form": form}, seed)


@pytest.mark.parametrize("filter_k", ["first", "last"])
@pytest.mark.parametrize("op", PRODUCTS)
def test_s8(op: Op, filter_k: str, seed: int) -> None:
    problem = make(op, 4, 32, 64, (14, 12), (3, 3), pad=1, dtype="s8")
    problem = with_types(problem, **{problem.result.role: "s32"})
    if filter_k == "last":
        w = problem.w
        problem = replace(problem, w=replace(w, dims=("r", "s", "c", "k"), extents=(3, 3, 32, 64)))
    gpu_runs.check(problem, "im2col", seed=seed)


def test_gather_gives_the_same_bits_every_time(seed: int) -> None:
    problem = make("dgrad", 8, 32, 64, (28, 28), (3, 3), stride=2, pad=1, dtype="f32")
    kernel = gpu_runs.compiled(problem, "im2col", {"method": "gather"})
    arrays = gpu_runs.inputs(problem, seed)
    first, second = (kernel(*arrays.values()) for _ in range(2))
    assert (first.view(cupy.uint32) == second.view(cupy.uint32)).all()


@pytest.mark.usefixtures("much_memory")
def test_more_than_2_to_the_31_lowered_elements(seed: int) -> None:
    """The last rows of a huge lowered matrix are those of the last images alone."""
    few, many = 2, 2**31 // (32 * 32 * 32 * 9) + 2
    huge, small = (
        make("im2col", n, 32, 1, (32, 32), (3, 3), pad=1, lowered="n*p*q,r*s*c", dtype="s8") for n in (many, few)
    )
    huge, small = (replace(p, lowered=replace(p.lowered, name="m")) for p in (huge, small))  # type: ignore[type-var]
    assert huge.lowered and huge.lowered.size > 2**31
    x = cupy.random.default_rng(seed).integers(-8, 9, huge.x.shape, dtype=cupy.int8)
    rows = gpu_runs.compiled(huge, "im2col")(x)
    alone = gpu_runs.compiled(small, "im2col")(cupy.ascontiguousarray(x[-few:]))
    assert (rows[-len(alone) :] == alone).all()
