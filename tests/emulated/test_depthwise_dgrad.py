"""dgrad of depthwise convolutions, emulated: the kernels of the forward one, with mirrored taps or, of a stride, with
the taps of each phase."""

from __future__ import annotations

import pytest
from problems import make
from runs import check_channel_sums, emulated
from special_values import expected, with_specials
from tma_specs import TARGET, check_exact, compilation, laid_out, spec

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options

STRATEGY = strategies.STRATEGIES["depthwise"]
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


#: Bands and strips have tails, phases have none or all of the taps, windows begin inside y or before it.
STRIDED: dict[str, tuple[ConvProblem, Options, str]] = {
    "direct": (layer(10, (8, 11), (3, 5), UNEVEN, stride=2), DIRECT, MASKED),
    "direct, in planes": (
        laid_out(layer(6, (9, 10), (3, 2), UNEVEN, stride=(2, 3)), x="nchw", w="kcrs", y="nkpq"), DIRECT, "",
    ),
    "direct, stride above the filter": (layer(8, (9, 7), (1, 2), 1, stride=(3, 4)), DIRECT, MASKED),
    "fma": (layer(32, (13, 22), (3, 3), 1, stride=2), stream("fma", 2, 4, 4, 12, 4, 4), MASKED),
    "fma, filters in shared memory": (
        layer(16, (11, 9), (7, 5), UNEVEN, stride=2), stream("fma", 2, 2, 4, 9, 2, 5), "",
    ),
    "fma, stride above the filter": (layer(16, (10, 9), (1, 2), 1, stride=3), stream("fma", 3, 6, 4, 9, 6, 3), MASKED),
    "fma, stride above x": (layer(16, (2, 9), (3, 3), 1, stride=(4, 2)), stream("fma", 4, 4, 2, 9, 4, 2), ""),
    "fma, dilated, one axis strided": (
        layer(16, (9, 14), (3, 2), 2, stride=(1, 3), dilation=(2, 3)), stream("fma", 2, 6, 4, 14, 4, 4), "",
    ),
    "fma, dilated by the stride": (
        layer(16, (30,), (3,), 2, stride=2, dilation=2), stream("fma", 1, 4, 4, 16, 1, 2), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STRIDED)
def test_phases_are_exact_on_integers(case: str, seed: int) -> None:
    problem, options, epilogue = STRIDED[case]
    made = check_exact(spec(problem, "depthwise", options, epilogue), seed)
    assert "form a phase" in made.source


def test_transposed_convolution(seed: int) -> None:
    made = check_exact(
        """conv up {
          input  x: f16[n=2, h=6, w=5, c=16]
          filter w: f16[c, k=1, r=4, s=3]
          output y: f16[n, p=12, q=11, k=16]
          stride 2  pad h=1  groups 16  op transposed  target sm_90a
          epilogue { operand b: f32[k]  y = relu(acc + b) }
        }""",
        seed,
    )
    assert made.plan.strategy == "depthwise"


@pytest.mark.parametrize(("problem", "options"), [
    (problem, options) for problem, options, _ in (*CASES.values(), *STRIDED.values()) if options is not DIRECT
], ids=str)  # fmt: skip
def test_sums_of_channels(problem: ConvProblem, options: Options, seed: int) -> None:
    check_channel_sums(STRATEGY, problem, options, verify.random_inputs(problem, seed), seed)


def test_infinities_stay_in_their_windows(seed: int) -> None:
    problem, options, _ = CASES["mma"]
    arrays = with_specials(problem, "y", seed)
    out, source = emulated(STRATEGY, problem, options, arrays)
    report = verify.compare(problem, out, expected(problem, arrays))
    assert report, f"{report}\nseed {seed}\n{source}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make("dgrad", 2, 16, 32, (9, 9), (3, 3), pad=1, groups=16), "2 filters per channel"),
    ],
    ids=["multiplier"],
)
def test_what_is_not_served(problem: ConvProblem, reason: str) -> None:
    (found,) = STRATEGY.obstacles(problem, TARGET, {})
    assert reason in found.message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (stream("fma", 1, 4, 4, 12, 4, 4), "tile.p 1 is not a multiple of dgrad's stride, 2"),
        (stream("fma", 2, 4, 4, 7, 4, 4), "strip 7 is not a multiple of dgrad's stride, 2"),
        ({"kernel": "depthwise_direct", "tile.q": 3}, "tile.q 3 is not a multiple of dgrad's stride, 2"),
        ({"math": "mma"}, "math mma"),
    ],
    ids=["tile", "strip", "direct", "mma"],
)  # fmt: skip
def test_options_that_no_stride_has(options: Options, reason: str) -> None:
    found = STRATEGY.obstacles(layer(16, (12, 12), (3, 3), 1, stride=2), TARGET, options)
    assert any(reason in obstacle.message for obstacle in found)


def test_auto_takes_it() -> None:
    problem = layer(96, (56, 56), (3, 3), 1, stride=2)
    plan = compilation(f"{str(problem).removesuffix('}')} target sm_90a }}").plan
    assert plan.options["kernel"] == "depthwise_stream"
