"""mma_wgrad, emulated: geometries, alignments, groups and slices, exact on integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, check_emulated, check_exact, served_options, spec, typed, wgrad_problems
from wgrad_specs import ATOMIC, MMA_ATOMIC_GEOMETRIES, MMA_GEOMETRIES, MMA_PLAIN, bias

from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import TARGETS


@pytest.mark.parametrize("name", [*MMA_GEOMETRIES, *MMA_ATOMIC_GEOMETRIES])
def test_geometry(name: str, seed: int) -> None:
    problem, options = (MMA_GEOMETRIES | MMA_ATOMIC_GEOMETRIES)[name]
    check_exact(spec(problem, "implicit_gemm", {**MMA_PLAIN, **options}, bias(name), target="sm_80"), seed)


@pytest.mark.parametrize("options", [{"tile.m": 16}, {"tile.m": 16, "warps.n": 1}, {"tile.m": 32, "warps.n": 1}])
def test_what_is_not_said_goes_with_what_is(options: Options, seed: int) -> None:
    problem = make("wgrad", 2, 16, 16, (8, 8), (3, 3), pad=1, dtype="bf16")
    check_exact(spec(problem, "implicit_gemm", {"kernel": "mma_wgrad", **options}, target="sm_80"), seed)


@pytest.mark.parametrize("options", [{"tile.m": 16, "warps.m": 2}, {"tile.m": 32, "warps.m": 4}])
def test_warps_without_a_part_are_refused(options: Options) -> None:
    problem = make("wgrad", 2, 16, 16, (8, 8), (3, 3), pad=1)
    fixed: Options = {"kernel": "mma_wgrad", **options}
    found = strategies.STRATEGIES["implicit_gemm"].obstacles(problem, TARGETS["sm_80"], fixed)
    assert any("do not share a tile of" in str(obstacle) for obstacle in found)


@pytest.mark.parametrize("options", [{}, ATOMIC])
def test_epilogue(options: Options, seed: int) -> None:
    problem = typed(make("wgrad", 6, 40, 72, (9, 8), (3, 3), pad=1), w="f32")
    text = "operand g: f32[k, r, s, c]  operand b: f16[c]  result db: f32[k]  db = y  w = acc * b + 0.5 * g"
    check_exact(spec(problem, "implicit_gemm", {**MMA_PLAIN, "slices": 3, **options}, text, target="sm_80"), seed)


@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(wgrad_problems(200))
    options = data.draw(served_options(problem, "implicit_gemm", "mma_wgrad", "sm_80"))
    check_emulated(spec(problem, "implicit_gemm", options, target="sm_80"), seed)
