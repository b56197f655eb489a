"""Sizes that a call decides, emulated: one source for all of them, equal to the kernels of fixed sizes bit by bit."""

from __future__ import annotations

import pytest
from dynamic_layers import LAYERS
from dynamic_problems import all_sizes, at, manifest, with_dynamic
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runs import emulated_plan
from strategy_problems import direct_problems

from convgen import frontend
from convgen.ir import verify
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)


def planned(name: str, problem: ConvProblem, options: dict[str, int | str]) -> tuple[Plan, str]:
    strategy = strategies.STRATEGIES[name]
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


def conv(extents: str, filters: str, settings: str = "pad 1", epilogue: str = "", dims: str = "n h w") -> ConvProblem:
    text = f"""conv layer {{ input x: f16[{extents}] filter w: f16[{filters}] output y: f16[n, p, q, k] {settings}
        dynamic {dims} {f"epilogue {{ {epilogue} }}" if epilogue else ""} }}"""
    (request,) = frontend.load(text)
    return request.problem


SIZES = [{"n": 2, "h": 9, "w": 7}, {"n": 1, "h": 5, "w": 6}, {"n": 5, "h": 3, "w": 11}, {"n": 3, "h": 10, "w": 8}]
BIAS_RELU = "operand b: f32[k] y = relu(acc + b)"
RESIDUAL = "operand b: f32[k] operand z: f16[n, p, q, k] result t: f16[n, p, q, k] t = acc + b + z y = relu(t)"
TMA = {
    "3x3": (conv("n=2, h=9, w=7, c=40", "k=72, r=3, s=3, c=40", epilogue=BIAS_RELU),
            {"tile.m": 128, "tile.n": 72, "consumers": 2, "stages": 3}),
    "residual": (conv("n=2, h=9, w=7, c=40", "k=72, r=1, s=1, c=40", "", RESIDUAL),
                 {"tile.m": 64, "tile.n": 72, "consumers": 2, "schedule": "pingpong", "stages": 4}),
    "strided": (conv("n=2, h=9, w=7, c=16", "k=64, r=3, s=3, c=16", "pad 1 stride 2", RESIDUAL),
                {"swap_ab": 1, "tile.m": 32, "tile.n": 64, "consumers": 1, "stages": 4}),
    "cluster": (conv("n=2, h=9, w=7, c=72", "k=136, r=3, s=3, c=72", "pad 1", BIAS_RELU, "n"),
                {"tile.m": 64, "tile.n": 64, "consumers": 1, "cluster": 2, "multicast": "b", "stages": 3}),
    "split_k": (conv("n=2, h=9, w=7, c=72", "k=48, r=3, s=3, c=72", "pad 1", BIAS_RELU, "h w"),
                {"tile.m": 64, "tile.n": 48, "consumers": 1, "split_k": 2, "stages": 3}),
}  # fmt: skip


TMA["dgrad"] = (
    conv("n=2, h=9, w=7, c=72", "k=40, r=3, s=3, c=72", "pad h=(1, 0) w=0 op dgrad"),
    {"tile.m": 64, "tile.n": 64, "consumers": 1, "stages": 3},
)


@pytest.mark.parametrize("name", TMA)
def test_tma_im2col(name: str) -> None:
    problem, options = TMA[name]
    sizes = [{d: some[d] for d in problem.dynamic} for some in SIZES]
    check_dynamic("tma_im2col", problem, sizes, len(name), same=name in ("3x3", "residual"), **options)


SUMS = "operand b: f32[k] result s: f32[n, k] result t: f32[p, k, n] s = acc t = acc * acc y = relu(acc + b)"


@pytest.mark.parametrize("name", ["direct", "implicit_gemm", "tma_halo"])
def test_sums_over_dims_of_fixed_sizes(name: str) -> None:
    """With channels as wgmma's m, a tma_halo kernel of fixed sizes adds up some of them itself, in another order."""
    problem = conv("n=2, h=9, w=7, c=24", "k=40, r=3, s=3, c=24", epilogue=SUMS, dims="n")
    options = {"swap_ab": 0} if name == "tma_halo" else {}
    check_dynamic(name, problem, [{"n": 2}, {"n": 5}, {"n": 1}], len(name), same=True, **options)


EACH_IMAGE = "operand b: f32[k] operand g: f32[n, k] operand z: f16[n, p, q, k] y = relu((acc + b) * g + z)"
MMA = {
    "3x3": (conv("n=2, h=9, w=7, c=24", "k=40, r=3, s=3, c=24", "pad 1 stride h=2 w=1", EACH_IMAGE), {}),
    "first layer": (conv("n=2, h=9, w=7, c=3", "k=16, r=5, s=5, c=3", "pad 2 stride 2", BIAS_RELU), {}),
    "groups": (conv("n=2, h=9, w=7, c=16", "k=32, r=3, s=3, c=8", "pad 2 dilation 2 groups 2"),
               {"order": "taps_inner"}),
    "one output channel": (conv("n=4, h=2, w=4, c=8", "k=1, r=1, s=1, c=8", "", RESIDUAL), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MMA)
def test_mma_gemm(name: str) -> None:
    problem, options = MMA[name]
    check_dynamic("implicit_gemm", problem, SIZES, len(name), same=name == "3x3", kernel="mma_gemm", **options)


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    layer = LAYERS[name]
    problem = layer.problem(**SIZES[0])
    sizes = [{d: some[d] for d in problem.dynamic} for some in SIZES]
    check_dynamic(layer.strategy, problem, sizes, len(name), **layer.options)
