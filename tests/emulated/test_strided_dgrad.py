"""tma_im2col's strided dgrad, emulated: phases of every kind of geometry, schedule and epilogue, against the reference.

Tiles have tails in all three directions, blocks take tiles of several phases, and the longest phases have more k steps
than there are stages.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from problems import make
from tma_specs import (
    PLAIN,
    SCHEDULES,
    SEEDS,
    check_emulated,
    check_exact,
    dgrad_problems,
    laid_out,
    serves,
    spec,
    typed,
)

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options

ONE: Options = {**PLAIN, "tile.m": 64, "tile.n": 64, "consumers": 1, "stages": 3}
PINGPONG: Options = {**ONE, "consumers": 2, "schedule": "pingpong"}
#: Output channels as rows of the filter, which is then laid out anew.
NARROW: Options = {**PLAIN, "tile.m": 64, "tile.n": 24, "consumers": 1, "stages": 2}

GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "3x3, stride 2": (make("dgrad", 3, 40, 72, (12, 13), (3, 3), stride=2, pad=1), PINGPONG),
    "1x1, stride 2": (make("dgrad", 3, 40, 72, (9, 12), (1, 1), stride=2), PINGPONG),
    "4x4, stride 2": (make("dgrad", 2, 72, 24, (14, 12), (4, 4), stride=2, pad=1), ONE),
    "even filter, uneven padding": (
        make("dgrad", 3, 40, 40, (11, 10), (2, 4), stride=(2, 3), pad=((0, 2), (3, 1))), ONE,
    ),
    "one axis strided": (make("dgrad", 3, 40, 40, (9, 14), (3, 3), stride=(1, 2), pad=1), PINGPONG),
    "stride above the filter": (make("dgrad", 3, 24, 40, (13, 9), (2, 1), stride=(4, 3), pad=((1, 0), 0)), ONE),
    "stride above x": (make("dgrad", 40, 24, 40, (2, 3), (2, 3), stride=5, pad=1), ONE),
    "padding alone under the windows": (make("dgrad", 3, 24, 40, (1, 9), (1, 3), stride=(2, 2), pad=((1, 0), 1)), ONE),
    "dilated": (make("dgrad", 3, 40, 24, (15, 13), (3, 3), stride=(2, 3), dilation=(3, 2), pad=2), PINGPONG),
    "dilated by the stride": (make("dgrad", 3, 40, 24, (12, 13), (3, 2), stride=(2, 4), dilation=(2, 6), pad=2), ONE),
    "one axis, 20 taps": (make("dgrad", 2, 40, 72, (60,), (20,), stride=10, pad=5), ONE),
    "three axes": (make("dgrad", 2, 24, 40, (4, 5, 6), (3, 2, 3), stride=(2, 1, 3), pad=1), PINGPONG),
    "k off 8": (make("dgrad", 3, 40, 19, (12, 13), (3, 3), stride=2, pad=1), ONE),
    "c off 8": (make("dgrad", 3, 37, 40, (12, 13), (3, 3), stride=2, pad=1), NARROW),
    "columns that no whole box has": (
        make("dgrad", 3, 40, 24, (12, 13), (3, 3), stride=2, pad=1), {**PINGPONG, "tile.n": 40},
    ),
    "columns of two boxes": (
        make("dgrad", 3, 184, 72, (12, 13), (3, 3), stride=2, pad=1), {**ONE, "tile.n": 96, "k_blocks": 1},
    ),
    "float32": (typed(make("dgrad", 3, 40, 40, (9, 8), (3, 3), stride=2, pad=1), x="f32"), ONE),
    "channels before pixels": (
        laid_out(make("dgrad", 3, 40, 24, (9, 8), (3, 3), stride=2, pad=1), x="nchw", w="kcrs", y="nkpq"), NARROW,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    check_exact(spec(problem, "tma_im2col", options), seed)


#: Of those that a strided dgrad can have, some of each kind.
CHOSEN = (
    "ping-pong of three", "taps inside", "two share w, ping-pong", "two share x", "channels as rows",
    "channels as rows, ping-pong, two share x", "in bands", "three blocks, ping-pong",
)  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_schedule(name: str, seed: int) -> None:
    options = {**PLAIN, **SCHEDULES[name]}
    options.setdefault("tile.n", 64 * options.get("cluster", 1))
    problem = make("dgrad", 3, 136, 72, (11, 12), (3, 3), stride=2, pad=1)
    check_emulated(spec(problem, "tma_im2col", options), seed, (1, 3))


def test_k_blocks_that_share_a_stage(seed: int) -> None:
    problem = make("dgrad", 2, 40, 24, (14, 12), (4, 4), stride=2, pad=1)
    check_emulated(spec(problem, "tma_im2col", {**PINGPONG, "k_blocks": 4, "tile.k": 16, "stages": 2}), seed)


EPILOGUES = {
    "residual and mask": "operand g: f16[n, h, w, c]  operand m: s8[n, h, w, c]  x = select(m > 0, acc + g, 0)",
    "channels, images, pixels": (
        "operand b: f32[c]  operand e: f16[n, c]  operand t: bf16[h, w]  operand u: f32[w, c, n] "
        "x = (acc + b) * e + t * u"
    ),
}


@pytest.mark.parametrize(
    "options", [ONE, PINGPONG, {**ONE, "swap_ab": 1, "tile.m": 48}], ids=["one", "ping-pong", "swap_ab"]
)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue_with_phases_that_no_tap_reaches(name: str, options: Options, seed: int) -> None:
    problem = make("dgrad", 3, 72, 24, (9, 12), (1, 3), stride=2, pad=(0, 1))
    check_emulated(spec(problem, "tma_im2col", options, EPILOGUES[name]), seed)


@settings(max_examples=6, deadline=None)
@given(problem=dgrad_problems(strided=True), seed=SEEDS)
def test_any_problem(problem: ConvProblem, seed: int) -> None:
    assert serves(problem, "tma_im2col", {})
    check_emulated(spec(problem, "tma_im2col", {}), seed, (1 + seed % 4,))


def test_transposed_convolution(seed: int) -> None:
    check_emulated(
        """conv up {
          input  x: f16[n=3, h=6, w=5, c=24]
          filter w: f16[c, k=40, r=4, s=3]
          output y: f16[n, p=12, q=12, k]  # one further pixel along q
          stride 2  pad h=1  op transposed
          epilogue { operand b: f32[k]  operand z: f16[n, p, q, k]  y = relu(acc + b + z) }
          strategy tma_im2col
        }""",
        seed,
    )
