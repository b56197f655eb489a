"""depthwise_wgrad, emulated: geometries, alignments and slices, exact on integers; infinities; what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from runs import emulated
from special_values import expected, with_specials
from tma_specs import (
    SEEDS,
    TARGET,
    check_emulated,
    check_exact,
    depthwise_wgrad_problems,
    laid_out,
    served_options,
    spec,
    typed,
)
from wgrad_specs import DEPTHWISE_GEOMETRIES, DEPTHWISE_PLAIN

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["depthwise"]


@pytest.mark.parametrize("name", DEPTHWISE_GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = DEPTHWISE_GEOMETRIES[name]
    check_exact(spec(problem, "depthwise", {**DEPTHWISE_PLAIN, **options}), seed)


def test_epilogue_where_kernels_cannot_overlap(seed: int) -> None:
    problem = typed(make("wgrad", 5, 24, 24, (9, 8), (3, 3), pad=1, groups=24), w="f32")
    text = "operand g: f32[k, r, s]  operand b: f16[k]  w = acc * b + 0.5 * g"
    made = check_exact(spec(problem, "depthwise", {"slices": 3}, text, target="sm_80"), seed)
    assert made.plan.kernel == "depthwise_wgrad" and "griddepcontrol" not in made.source


@pytest.mark.parametrize("role", ["x", "y"])
@pytest.mark.parametrize("geometry", ["a tail of columns, bands", "shared rows: a tail of columns and of images"])
def test_infinities_stay_in_their_windows(geometry: str, role: str, seed: int) -> None:
    problem, options = DEPTHWISE_GEOMETRIES[geometry]
    arrays = with_specials(problem, role, seed)
    # at the borders, where windows and strips end, too: in channels of their own
    for channel, (row, column) in enumerate([(0, 0), (-1, -1), (-1, 4), (4, -1)]):
        arrays[role][-1, row, column, channel] = np.inf
    out, source = emulated(STRATEGY, problem, {**DEPTHWISE_PLAIN, **options}, arrays)
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


@pytest.mark.parametrize("tile_q", [1, 2, 3])
def test_walkers_beside_y_add_nothing(tile_q: int, seed: int) -> None:
    """Four walk side by side, over ten columns.  All taps but the first read the last column of x; the first would read
    it for an eleventh."""
    problem = make("wgrad", 1, 16, 16, (6, 7), (1, 4), pad=((0, 0), (4, 2)), groups=16)
    arrays = verify.random_inputs(problem, seed)
    arrays["x"][0, 3, -1, 4] = np.nan
    options = {**SHARED, "slice": 16, "tile.r": 1, "tile.q": tile_q, "band": 2}
    out, source = emulated(STRATEGY, problem, options, arrays)
    assert np.array_equal(np.isnan(out[4].astype(float)).ravel(), [False, True, True, True]), source
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(depthwise_wgrad_problems(200))
    options = data.draw(served_options(problem, "depthwise", "depthwise_wgrad"))
    check_emulated(spec(problem, "depthwise", options), seed)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make("wgrad", 2, 16, 16, (9, 9), (3, 3), pad=1, groups=4), "groups 4 of 16 channels"),
        (laid_out(make("wgrad", 2, 8, 8, (9, 9), (3, 3), groups=8), x="nchw"), "channels are not innermost in x"),
        (typed(make("wgrad", 2, 8, 8, (9, 9), (3, 3), groups=8), w="e4m3"), "output type e4m3"),
        (make("fprop", 2, 8, 8, (9, 9), (3, 3), groups=8), "serves wgrad alone"),
    ],
    ids=["groups", "planes", "type", "operator"],
)
def test_what_is_not_served(problem: ConvProblem, reason: str) -> None:
    (found,) = STRATEGY.obstacles(problem, TARGETS["sm_90a"], {"kernel": "depthwise_wgrad"})
    assert reason in found.message


LAYER = make("wgrad", 2, 6, 6, (9, 9), (3, 3), pad=1, groups=6)


@pytest.mark.parametrize(
    ("options", "option", "reason"),
    [
        ({"vector": 4}, "vector", "2 channels are aligned neighbors"),
        ({"vector": 2, "slice": 3}, "slice", "slice 3 is not a multiple of vector 2"),
        ({"tile.r": 4}, "tile.r", "more than the filter's 3 rows"),
        ({"vector": 1, "stages": 2}, "stages", "cp.async copies 4 bytes or more"),
        ({"tile.q": 31}, "tile.q", "33 input columns under 31 outputs"),
        ({"tile.q": 20, "tile.r": 3, "vector": 2}, "tile.q", "do not fit the registers"),
        ({"vector": 1, "slice": 1024, "tile.r": 1}, "slice", "3072 threads"),
        ({"threads": 1024, "tile.q": 7, "blocks": 1, "stages": 16}, "threads", "bytes of shared memory"),
        ({"loads": "shared"}, "loads", "of x do not begin at multiples of 16 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_options_that_do_not_go(options: dict[str, int], option: str, reason: str) -> None:
    found = STRATEGY.obstacles(LAYER, TARGET, {"kernel": "depthwise_wgrad", **options})
    assert any(reason in o.message and o.option == option for o in found), found


WIDE = make("wgrad", 2, 32, 32, (9, 300), (3, 3), pad=1, groups=32)
#: What TMA can bring.
SHARED: Options = {"kernel": "depthwise_wgrad", "loads": "shared", "vector": 1, "slice": 32, "tile.r": 3, "threads": 64}


@pytest.mark.parametrize(
    ("problem", "options", "option", "reason"),
    [
        (WIDE, {"stages": 1}, "stages", "rows come to shared memory"),
        (WIDE, {"slice": 4}, "slice", "slice 4 is not of whole 16 bytes"),
        (WIDE, {"slice": 24}, "threads", "are not whole warps"),
        (WIDE, {"threads": 1024, "tile.q": 10}, "slice", "a box has at most 256"),
        (
            make("wgrad", 999, 4, 4, (9, 3), (3, 3), pad=1, groups=4, dtype="f32"),
            {"vector": 4, "slice": 4, "threads": 992, "tile.q": 3},
            "slice",
            "of 992 images",
        ),
        (make("wgrad", 2, 32, 32, (9,), (3,), pad=1, groups=32), {"tile.q": 2}, "tile.q", "only rows"),
        (make("wgrad", 2, 32, 32, (9, 9), (3, 3), 1, 2, 2, groups=32), {}, "loads", "columns are dilated"),
        (make("wgrad", 2, 32, 32, (19, 9), (3, 3), (2, 1), 1, (3, 1), groups=32), {}, "loads", "are not neighbors"),
        (make("wgrad", 2, 32, 32, (4, 9, 9), (3, 3, 3), pad=1, groups=32), {}, "loads", "three spatial dims"),
    ],
    ids=["registers", "bytes", "warps", "box", "images", "one axis", "columns", "rows", "three axes"],
)
def test_rows_that_threads_cannot_share(problem: ConvProblem, options: Options, option: str, reason: str) -> None:
    found = STRATEGY.obstacles(problem, TARGET, {**SHARED, **options})
    assert any(reason in o.message and o.option == option for o in found), found


def test_targets_without_tma_load_their_own() -> None:
    (found,) = STRATEGY.obstacles(WIDE, TARGETS["sm_80"], SHARED)
    assert "sm_80 has no TMA" in found.message and found.option == "loads"


@pytest.mark.parametrize("channels", [8, 24, 40, 72])
def test_channels_that_fill_no_warp_share_rows(channels: int, seed: int) -> None:
    problem = make("wgrad", 2, channels, channels, (7, 6), (3, 3), pad=1, groups=channels)
    made = check_exact(spec(problem, "depthwise", {"kernel": "depthwise_wgrad", "loads": "shared"}), seed)
    assert made.plan.options["loads"] == "shared"
