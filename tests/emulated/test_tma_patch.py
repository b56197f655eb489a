"""tma_patch, emulated: both roles of wgmma's m, filters, dilation, strips, blocks of channels, epilogues.

Strips and tiles have tails, blocks take several tiles, and channels do not fill their last block.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, check_emulated, patch_problems, serves, some_options, spec, typed

from convgen.ir.problem import ConvProblem
from convgen.strategies.base import Options

#: 3 images of 11 x 13 pixels, one block of input channels, and two with a tail.
ONE_BLOCK = make("fprop", 3, 64, 72, (11, 13), (3, 3), pad=1)
TWO_BLOCKS = make("fprop", 3, 72, 72, (11, 13), (3, 3), pad=1)
FEW = make("fprop", 3, 24, 40, (11, 13), (3, 3), pad=1, dtype="bf16")

#: In strips of 5 of 13 columns unless they say otherwise.
CONFIGURATIONS: dict[str, tuple[ConvProblem, Options]] = {
    "one consumer": (ONE_BLOCK, {"rows": "channels", "pixels": 32, "consumers": 1, "stages": 1}),
    "two consumers": (ONE_BLOCK, {"rows": "channels", "pixels": 48, "consumers": 2, "stages": 2}),
    "three consumers": (FEW, {"rows": "channels", "pixels": 32, "tile.k": 32, "consumers": 3, "stages": 2}),
    "one strip": (ONE_BLOCK, {"rows": "channels", "pixels": 64, "strip": 13, "consumers": 2, "stages": 1}),
    "strips of one column": (FEW, {"rows": "channels", "pixels": 16, "strip": 1, "tile.k": 16, "consumers": 2}),
    "a tile of an image": (FEW, {"rows": "channels", "pixels": 240, "strip": 13, "consumers": 1, "stages": 1}),
    "two blocks of channels": (TWO_BLOCKS, {"rows": "channels", "pixels": 32, "consumers": 1, "stages": 1}),
    "two blocks, three stages": (FEW, {"rows": "channels", "pixels": 32, "tile.k": 16, "consumers": 2, "stages": 3}),
    "two blocks, two stages": (FEW, {"rows": "channels", "pixels": 48, "tile.k": 16, "consumers": 3, "stages": 2}),
    "pixels in rows": (ONE_BLOCK, {"rows": "pixels", "pixels": 64, "channels": 64, "consumers": 2, "stages": 1}),
    "pixels, 48 channels": (ONE_BLOCK, {"rows": "pixels", "pixels": 64, "channels": 48, "consumers": 1, "stages": 2}),
    "pixels, 32 channels": (FEW, {"rows": "pixels", "pixels": 128, "channels": 32, "tile.k": 32, "consumers": 2}),
    "pixels, 16 channels": (FEW, {"rows": "pixels", "pixels": 64, "channels": 16, "tile.k": 16, "consumers": 3}),
    "pixels, two blocks": (
        TWO_BLOCKS, {"rows": "pixels", "pixels": 64, "channels": 32, "consumers": 2, "stages": 1},
    ),
}  # fmt: skip

BY_CHANNELS: Options = {"rows": "channels", "pixels": 32, "consumers": 2, "strip": 5}
BY_PIXELS: Options = {"rows": "pixels", "pixels": 64, "consumers": 2, "strip": 7}
GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "1x3": (make("fprop", 3, 32, 40, (7, 12), (1, 3), pad=(0, 1)), BY_CHANNELS),
    "3x1": (make("fprop", 3, 32, 40, (9, 7), (3, 1), pad=(1, 0)), BY_PIXELS),
    "5x5": (make("fprop", 2, 16, 32, (9, 14), (5, 5), pad=2), BY_PIXELS),
    "7x7": (make("fprop", 2, 16, 40, (9, 11), (7, 7), pad=3), BY_CHANNELS),
    "2x2, low padding": (make("fprop", 3, 24, 24, (8, 9), (2, 2), pad=((1, 0), (1, 0))), BY_PIXELS),
    "3x2, high padding": (make("fprop", 3, 24, 24, (8, 9), (3, 2), pad=((0, 2), (0, 3))), BY_CHANNELS),
    "dilated": (make("fprop", 2, 32, 40, (9, 15), (3, 3), dilation=(2, 3), pad=(2, 3)), BY_CHANNELS),
    "dilated, no padding": (make("fprop", 2, 16, 40, (12, 13), (3, 3), dilation=2), BY_PIXELS),
    "wide padding": (make("fprop", 2, 16, 40, (4, 3), (3, 3), pad=3), BY_CHANNELS),
    "one pixel": (make("fprop", 5, 40, 40, (3, 3), (3, 3)), {"rows": "channels", "pixels": 16}),
    "bfloat16 to float16": (typed(make("fprop", 2, 16, 72, (6, 7), (3, 3), dtype="bf16"), y="f16"), BY_PIXELS),
}

#: Several operands of one kind at once.
EPILOGUES = {
    "no operand": "no operand",
    "channels of every type": (
        "operand a: f32[k]  operand b: f16[k]  operand c: bf16[k]  operand d: s8[k]  y = relu(acc * a + b) + c * d"
    ),
    "coordinates": (
        "operand s: f32[]  operand e: f16[n, k]  operand f: bf16[p, q]  operand g: f32[q, k, n]  operand h: s8[k, p] "
        "y = acc * s + e + f * g + h"
    ),
    "locals": "locals",
}


@pytest.fixture
def seed() -> int:
    """Fresh; it is shown where a test fails."""
    drawn = random.SystemRandom().getrandbits(32)
    print(f"seed {drawn}")
    return drawn


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(name: str, seed: int) -> None:
    problem, options = CONFIGURATIONS[name]
    made = check_emulated(spec(problem, "tma_patch", {"strip": 5, **options}, "residual"), seed, sms=(2, 4))
    (launch,) = made.plan.launches
    assert launch.grid[0] >= 2 * launch.multiple_of, "a block has a second tile"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    fits = {name: min(value, problem.output[1]) if name == "strip" else value for name, value in options.items()}
    check_emulated(spec(problem, "tma_patch", fits), seed)


@pytest.mark.parametrize("options", [BY_CHANNELS, BY_PIXELS], ids=["by channels", "by pixels"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name: str, options: Options, seed: int) -> None:
    check_emulated(spec(FEW, "tma_patch", options, EPILOGUES[name]), seed)


@settings(max_examples=8, deadline=None)
@given(problem=patch_problems(), options=some_options("tma_patch"), seed=SEEDS, sms=st.sampled_from((1, 2, 5)))
def test_any_problem(problem: ConvProblem, options: Options, seed: int, sms: int) -> None:
    assume(serves(problem, "tma_patch", options))
    check_emulated(spec(problem, "tma_patch", options), seed, (sms,))
