"""The cost models of the Hopper kernels: bounded by the hardware, never rewarding more work, and quick to ask."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import PROBLEMS, TARGET, serves, some_options

from convgen import strategies
from convgen.ir.problem import ConvProblem
from convgen.planner import choose
from convgen.strategies.base import Options

BOTH = ("tma_im2col", "tma_patch")
#: Of an H200 (NVIDIA's data sheet): dense f16 operations, and bytes of device memory, a microsecond.
PEAK_OPERATIONS, PEAK_BYTES = 989.5e6, 4.8e6
#: Room for rounding, where two times may be equal.
NEARLY = 1 - 1e-9


def estimate(strategy: str, problem: ConvProblem, options: Options, sms: int = TARGET.sms) -> float:
    return strategies.load(strategy).estimate(problem, replace(TARGET, sms=sms), options)  # type: ignore[attr-defined]


def resized(problem: ConvProblem, **factors: int) -> ConvProblem:
    """The problem with n, c or k times something."""
    sizes = {dim: getattr(problem, dim) * factor for dim, factor in factors.items()}
    tensors = {
        role: replace(t, extents=tuple(sizes.get(d, e) for d, e in zip(t.dims, t.extents, strict=True)))
        for role in ("x", "w", "y")
        for t in (problem.tensor(role),)
    }
    return replace(problem, epilogue=None, **sizes, **tensors)  # type: ignore[arg-type]


@st.composite
def cases(draw, strategy: str) -> tuple[ConvProblem, Options]:
    """A problem, from tiny to large, and all options of one way to compute it."""
    problem = resized(draw(PROBLEMS[strategy]), n=draw(st.sampled_from((1, 8, 300))), c=draw(st.sampled_from((1, 5))))
    options = draw(some_options(strategy))
    assume(serves(problem, strategy, options))
    config = strategies.load(strategy).plan(problem, TARGET, options).config
    names = [o.name for o in strategies.load(strategy).options]
    return problem, {name: getattr(config, name.removeprefix("tile.")) for name in names}


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_estimate_beats_the_hardware(strategy: str, data: st.DataObject) -> None:
    problem, options = data.draw(cases(strategy))
    us = estimate(strategy, problem, options)
    assert math.isfinite(us)
    assert us > max(2 * problem.macs / PEAK_OPERATIONS, problem.min_bytes / PEAK_BYTES)
    assert us > 1, "a launch alone"


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), dim=st.sampled_from("nck"), factor=st.integers(2, 5))
def test_more_of_a_problem_takes_no_less_time(strategy: str, data: st.DataObject, dim: str, factor: int) -> None:
    problem, options = data.draw(cases(strategy))
    more = resized(problem, **{dim: factor})
    assume(serves(more, strategy, options))
    assert estimate(strategy, more, options) >= NEARLY * estimate(strategy, resized(problem), options)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), sms=st.integers(8, TARGET.sms))
def test_fewer_multiprocessors_take_no_less_time(strategy: str, data: st.DataObject, sms: int) -> None:
    problem, options = data.draw(cases(strategy))
    assert estimate(strategy, problem, options, sms) >= NEARLY * estimate(strategy, problem, options)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_deeper_pipelines_take_no_more_time(strategy: str, data: st.DataObject) -> None:
    problem, options = data.draw(cases(strategy))
    deeper = {**options, "stages": int(options["stages"]) + 1}
    assume(serves(problem, strategy, deeper))
    assert NEARLY * estimate(strategy, problem, deeper) <= estimate(strategy, problem, options)


#: Of the networks in specs/: first, wide, narrow, strided and pointwise layers.
LAYERS = {
    "few channels": make("fprop", 64, 64, 64, (224, 224), (3, 3), pad=1),
    "middle": make("fprop", 64, 256, 256, (14, 14), (3, 3), pad=1),
    "deep": make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1),
    "strided": make("fprop", 64, 256, 256, (14, 14), (3, 3), stride=4, pad=1),
    "pointwise": make("fprop", 64, 1024, 2048, (14, 14), (1, 1), stride=2),
    "large filter": make("fprop", 64, 16, 64, (224, 224), (7, 7), stride=2, pad=3),
}
#: Seconds that a choice may take: a compilation asks each strategy once a layer.
LONGEST_CHOICE = 0.12


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_choice_is_quick(strategy: str, layer: str) -> None:
    def seconds(attempt: int) -> float:
        problem = replace(LAYERS[layer], name=f"attempt_{attempt}")  # not the one that was asked before
        start = time.process_time()
        serves(problem, strategy, {})
        return time.process_time() - start

    assert min(map(seconds, range(3))) < LONGEST_CHOICE


@pytest.mark.parametrize(
    ("layer", "strategy"), [("few channels", "tma_patch"), ("deep", "tma_im2col"), ("pointwise", "tma_im2col")]
)
def test_auto_takes_the_kernel_that_measurements_favour(
    layer: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few channels are bound by L2 under im2col, many channels leave no room for resident weights."""
    monkeypatch.setattr("convgen.planner.database.lookup", lambda *_, **__: None)
    choice = choose(LAYERS[layer], TARGET, "auto", {})
    assert choice.strategy.name == strategy, choice.reason
