"""depthwise's stream kernel, emulated: all ways to multiply, bands, strips, slices, rings that wrap, epilogues.

Bands and strips have tails, blocks take several bands, and the ring holds no more slabs than it must.
"""

from __future__ import annotations

import numpy as np
import pytest
from gemm_problems import depthwise_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from runs import check_channel_sums, check_plan, emulated
from special_values import with_specials
from tma_specs import laid_out

from convgen.ir import epilogue as ep
from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import TARGETS

STRATEGY, TARGET = strategies.STRATEGIES["depthwise"], TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)


def layer(c: int, size: tuple[int, int], filter: int, n: int = 2, multiplier: int = 1, **other) -> ConvProblem:
    pad = (filter - 1) * other.get("dilation", 1) // 2
    return make("fprop", n, c, c * multiplier, size, (filter, filter), pad=pad, groups=c, **other)


def fma(p: int, q: int, vector: int, slice: int, strip: int, band: int, stages: int, threads: int = 64) -> Options:
    return _options("fma", p, q, vector, slice, strip, band, stages, threads)


def mma(p: int, q: int, slice: int, strip: int, band: int, stages: int, threads: int = 64) -> Options:
    return _options("mma", p, q, 8, slice, strip, band, stages, threads)


def _options(math, p, q, vector, slice, strip, band, stages, threads) -> Options:
    return {
        "kernel": "depthwise_stream", "math": math, "tile.p": p, "tile.q": q, "vector": vector, "slice": slice,
        "strip": strip, "band": band, "stages": stages, "threads": threads,
    }  # fmt: skip


CASES: dict[str, tuple[ConvProblem, Options]] = {
    "whole planes": (layer(16, (9, 10), 3), fma(2, 4, 4, 16, 10, 10, 1)),
    "bands": (layer(32, (9, 10), 3), fma(2, 4, 4, 16, 10, 4, 3)),
    "the least ring": (layer(16, (11, 10), 5), fma(1, 5, 4, 16, 10, 2, 3)),
    "strips": (layer(24, (13, 17), 3, stride=2), fma(1, 2, 8, 24, 4, 3, 4)),
    "rounds of tiles": (layer(16, (8, 12), 3), fma(1, 3, 2, 16, 12, 4, 3, 32)),
    "idle threads": (layer(24, (8, 12), 3), fma(2, 4, 4, 24, 12, 2, 3, 32)),
    "filters in shared memory": (layer(32, (9, 10), 7), fma(2, 4, 4, 16, 10, 10, 2)),
    "dilation": (layer(16, (12, 11), 3, dilation=2), fma(2, 4, 4, 16, 11, 4, 3)),
    "filters in several batches": (layer(16, (9, 10), 17), fma(1, 4, 4, 16, 10, 2, 9)),
    "multiplier": (layer(8, (9, 10), 3, multiplier=2), fma(2, 4, 8, 16, 10, 4, 3)),
    "float32": (layer(8, (9, 10), 3, dtype="f32"), fma(2, 4, 4, 8, 10, 4, 3)),
    "integers": (layer(16, (9, 10), 3, dtype="s8"), fma(2, 4, 4, 16, 10, 4, 3)),
    "one dimension": (
        make("fprop", 3, 16, 16, (33,), (5,), stride=2, pad=2, groups=16), fma(1, 4, 4, 16, 9, 1, 2),
    ),
    "mma": (layer(16, (9, 19), 3), mma(4, 16, 16, 19, 4, 3)),
    "mma, a whole plane": (layer(64, (7, 7), 3, n=3), mma(8, 8, 64, 7, 8, 2, 256)),
    "mma, strips": (layer(48, (13, 37), 5), mma(4, 16, 48, 19, 4, 3, 192)),
    "mma, strips of whole tiles": (layer(16, (11, 43), 3, dtype="bf16"), mma(4, 16, 16, 16, 8, 3)),
    "mma, two sets of rows": (layer(32, (29, 21), 7), mma(16, 8, 32, 21, 16, 2, 128)),
    "mma, two sets over many columns": (layer(16, (13, 37), 7, dtype="bf16"), mma(8, 16, 16, 37, 8, 4)),
    "mma, rounds of tiles": (layer(32, (9, 30), 3), mma(4, 16, 32, 30, 8, 3, 128)),
    "mma, an odd number of units": (layer(24, (10, 21), 3), mma(4, 16, 24, 21, 4, 3, 96)),
    "mma, 8 channels": (layer(8, (10, 21), 5), mma(4, 16, 8, 21, 4, 3)),
    "mma, stride 2": (layer(64, (21, 37), 3, stride=2), mma(4, 16, 32, 19, 4, 3, 128)),
    "mma, stride 2 and strips": (layer(64, (21, 41), 5, stride=2), mma(8, 8, 32, 11, 8, 3, 128)),
    "mma, stride 3": (layer(16, (26, 41), 5, stride=3), mma(4, 16, 16, 14, 4, 3)),
    "mma, dilation": (layer(16, (21, 37), 3, dilation=2), mma(4, 16, 16, 20, 4, 4)),
    "mma, dilation and stride": (layer(16, (33, 21), 3, dilation=3, stride=2), mma(8, 8, 16, 11, 8, 3)),
    "mma, a large filter": (layer(16, (13, 18), 13), mma(4, 16, 16, 18, 4, 4)),
    "mma, filters in several batches": (layer(16, (13, 18), 21, n=1), mma(8, 16, 16, 18, 8, 4)),
    "mma, a large filter, stride 2": (layer(8, (27, 23), 19, stride=2), mma(4, 16, 8, 12, 4, 6)),
    "mma, a large filter, dilation": (layer(8, (20, 19), 13, n=1, dilation=2), mma(4, 16, 8, 19, 4, 9)),
    "mma, a slice among others of an even number of units": (layer(96, (10, 21), 3), mma(4, 16, 48, 21, 4, 3, 192)),
    "mma, all channels": (layer(96, (10, 21), 3), mma(4, 16, 96, 21, 4, 3, 384)),
    "mma, a large filter and stride 2": (layer(16, (21, 37), 7, stride=2), mma(8, 16, 16, 19, 8, 3)),
    "mma, one dimension": (make("fprop", 3, 16, 16, (33,), (5,), pad=2, groups=16), mma(2, 32, 16, 33, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_stream(case: str, seed: int) -> None:
    problem, options = CASES[case]
    source = check_plan(STRATEGY, problem, options, seed)
    assert ("mma_m16n8k8" in source) == (options["math"] != "fma")


# ---- sums of channels ------------------------------------------------------------------------------


SUMMED = {name: row for name, row in CASES.items() if row[0].y.element.bytes == 2}


@pytest.mark.parametrize("case", SUMMED)
def test_sums_of_channels(case: str, seed: int) -> None:
    problem, options = SUMMED[case]
    check_channel_sums(STRATEGY, problem, options, verify.random_inputs(problem, seed), seed)


@pytest.mark.parametrize("case", ["bands", "strips", "mma, strips", "mma, rounds of tiles"])
def test_sums_of_what_is_not_finite(case: str, seed: int) -> None:
    """Sums of channels without it stay finite, though `mma` multiplies it by zeros."""
    problem, options = CASES[case]
    check_channel_sums(STRATEGY, problem, options, with_specials(problem, "x", seed), seed)


@pytest.mark.parametrize("wide", [layer(16, (5, 6), 31), layer(16, (3, 4), 7, dilation=17, dtype="f32")], ids=str)
def test_wide_windows_leave_a_thread_fewer_channels(wide: ConvProblem, seed: int) -> None:
    check_plan(STRATEGY, wide, {"kernel": "depthwise_direct"}, seed)


@pytest.mark.parametrize(
    "alone",
    [
        layer(12, (9, 10), 3, multiplier=3, dtype="f32"),
        laid_out(layer(12, (9, 10), 3, dtype="f32"), y="nkpq"),
        make("fprop", 2, 12, 12, (80,), (63,), pad=((62, 0),), groups=12, dtype="f32"),
    ],
    ids=["three filters each", "channels apart", "a long row"],
)
def test_stream_takes_channels_one_by_one_where_it_must(alone: ConvProblem, seed: int) -> None:
    assert "vector 1" in check_plan(STRATEGY, alone, {"kernel": "depthwise_stream"}, seed)


@pytest.mark.parametrize("math", ["fma", "mma"])
def test_an_epilogue_of_many_operands(math: str, seed: int) -> None:
    """One value a channel, one an image and channel, one an element, one a pixel."""
    operands = (
        Tensor("b", "operand", "f32", ("k",), (16,)),
        Tensor("s", "operand", "f32", ("n", "k"), (2, 16)),
        Tensor("z", "operand", "f16", ("n", "p", "q", "k"), (2, 10, 18, 16)),
        Tensor("m", "operand", "f32", ("p", "q"), (10, 18)),
    )
    total: ep.Expr = ep.Acc()
    for t in operands:
        total = ep.Binary("+", total, ep.OperandRef(t.name))
    epilogue = ep.Epilogue(operands, (ep.Assignment("y", ep.Call("relu", (total,))),))
    problem = layer(16, (10, 18), 5, epilogue=epilogue)
    options = fma(2, 4, 4, 16, 18, 4, 3) if math == "fma" else mma(4, 16, 16, 18, 4, 3)
    check_plan(STRATEGY, problem, options, seed)


@settings(max_examples=10, deadline=None)
@given(problem=depthwise_problems(channels=(8, 16, 32)), seed=SEEDS)
def test_stream_serves_what_it_says(problem: ConvProblem, seed: int) -> None:
    for math in ("fma", "mma"):
        options = {"kernel": "depthwise_stream", "math": math}
        if not STRATEGY.obstacles(problem, TARGET, options):
            check_plan(STRATEGY, problem, options, seed)


@st.composite
def layers_for_mma(draw) -> ConvProblem:
    """What math mma multiplies: any geometry over units of 8 channels."""
    c = 8 * draw(st.sampled_from((1, 2, 3, 4, 5, 6, 8, 11, 12)))
    filter_ = tuple(draw(st.sampled_from((1, 2, 3, 4, 5, 7, 9))) for _ in range(2))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(2))
    reach = [(f - 1) * d for f, d in zip(filter_, dilation, strict=True)]
    size = tuple(r + draw(st.integers(1, 24)) for r in reach)
    stride = tuple(draw(st.integers(1, min(3, r + 1))) for r in reach)
    pad = tuple((draw(st.integers(0, r)), draw(st.integers(0, r))) for r in reach)
    dtype = draw(st.sampled_from(("f16", "bf16")))
    return make("fprop", draw(st.integers(1, 3)), c, c, size, filter_, stride, pad, dilation, c, dtype)


@settings(max_examples=15, deadline=None)
@given(problem=layers_for_mma(), place=st.floats(0, 1, exclude_max=True), seed=SEEDS)
def test_every_candidate_of_mma_is_right(problem: ConvProblem, place: float, seed: int) -> None:
    asked = {"kernel": "depthwise_stream", "math": "mma"}
    found = next(s.candidates(48, 6) for s in STRATEGY.searches(problem, TARGET, asked))
    if found:
        check_plan(STRATEGY, problem, {**asked, **found[int(place * len(found))].layout.config.options}, seed)


def test_fma_keeps_infinities_in_their_windows(seed: int) -> None:
    """mma spreads them over its blocks, which the documentation says."""
    problem = layer(16, (12, 12), 3)
    arrays = verify.random_inputs(problem, seed)
    arrays["x"].reshape(-1)[::37] = np.inf
    out, _ = emulated(STRATEGY, problem, fma(2, 4, 4, 16, 12, 4, 3), arrays)
    assert verify.check(problem, arrays, out)


def test_what_does_not_fit_is_said() -> None:
    problem = layer(48, (28, 28), 7)
    wrong: dict[str, Options] = {
        "slice": {"slice": 20},
        "band": {"math": "fma", "tile.p": 2, "band": 3},
        "strip": {"strip": 200},
        "stages": {"math": "fma", "tile.p": 2, "band": 2, "stages": 1},
        "tile.q": {"math": "mma", "tile.q": 12},
        "vector": {"math": "mma", "vector": 4},
        "math": {"math": "mma"},
    }
    for option, options in wrong.items():
        p = layer(16, (9, 9), 3, dtype="f32") if option == "math" else problem
        found = STRATEGY.obstacles(p, TARGET, {"kernel": "depthwise_stream", **options})
        assert option in {o.option for o in found}, (option, found)
    few = layer(8, (9, 9), 3)
    assert "vector" in {o.option for o in STRATEGY.obstacles(few, TARGET, {"kernel": "depthwise_stream", "vector": 16})}
    (found,) = STRATEGY.obstacles(problem, TARGETS["sm_80"], {"kernel": "depthwise_stream"})
    assert found.option == "kernel"
    assert not STRATEGY.obstacles(problem, TARGETS["sm_80"], {})
