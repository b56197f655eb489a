"""Padding that is not of zeros, emulated: index maps, places of pixels in gradients, and the launch that pads."""

from __future__ import annotations

import numpy as np
import pytest
from problems import make
from runs import check_plan
from tma_specs import PLAIN, check_emulated, compilation, laid_out, spec

from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels import strategies
from convgen.kernels.base import Options

#: 1 to 3 spatial dims; as much padding as there may be.
GEOMETRIES = {
    Padding.REFLECT: ((5, 4), ((4, 1), (2, 3)), (2, 1)),
    Padding.REPLICATE: ((4,), ((3, 5),), (2,)),
    Padding.CIRCULAR: ((2, 3, 2), ((2, 1), 1, (0, 2)), (1, 2, 1)),
    Padding.NAN: ((4, 5), (1, (2, 0)), (1, 2)),
}


def layer(padding: Padding, op: Op, c: int, k: int, groups: int = 1, dtype: str = "f16", **rest) -> ConvProblem:
    input, pad, stride = GEOMETRIES[padding]
    filter = (3, 2, 2)[: len(input)]
    return make(op, 2, c, k, input, filter, stride, pad, groups=groups, dtype=dtype, padding=padding, **rest)


@pytest.mark.parametrize("padding", [Padding.REFLECT, Padding.REPLICATE, Padding.CIRCULAR])
def test_gradients_of_copies_add_up(padding: Padding) -> None:
    check_plan(strategies.STRATEGIES["direct"], layer(padding, Op.DGRAD, 4, 6, 2, "f32"), {}, 1)
    check_plan(strategies.STRATEGIES["im2col"], layer(padding, Op.DGRAD, 4, 6, 1, "f32"), {"method": "scatter"}, 2)


@pytest.mark.parametrize("padding", GEOMETRIES)
def test_windows_reach_into_padding(padding: Padding) -> None:
    check_plan(strategies.STRATEGIES["direct"], layer(padding, Op.FPROP, 4, 8, dtype="bf16"), {"tile": 2}, 3)
    check_plan(strategies.STRATEGIES["im2col"], layer(padding, Op.WGRAD, 4, 8, dtype="f16"), {}, 4)


SMALL: Options = {**PLAIN, "tile.m": 64, "tile.n": 16, "consumers": 1, "stages": 2}


@pytest.mark.parametrize("padding", GEOMETRIES)
def test_the_launch_that_pads(padding: Padding) -> None:
    """Channels that are filled up; a strided filter of one tap, which is left those pixels that it reads."""
    check_emulated(spec(layer(padding, Op.FPROP, 12, 16), "tma_im2col", SMALL), 5)


def test_the_launch_that_pads_planes_for_a_halo() -> None:
    made = make("fprop", 2, 8, 16, (6, 7), (3, 3), pad=2, padding=Padding.REFLECT)
    check_emulated(spec(laid_out(made, x="nchw", w="kcrs"), "tma_halo", {}), 6)


def test_one_tap_is_left_the_padding_that_it_reads() -> None:
    made = make("fprop", 2, 8, 16, (5, 6), (1, 1), stride=2, pad=(1, (0, 1)), padding=Padding.CIRCULAR)
    check_emulated(spec(made, "tma_im2col", SMALL), 7)


def test_packed_groups_keep_the_nans_of_padding() -> None:
    made = make("fprop", 2, 16, 32, (6,), (2,), stride=2, pad=1, groups=4, padding=Padding.NAN)
    check_emulated(spec(made, "tma_im2col", {**SMALL, "group_pack": 4}), 8)


@pytest.mark.parametrize(("c", "steps"), [(16, 1), (12, 2)])
def test_a_pixel_of_padding_is_nan_and_nothing_else(c: int, steps: int) -> None:
    """By TMA's own fill, or by the launch before it, where a box would reach behind the last channel."""
    made = make("fprop", 2, c, 16, (6, 7), (3, 3), pad=1, padding=Padding.NAN)
    x, w = np.ones((2, 6, 7, c), np.float16), np.ones((16, 3, 3, c), np.float16)
    serving = compilation(spec(made, "tma_im2col", SMALL)).uncompiled()
    assert len(serving.plan.steps) == steps
    y = serving.emulate(x=x, w=w)
    assert np.isnan(y[:, [0, -1]]).all() and np.isnan(y[:, :, [0, -1]]).all()
    assert (y[:, 1:-1, 1:-1] == 9 * c).all()
