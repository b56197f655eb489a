"""stem_wgrad, emulated: geometries, layouts and slices, exact on integers; what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import (
    SEEDS,
    TARGET,
    check_emulated,
    check_exact,
    served_options,
    spec,
    stem_wgrad_problems,
    typed,
)
from wgrad_specs import STEM_GEOMETRIES, STEM_PLAIN, bias

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["implicit_gemm"]


@pytest.mark.parametrize("name", STEM_GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = STEM_GEOMETRIES[name]
    check_exact(spec(problem, "implicit_gemm", {**STEM_PLAIN, **options}, bias(name)), seed)


@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(stem_wgrad_problems(200))
    options = data.draw(served_options(problem, "implicit_gemm", "stem_wgrad"))
    check_emulated(spec(problem, "implicit_gemm", options), seed)


LAYER = make("wgrad", 2, 3, 40, (19, 21), (7, 7), 2, 3)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make("fprop", 2, 3, 40, (19, 21), (7, 7), 2, 3), "serves wgrad alone"),
        (make("wgrad", 2, 8, 40, (9, 9), (3, 3)), "8 input channels"),
        (make("wgrad", 2, 3, 40, (19,), (3,)), "two axes"),
        (typed(LAYER, w="e4m3"), "output type e4m3"),
    ],
    ids=["operator", "channels", "axes", "type"],
)
def test_what_is_not_served(problem: ConvProblem, reason: str) -> None:
    (found,) = STRATEGY.obstacles(problem, TARGETS["sm_90a"], {"kernel": "stem_wgrad"})
    assert reason in found.message


@pytest.mark.parametrize(
    ("options", "option", "reason"),
    [
        ({"warps.m": 12, "warps.n": 2, "tile.m": 192}, "warps.n", "6 warpgroups"),
        ({"warps.m": 8, "tile.m": 64}, "tile.m", "64 rows for each of 2 warpgroups"),
        ({"warps.n": 3}, "warps.n", "4 vectors of a filter row"),
        ({"tile.m": 192, "warps.m": 4}, "warps.n", "registers for 336 sums"),
        ({"stages": 32, "tile.k": 256}, "stages", "bytes of shared memory"),
        ({"slices": 4000}, "slices", "20 output rows are fewer"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_options_that_do_not_go(options: Options, option: str, reason: str) -> None:
    found = STRATEGY.obstacles(LAYER, TARGET, {"kernel": "stem_wgrad", **options})
    assert any(reason in o.message and o.option == option for o in found), found
