"""dgrad of grouped convolutions by tma_im2col, emulated: c and k are exchanged within each group as the filter is laid
out anew, its taps are mirrored or, of a stride, each phase's, and small groups are packed."""

from __future__ import annotations

import pytest
from problems import make
from runs import emulated
from special_values import expected, with_specials
from tma_specs import PLAIN, check_exact, compilation, laid_out, spec

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options

STRATEGY = strategies.STRATEGIES["tma_im2col"]
UNEVEN = ((2, 0), (1, 3))


def options(n: int, k: int, pack: int) -> Options:
    return {**PLAIN, "tile.m": 64, "tile.n": n, "tile.k": k, "consumers": 1, "stages": 3, "group_pack": pack}


#: Groups have more output channels than input channels, and the other way round.
PACKED = make("dgrad", 2, 16, 32, (9, 8), (3, 2), pad=UNEVEN, groups=4), options(8, 16, 2)
CASES: dict[str, tuple[ConvProblem, Options]] = {
    "ends inside a box": (make("dgrad", 2, 96, 96, (7, 9), (2, 3), pad=UNEVEN, groups=2), options(48, 64, 1)),
    "whole groups": (make("dgrad", 2, 48, 32, (7, 9), (2, 3), pad=UNEVEN, groups=2), options(24, 16, 1)),
    "packed": PACKED,
    "packed, bf16, dilated": (
        make("dgrad", 1, 64, 32, (9, 8), (3, 3), pad=2, dilation=2, groups=8, dtype="bf16"), options(32, 16, 4),
    ),
    "depthwise": (make("dgrad", 2, 32, 32, (9, 8), (3, 2), pad=UNEVEN, groups=32), options(16, 16, 16)),
    "channels before taps": (laid_out(PACKED[0], x="nchw", w="kcrs", y="nkpq"), PACKED[1]),
    "output channels innermost": (laid_out(PACKED[0], x="nhwc", w="crsk", y="npqk"), PACKED[1]),
}  # fmt: skip
#: x has an odd number of pixels; phases have taps, or none where the stride is above the filter.
STRIDED = make("dgrad", 2, 16, 32, (9, 8), (3, 2), stride=2, pad=UNEVEN, groups=4), options(8, 16, 2)
CASES |= {
    "strided": (make("dgrad", 2, 48, 32, (7, 9), (2, 3), stride=(2, 3), pad=UNEVEN, groups=2), options(24, 16, 1)),
    "strided, packed": STRIDED,
    "strided, dilated, in planes": (
        laid_out(
            make("dgrad", 1, 32, 32, (9, 10), (3, 3), stride=(1, 2), pad=2, dilation=2, groups=8),
            x="nchw", w="kcrs", y="nkpq",
        ),
        {**options(16, 16, 4), "consumers": 2, "schedule": "pingpong"},
    ),
    "strided, above the filter": (
        make("dgrad", 2, 32, 32, (9, 8), (1, 2), stride=3, pad=1, groups=4, dtype="bf16"), options(16, 16, 2),
    ),
    "strided, channels as rows": (
        make("dgrad", 2, 64, 64, (12, 9), (3, 3), stride=2, pad=1, groups=8),
        {**options(64, 64, 8), "tile.m": 32, "swap_ab": 1},
    ),
    "strided, packed, the last ones fewer": (
        make("dgrad", 2, 48, 12, (9, 8), (3, 3), stride=2, pad=1, groups=3), options(32, 16, 2),
    ),
    "strided, ends inside a product": (
        make("dgrad", 2, 72, 72, (9, 8), (3, 3), stride=2, pad=1, groups=3), options(24, 32, 1),
    ),
    "strided, 2 filters a channel": (
        make("dgrad", 2, 16, 32, (9, 8), (3, 3), stride=2, pad=1, groups=16), options(16, 16, 16),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_exact_on_integers(case: str, seed: int) -> None:
    check_exact(spec(CASES[case][0], "tma_im2col", CASES[case][1]), seed)


def test_epilogue(seed: int) -> None:
    text = "operand g: f16[n, h, w, c]  operand b: f32[c]  result s: f32[c]  "
    text += "s = acc  x = select(g > 0, acc + b, 0)"
    check_exact(spec(PACKED[0], "tma_im2col", PACKED[1], text), seed)
    # phases make no sums, and gather operands pixel by pixel
    check_exact(spec(STRIDED[0], "tma_im2col", STRIDED[1], text), seed)


@pytest.mark.parametrize(
    ("case", "role"),
    [
        ("packed", "y"),
        ("packed", "w"),
        ("strided, packed", "y"),
        ("strided, ends inside a product", "y"),
        ("strided, packed, the last ones fewer", "y"),
        ("ends inside a box", "y"),
        ("strided, channels as rows", "y"),
    ],
)
def test_special_values_stay_in_their_groups(case: str, role: str, seed: int) -> None:
    problem, chosen = CASES[case]
    arrays = with_specials(problem, role, seed)
    out, source = emulated(STRATEGY, problem, chosen, arrays)
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


def test_a_transposed_convolution_with_groups(seed: int) -> None:
    text = """conv up {
      input  x: f16[n=2, h=5, w=6, c=32]
      filter w: f16[c, k=4, r=4, s=3]
      output y: f16[n, p=10, q=13, k=16]
      stride 2  pad h=1  groups 4  op transposed
      epilogue { operand b: f32[k]  y = relu(acc + b) }
      strategy tma_im2col
    }"""
    check_exact(text, seed)


@pytest.mark.parametrize("stride", [1, 2])
def test_auto_takes_the_halo_tile(stride: int) -> None:
    problem = make("dgrad", 8, 256, 256, (28, 28), (3, 3), stride=stride, pad=1, groups=32)
    assert compilation(f"{str(problem).removesuffix('}')} target sm_90a }}").plan.strategy == "tma_halo"
