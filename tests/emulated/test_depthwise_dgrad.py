"""dgrad of depthwise convolutions, emulated: the kernels of the forward one, with mirrored taps."""

from __future__ import annotations

import pytest
from problems import make
from runs import emulated
from special_values import expected, with_specials
from tma_specs import TARGET, check_exact, laid_out, spec

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options

STRATEGY = strategies.load("depthwise")
DIRECT: Options = {"kernel": "depthwise_direct"}
UNEVEN = ((2, 0), (1, 3))
MASKED = "operand g: f16[n, h, w, c]  operand b: f32[c]  x = select(g > 0, acc + b, 0)"


def layer(c: int, size: tuple[int, ...], filter: tuple[int, ...], pad=0, **other) -> ConvProblem:
    return make("dgrad", 2, c, c, size, filter, pad=pad, groups=c, **other)


def stream(math: str, p: int, q: int, vector: int, strip: int, band: int, stages: int) -> Options:
    return {
        "kernel": "depthwise_stream", "math": math, "tile.p": p, "tile.q": q, "vector": vector, "slice": 16,
        "strip": strip, "band": band, "stages": stages, "threads": 64,
    }  # fmt: skip


CASES: dict[str, tuple[ConvProblem, Options, str]] = {
    "direct": (layer(10, (7, 9), (2, 4), UNEVEN), DIRECT, MASKED),
    "direct, in planes": (laid_out(layer(6, (8, 9), (3, 2), UNEVEN), x="nchw", w="kcrs", y="nkpq"), DIRECT, ""),
    "direct, more padding than filter": (layer(8, (5, 6), (2, 1), 2, dilation=(1, 2)), DIRECT, ""),
    "fma": (layer(32, (9, 10), (3, 4), UNEVEN), stream("fma", 2, 4, 4, 10, 4, 3), MASKED),
    "fma, dilated": (layer(16, (12, 11), (3, 2), 1, dilation=(2, 3)), stream("fma", 2, 4, 4, 11, 4, 3), ""),
    "fma, more padding than filter": (layer(16, (7, 9), (2, 1), 2), stream("fma", 1, 3, 4, 5, 2, 3), ""),
    "mma": (layer(16, (9, 19), (3, 4), UNEVEN), stream("mma", 4, 16, 8, 19, 4, 3), MASKED),
    "mma, strips": (layer(32, (11, 37), (5, 5), 2), stream("mma", 4, 16, 8, 19, 4, 3), ""),
    "mma, one axis": (layer(16, (33,), (5,), ((1, 3),)), stream("mma", 2, 32, 8, 33, 2, 2), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_exact_on_integers(case: str, seed: int) -> None:
    problem, options, epilogue = CASES[case]
    made = check_exact(spec(problem, "depthwise", options, epilogue), seed)
    assert "taps are mirrored" in made.source


def test_infinities_stay_in_their_windows(seed: int) -> None:
    problem, options, _ = CASES["mma"]
    arrays = with_specials(problem, "y", seed)
    out, source = emulated(STRATEGY, problem, options, arrays)
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (layer(16, (12, 12), (3, 3), 1, stride=2), "stride of 2"),
        (make("dgrad", 2, 16, 32, (9, 9), (3, 3), pad=1, groups=16), "2 filters per channel"),
        (make("wgrad", 2, 16, 16, (9, 9), (3, 3), pad=1, groups=16), "op wgrad"),
    ],
    ids=["strided", "multiplier", "wgrad"],
)
def test_what_is_not_served(problem: ConvProblem, reason: str) -> None:
    (found,) = STRATEGY.obstacles(problem, TARGET, {})
    assert reason in found.message
