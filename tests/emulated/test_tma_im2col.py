"""tma_im2col, emulated: every schedule, geometry and kind of epilogue, on few multiprocessors, against the reference.

Tiles have tails in all three directions, blocks take several tiles, and tiles have more k steps than stages.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from runs import emulated_plan
from tma_specs import (
    IN_PLACE,
    PLAIN,
    RESIDENT,
    SCHEDULES,
    SEEDS,
    SEVERAL_OPERANDS,
    STREAMS,
    WIDE_SPLITS,
    check_emulated,
    compilation,
    im2col_problems,
    laid_out,
    serves,
    some_options,
    spec,
    typed,
)

from convgen.ir import verify
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Options

#: 468 pixels over 72 channels, to 40 channels: a TMA store; to 37: by threads, 2 bytes at a time.
STORED_BY_TMA = make("fprop", 4, 72, 40, (13, 9), (3, 3), pad=1)
STORED_PLAINLY = make("fprop", 4, 72, 37, (13, 9), (3, 3), pad=1)

SMALL: Options = {**PLAIN, "tile.m": 64, "tile.n": 16, "consumers": 1, "stages": 3}
PINGPONG: Options = {**SMALL, "tile.n": 24, "consumers": 2, "schedule": "pingpong"}
SHARE_X: Options = {**SMALL, "cluster": 2, "multicast": "a"}

#: Tiles that end in every way before they are full: (pixels, channels, pixels of a filter), options.
ENDS: dict[str, tuple[ConvProblem, Options]] = {
    "one tile of channels": (make("fprop", 3, 72, 40, (9, 8), (3, 3), pad=1), {**SMALL, "tile.n": 64}),
    "two of channels": (make("fprop", 3, 72, 72, (9, 8), (3, 3), pad=1), {**PINGPONG, "tile.n": 64}),
    "slices of channels": (
        make("fprop", 3, 72, 72, (9, 8), (3, 3), pad=1), {**SMALL, "tile.n": 64, "cluster": 2, "multicast": "b"},
    ),
    "slices past the last channel": (
        make("fprop", 3, 72, 24, (9, 8), (3, 3), pad=1), {**SMALL, "tile.n": 64, "cluster": 2, "multicast": "b"},
    ),
    "tiles past the last channel": (
        make("fprop", 3, 72, 40, (9, 8), (3, 3), pad=1), {**SMALL, "tile.n": 48, "cluster": 2, "multicast": "a"},
    ),
    "one tile of pixels": (make("fprop", 1, 136, 72, (7, 7), (1, 1)), {**SMALL, "tile.n": 64, "k_blocks": 3}),
    "tiles past the last pixel": (
        make("fprop", 3, 136, 72, (7, 7), (1, 1)), {**SMALL, "tile.n": 64, "cluster": 2, "multicast": "b"},
    ),
    "slices of pixels": (make("fprop", 3, 136, 72, (7, 7), (1, 1)), {**SHARE_X, "tile.n": 32, "k_blocks": 3}),
    "slices past the last pixel": (
        make("fprop", 1, 136, 72, (5, 5), (1, 1)), {**SHARE_X, "tile.n": 48, "split_k": 2},
    ),
    "rows of channels": (
        make("fprop", 3, 136, 72, (7, 7), (1, 1)), {**SMALL, "tile.m": 80, "tile.n": 64, "swap_ab": 1},
    ),
    "channels that stay": (
        make("fprop", 9, 136, 72, (7, 7), (1, 1)), {**SMALL, "tile.n": 64, "resident": 1},
    ),
    "boxes of columns": (
        make("dgrad", 3, 136, 64, (7, 7), (3, 3), pad=1), {**SMALL, "tile.n": 256, "stages": 2},
    ),
    "boxes of columns, in slices": (
        make("dgrad", 3, 72, 64, (7, 7), (3, 3), pad=1),
        {**SMALL, "tile.n": 256, "stages": 2, "cluster": 2, "multicast": "b"},
    ),
}  # fmt: skip

GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "1x1": (make("fprop", 2, 88, 48, (9, 8), (1, 1)), PINGPONG),
    "1x1, padded": (make("fprop", 2, 40, 40, (7, 6), (1, 1), pad=1), SMALL),
    "1x1, stride 2": (make("fprop", 4, 80, 40, (11, 12), (1, 1), stride=2), PINGPONG),
    "stride 2, low padding": (make("fprop", 4, 48, 40, (12, 13), (3, 3), stride=2, pad=((1, 0), (1, 0))), SMALL),
    "strides 3 and 1": (make("fprop", 3, 24, 40, (14, 9), (5, 3), stride=(3, 1), pad=((2, 1), (0, 2))), PINGPONG),
    "stride above the filter": (make("fprop", 4, 32, 24, (20, 17), (2, 2), stride=(4, 3)), SMALL),
    "dilated": (make("fprop", 3, 64, 40, (9, 10), (3, 3), dilation=(2, 3), pad=(2, 3)), SMALL),
    "dilated, strided, high padding": (
        make("fprop", 3, 40, 40, (11, 9), (3, 2), stride=2, dilation=2, pad=((0, 3), (1, 2))), PINGPONG,
    ),
    "even filter, wide padding": (make("fprop", 3, 24, 40, (6, 5), (2, 4), pad=(3, (4, 5))), SMALL),
    "filter as large as x": (make("fprop", 70, 24, 40, (3, 3), (3, 3)), SMALL),
    "one axis": (make("fprop", 3, 72, 40, (70,), (5,), stride=2, pad=((4, 1),), dilation=3), PINGPONG),
    "one axis, taps outside": (laid_out(make("fprop", 2, 40, 37, (90,), (3,), pad=1), w="skc"), SMALL),
    "three axes": (
        make("fprop", 2, 24, 24, (4, 6, 5), (2, 3, 3), stride=(1, 2, 1), pad=((1, 0), 1, (0, 2)), dilation=(2, 1, 1)),
        PINGPONG,
    ),
    "three axes, taps outside": (
        laid_out(make("fprop", 2, 40, 40, (3, 5, 4), (3, 3, 1), pad=(1, 1, 0), dtype="bf16"), w="trskc"),
        {**SMALL, "order": "taps_inner", "tile.k": 16},
    ),
    "taps outside, split": (
        laid_out(make("fprop", 2, 72, 40, (8, 9), (3, 3), pad=1, dtype="bf16"), w="rskc"), {**SMALL, "split_k": 2},
    ),
    "channels before pixels": (laid_out(make("fprop", 3, 24, 40, (9, 7), (3, 3)), y="nkpq"), SMALL),
    "images last": (laid_out(make("fprop", 3, 24, 37, (9, 7), (3, 3)), y="kqpn"), PINGPONG),
    "float32": (typed(make("fprop", 3, 24, 42, (9, 7), (3, 3), dtype="bf16"), y="f32"), PINGPONG),
    "float32, odd channels": (typed(make("fprop", 3, 24, 37, (9, 7), (3, 3)), y="f32"), {**SMALL, "split_k": 2}),
    "float32, rows of channels": (
        typed(make("fprop", 3, 24, 40, (9, 7), (3, 3)), y="f32"), {**SMALL, "tile.n": 64, "swap_ab": 1},
    ),
    "bfloat16 to float16": (typed(make("fprop", 3, 24, 40, (9, 7), (3, 3), dtype="bf16"), y="f16"), SMALL),
    "two groups": (make("fprop", 3, 96, 64, (9, 7), (3, 3), pad=1, groups=2), PINGPONG | {"tile.n": 16}),
    "1x1, groups": (make("fprop", 3, 64, 48, (9, 7), (1, 1), groups=2), {**SMALL, "tile.n": 8, "tile.k": 32}),
    "packs": (make("fprop", 3, 64, 96, (9, 7), (3, 3), pad=1, groups=16), {**PINGPONG, "group_pack": 8}),
    "packs, split, three axes": (
        make("fprop", 2, 32, 32, (4, 5, 4), (2, 3, 3), pad=1, groups=8, dtype="bf16"),
        {**SMALL, "group_pack": 4, "split_k": 2},
    ),
    "packs, taps outside": (
        laid_out(make("fprop", 3, 64, 48, (9, 7), (3, 3), stride=2, pad=1, groups=8), w="rskc"),
        {**SMALL, "tile.n": 24, "group_pack": 4},
    ),
    "one channel": (make("fprop", 3, 8, 1, (9, 7), (3, 3), pad=1), {**SMALL, "tile.n": 8}),
    "one pixel": (make("fprop", 1, 72, 40, (3, 3), (3, 3)), {**SMALL, "split_k": 2}),
    "a slice behind the last pixel": (make("fprop", 1, 24, 40, (9, 10), (3, 3), pad=1), SHARE_X),
    "slices behind the last pixel": (make("fprop", 1, 24, 40, (10,), (2,), pad=1), {**SHARE_X, "cluster": 4}),
    "a tile behind the last pixel": (
        make("fprop", 1, 24, 40, (13, 10), (3, 3), pad=1), {**SHARE_X, "multicast": "b"},
    ),
    "tiles behind the last pixel": (
        make("fprop", 1, 24, 40, (3, 5, 10), (1, 2, 3), pad=(0, 1, 1)),
        {**SHARE_X, "cluster": 4, "multicast": "b", "tile.n": 32},
    ),
    "rows of taps in the padding": (
        make("fprop", 3, 64, 40, (18, 17), (3, 3), pad=8, dilation=8), {**PINGPONG, "raster": 2},
    ),
    "rows of taps in the padding, three axes": (
        make("fprop", 2, 24, 72, (2, 9, 10), (3, 2, 3), pad=((2, 0), (1, 0), 1)), {**SMALL, "tile.n": 64, "swap_ab": 1},
    ),
    "taps in the padding, one axis": (
        make("fprop", 2, 24, 40, (400,), (3,), pad=((128, 0),), dilation=64), {**SHARE_X, "tile.n": 24},
    ),
    "rows of taps in the padding, strided": (
        make("fprop", 1, 40, 24, (20, 21), (5, 3), stride=(2, 1), pad=(14, 2), dilation=(7, 2)), SMALL,
    ),
    "1x1, a slice behind the last pixel": (make("fprop", 1, 24, 40, (9, 9), (1, 1)), SHARE_X),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str, seed: int) -> None:
    problem = STORED_PLAINLY if list(SCHEDULES).index(name) % 3 == 2 else STORED_BY_TMA
    options = {**PLAIN, "tile.n": 16, **SCHEDULES[name]}
    made = check_emulated(spec(problem, "tma_im2col", options, "residual"), seed, sms=(1, 2))
    (launch,) = made.plan.launches
    tiles = launch.grid[0] // launch.cluster
    takers = int(options["consumers"]) if options["schedule"] == "pingpong" else 1
    assert tiles >= 2 * takers * launch.blocks_per_sm, "on one multiprocessor each consumer has a second tile"


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", RESIDENT)
def test_resident(name: str, op: str, seed: int) -> None:
    """B is loaded once, and serves a block's later tiles: with a tail of channels, with columns contiguous (dgrad)."""
    c, k = (72, 40) if op == "fprop" else (40, 24)
    problem = make(op, 4, c, k, (13, 11), (3, 3), pad=1)
    check_emulated(spec(problem, "tma_im2col", {**PLAIN, **RESIDENT[name], "resident": 1}), seed, sms=(1, 2))


#: Of several parts of the output channels, each block has one, also where there are fewer multiprocessors than parts.
IN_PARTS: dict[str, tuple[ConvProblem, Options]] = {
    "three parts": (make("fprop", 4, 72, 104, (13, 11), (1, 1)), {"tile.n": 40, "tile.k": 64, "tile.m": 64}),
    "channels as rows": (
        make("fprop", 4, 40, 136, (13, 11), (3, 3), pad=1),
        {"swap_ab": 1, "tile.m": 48, "tile.n": 64, "tile.k": 32},
    ),
    "dgrad": (make("dgrad", 4, 72, 24, (13, 11), (3, 3), pad=1), {"tile.n": 40, "tile.k": 32, "tile.m": 64}),
    "groups": (
        make("fprop", 4, 72, 72, (13, 11), (3, 3), pad=1, groups=3),
        {"tile.n": 48, "tile.k": 64, "tile.m": 64, "group_pack": 2},
    ),
    "a cluster with all of them": (
        make("fprop", 4, 72, 104, (13, 11), (1, 1)), {"tile.n": 56, "tile.k": 64, "tile.m": 64, "cluster": 2},
    ),
    "clusters, three parts": (
        make("fprop", 4, 40, 136, (13, 11), (3, 3), pad=1),
        {"tile.n": 24, "tile.k": 32, "tile.m": 64, "cluster": 2, "multicast": "a"},
    ),
    "clusters, channels as rows": (
        make("fprop", 4, 40, 200, (13, 11), (1, 1)),
        {"swap_ab": 1, "tile.m": 64, "tile.n": 64, "tile.k": 32, "cluster": 4},
    ),
    "clusters, dgrad": (
        make("dgrad", 4, 72, 24, (13, 11), (3, 3), pad=1), {"tile.n": 40, "tile.k": 32, "tile.m": 64, "cluster": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize("name", IN_PARTS)
def test_resident_in_parts(name: str, schedule: str, seed: int) -> None:
    problem, options = IN_PARTS[name]
    more: Options = {"resident": 1, "stages": 3, "schedule": schedule, "consumers": 1 + (schedule == "pingpong")}
    check_emulated(spec(problem, "tma_im2col", {**PLAIN, **options, **more}), seed, sms=(1, 2, 5))


@pytest.mark.parametrize("resident", [0, 1])
def test_pixels_that_end_inside_a_sector_are_stored_whole(resident: int, seed: int) -> None:
    problem = make("fprop", 3, 72, 120, (13, 11), (1, 1))
    options = {**PLAIN, "tile.m": 64, "tile.n": 120, "tile.k": 64, "consumers": 1, "resident": resident, "stages": 2}
    made = check_emulated(spec(problem, "tma_im2col", options, "residual"), seed, sms=(1, 2))
    assert "constexpr int epi_tile_n = 120;" in made.source


def test_consumers_take_turns_with_tiles_of_one_k_step() -> None:
    """A warp that is slow to see its turn does not miss it: about one of the emulator's seeds in four delays one."""
    problem = typed(make("fprop", 1, 16, 64, (40, 40), (1, 1)), y="f32")
    made = compilation(spec(problem, "tma_im2col", {**PINGPONG, "tile.n": 64, "tile.k": 16, "stages": 4}))
    arrays = verify.random_inputs(problem, 0)
    results = [emulated_plan(made.plan, made.source, arrays, seed, sms=1) for seed in range(12)]
    assert verify.check(problem, arrays, results[0], arithmetic=made.plan.arithmetic)
    assert all(np.array_equal(result, results[0]) for result in results)


#: y in planes: by TMA where 64 pixels are never of two images, else by as many bytes as alignment allows.
PLANES: dict[str, tuple[tuple[int, int], int]] = {
    "a plane of whole epilogue tiles": ((8, 8), 40),
    "16 bytes": ((12, 10), 37),
    "several images an epilogue tile": ((4, 4), 40),
    "8 bytes": ((14, 14), 37),
    "4 bytes": ((7, 6), 40),
    "2 bytes": ((7, 7), 37),
}


@pytest.mark.parametrize("name", PLANES)
@pytest.mark.parametrize("tile_n", [8, 16, 32])
def test_y_in_planes(name: str, tile_n: int, seed: int) -> None:
    size, k = PLANES[name]
    problem = laid_out(make("fprop", 5, 24, k, size, (3, 3), pad=1), y="nkpq")
    options = {**(PINGPONG if tile_n == 16 else SMALL), "tile.n": tile_n}
    check_emulated(spec(problem, "tma_im2col", options, "bias f32" if k % 2 else "residual"), seed)


#: y whose channels are neighbors, but no rows for TMA: threads store as many bytes at once as alignment allows.
CHANNELS = {
    "2 bytes": make("fprop", 4, 24, 37, (13, 9), (3, 3), pad=1),
    "4 bytes": make("fprop", 4, 24, 42, (13, 9), (3, 3), pad=1, dtype="bf16"),
    "8 bytes": make("fprop", 4, 24, 76, (13, 9), (3, 3), pad=1),
    "16 bytes, images inside": laid_out(make("fprop", 4, 24, 72, (13, 9), (3, 3), pad=1), y="pqnk"),
}


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("tile", [(64, 8), (128, 32), (48, 64)])
def test_y_in_channels(name: str, tile: tuple[int, int], seed: int) -> None:
    m, n = tile
    rows = {"tile.m": m, "tile.n": n, "swap_ab": int(m < 64)}
    options = {**(PINGPONG if m == 128 else SMALL), **rows}
    check_emulated(spec(CHANNELS[name], "tma_im2col", options, "bias f32" if n % 64 else "residual"), seed)


@pytest.mark.parametrize("tile_n", [24, 56, 80, 144, 208])
def test_y_in_wide_epi_tiles(tile_n: int, seed: int) -> None:
    """Epilogue tiles of an odd number of 16 bytes, without a swizzle."""
    problem = make("fprop", 2, 40, tile_n + 8, (9, 9), (3, 3), pad=1)
    check_emulated(spec(problem, "tma_im2col", {**SMALL, "tile.n": tile_n}, "residual"), seed)


@pytest.mark.parametrize("name", [name for name, row in SCHEDULES.items() if not row.get("swap_ab")][::2])
def test_schedule_with_y_in_planes(name: str, seed: int) -> None:
    """Of every second schedule."""
    size = (13, 9) if list(SCHEDULES).index(name) % 2 else (10, 12)
    problem = laid_out(make("fprop", 4, 72, 40, size, (3, 3), pad=1), y="nkpq")
    check_emulated(spec(problem, "tma_im2col", {**PLAIN, "tile.n": 16, **SCHEDULES[name]}), seed)


#: What serves x in planes: rows of pixels, blocks that load for themselves.
ALONE = {
    name: row for name, row in (SCHEDULES | WIDE_SPLITS).items() if not row.get("swap_ab") and "cluster" not in row
}


@pytest.mark.parametrize("name", [name for i, name in enumerate(ALONE) if i % 2])
def test_schedule_with_x_in_planes(name: str, seed: int) -> None:
    """1x1 layers are multiplied as they lie: nothing is copied, and a tile's pixels are of one image."""
    options = {**PLAIN, "tile.n": 16, **ALONE[name]}
    steps = int(options["k_blocks"]) * int(options["split_k"]) * 2
    c, size = int(options["tile.k"]) * steps - 8 * (options["k_blocks"] == 1), (10, 12) if len(name) % 2 else (16, 8)
    problem = laid_out(make("fprop", 3, c, 72, size, (1, 1)), x="nchw", y="nkpq")
    made = check_emulated(spec(problem, "tma_im2col", options, "other order"), seed, sms=(2, 5))
    assert not made.plan.workspaces


@pytest.mark.parametrize("name", WIDE_SPLITS)
def test_wide_split(name: str, seed: int) -> None:
    problem = make("fprop", 3, 72, 72, (9, 7), (3, 3), pad=1)
    made = check_emulated(spec(problem, "tma_im2col", {**PLAIN, **WIDE_SPLITS[name]}, "residual"), seed, sms=(4, 16))
    assert ("partial_sums = 0;" in made.source) == (name in IN_PLACE)


@pytest.mark.parametrize("images", [1, 30], ids=["parts of one tile", "tiles and parts"])
@pytest.mark.parametrize("name", STREAMS)
def test_stream(name: str, images: int, seed: int) -> None:
    """Fewer steps than blocks, so that many share a tile; and whole tiles beside parts of tiles."""
    k = 72 if STREAMS[name]["tile.n"] != 16 else 37
    problem = make("fprop", images, 72, k, (9, 13), (3, 3), pad=1)
    made = check_emulated(spec(problem, "tma_im2col", {**PLAIN, **STREAMS[name], "stream_k": 1}, "residual"), seed)
    first, second = made.plan.launches
    assert first.grid[0] - 1 == second.grid[0] <= 131


@pytest.mark.parametrize("name", ENDS)
def test_tiles_that_end_early(name: str, seed: int) -> None:
    """Boxes end where A and B do: rows of a stage that they leave alone are whatever was there before, a NaN at first,
    and nothing of that is stored, nor summed up."""
    problem, options = ENDS[name]
    epilogue = "residual" if problem.op is Op.FPROP else ""
    check_emulated(spec(problem, "tma_im2col", options, epilogue), seed, sms=(1, 2))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    check_emulated(spec(problem, "tma_im2col", options), seed)


@pytest.mark.parametrize("problem", [STORED_BY_TMA, STORED_PLAINLY], ids=["by TMA", "plainly"])
@pytest.mark.parametrize("name", SEVERAL_OPERANDS)
def test_epilogue(name: str, problem: ConvProblem, seed: int) -> None:
    check_emulated(spec(problem, "tma_im2col", PINGPONG, SEVERAL_OPERANDS[name]), seed)


#: Operands that lie as y does, of other types, several of them, beside operands that do not.
TILES = {
    "f32": "operand b: f32[k]  operand z: f32[{dims}]  y = relu(acc + b + z)",
    "s8": "operand z: s8[{dims}]  y = acc * z",
    "e4m3": "operand b: f16[k]  operand z: e4m3[{dims}]  y = acc + b * z",
    "s32": "operand z: s32[{dims}]  y = min(acc, z)",
    "three": "operand z: f16[{dims}]  operand u: f32[{dims}]  operand t: bf16[{dims}]  y = (acc + z) * t - u",
    "beside others": "operand z: f16[{dims}]  operand e: f16[n, k]  operand s: f32[]  y = acc * e + s * z",
}
#: Tiles by the epilogue tiles that y leaves in: swizzled by 128, 64 and 32 bytes, or not; of channels and of planes.
EPI_TILES: dict[str, tuple[str, Options]] = {
    "64 channels": ("npqk", {"tile.n": 64}),
    "32 channels": ("npqk", {"tile.n": 32, "tile.m": 128}),
    "16 channels": ("npqk", {"tile.n": 32, "split_k": 2}),
    "8 channels": ("npqk", {"tile.n": 8}),
    "24 channels": ("npqk", {"tile.n": 24, "tile.m": 128}),
    "16 pixels": ("npqk", {"swap_ab": 1, "tile.n": 64, "tile.m": 16}),
    "64 pixels": ("npqk", {"swap_ab": 1, "tile.n": 64, "tile.m": 128}),
    "planes": ("nkpq", {"tile.n": 32}),
    "narrow planes": ("nkpq", {"tile.n": 8}),
}


@pytest.mark.parametrize("epi_tile", EPI_TILES)
@pytest.mark.parametrize("name", TILES)
def test_operands_that_arrive_as_tiles(name: str, epi_tile: str, seed: int) -> None:
    layout, tile = EPI_TILES[epi_tile]
    problem = laid_out(make("fprop", 3, 40, 80, (8, 8), (3, 3), pad=1), y=layout)
    epilogue = TILES[name].format(dims=", ".join(layout))
    made = check_emulated(spec(problem, "tma_im2col", {**SMALL, **tile}, epilogue), seed)
    narrow = {"s8": 16, "e4m3": 16}.get(name, 8)  # a box's row has 16 bytes or more
    (launch,) = made.plan.launches
    arriving = [p.name for p in launch.params if p.kind == "tensor_map" and p.name.startswith("operand_")]
    epi_tile_columns = int(tile["tile.n"]) // int(tile.get("split_k", 1)) if layout[-1] == "k" else 64
    if epi_tile_columns % narrow == 0:
        assert "operand_z_map" in arriving
        assert len(arriving) == 3 or name != "three"
    else:
        assert not arriving


#: Where TMA does not store y, threads copy operands, as many bytes at once as alignment allows.
COPIED: dict[str, tuple[ConvProblem, Options]] = {
    "4 bytes": (CHANNELS["4 bytes"], {**SMALL, "tile.n": 32}),
    "8 bytes, channels as rows": (CHANNELS["8 bytes"], {**PINGPONG, "swap_ab": 1, "tile.m": 48, "tile.n": 64}),
    "16 bytes, images inside": (CHANNELS["16 bytes, images inside"], {**PINGPONG, "tile.m": 128, "tile.n": 64}),
    "planes of 16 bytes": (
        laid_out(make("fprop", 5, 24, 37, (12, 10), (3, 3), pad=1), y="nkpq"), {**PINGPONG, "tile.n": 16},
    ),
    "planes of 8 bytes, split": (
        laid_out(make("fprop", 3, 72, 40, (14, 14), (3, 3), pad=1), y="nkpq"), {**SMALL, "split_k": 2, "tile.n": 32},
    ),
    "planes of 4 bytes, stream": (
        laid_out(make("fprop", 9, 40, 40, (7, 6), (3, 3), pad=1), y="nkpq"), {**SMALL, "tile.n": 24, "stream_k": 1},
    ),
    "by TMA, stream": (make("fprop", 9, 40, 72, (7, 6), (3, 3), pad=1), {**SMALL, "tile.n": 24, "stream_k": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIED)
def test_operands_that_threads_copy(name: str, seed: int) -> None:
    problem, options = COPIED[name]
    dims = ", ".join(problem.y.dims)
    epilogue = f"operand b: f32[k]  operand z: f16[{dims}]  operand u: f32[{dims}]  y = relu(acc + b + z) - u"
    made = check_emulated(spec(problem, "tma_im2col", options, epilogue), seed)
    assert "tile_z" in made.source and "tile_u" in made.source
    assert ("cp_async" in made.source) == ("TMA" not in name)


#: Operands of images: a thread holds those of its rows' pixels, or of the images that its columns' pixels are of.
IMAGES: dict[str, tuple[ConvProblem, Options]] = {
    "rows": (make("fprop", 5, 24, 40, (7, 7), (3, 3), pad=1), {**PINGPONG, "tile.m": 128, "tile.n": 32}),
    "rows, epilogue tile by epilogue tile": (
        make("fprop", 5, 24, 136, (7, 7), (3, 3), pad=1), {**SMALL, "tile.m": 128, "tile.n": 128},
    ),
    "rows, odd channels": (make("fprop", 5, 24, 37, (7, 7), (3, 3), pad=1), {**SMALL, "tile.n": 32}),
    "rows of planes": (
        laid_out(make("fprop", 3, 24, 40, (8, 8), (3, 3), pad=1), y="nkpq"), {**SMALL, "tile.m": 128, "tile.n": 32},
    ),
    "rows, stream": (make("fprop", 5, 40, 40, (7, 7), (3, 3), pad=1), {**SMALL, "stream_k": 1}),
    "columns of two images": (
        make("fprop", 5, 24, 72, (10, 12), (3, 3), pad=1), {**PINGPONG, "swap_ab": 1, "tile.n": 64, "tile.m": 96},
    ),
    "columns of three images": (
        make("fprop", 5, 24, 72, (7, 7), (3, 3), pad=1), {**SMALL, "swap_ab": 1, "tile.n": 64, "tile.m": 96},
    ),
    "columns of two images, split": (
        make("fprop", 7, 40, 72, (5, 6), (3, 3), pad=1),
        {**SMALL, "swap_ab": 1, "tile.n": 64, "tile.m": 64, "split_k": 2},
    ),
    "columns of two images, epilogue tile by epilogue tile": (
        make("fprop", 9, 24, 72, (7, 7), (3, 3), pad=1), {**SMALL, "swap_ab": 1, "tile.n": 64, "tile.m": 240},
    ),
    "columns of many images": (
        make("fprop", 30, 24, 72, (3, 3), (3, 3), pad=1), {**SMALL, "swap_ab": 1, "tile.n": 64, "tile.m": 64},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_operands_of_images(name: str, seed: int) -> None:
    problem, options = IMAGES[name]
    epilogue = (
        "operand b: f32[k]  operand e: f16[n, k]  operand f: s8[k, n]  operand g: f32[n]  operand h: f32[n, k] "
        "y = acc * e + b * f + g - h"
    )
    made = check_emulated(spec(problem, "tma_im2col", options, epilogue), seed, sms=(2,))
    assert ("image_e" in made.source) == ("many" not in name)
    assert ("the epilogue tile's images" in made.source or "image_e[1][2][" in made.source) == ("epilogue tile" in name)


@pytest.mark.parametrize("n", [1, 70])
@pytest.mark.parametrize("swap_ab", [0, 1])
def test_operands_of_images_of_one_pixel(n: int, swap_ab: int, seed: int) -> None:
    """Operands of channels, of images and of y's shape are then hard to tell apart by their sizes."""
    problem = make("fprop", n, 40, 72, (1, 1), (1, 1))
    epilogue = "operand b: f32[k]  operand e: f16[n, k]  operand z: f16[n, p, q, k]  y = acc * e + b + z"
    options: Options = {**SMALL, "swap_ab": swap_ab, "tile.n": 64, "tile.m": 64}
    check_emulated(spec(problem, "tma_im2col", options, epilogue), seed)


def test_operands_wait_for_the_registers_of_a_wide_tile(seed: int) -> None:
    """The channels' operands of a tile this wide have no room beside the accumulators."""
    problem = make("fprop", 3, 24, 200, (9, 7), (3, 3), pad=1)
    options: Options = {**PLAIN, "tile.m": 192, "tile.n": 112, "consumers": 3, "stages": 2}
    epilogue = "operand a: f32[k]  operand b: f16[k]  operand c: f32[k]  y = acc * a + b * c"
    check_emulated(spec(problem, "tma_im2col", options, epilogue), seed)


@settings(max_examples=8, deadline=None)
@given(problem=im2col_problems(), options=some_options("tma_im2col"), seed=SEEDS, sms=st.sampled_from((1, 2, 5)))
def test_any_problem(problem: ConvProblem, options: Options, seed: int, sms: int) -> None:
    assume(serves(problem, "tma_im2col", options))
    check_emulated(spec(problem, "tma_im2col", options), seed, (sms,))
