"""tma_halo, emulated: both roles of wgmma's m, schedules, streamed weights, filters, strides, strips, epilogues.

Strips and tiles have tails, blocks take several tiles, and channels do not fill their last block.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import (
    SEEDS,
    SEVERAL_OPERANDS,
    check_emulated,
    check_exact,
    compilation,
    halo_dgrad_problems,
    halo_problems,
    laid_out,
    serves,
    some_options,
    spec,
    typed,
)

from convgen.diagnostics import SpecError
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options

#: 3 images of 11 x 13 pixels, one block of input channels, and two with a tail.
ONE_BLOCK = make("fprop", 3, 64, 72, (11, 13), (3, 3), pad=1)
TWO_BLOCKS = make("fprop", 3, 72, 72, (11, 13), (3, 3), pad=1)
FEW = make("fprop", 3, 24, 40, (11, 13), (3, 3), pad=1, dtype="bf16")

#: Small images, which a tile may hold whole; the last tile has room to spare.
SMALL = make("fprop", 5, 24, 72, (6, 5), (3, 3), pad=1)

#: What a row below does not say, so that no cost model does.
PLAIN: Options = {"strip": 5, "images": 1, "schedule": "pingpong", "weight_stages": 0, "stages": 1}
CHANNELS: Options = {**PLAIN, "swap_ab": 1, "tile.m": 32, "tile.n": 64}
PIXELS: Options = {**PLAIN, "swap_ab": 0, "tile.m": 64, "tile.n": 32}
CONFIGURATIONS: dict[str, tuple[ConvProblem, Options]] = {
    "one consumer": (ONE_BLOCK, {**CHANNELS, "consumers": 1}),
    "two consumers": (ONE_BLOCK, {**CHANNELS, "tile.m": 48, "consumers": 2, "stages": 2}),
    "three consumers": (FEW, {**CHANNELS, "tile.k": 32, "consumers": 3, "stages": 2}),
    "one strip": (ONE_BLOCK, {**CHANNELS, "tile.m": 64, "strip": 13, "consumers": 2}),
    "strips of one column": (FEW, {**CHANNELS, "tile.m": 16, "strip": 1, "tile.k": 16, "consumers": 2}),
    "a tile of an image": (FEW, {**CHANNELS, "tile.m": 240, "strip": 13, "consumers": 1}),
    "two blocks of channels": (TWO_BLOCKS, {**CHANNELS, "consumers": 1}),
    "two blocks, three stages": (FEW, {**CHANNELS, "tile.k": 16, "consumers": 2, "stages": 3}),
    "two blocks, two stages": (FEW, {**CHANNELS, "tile.m": 48, "tile.k": 16, "consumers": 3, "stages": 2}),
    "two blocks, a stage of each of three rings": (FEW, {**CHANNELS, "tile.k": 16, "consumers": 3, "stages": 1}),
    "pixels in rows": (ONE_BLOCK, {**PIXELS, "tile.n": 64, "consumers": 2}),
    "pixels, 48 channels": (ONE_BLOCK, {**PIXELS, "tile.n": 48, "consumers": 1, "stages": 2}),
    "pixels, 128 a tile": (FEW, {**PIXELS, "tile.m": 128, "tile.k": 32, "consumers": 2}),
    "pixels, 16 channels": (FEW, {**PIXELS, "tile.n": 16, "tile.k": 16, "consumers": 3}),
    "pixels, two blocks": (TWO_BLOCKS, {**PIXELS, "consumers": 2}),
    "channels shared by two": (
        FEW, {**CHANNELS, "tile.n": 128, "tile.k": 16, "consumers": 2, "schedule": "cooperative", "stages": 3},
    ),
    "channels shared by three": (
        FEW, {**CHANNELS, "tile.n": 192, "tile.k": 32, "consumers": 3, "schedule": "cooperative"},
    ),
    "pixels shared by two": (
        TWO_BLOCKS, {**PIXELS, "tile.m": 128, "tile.n": 16, "consumers": 2, "schedule": "cooperative", "stages": 2},
    ),
    "pixels shared by three": (
        FEW, {**PIXELS, "tile.m": 192, "tile.k": 16, "consumers": 3, "schedule": "cooperative"},
    ),
    "weights streamed": (TWO_BLOCKS, {**CHANNELS, "consumers": 1, "weight_stages": 2}),
    "weights streamed, two rings": (TWO_BLOCKS, {**CHANNELS, "consumers": 2, "weight_stages": 4}),
    "weights streamed, three rings": (FEW, {**PIXELS, "tile.k": 16, "consumers": 3, "weight_stages": 3, "stages": 2}),
    "weights streamed, shared": (
        FEW,
        {**CHANNELS, "tile.n": 128, "tile.k": 16, "consumers": 2, "schedule": "cooperative", "weight_stages": 6,
         "stages": 2},
    ),
    "two images": (SMALL, {**CHANNELS, "tile.m": 96, "images": 2, "consumers": 2}),
    "four images": (SMALL, {**PIXELS, "tile.m": 192, "images": 4, "consumers": 1, "weight_stages": 2}),
    "three images, shared": (SMALL, {**PIXELS, "tile.m": 128, "images": 3, "consumers": 2, "schedule": "cooperative"}),
}  # fmt: skip

BY_CHANNELS: Options = {**CHANNELS, "consumers": 2}
BY_PIXELS: Options = {**PIXELS, "consumers": 2, "strip": 7}
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
    "one pixel": (make("fprop", 5, 40, 40, (3, 3), (3, 3)), {**BY_CHANNELS, "tile.m": 16}),
    "bfloat16 to float16": (typed(make("fprop", 2, 16, 72, (6, 7), (3, 3), dtype="bf16"), y="f16"), BY_PIXELS),
    "stride 2": (make("fprop", 2, 24, 72, (15, 14), (3, 3), stride=2, pad=1), BY_CHANNELS),
    "stride 2, two blocks": (make("fprop", 2, 72, 24, (15, 14), (3, 3), stride=2, pad=1), BY_PIXELS),
    "stride 2, dilation 2": (make("fprop", 2, 24, 40, (15, 17), (3, 3), stride=2, dilation=2, pad=2), BY_CHANNELS),
    "strides 3 and 2": (make("fprop", 2, 16, 40, (19, 15), (5, 3), stride=(3, 2), pad=((2, 1), (1, 0))), BY_PIXELS),
    "stride 4, filter of 2": (make("fprop", 3, 16, 40, (19, 18), (2, 2), stride=4), BY_CHANNELS),
    "stride 2, two images": (
        make("fprop", 3, 24, 40, (9, 10), (3, 3), stride=2, pad=1), {**BY_CHANNELS, "tile.m": 96, "images": 2},
    ),
    "two groups": (make("fprop", 2, 128, 256, (9, 8), (3, 3), pad=1, groups=2), BY_CHANNELS),
    "groups of three blocks": (make("fprop", 2, 96, 64, (9, 8), (3, 3), pad=1, groups=2), {**BY_PIXELS, "tile.k": 16}),
    "packs of 16": (make("fprop", 2, 128, 128, (9, 8), (3, 3), pad=1, groups=32), {**BY_CHANNELS, "group_pack": 16}),
    "packs of 8": (make("fprop", 2, 64, 128, (9, 8), (3, 3), pad=1, groups=16), {**BY_PIXELS, "group_pack": 8}),
    "packs, stride 2": (
        make("fprop", 2, 96, 96, (13, 12), (3, 3), stride=2, pad=1, groups=12, dtype="bf16"),
        {**BY_PIXELS, "group_pack": 4},
    ),
    "packs of two blocks": (
        make("fprop", 2, 64, 64, (9, 8), (3, 3), pad=1, groups=8), {**BY_PIXELS, "group_pack": 8, "tile.k": 32},
    ),
    "packs of few output channels, innermost": (
        laid_out(make("fprop", 2, 32, 64, (9, 8), (3, 3), pad=1, groups=16), w="rsck"),
        {**BY_PIXELS, "tile.n": 32, "group_pack": 8},
    ),
    "a channel a group, innermost": (
        laid_out(make("fprop", 2, 16, 16, (9, 8), (3, 3), pad=1, groups=16), w="crsk"),
        {**BY_PIXELS, "tile.n": 16, "group_pack": 16},
    ),
    "packs of odd groups": (
        make("fprop", 2, 48, 32, (9, 8), (3, 3), pad=1, groups=16), {**BY_PIXELS, "tile.n": 16, "group_pack": 16},
    ),
    "two rows folded": (make("fprop", 2, 40, 24, (9, 8), (3, 3), pad=1), {**BY_CHANNELS, "fold": 2}),
    "four rows folded": (make("fprop", 2, 24, 16, (11, 8), (3, 3), pad=1), {**BY_CHANNELS, "fold": 4}),
    "eight rows folded": (make("fprop", 2, 16, 8, (19, 8), (3, 1), pad=(1, 0)), {**BY_CHANNELS, "fold": 8}),
    "rows folded, 40 channels": (make("fprop", 2, 16, 40, (9, 8), (3, 3), pad=1), {**BY_CHANNELS, "fold": 4}),
    "rows folded, pixels": (
        make("fprop", 2, 24, 24, (11, 8), (5, 3), pad=1), {**BY_PIXELS, "tile.n": 64, "fold": 2},
    ),
    "rows folded, stride 2": (make("fprop", 2, 24, 16, (17, 12), (3, 3), 2, 1), {**BY_CHANNELS, "fold": 4}),
    "rows folded, dilated": (
        make("fprop", 2, 24, 32, (17, 12), (3, 3), dilation=2, pad=((3, 0), (1, 2))), {**BY_CHANNELS, "fold": 2},
    ),
    "rows folded, images": (
        make("fprop", 5, 24, 16, (7, 6), (3, 3), pad=1),
        {**BY_CHANNELS, "strip": 6, "fold": 4, "images": 3, "tile.m": 96},
    ),
    "rows folded, shared": (
        make("fprop", 2, 24, 32, (9, 8), (3, 3), pad=1),
        {**BY_CHANNELS, "tile.n": 128, "schedule": "cooperative", "fold": 4, "tile.k": 32},
    ),
    "rows folded, filters in planes": (
        laid_out(make("fprop", 2, 24, 16, (9, 8), (3, 3), pad=1), w="kcrs"), {**BY_CHANNELS, "fold": 4},
    ),
    "rows folded, packs": (
        make("fprop", 2, 64, 64, (9, 8), (3, 3), pad=1, groups=16), {**BY_CHANNELS, "group_pack": 4, "fold": 4},
    ),
    "rows folded, groups": (
        make("fprop", 2, 64, 64, (9, 8), (3, 3), 2, 1, groups=4), {**BY_CHANNELS, "group_pack": 1, "fold": 4},
    ),
    "a pack of all groups, in planes": (
        laid_out(make("fprop", 2, 48, 48, (9, 8), (3, 3), pad=1, groups=2), x="nchw", w="kcrs", y="nkpq"),
        {**BY_PIXELS, "tile.n": 16, "group_pack": 2},
    ),
    "one axis": (make("fprop", 3, 40, 40, (70,), (5,), pad=2), {**BY_CHANNELS, "strip": 40}),
    "3 channels": (make("fprop", 2, 72, 3, (9, 15), (3, 3), pad=1), {**BY_PIXELS, "tile.n": 16}),
    "37 channels": (make("fprop", 2, 16, 37, (9, 15), (3, 3), pad=1), {**BY_PIXELS, "tile.n": 16}),
    "67 channels in planes": (laid_out(make("fprop", 2, 16, 67, (9, 8), (3, 3), pad=1), y="nkpq"), BY_CHANNELS),
    "130 channels, shared": (
        make("fprop", 2, 16, 130, (9, 8), (3, 3), pad=1), {**BY_CHANNELS, "tile.n": 128, "schedule": "cooperative"},
    ),
    "rows folded, 5 channels": (make("fprop", 2, 16, 5, (19, 8), (3, 3), pad=1), {**BY_CHANNELS, "fold": 8}),
    "three axes": (make("fprop", 2, 72, 40, (3, 9, 8), (3, 3, 3), pad=1), {**BY_PIXELS, "weight_stages": 3}),
    "three axes, strided": (
        make("fprop", 1, 24, 40, (6, 9, 15), (2, 3, 3), (2, 1, 2), (0, 1, 1), (3, 1, 1)),
        {**BY_CHANNELS, "tile.k": 16, "stages": 2},
    ),
    "three axes, rows folded": (
        make("fprop", 1, 16, 16, (3, 11, 8), (3, 3, 3), pad=1), {**BY_CHANNELS, "tile.k": 16, "fold": 4},
    ),
    "three axes, in planes": (
        laid_out(make("fprop", 2, 16, 16, (3, 9, 8), (1, 3, 3), pad=(0, 1, 1)), y=("n", "k", "o", "p", "q")), BY_PIXELS,
    ),
    "one axis, stride 2": (make("fprop", 3, 24, 40, (99,), (3,), stride=2, dilation=3), {**BY_PIXELS, "strip": 46}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(name: str, seed: int) -> None:
    problem, options = CONFIGURATIONS[name]
    made = check_emulated(spec(problem, "tma_halo", options, "residual"), seed, sms=(1, 4))
    (launch,) = made.plan.launches
    takers = int(options["consumers"]) if options["schedule"] == "pingpong" else 1
    if options["images"] == 1 and int(options["tile.m"]) < 240:
        assert launch.grid[0] >= 2 * takers * launch.multiple_of, "with few blocks each consumer has a second tile"


@pytest.mark.parametrize("name", [*CONFIGURATIONS][::2])
def test_configuration_with_y_in_planes(name: str, seed: int) -> None:
    problem, options = CONFIGURATIONS[name]
    check_emulated(spec(laid_out(problem, y="nkpq"), "tma_halo", options, "bias f16"), seed)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    fits = {name: min(value, problem.output[-1]) if name == "strip" else value for name, value in options.items()}
    check_emulated(spec(problem, "tma_halo", fits, "residual"), seed)


#: Output channels, and what is stored at once of them: 8, 4 or 2 elements, where all pixels begin at a multiple.
STORED = {
    "fours": (make("fprop", 2, 24, 76, (7, 13), (3, 3), pad=1), BY_CHANNELS, "u64"),
    "fours, few": (make("fprop", 2, 24, 12, (7, 13), (3, 3), pad=1), BY_CHANNELS, "u64"),
    "fours, pixels": (make("fprop", 2, 24, 36, (7, 13), (3, 3), pad=1), BY_PIXELS, "u64"),
    "fours, of a slice of twos": (make("fprop", 2, 24, 76, (7, 13), (3, 3), pad=1), BY_CHANNELS, "u32"),
    "fours, rows folded": (make("fprop", 2, 24, 20, (9, 8), (3, 3), pad=1), {**BY_CHANNELS, "fold": 2}, "u64"),
    "fours, eight rows folded": (
        make("fprop", 2, 16, 4, (19, 8), (3, 1), pad=(1, 0)), {**BY_CHANNELS, "fold": 8}, "u64",
    ),
    "twos": (make("fprop", 2, 24, 70, (7, 13), (3, 3), pad=1), BY_CHANNELS, "u32"),
    "twos, shared by two": (
        make("fprop", 2, 24, 90, (7, 13), (3, 3), pad=1),
        {**BY_CHANNELS, "tile.n": 128, "schedule": "cooperative"},
        "u32",
    ),
    "twos, few": (make("fprop", 2, 24, 6, (7, 13), (3, 3), pad=1), BY_PIXELS, "u32"),
    "ones": (make("fprop", 2, 24, 67, (7, 13), (3, 3), pad=1), BY_PIXELS, ""),
}  # fmt: skip


@pytest.mark.parametrize("epilogue", ["", "residual"])
@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_at_once(name: str, epilogue: str, seed: int) -> None:
    problem, options, word = STORED[name]
    if "slice" in name:
        problem = replace(problem, y=replace(problem.y, pitch=78))
    made = check_emulated(spec(problem, "tma_halo", options, epilogue), seed)
    assert [w for w in ("u64", "u32") if f"reinterpret_cast<{w}*>(y" in made.source] == ([word] if word else [])


@pytest.mark.parametrize("options", [BY_CHANNELS, BY_PIXELS], ids=["by channels", "by pixels"])
@pytest.mark.parametrize("name", SEVERAL_OPERANDS)
def test_epilogue(name: str, options: Options, seed: int) -> None:
    check_emulated(spec(FEW, "tma_halo", options, SEVERAL_OPERANDS[name]), seed)


#: Operands that lie as y does, of every width, beside operands that do not.
TILES = {
    "two": "operand z: bf16[n, p, q, k]  operand u: f16[n, p, q, k]  operand b: f32[k]  y = relu(acc * u + b + z)",
    "f32": "operand z: f32[n, p, q, k]  y = acc + z",
    "s8": "operand z: s8[n, p, q, k]  operand e: f32[n, k]  y = acc * e + z",
}


@pytest.mark.parametrize(
    "options",
    [BY_CHANNELS, BY_PIXELS, {**PIXELS, "tile.n": 48, "consumers": 1}, {**BY_CHANNELS, "fold": 2}],
    ids=["by channels", "by pixels", "48 channels", "rows folded"],
)
@pytest.mark.parametrize("name", TILES)
def test_operands_that_arrive_as_tiles(name: str, options: Options, seed: int) -> None:
    made = check_emulated(spec(FEW, "tma_halo", options, TILES[name]), seed)
    assert "place_z" in made.source and made.source.count("operand_z[") == 0


#: dgrad: the filters as they lie, with their output channels as wgmma's m or n; or, of k or c off 8, laid out anew.
DGRADS: dict[str, tuple[ConvProblem, Options]] = {
    "channels": (make("dgrad", 3, 72, 40, (11, 13), (3, 3), pad=1), {**CHANNELS, "consumers": 2}),
    "channels shared by two": (
        make("dgrad", 3, 136, 72, (11, 13), (3, 2), pad=(0, (1, 2)), dtype="bf16"),
        {**CHANNELS, "tile.n": 128, "consumers": 2, "schedule": "cooperative"},
    ),
    "pixels": (make("dgrad", 3, 72, 40, (11, 13), (2, 3), pad=1), {**PIXELS, "tile.n": 64, "consumers": 2}),
    "fewer columns than a box has": (
        make("dgrad", 3, 24, 40, (11, 13), (2, 3), pad=1), {**PIXELS, "tile.n": 16, "consumers": 2},
    ),
    "columns of two boxes, streamed": (
        make("dgrad", 3, 72, 40, (11, 13), (2, 3), pad=1),
        {**PIXELS, "tile.n": 48, "consumers": 1, "weight_stages": 2},
    ),
    "weights streamed": (
        make("dgrad", 3, 72, 136, (9, 9), (3, 3), pad=1, dilation=2), {**CHANNELS, "consumers": 2, "weight_stages": 3},
    ),
    "whole images": (
        make("dgrad", 5, 72, 24, (6, 5), (3, 3), pad=1), {**CHANNELS, "tile.m": 96, "images": 2, "consumers": 1},
    ),
    "one axis": (make("dgrad", 3, 40, 72, (60,), (5,), pad=2, dilation=2), {**CHANNELS, "consumers": 1}),
    "groups as they are": (
        make("dgrad", 2, 64, 96, (11, 13), (3, 2), pad=(1, (1, 0)), groups=2), {**PIXELS, "tile.n": 32, "consumers": 1},
    ),
    "packed groups": (
        make("dgrad", 2, 64, 128, (11, 13), (2, 3), pad=(1, (0, 2)), groups=8),
        {**PIXELS, "tile.n": 16, "tile.k": 32, "consumers": 2, "group_pack": 2},
    ),
    "packed groups, fewer in the last, dilated": (
        make("dgrad", 2, 72, 72, (11, 13), (3, 3), pad=2, dilation=2, groups=3, dtype="bf16"),
        {**PIXELS, "tile.n": 48, "tile.k": 64, "consumers": 1, "group_pack": 2},
    ),
    "packed groups, output channels innermost": (
        laid_out(make("dgrad", 2, 32, 64, (11, 13), (3, 2), groups=4), w="crsk"),
        {**PIXELS, "tile.n": 32, "tile.k": 64, "consumers": 1, "group_pack": 4},
    ),
    "packed groups of few output channels, innermost": (
        laid_out(make("dgrad", 2, 64, 32, (11, 13), (3, 2), groups=16), w="rsck"),
        {**PIXELS, "tile.n": 32, "tile.k": 16, "consumers": 1, "group_pack": 8},
    ),
    "folded rows": (
        make("dgrad", 2, 16, 40, (11, 13), (3, 2), pad=(1, (0, 1))), {**CHANNELS, "consumers": 1, "fold": 4},
    ),
    "folded rows of packed groups": (
        make("dgrad", 2, 64, 64, (11, 13), (3, 3), pad=(2, (0, 1)), groups=16),
        {**CHANNELS, "tile.k": 32, "consumers": 2, "group_pack": 8, "fold": 2},
    ),
    "three axes, packed groups": (
        make("dgrad", 2, 32, 32, (4, 5, 6), (2, 3, 3), pad=1, groups=4),
        {**PIXELS, "tile.n": 16, "tile.k": 16, "consumers": 1, "group_pack": 2},
    ),
    "k off 8": (make("dgrad", 3, 72, 19, (11, 13), (3, 3), pad=1), {**CHANNELS, "consumers": 1}),
    "planes": (
        laid_out(make("dgrad", 3, 40, 24, (11, 13), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
        {**CHANNELS, "consumers": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DGRADS)
def test_dgrad(name: str, seed: int) -> None:
    problem, options = DGRADS[name]
    check_exact(spec(problem, "tma_halo", options), seed)


def test_epilogue_of_dgrad(seed: int) -> None:
    problem, options = DGRADS["channels"]
    epilogue = "operand b: f32[c]  operand g: f16[n, h, w, c]  operand t: f32[w, n]  x = relu(acc + b) * t + g"
    check_emulated(spec(problem, "tma_halo", options, epilogue), seed)


@settings(max_examples=8, deadline=None)
@given(
    problem=halo_problems() | halo_dgrad_problems(),
    options=some_options("tma_halo"),
    seed=SEEDS,
    sms=st.sampled_from((1, 2, 5)),
)
def test_any_problem(problem: ConvProblem, options: Options, seed: int, sms: int) -> None:
    assume(serves(problem, "tma_halo", options))
    check_emulated(spec(problem, "tma_halo", options), seed, (sms,))


# ---- sums of channels ------------------------------------------------------------------------------


def sums_of(problem: ConvProblem, arriving: bool, of_images: bool = True) -> str:
    """An epilogue with sums over all images and over each, of values that an operand may be part of."""
    result = problem.result
    channel, dims = {"y": "k", "x": "c"}[result.role], ", ".join(result.dims)
    lines = [
        f"operand b: f32[{channel}]  result s: f32[{channel}]",
        f"operand z: f16[{dims}]" * arriving,
        f"result t: f32[n, {channel}]" * of_images,
        f"v = relu(acc + b{' + z' * arriving})  s = v * v",
        "t = v" * of_images,
        f"{result.role} = v",
    ]
    return "  ".join(lines)


SUMMED = {
    name: row for name, row in {**CONFIGURATIONS, **GEOMETRIES, **DGRADS}.items()
    if row[1].get("swap_ab", 1) and row[0].result.innermost in "ck"
}  # fmt: skip


@pytest.mark.parametrize("name", [name for i, name in enumerate(SUMMED) if i % 4 < 2])
def test_sums_of_channels(name: str, seed: int) -> None:
    """Of half of them, of every second one with an operand that arrives as a tile; test_any_sums draws others."""
    problem, options = SUMMED[name]
    arriving = list(SUMMED).index(name) % 2 == 1
    fits = {name: min(value, problem.output[-1]) if name == "strip" else value for name, value in options.items()}
    epilogue = sums_of(problem, arriving, of_images=options.get("images", 1) == 1)
    made = check_emulated(spec(problem, "tma_halo", fits, epilogue), seed)
    assert {w.name for w in made.plan.workspaces} >= {"partial.s"}


def is_served(text: str) -> bool:
    try:
        compilation(text)
    except SpecError:
        return False
    return True


@settings(max_examples=10, deadline=None)
@given(
    problem=halo_problems() | halo_dgrad_problems(), options=some_options("tma_halo"), arriving=st.booleans(),
    of_images=st.booleans(), seed=SEEDS, sms=st.sampled_from((1, 2, 5)),
)  # fmt: skip
def test_any_sums(problem: ConvProblem, options: Options, arriving: bool, of_images: bool, seed: int, sms: int) -> None:
    problem = replace(problem, epilogue=None)
    epilogue = sums_of(problem, arriving, of_images)
    texts = [spec(problem, "tma_halo", given, epilogue) for given in ({"swap_ab": 1, **options}, {"swap_ab": 1}, {})]
    served = next(filter(is_served, texts), None)
    assume(served)
    check_emulated(served, seed, (sms,))


def test_sums_where_no_tile_that_adds_up_fits(seed: int) -> None:
    """Filters of 64 channels are more than shared memory has: a narrower tile's values are added up by a pass."""
    problem = make("fprop", 1, 288, 16, (80,), (33,), stride=3, pad=32, dilation=2, groups=4)
    made = check_emulated(spec(problem, "tma_halo", {}, sums_of(problem, arriving=False)), seed)
    assert not any(w.name.startswith("partial.") for w in made.plan.workspaces)


@pytest.mark.parametrize(
    "options", [PIXELS, {**CHANNELS, "images": 2, "strip": 5, "tile.m": 96}], ids=["pixels", "images"]
)
def test_sums_that_the_options_leave_to_a_pass(options: Options, seed: int) -> None:
    """Pixels are rows of fragments, or a tile is of several images."""
    made = check_emulated(spec(SMALL, "tma_halo", {**options, "consumers": 1}, sums_of(SMALL, arriving=True)), seed)
    assert not any(w.name == "partial.t" for w in made.plan.workspaces)
