"""im2col, emulated: lowered matrices of both forms, GEMMs, gathers and scatters, slices."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from runs import check_plan, emulated
from strategy_problems import PRODUCTS, matrix_problems, with_types

from convgen.ir import verify
from convgen.ir.plan import Gemm, Launch
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels import strategies
from convgen.kernels.im2col.layout import MEBIBYTE
from convgen.kernels.im2col.matrices import LOWERED
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["im2col"]

TARGET = TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)
#: Operators that sum lowered elements into x.
BACKWARD = (Op.DGRAD, Op.COL2IM)
FORMS = ("n*p*q,c*r*s", "n*p*q,r*s*c", "c*r*s,n*p*q", "n*c*r*s,p*q")


@pytest.mark.parametrize("op", Op)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_problem(op: Op, data: st.DataObject) -> None:
    problem = data.draw(matrix_problems(op))
    options = {"method": data.draw(st.sampled_from(("gather", "scatter")))} if op in BACKWARD else {}
    check_plan(STRATEGY, problem, options, data.draw(SEEDS))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", [Op.IM2COL, Op.COL2IM])
def test_both_forms(op: Op, form: str) -> None:
    problem = make(op, 2, 3, 1, (6, 5), (3, 2), stride=(2, 1), pad=((1, 0), (0, 1)), dilation=(1, 2), lowered=form)
    check_plan(STRATEGY, problem, {}, 1)


@pytest.mark.parametrize("c", [2, 8])
def test_runs_of_channels_of_several_groups(c: int) -> None:
    problem = make(Op.IM2COL, 2, c, c, (6, 5), (3, 2), pad=1, groups=c, lowered="n*p*q,r*s*c")
    check_plan(STRATEGY, problem, {"form": "channels"}, 1)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_infinite_factors_are_multiplied_in_silence(dtype: str) -> None:
    problem = make("fprop", 1, 3, 2, (4, 5), (2, 2), dtype=dtype)
    arrays = verify.random_inputs(problem, 1)
    arrays["x"][0, :2] = np.inf
    with warnings.catch_warnings(action="error"):
        out, _ = emulated(STRATEGY, problem, {}, arrays)
    assert verify.check(problem, arrays, out)


def by_algorithm_1(x: np.ndarray, f: int, h1: int, w1: int) -> np.ndarray:
    """Algorithm 1 of Zhang (2017) on (D0, H0, W0): im2col without padding, a loop over the result."""
    lowered = np.empty((x.shape[0] * f * f, h1 * w1), x.dtype)
    for k in range(lowered.size):
        p, q = divmod(k, h1 * w1)
        lowered[p, q] = x[p // f // f, q // w1 + p // f % f, q % w1 + p % f]
    return lowered


def test_the_paper_s_algorithm() -> None:
    """An input D0 x H0 x W0, and a lowered matrix D0*F*F x H1*W1."""
    problem = make("im2col", 1, 3, 1, (6, 7), (3, 3), lowered="c*r*s,p*q", dtype="f32")
    assert problem.lowered
    problem = replace(problem, x=replace(problem.x, dims=("c", "h", "w"), extents=(3, 6, 7)))
    arrays = verify.random_inputs(problem, 5)
    out, source = emulated(STRATEGY, problem, {"form": "loop_free"}, arrays)
    assert np.array_equal(out, by_algorithm_1(arrays["x"], 3, 4, 5))
    assert "for (" not in source and "while" not in source, "no loop"
    assert "?" not in source and source.count("if (") == 1, "no predicate but that of the last block"


def test_col2im_undoes_im2col_without_overlap() -> None:
    """Windows that tile the input exactly: col2im(im2col(x)) = x."""
    down = make("im2col", 2, 3, 1, (6, 4), (3, 2), stride=(3, 2), lowered="n*p*q,c*r*s", dtype="f32")
    arrays = verify.random_inputs(down, 9)
    lowered, _ = emulated(STRATEGY, down, {}, arrays)
    for method in ("gather", "scatter"):
        up, _ = emulated(STRATEGY, replace(down, op=Op.COL2IM), {"method": method}, {"lowered": lowered})
        assert np.array_equal(up, arrays["x"])


# ---- slices ------------------------------------------------------------------------------------

#: Problems whose lowered matrix is more than a MiB.
LARGE = {
    Op.FPROP: make("fprop", 6, 16, 5, (28, 27), (3, 3), pad=1, dtype="f32"),
    Op.DGRAD: make("dgrad", 9, 9, 4, (28, 27), (3, 3), pad=1, stride=(2, 1), dtype="f32"),
    Op.WGRAD: make("wgrad", 6, 16, 5, (28, 27), (3, 3), pad=1, dtype="f32"),
}


def slices_of(plan) -> int:
    return sum(isinstance(s, Launch) and s.entry.endswith(("_im2col", "_col2im")) for s in plan.steps)


@pytest.mark.parametrize(("half", "images_first"), [(False, True), (True, False)])
@pytest.mark.parametrize("op", PRODUCTS)
def test_slices_below_the_cap(op: Op, half: bool, images_first: bool) -> None:
    problem = LARGE[op]
    if images_first:  # NKPQ
        y = problem.y
        dims = ("n", "k", "p", "q")
        problem = replace(problem, y=replace(y, dims=dims, extents=tuple(y.extent(d) for d in dims)))
    if half:
        problem = with_types(problem, x="f16", w="f16", y="f16")
    methods = ("gather", "scatter") if op is Op.DGRAD else ("",)
    for method in methods:
        options: dict[str, int | str] = {"workspace_mb": 1, **({"method": method} if method else {})}
        plan = STRATEGY.plan(problem, TARGET, options)
        assert plan.workspace_bytes <= MEBIBYTE
        assert slices_of(plan) > 1
        check_plan(STRATEGY, problem, options, 11)


@pytest.mark.parametrize("groups", [1, 2])
def test_planes_are_products_of_the_filter_image_by_image(groups: int) -> None:
    """phi(A) = phi(W) phi(X) of Zhang (2017): whole images as one batch, and no launch behind it."""
    problem = make("fprop", 4, 6, 8, (9, 7), (3, 3), pad=1, groups=groups, dtype="f32")
    problem = replace(problem, y=replace(problem.y, dims=("n", "k", "p", "q"), extents=(4, 8, 9, 7)))
    plan = STRATEGY.plan(problem, TARGET, {})
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    gemms = [step for step in plan.steps if isinstance(step, Gemm)]
    assert [step.entry for step in launches] == [f"convgen_{problem.name}_im2col"]
    assert [(g.a, g.c, g.m, g.n, g.batch) for g in gemms] == [("w", "y", 8 // groups, 63, 4)] * groups
    check_plan(STRATEGY, problem, {}, 21)


def in_planes(problem: ConvProblem) -> ConvProblem:
    """With y in planes."""
    y = problem.y
    dims = ("n", "k", *problem.spatial.output)
    return replace(problem, y=replace(y, dims=dims, extents=tuple(map(y.extent, dims))))


def test_gradients_of_filters_are_batches_of_images() -> None:
    """Where y is a matrix in each image: as many sums as keep the GPU busy, added up in order."""
    lenet = in_planes(make("wgrad", 128, 20, 50, (12, 12), (5, 5), dtype="f32"))
    gemms = [step for step in STRATEGY.plan(lenet, TARGET, {}).steps if isinstance(step, Gemm)]
    assert sum(g.batch for g in gemms) == 128 and len(gemms) <= 2
    wide = in_planes(make("wgrad", 8, 512, 512, (7, 7), (3, 3), pad=1, dtype="f32"))
    gemms = [step for step in STRATEGY.plan(wide, TARGET, {}).steps if isinstance(step, Gemm)]
    assert sum(g.batch for g in gemms) == 8 and {g.batch for g in gemms} == {2}, "a few have blocks enough"


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("groups, n, options", [(1, 5, {}), (2, 3, {}), (8, 3, {}), (1, 9, {"workspace_mb": 1})])
def test_sums_of_images_add_up(dtype: str, groups: int, n: int, options: dict[str, int]) -> None:
    """Pixels that end inside of a product's reduction, more groups than images, slices of several images."""
    size = (23, 21) if options else (9, 11)
    problem = in_planes(make("wgrad", n, 24, 16, size, (3, 3), pad=1, groups=groups, dtype=dtype))
    plan = STRATEGY.plan(problem, TARGET, options)
    assert plan.workspace_bytes <= (options.get("workspace_mb", 256)) * MEBIBYTE
    assert slices_of(plan) == (1 if not options else 5 if dtype == "f32" else 3)
    check_plan(STRATEGY, problem, options, 31)


def test_a_cap_below_an_image_s_windows_cuts_images() -> None:
    problem = in_planes(make("wgrad", 3, 32, 8, (40, 40), (3, 3), pad=1, dtype="f32"))
    assert slices_of(STRATEGY.plan(problem, TARGET, {"workspace_mb": 1})) > 3
    check_plan(STRATEGY, problem, {"workspace_mb": 1}, 32)


def test_slices_with_groups_and_an_odd_rest() -> None:
    problem = make("fprop", 1, 26, 6, (47, 43), (3, 3), pad=1, groups=2, dtype="f32")
    options = {"workspace_mb": 1}
    plan = STRATEGY.plan(problem, TARGET, options)
    rows = [s.m for s in plan.steps if isinstance(s, Gemm)]
    assert sum(rows) == problem.output_pixels and len(set(rows)) == 2
    check_plan(STRATEGY, problem, options, 12)


@pytest.mark.parametrize(
    "dtype, c, groups, moved",
    [("f16", 24, 1, "Vec4"), ("f16", 12, 1, "u64"), ("bf16", 12, 2, "u32"), ("f16", 9, 3, "f16"), ("f32", 6, 1, "u64"),
     ("s8", 32, 2, "Vec4")],
)  # fmt: skip
def test_channels_move_together(dtype: str, c: int, groups: int, moved: str) -> None:
    problem = make("fprop", 2, c, 6, (5, 6), (3, 2), pad=1, groups=groups, dtype=dtype)
    source = check_plan(STRATEGY, with_types(problem, y="f32") if dtype == "s8" else problem, {}, 41)
    assert f"const {moved}* __restrict__ x" in source


# ---- threads with loops ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["taps", "pixel"])
def test_threads_that_copy_windows(form: str) -> None:
    """Matrices of planes and of pixels; in slices, in groups, and with padding that is no zeros."""
    planes = make("im2col", 2, 3, 1, (6, 5), (3, 2), (2, 1), ((1, 0), (0, 1)), (1, 2), lowered="n*c*r*s,p*q")
    check_plan(STRATEGY, planes, {"form": form}, 1)
    grouped = make("fprop", 1, 26, 6, (47, 43), (3, 3), pad=1, groups=2, dtype="f32")
    options = {"form": form, "workspace_mb": 1}
    assert slices_of(STRATEGY.plan(grouped, TARGET, options)) > 1
    source = check_plan(STRATEGY, replace(grouped, padding=Padding.REFLECT), options, 12)
    assert source.count("for (") == {"taps": 2, "pixel": 4}[form]


# ---- what needs no lowering, what cannot be served ------------------------------------------------


def test_a_pointwise_convolution_is_one_gemm() -> None:
    problem = make("fprop", 2, 8, 12, (5, 6), (1, 1), dtype="f32")
    plan = STRATEGY.plan(problem, TARGET, {})
    assert [type(s) for s in plan.steps] == [Gemm] and not plan.workspaces
    check_plan(STRATEGY, problem, {}, 3)


@pytest.mark.parametrize("op", PRODUCTS)
def test_depthwise_with_a_filter_without_channels(op: Op) -> None:
    problem = make(op, 2, 6, 12, (5, 6), (3, 3), pad=1, groups=6, dtype="f32")
    check_plan(STRATEGY, replace(problem, w=replace(problem.w, dims=("k", "r", "s"), extents=(12, 3, 3))), {}, 5)


def test_a_grouped_pointwise_convolution_is_one_batched_gemm() -> None:
    problem = make("wgrad", 2, 8, 12, (5, 6), (1, 1), groups=4, dtype="f32")
    (gemm,) = STRATEGY.plan(problem, TARGET, {}).steps
    assert isinstance(gemm, Gemm) and gemm.batch == 4
    check_plan(STRATEGY, problem, {}, 6)


def test_s8() -> None:
    problem = with_types(make("fprop", 2, 8, 12, (5, 6), (3, 3), pad=1, groups=2, dtype="s8"), y="f16")
    check_plan(STRATEGY, problem, {}, 4)
    assert STRATEGY.obstacles(make("fprop", 2, 6, 12, (5, 6), (3, 3), groups=2, dtype="s8"), TARGET, {})


def test_obstacles_say_why() -> None:
    plain = make("wgrad", 2, 8, 12, (5, 6), (3, 3))
    inside = replace(plain, w=replace(plain.w, dims=("c", "r", "k", "s"), extents=(8, 3, 12, 3)))
    strange = replace(plain, y=replace(plain.y, dims=("p", "n", "q", "k"), extents=(3, 2, 4, 12)))
    fp8 = make("fprop", 1, 8, 8, (4, 4), (3, 3), dtype="e4m3")
    large = make("dgrad", 1, 64, 8, (80, 80), (3, 3))
    many = make("fprop", 300_000, 256, 64, (80, 80), (3, 3), dtype="f32")
    cases = [
        (inside, {}, "k lies inside"),
        (strange, {}, "not a matrix of pixels"),
        (fp8, {}, "does not take e4m3"),
        (large, {"workspace_mb": 1}, "one image takes a workspace"),
        (many, {"workspace_mb": 64}, "more than 10000 launches and GEMMs"),
        (replace(many, op=Op.DGRAD), {"workspace_mb": 256}, "more than 10000 launches and GEMMs"),
        (with_types(replace(plain, op=Op.DGRAD), y="s8", w="s8"), {"method": "scatter"}, "scatter adds floats"),
        (plain, {"method": "scatter"}, "nothing to scatter"),
        (replace(plain, op=Op.DGRAD), {"form": "taps"}, "copies no windows of x"),
        (make("fprop", 2, 8, 12, (5, 6), (1, 1)), {"form": "pixel"}, "copies no windows of x"),
    ]
    for problem, options, words in cases:
        found = STRATEGY.obstacles(problem, TARGET, options)
        assert any(words in o.message for o in found), (words, found)


def test_the_cap_that_an_obstacle_asks_for_is_enough() -> None:
    problem = make("dgrad", 2, 64, 8, (80, 80), (3, 3))
    (obstacle,) = STRATEGY.obstacles(problem, TARGET, {"workspace_mb": 1})
    assert obstacle.option == "workspace_mb"
    enough = int(next(word for word in obstacle.hint.split() if word.isdigit()))
    assert not STRATEGY.obstacles(problem, TARGET, {"workspace_mb": enough})
    assert STRATEGY.obstacles(problem, TARGET, {"workspace_mb": enough - 1})
    plan = STRATEGY.plan(problem, TARGET, {"workspace_mb": enough})
    size = next(w.bytes for w in plan.workspaces if w.name == LOWERED)
    assert size == math.prod(problem.output) * problem.taps * problem.c * 4, "one image"
