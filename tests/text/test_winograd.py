"""Winograd's transforms, the bound on what they round, and when the strategy is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, compilation, spec, typed

from convgen import planner
from convgen.driver import Spec, choose_all
from convgen.explain import explain
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.problem import ConvProblem, Padding
from convgen.ir.winograd import POINTS, TAPS, transforms
from convgen.kernels import strategies
from convgen.planner import database
from convgen.planner.database import Database, Measurement, Status
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
STRATEGY = strategies.STRATEGIES["winograd"]

# ---- the transforms ------------------------------------------------------------------------------


@pytest.mark.parametrize("m", POINTS)
def test_transforms_give_sums_of_products(m: int) -> None:
    """For any inputs and taps, in symbols."""
    f = transforms(m)
    d, g = sympy.Matrix(sympy.symbols(f"d:{f.size}")), sympy.Matrix(sympy.symbols(f"g:{TAPS}"))
    y = f.outputs * (f.filters * g).multiply_elementwise(f.inputs * d)
    right = [sum(d[i + tap] * g[tap] for tap in range(TAPS)) for i in range(m)]
    assert [sympy.expand(a - b) for a, b in zip(y, right, strict=True)] == [0] * m


@pytest.mark.parametrize("m", POINTS)
def test_transformed_values_are_no_larger(m: int) -> None:
    f = transforms(m)
    for matrix in (f.inputs, f.filters):
        assert all(0.5 < sum(map(abs, matrix.row(i))) <= 1 for i in range(f.size))


# ---- the bound -----------------------------------------------------------------------------------


def matrices(m: int) -> list[np.ndarray]:
    f = transforms(m)
    return [np.array(part.tolist(), np.float32) for part in (f.inputs, f.filters, f.outputs)]


def by_transforms(problem: ConvProblem, arrays: dict[str, np.ndarray], m: int, filters: np.ndarray) -> np.ndarray:
    """y[n, p, q, k] as a kernel makes it: in float32, but for what is stored in the tensors' type."""
    inputs, _, outputs = matrices(m)
    stored, (p, q) = arrays["x"].dtype, problem.output
    u = np.einsum("ia,kabc,jb->ijkc", filters, arrays["w"].astype(np.float32), filters).astype(stored)
    x = np.zeros((problem.n, p + m + TAPS, q + m + TAPS, problem.c), np.float32)
    (top, left), (h, w) = problem.pad_lo, problem.input
    x[:, top : top + h, left : left + w] = arrays["x"]
    y = np.empty((problem.n, p + m, q + m, problem.k))
    for i in range(0, p, m):
        for j in range(0, q, m):
            tile = x[:, i : i + m + TAPS - 1, j : j + m + TAPS - 1]
            v = np.einsum("ia,nabc,jb->nijc", inputs, tile, inputs).astype(stored).astype(np.float32)
            products = np.einsum("nijc,ijkc->nijk", v, u.astype(np.float32))
            y[:, i : i + m, j : j + m] = np.einsum("ia,nabk,jb->nijk", outputs, products, outputs)
    return y[:, :p, :q]


def constant(problem: ConvProblem, seed: int) -> dict[str, np.ndarray]:
    """Every element alike: its rounding is the same in all products."""
    values = np.random.default_rng(seed).uniform(0.1, 1, 2)
    tensors = zip((problem.x, problem.w), values, strict=True)
    return {t.role: np.full(t.shape, value).astype(numpy_dtype(t.dtype)) for t, value in tensors}


def small(problem: ConvProblem, seed: int) -> dict[str, np.ndarray]:
    """Numbers near the least that the type has."""
    factor = np.float32(1e-4 if problem.x.dtype == "f16" else 1)
    return {name: (a * factor).astype(a.dtype) for name, a in verify.random_inputs(problem, seed).items()}


@pytest.mark.parametrize("data", [verify.random_inputs, constant, small])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("m", POINTS)
def test_the_bound_holds(m: int, dtype: str, data: Callable, seed: int) -> None:
    problem = typed(make("fprop", 2, 24, 5, (9, 6), (3, 3), pad=((1, 1), (0, 2)), dtype=dtype), y="f32")
    arrays = data(problem, seed)
    y = by_transforms(problem, arrays, m, matrices(m)[1])
    assert verify.check(problem, arrays, y.astype("f4"), np, f"winograd{m} f32")


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("m", POINTS)
def test_a_wrong_coefficient_is_out_of_bounds(m: int, dtype: str, seed: int) -> None:
    problem = typed(make("fprop", 2, 24, 5, (9, 6), (3, 3), pad=1, dtype=dtype), y="f32")
    arrays = verify.random_inputs(problem, seed)
    filters = matrices(m)[1]
    filters[1, 1] *= -1
    wrong = by_transforms(problem, arrays, m, filters).astype("f4")
    assert not verify.check(problem, arrays, wrong, np, f"winograd{m} f32")


def by_rows(problem: ConvProblem, arrays: dict[str, np.ndarray], filters: np.ndarray) -> np.ndarray:
    """y[n, p, q, k] as winograd_fused makes it: of tiles of two outputs, halved and added in the tensors' type."""
    inputs, _, outputs = matrices(2)
    stored, (p, q), (r, _) = arrays["x"].dtype, problem.output, problem.filter
    (top, left), (h, w), down = problem.pad_lo, problem.input, problem.dilation[0]
    u = np.einsum("ia,krac->irkc", filters, arrays["w"].astype(np.float32)).astype(stored).astype(np.float32)
    x = np.zeros((problem.n, top + p + h + r * down, left + q + w + 2 + TAPS, problem.c), np.float32)
    x[:, top : top + h, left : left + w] = (arrays["x"].astype(np.float32) / 2).astype(stored)
    y = np.empty((problem.n, p, q + 1, problem.k))
    for j in range(0, q, 2):
        v = np.einsum("ia,nhac->inhc", 2 * inputs, x[:, :, j : j + 4]).astype(stored).astype(np.float32)
        m = sum(np.einsum("inhc,ikc->inhk", v[:, :, a * down : a * down + p], u[:, a]) for a in range(r))
        y[:, :, j : j + 2] = np.einsum("ai,inhk->nhak", outputs, m)
    return y[:, :, :q]


ROWS = make("fprop", 2, 24, 5, (9, 7), (4, 3), pad=((1, 1), (0, 2)), dilation=(2, 1))


@pytest.mark.parametrize("data", [verify.random_inputs, constant, small])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_bound_along_rows_holds(dtype: str, data: Callable, seed: int) -> None:
    problem = typed(ROWS, x=dtype, w=dtype, y="f32")
    arrays = data(problem, seed)
    filters = matrices(2)[1]
    y = by_rows(problem, arrays, filters)
    assert verify.check(problem, arrays, y.astype("f4"), np, "winograd2 along w")
    filters[1, 1] *= -1
    if data is not small:  # near the least numbers, all is rounding
        assert not verify.check(
            problem, arrays, by_rows(problem, arrays, filters).astype("f4"), np, "winograd2 along w"
        )


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_the_bound_holds_for_any_geometry(data: st.DataObject, seed: int) -> None:
    pads = tuple((data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in range(2))
    extents = tuple(data.draw(st.integers(max(1, 3 - sum(pad)), 9)) for pad in pads)
    n, c, k, m = (data.draw(st.sampled_from(s)) for s in ((1, 2), (1, 3, 40), (1, 4), (2, 4)))
    problem = typed(make("fprop", n, c, k, extents, (3, 3), pad=pads), y="f32")
    arrays = verify.random_inputs(problem, seed)
    y = by_transforms(problem, arrays, m, matrices(m)[1])
    assert verify.check(problem, arrays, y.astype("f4"), np, f"winograd{m} f32")


# ---- the strategy --------------------------------------------------------------------------------

LAYER = make("fprop", 8, 256, 256, (56, 56), (3, 3), pad=1, dtype="f32", name="layer")


def test_four_launches_share_three_workspaces() -> None:
    plan = compilation(spec(LAYER, "winograd", {"tile": 4})).plan
    suffixes = [launch.entry.removeprefix("convgen_layer") for launch in plan.launches]
    assert suffixes == ["_filter", "_input", "", "_output"]
    sizes = {w.name: w.bytes // 4 for w in plan.workspaces}
    tiles = 8 * 14 * 14
    assert sizes == {"workspace.u": 36 * 256 * 256, "workspace.v": tiles * 36 * 256, "workspace.m": tiles * 36 * 256}
    assert plan.arithmetic == "winograd4 tf32x3"


def test_sixteen_bits_get_small_tiles_unless_asked() -> None:
    half = typed(LAYER, x="f16", w="f16")
    assert {o["tile"] for o in STRATEGY.candidates(LAYER, TARGET)} == {2, 4}
    assert {o["tile"] for o in STRATEGY.candidates(half, TARGET)} == {2}
    assert STRATEGY.plan(half, TARGET, {"tile": 4}).options["tile"] == 4


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        (make("dgrad", 1, 8, 8, (6, 6), (3, 3)), {}, "op dgrad; winograd serves fprop only"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 1)), {}, "the filter is 3 x 1; winograd needs 3 x 3"),
        (make("fprop", 1, 8, 8, (6,), (3,)), {}, "the filter is 3 along w; winograd needs 3 x 3"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), stride=(1, 2)), {}, "stride 1 x 2; winograd needs stride 1"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), dilation=2), {}, "dilation 2 x 2; winograd needs dilation 1"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), groups=2), {}, "2 groups; winograd serves a single group"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), dtype="e4m3"), {}, "types e4m3 x e4m3"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), pad=1, padding=Padding.REFLECT), {}, "reads zeros beyond x"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3)), {"math": "tf32"}, "math tf32 is for f32"),
        (LAYER, {"product": "tma_im2col"}, "must both be f16 or bf16"),
    ],
)  # fmt: skip
def test_what_is_refused(problem: ConvProblem, options: dict, words: str) -> None:
    found = STRATEGY.obstacles(problem, TARGET, options)
    assert any(words in o.message for o in found), found


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        (make("dgrad", 1, 8, 8, (6, 6), (3, 3)), {}, "op dgrad is not served; only fprop is"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 1)), {}, "the filter is 1 wide; form fused needs 3 taps along w"),
        (make("fprop", 1, 8, 8, (6, 6, 6), (3, 3, 3)), {}, "3 spatial dims; form fused serves one and two"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), stride=(2, 1)), {}, "form fused needs stride 1"),
        (make("fprop", 1, 8, 8, (9, 9), (3, 3), dilation=2), {}, "dilation 2 along w; form fused needs 1"),
        (make("fprop", 1, 32, 32, (6, 6), (3, 3), groups=2), {}, "2 groups; form fused serves a single group"),
        (LAYER, {}, "types f32 x f32: x and w must both be f16 or bf16"),
        (typed(ROWS, y="f32"), {}, "output type f32"),
        (make("fprop", 1, 8, 8, (6, 6), (3, 3), pad=1, padding=Padding.REFLECT), {}, "reads zeros beyond x"),
        (ROWS, {"weight_stages": 1}, "a consumer holds two filter rows at once"),
        (make("fprop", 1, 512, 64, (9, 9), (3, 3)), {"weight_stages": 0}, "bytes of shared memory; sm_90a has"),
        (ROWS, {"weight_stages": 0, "cluster": 2}, "a cluster needs streamed filters"),
        (ROWS, {"kernel": "winograd_fused", "tile": 2}, "no option tile"),
        (ROWS, {"tile": 2}, "no kernel of winograd has all of these options"),
    ],
)  # fmt: skip
def test_what_form_fused_refuses(problem: ConvProblem, options: dict, words: str) -> None:
    found = STRATEGY.obstacles(problem, TARGET, {"form": "fused", **options})
    assert any(words in o.message for o in found), found


def test_form_fused_is_a_kernel_with_a_launch_for_its_filters() -> None:
    problem = typed(LAYER, x="f16", w="f16", y="f16")
    plan = compilation(spec(problem, "winograd", {"form": "fused"})).plan
    suffixes = [launch.entry.removeprefix("convgen_layer") for launch in plan.launches]
    assert suffixes == ["_filter", ""] and plan.kernel == "winograd_fused"
    assert [w.bytes for w in plan.workspaces] == [2 * 3 * 4 * 256 * 256] and plan.arithmetic == "winograd2 along w"


def test_form_fused_is_taken_only_where_it_is_asked_for() -> None:
    few = make("fprop", 64, 64, 64, (224, 224), (3, 3), pad=1)
    assert STRATEGY.estimate(few, TARGET, {"form": "fused"}) < STRATEGY.estimate(few, TARGET, {})
    assert STRATEGY.plan(few, TARGET, {}).kernel == "winograd"
    assert all("form" not in options for options in STRATEGY.candidates(few, TARGET))


def test_auto_does_not_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is estimated, and measured, to be the fastest."""
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "db.sqlite"))
    others = {name: strategies.STRATEGIES[name].estimate(LAYER, TARGET, {}) for name in ("implicit_gemm", "winograd")}
    assert others["winograd"] < others["implicit_gemm"]
    gpu = "NVIDIA H200"
    with Database(tmp_path / "db.sqlite") as db:
        for name, us in (("winograd", 1.0), ("direct", 9.0)):
            db.record(Measurement(database.key(LAYER), gpu, name, {}, Status.RIGHT, us))
    assert planner.choose(LAYER, TARGET, "auto", {}, gpu).strategy.name == "direct"
    assert planner.untuned(LAYER, TARGET, "auto", {}).strategy.name == "implicit_gemm"
    named = database.lookup(LAYER, TARGET, gpu, "winograd")
    assert named is not None and named.us == 1.0


def test_explain_shows_its_estimate_and_workspace() -> None:
    text = str(explain(LAYER, strategies={"winograd": STRATEGY}))
    (row,) = (line for line in text.splitlines() if line.startswith("winograd"))
    assert "yes" in row and "MB" in row and "only if a spec names it" in row


def test_targets_without_tma_multiply_by_mma_sync() -> None:
    (made,) = choose_all(Spec(spec(typed(LAYER, x="f16", w="f16"), "winograd", {}, target="sm_80")))
    assert made.plan.options["product"] == "mma_gemm"
