"""mma_wgrad, emulated: geometries, alignments, groups and slices, exact on integers."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, check_emulated, check_exact, laid_out, some_options, spec, typed, wgrad_problems

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import TARGETS

PLAIN: Options = {"kernel": "mma_wgrad", "tile.m": 64, "tile.n": 64, "slices": 1, "group_pack": 1}
GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "vectors of 16 bytes": (make("wgrad", 2, 72, 88, (9, 8), (3, 3), pad=1), {}),
    "8 and 4 bytes, large tile": (
        make("wgrad", 3, 20, 134, (9, 8), (3, 3), pad=1, dtype="bf16"), {"tile.m": 128, "tile.n": 128, "slices": 2},
    ),
    "one by one": (typed(make("wgrad", 2, 3, 37, (15, 13), (5, 5), 2, 2), w="f32"), {"tile.n": 128}),
    "stride, dilation, a large stride": (
        make("wgrad", 3, 24, 40, (40, 14), (3, 2), (9, 3), (2, (1, 0)), (12, 3)), {"tile.m": 128, "slices": 2},
    ),
    "one axis, taps outside": (
        laid_out(make("wgrad", 3, 24, 40, (50,), (3,), 1, ((4, 1),), 3), w="skc"), {"tile.k": 16, "warps.m": 2},
    ),
    "channels before pixels": (
        laid_out(make("wgrad", 2, 19, 37, (9, 7), (3, 3), pad=1), x="nchw", y="knpq", w="kcrs"), {},
    ),
    "three axes": (make("wgrad", 2, 24, 24, (4, 6, 5), (2, 3, 3), (1, 2, 1), ((1, 0), 1, (0, 2)), (2, 1, 1)), {}),
    "two large groups": (make("wgrad", 2, 144, 160, (9, 7), (3, 3), pad=1, groups=2), {"slices": 2}),
    "small groups as one": (make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16), {"group_pack": 8}),
    "one channel a group": (make("wgrad", 3, 40, 40, (9, 7), (3, 3), pad=1, groups=40), {"group_pack": 20}),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    check_exact(spec(problem, "implicit_gemm", {**PLAIN, **options}, target="sm_80"), seed)


def test_epilogue(seed: int) -> None:
    problem = typed(make("wgrad", 6, 40, 72, (9, 8), (3, 3), pad=1), w="f32")
    text = "operand g: f32[k, r, s, c]  operand b: f16[c]  w = acc * b + 0.5 * g"
    check_exact(spec(problem, "implicit_gemm", {**PLAIN, "slices": 3}, text, target="sm_80"), seed)


@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(wgrad_problems(200))
    options = {**data.draw(some_options("implicit_gemm")), "kernel": "mma_wgrad"}
    assume(not strategies.load("implicit_gemm").obstacles(problem, TARGETS["sm_80"], options))
    check_emulated(spec(problem, "implicit_gemm", options, target="sm_80"), seed)
