"""dgrad of grouped convolutions by tma_im2col, emulated: c and k are exchanged within each group as the filter is laid
out anew, its taps are mirrored, and small groups are packed."""

from __future__ import annotations

import pytest
from problems import make
from runs import emulated
from special_values import expected, with_specials
from tma_specs import PLAIN, TARGET, check_exact, compilation, laid_out, spec

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options

STRATEGY = strategies.load("tma_im2col")
UNEVEN = ((2, 0), (1, 3))


def options(n: int, k: int, pack: int) -> Options:
    return {**PLAIN, "tile.m": 64, "tile.n": n, "tile.k": k, "consumers": 1, "stages": 3, "group_pack": pack}


#: Groups have more output channels than input channels, and the other way round.
PACKED = make("dgrad", 2, 16, 32, (9, 8), (3, 2), pad=UNEVEN, groups=4), options(8, 16, 2)
CASES: dict[str, tuple[ConvProblem, Options]] = {
    "whole groups": (make("dgrad", 2, 48, 32, (7, 9), (2, 3), pad=UNEVEN, groups=2), options(24, 16, 1)),
    "packed": PACKED,
    "packed, bf16, dilated": (
        make("dgrad", 1, 64, 32, (9, 8), (3, 3), pad=2, dilation=2, groups=8, dtype="bf16"), options(32, 16, 4),
    ),
    "depthwise": (make("dgrad", 2, 32, 32, (9, 8), (3, 2), pad=UNEVEN, groups=32), options(16, 16, 16)),
    "channels before taps": (laid_out(PACKED[0], x="nchw", w="kcrs", y="nkpq"), PACKED[1]),
    "output channels innermost": (laid_out(PACKED[0], x="nhwc", w="crsk", y="npqk"), PACKED[1]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_exact_on_integers(case: str, seed: int) -> None:
    check_exact(spec(CASES[case][0], "tma_im2col", CASES[case][1]), seed)


def test_epilogue(seed: int) -> None:
    text = "operand g: f16[n, h, w, c]  operand b: f32[c]  result s: f32[c]  "
    text += "s = acc  x = select(g > 0, acc + b, 0)"
    check_exact(spec(PACKED[0], "tma_im2col", PACKED[1], text), seed)


@pytest.mark.parametrize("role", ["y", "w"])
def test_special_values_stay_in_their_groups(role: str, seed: int) -> None:
    problem, chosen = PACKED
    arrays = with_specials(problem, role, seed)
    out, source = emulated(STRATEGY, problem, chosen, arrays)
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


def test_strides_are_refused() -> None:
    problem = make("dgrad", 2, 64, 64, (12, 12), (3, 3), stride=2, pad=1, groups=4)
    assert any("of unit stride" in o.message for o in STRATEGY.obstacles(problem, TARGET, {}))


def test_auto_takes_it() -> None:
    problem = make("dgrad", 8, 256, 256, (28, 28), (3, 3), pad=1, groups=32)
    assert compilation(f"{str(problem).removesuffix('}')} target sm_90a }}").plan.strategy == "tma_im2col"
