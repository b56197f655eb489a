"""tma_im2col compiles for sm_90a over its option space: wgmma not serialized, registers within the launch's.

`compile_source` raises where ptxas says that it makes a kernel slow (C75xx).
"""

from __future__ import annotations

import re

import ptxas
import pytest
from hypothesis import assume, given, settings
from problems import make
from tma_specs import (  # fmt: skip
    first_choices,
    im2col_problems,
    in_turn,
    laid_out,
    serves,
    some_options,
    typed,
)

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import Resources


def compiled(problem: ConvProblem, options: Options, epilogue: str = "") -> Resources:
    return ptxas.compiled(problem, "tma_im2col", options, epilogue)


WIDE = make("fprop", 8, 128, 512, (28, 28), (3, 3), pad=1)
PLAIN: Options = {"schedule": "cooperative", "order": "channels_inner", "blocks": 1, "k_blocks": 1, "split_k": 1}

ROWS: tuple[Options, ...] = (
    {"tile.m": 64, "consumers": 1},
    {"tile.m": 128, "consumers": 2},
    {"tile.m": 64, "consumers": 2, "schedule": "pingpong"},
)
#: Tiles of odd multiples of eight channels, by rows and swizzle in turn.
TILES: list[Options] = [
    {**PLAIN, **ROWS[i % 3], "tile.n": n, "tile.k": (16, 32, 64)[i // 3 % 3]} for i, n in enumerate(range(8, 257, 16))
]
SCHEDULES: dict[str, Options] = {
    "three consumers": {"tile.m": 192, "tile.n": 184, "consumers": 3},
    "one consumer of 192 rows": {"tile.m": 192, "tile.n": 96, "consumers": 1},
    "one consumer of 256 rows": {"tile.m": 256, "tile.n": 64, "consumers": 1},
    "ping-pong of three": {"tile.m": 64, "tile.n": 176, "consumers": 3, "schedule": "pingpong"},
    "ping-pong of 192 rows": {"tile.m": 192, "tile.n": 120, "consumers": 2, "schedule": "pingpong"},
    "two blocks": {"tile.m": 64, "tile.n": 128, "consumers": 1, "blocks": 2},
    "two blocks of two": {"tile.m": 128, "tile.n": 96, "consumers": 2, "blocks": 2},
    "three blocks": {"tile.m": 64, "tile.n": 72, "consumers": 1, "blocks": 3},
    "four blocks": {"tile.m": 64, "tile.n": 40, "consumers": 1, "blocks": 4, "stages": 3},
    "merged": {"tile.m": 128, "tile.n": 64, "tile.k": 16, "consumers": 2, "k_blocks": 8},
    "merged by taps": {"tile.m": 128, "tile.n": 64, "tile.k": 16, "consumers": 2, "k_blocks": 9, "order": "taps_inner"},
    "split in two": {"tile.m": 128, "tile.n": 144, "consumers": 2, "split_k": 2},
    "split in four": {"tile.m": 64, "tile.n": 224, "consumers": 1, "split_k": 4, "order": "taps_inner"},
    "split in eight": {"tile.m": 128, "tile.n": 192, "consumers": 2, "split_k": 8, "tile.k": 32, "k_blocks": 2},
}
GEOMETRIES: dict[str, ConvProblem] = {
    "bf16": make("fprop", 8, 64, 64, (28, 28), (3, 3), pad=1, dtype="bf16"),
    "f32 out": typed(make("fprop", 8, 64, 64, (28, 28), (3, 3), pad=1, dtype="bf16"), y="f32"),
    "odd k": make("fprop", 8, 64, 63, (28, 28), (3, 3), pad=1),
    "NKPQ out": laid_out(make("fprop", 8, 64, 64, (28, 28), (3, 3), pad=1), y="nkpq"),
    "RSKC": laid_out(make("fprop", 8, 64, 64, (28, 28), (5, 5), pad=2), w="rskc"),
    "1x1": make("fprop", 8, 256, 64, (28, 28), (1, 1)),
    "1x1, stride 2": make("fprop", 8, 256, 64, (28, 28), (1, 1), stride=2),
    "one axis": make("fprop", 8, 64, 64, (999,), (5,), stride=2, dilation=3),
    "three axes": make("fprop", 2, 64, 64, (8, 14, 14), (3, 3, 3), stride=(1, 2, 2), pad=1, dilation=(2, 1, 1)),
    "more than 2^31 of y": make("fprop", 2048, 8, 2049, (32, 32), (1, 1)),
}


@pytest.mark.parametrize("options", TILES, ids=lambda o: f"n{o['tile.n']}")
def test_tile(options: Options) -> None:
    found = compiled(WIDE, options)
    assert not found.spill_stores and not found.stack


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", ROWS, ids=["one consumer", "two consumers", "ping-pong"])
def test_the_widest_tile_has_the_registers_that_it_needs(rows: Options, blocks: int) -> None:
    for m in (64, 128, 256):
        options: Options = {**PLAIN, **rows, "tile.m": m, "tile.k": 16, "stages": 2, "blocks": blocks}
        widest = next((n for n in range(256, 7, -8) if serves(WIDE, "tma_im2col", {**options, "tile.n": n})), None)
        if widest is None:  # fewer rows than consumers
            continue
        found = compiled(WIDE, {**options, "tile.n": widest})
        assert found.spill_stores <= 16, "no more than an address or two"


@pytest.mark.parametrize("planes", ["of y", "of an operand"])
def test_pixels_in_planes_are_found_once_for_all_channels(planes: str) -> None:
    """Not for each product before the first is stored, which took 500 bytes of spills."""
    problem = make("fprop", 8, 64, 256, (28, 28), (3, 3), pad=1)
    if planes == "of y":
        problem = laid_out(typed(problem, y="f32"), y="nkpq")
    epilogue = "operand z: f32[n, k, p, q]  operand b: f32[k]  y = relu(acc + z + b)" if planes != "of y" else ""
    options: Options = {"tile.m": 192, "tile.n": 128, "consumers": 2, "schedule": "pingpong", "swap_ab": 1}
    assert compiled(problem, {**PLAIN, **options}, epilogue).spill_stores <= 16


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    found = compiled(WIDE, {**PLAIN, **SCHEDULES[name]}, "bias f32")
    assert not found.spill_stores and not found.stack


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str) -> None:
    found = compiled(GEOMETRIES[name], {}, "no operand")
    assert not found.spill_stores and not found.stack


RESIDUAL = "operand g: f16[n, h, w, c]  operand m: f16[n, h, w, c]  x = select(m > 0, acc + g, 0)"
STRIDED_DGRADS: dict[str, tuple[ConvProblem, Options, str]] = {
    "3x3": (make("dgrad", 8, 128, 128, (56, 56), (3, 3), stride=2, pad=1), {}, RESIDUAL),
    "1x1": (make("dgrad", 64, 256, 512, (56, 56), (1, 1), stride=2), {"schedule": "pingpong"}, RESIDUAL),
    "wide": (
        make("dgrad", 64, 512, 512, (14, 14), (3, 3), stride=2, pad=1),
        {"tile.m": 128, "tile.n": 256, "consumers": 2, "schedule": "cooperative"}, RESIDUAL,
    ),
    "channels as rows": (
        make("dgrad", 64, 256, 256, (28, 28), (3, 3), stride=2, pad=1),
        {"tile.m": 256, "tile.n": 128, "consumers": 2, "swap_ab": 1}, "operand b: f32[c]  x = relu(acc + b)",
    ),
    "one axis": (make("dgrad", 16, 256, 512, (1000,), (20,), stride=10, pad=5), {}, ""),
    "three axes, float32": (typed(make("dgrad", 2, 64, 64, (9, 16, 16), (3, 3, 3), stride=2, pad=1), x="f32"), {}, ""),
    "c off 8": (make("dgrad", 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3), {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STRIDED_DGRADS)
def test_strided_dgrad(name: str) -> None:
    found = compiled(*STRIDED_DGRADS[name])
    assert not found.spill_stores and not found.stack


@pytest.mark.parametrize(("c", "size", "stride"), [(128, 56, 1), (1024, 7, 1), (256, 56, 2), (1024, 14, 2)])
def test_grouped_dgrad(c: int, size: int, stride: int) -> None:
    found = compiled(make("dgrad", 64, c, c, (size, size), (3, 3), stride=stride, pad=1, groups=32), {}, RESIDUAL)
    assert not found.spill_stores and not found.stack


@pytest.mark.parametrize("layout", ["nkpq", "kpqn"])
@pytest.mark.parametrize("filter", [1, 3])
@pytest.mark.parametrize("c", [8, 128])  # one product a tap, or a loop of several
def test_conversions_stay_behind_the_products(c: int, filter: int, layout: str) -> None:
    """Without tails nothing but a store depends on the sums: ptxas would convert them between two wgmmas."""
    problem = laid_out(make("fprop", 64, c, 1024, (32, 32), (filter, filter), pad=filter // 2), y=layout)
    for schedule in ("cooperative", "pingpong"):
        compiled(problem, {**PLAIN, "tile.m": 128, "tile.n": 128, "consumers": 2, "schedule": schedule})


@pytest.mark.parametrize(("epilogue", "k"), in_turn(128, 127))
def test_epilogue(epilogue: str, k: int) -> None:
    problem = make("fprop", 8, 64, k, (28, 28), (3, 3), pad=1)
    found = compiled(problem, {"tile.m": 128, "tile.n": 64, "consumers": 2}, epilogue)
    assert not found.spill_stores and not found.stack


STATISTICS = "result s: f32[k]  result squares: f32[k]  s = acc  squares = acc * acc  y = acc"
GRADIENT = """operand branch: bf16[n, h, w, c]  operand saved: bf16[n, h, w, c]  operand read: bf16[n, h, w, c]
  operand mean: f32[c]  result s: f32[c]  result products: f32[c]
  g = select(saved > 0, acc + branch, 0)  s = g  products = g * (read - mean)  x = g"""


@pytest.mark.parametrize(("op", "m", "epilogue"), [("fprop", 192, STATISTICS), ("dgrad", 176, GRADIENT)])
@pytest.mark.parametrize("of_images", (False, True))
def test_sums_beside_as_many_accumulators_as_are_served(op: str, m: int, epilogue: str, of_images: bool) -> None:
    problem = make(op, 64, 256, 256, (16, m // 16) if of_images else (14, 14), (1, 1), dtype="bf16")
    if of_images:
        epilogue = re.sub(r"(result \w+: f32\[)", r"\1n, ", epilogue)
    tile: Options = {"tile.m": m, "tile.n": 128, "tile.k": 64, "schedule": "pingpong", "consumers": 2, "swap_ab": 1}
    found = compiled(problem, tile, epilogue)
    assert not found.spill_stores and not found.stack


@settings(max_examples=12, deadline=None)
@given(problem=im2col_problems(), options=some_options("tma_im2col"))
def test_any_problem(problem: ConvProblem, options: Options) -> None:
    assume(serves(problem, "tma_im2col", options))
    compiled(problem, options)


def test_the_first_choices_for_layers_of_networks_spill_nothing(some) -> None:
    found = {name: compiled(*chosen) for name, chosen in first_choices("tma_im2col", some).items()}
    assert not {name: r for name, r in found.items() if r.spill_stores or r.spill_loads or r.stack}
