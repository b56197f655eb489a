"""tma_wgrad, emulated: geometries, layouts, groups and ways to share the pixels, exact on integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, check_emulated, check_exact, laid_out, serves, some_options, spec, typed, wgrad_problems

from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels.base import Options

#: What a row does not say, so that no cost model does.
PLAIN: Options = {
    "kernel": "tma_wgrad", "tile.m": 64, "tile.k": 64, "span": 64, "stages": 2, "warps.m": 4, "warps.n": 1,
    "row_taps": 0, "split_k": 1, "slices": 1, "blocks": 1, "group_pack": 1,
}  # fmt: skip
ROWS: Options = {"row_taps": 1}

GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "boxes of a tap": (make("wgrad", 2, 72, 88, (9, 8), (3, 3), pad=1), {"tile.n": 256}),
    "boxes of a row": (make("wgrad", 3, 72, 88, (9, 8), (3, 3), pad=1), {**ROWS, "tile.n": 192, "stages": 3}),
    "two consumers along m, two fragments": (
        make("wgrad", 2, 72, 200, (9, 8), (3, 3), pad=1), {"tile.m": 256, "warps.m": 8, "tile.n": 192},
    ),
    "three consumers along n, a filter row each": (
        make("wgrad", 3, 40, 88, (9, 8), (3, 3), pad=1), {**ROWS, "tile.n": 576, "warps.n": 3, "split_k": 2},
    ),
    "two parts of a consumer": (
        make("wgrad", 3, 40, 64, (9, 8), (3, 3), pad=1), {**ROWS, "span": 32, "tile.n": 192, "split_k": 4},
    ),
    "stride and dilation": (
        make("wgrad", 3, 24, 40, (17, 14), (3, 2), stride=(2, 3), dilation=(2, 3), pad=(2, (1, 0))),
        {"span": 32, "tile.n": 96, "slices": 2, "tile.k": 16},
    ),
    "dilated rows of one axis": (
        make("wgrad", 3, 24, 40, (50,), (3,), dilation=3, pad=((4, 1),)), {**ROWS, "span": 16, "tile.n": 48},
    ),
    "three axes": (
        make("wgrad", 2, 24, 24, (4, 6, 5), (2, 3, 3), (1, 2, 1), ((1, 0), 1, (0, 2)), (2, 1, 1), dtype="bf16"),
        {**ROWS, "span": 16, "tile.n": 48, "tile.k": 32},
    ),
    "1x1": (make("wgrad", 4, 72, 136, (7, 7), (1, 1)), {"tile.n": 128, "split_k": 2}),
    "1x1, stride 2": (make("wgrad", 4, 72, 136, (13, 14), (1, 1), stride=2), {"tile.n": 64, "slices": 3}),
    "stride above the filter": (make("wgrad", 4, 40, 40, (20, 17), (2, 2), stride=(4, 3)), {"span": 32, "tile.n": 64}),
    "channels before pixels, odd": (
        laid_out(make("wgrad", 2, 19, 37, (9, 7), (3, 3), pad=1), x="nchw", y="nkpq", w="kcrs"),
        {**ROWS, "span": 32, "tile.n": 96, "slices": 2},
    ),
    "padding by reflection": (
        replace(make("wgrad", 2, 24, 40, (9, 7), (3, 3), pad=(1, 2)), padding=Padding.REFLECT),
        {**ROWS, "span": 32, "tile.n": 96},
    ),
    "three channels": (typed(make("wgrad", 2, 3, 40, (15, 13), (5, 5), 2, 2), w="f32"), {"span": 16, "tile.n": 256}),
    "two large groups": (make("wgrad", 2, 144, 160, (9, 7), (3, 3), pad=1, groups=2), {"tile.n": 192}),
    "small groups as one": (
        make("wgrad", 3, 64, 128, (9, 7), (3, 3), pad=1, groups=16),
        {**ROWS, "tile.n": 192, "group_pack": 8, "slices": 2},
    ),
    "one channel a group": (
        make("wgrad", 3, 40, 40, (9, 7), (3, 3), pad=1, groups=40),
        {**ROWS, "span": 32, "tile.n": 96, "group_pack": 8},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    check_exact(spec(problem, "tma_im2col", {**PLAIN, **options}), seed)


LAYER = make("wgrad", 6, 40, 72, (9, 8), (3, 3), pad=1)
EPILOGUES: dict[str, tuple[str, Options]] = {
    "added to a gradient": ("operand g: {w}[k, r, s, c]  w = acc + 0.5 * g", {}),
    "by channel, of several slices": ("operand b: f32[k]  operand g: f16[c, k]  w = acc * b - g", {"slices": 3}),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name: str, seed: int) -> None:
    text, options = EPILOGUES[name]
    problem = typed(LAYER, w="f32")
    check_exact(spec(problem, "tma_im2col", {**PLAIN, "tile.n": 192, **options}, text.format(w="f32")), seed)


def test_sums_are_added_in_one_order(seed: int) -> None:
    """Slices of two blocks each, whose sums four threads of the second kernel share."""
    problem = typed(make("wgrad", 20, 40, 40, (9, 8), (3, 3), pad=1), w="f32")
    options: Options = {**PLAIN, **ROWS, "tile.n": 192, "split_k": 2, "slices": 16, "tile.k": 32}
    made = check_emulated(spec(problem, "tma_im2col", options), seed)
    assert made.plan.launches[-1].shared_bytes, "threads share the slices"


@settings(max_examples=6, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(wgrad_problems(200))
    options = {"kernel": "tma_wgrad", **data.draw(some_options("tma_im2col"))}
    assume(serves(problem, "tma_im2col", options))
    check_emulated(spec(problem, "tma_im2col", options), seed)
