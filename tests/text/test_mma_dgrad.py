"""Which gradients of inputs `auto` gives to mma_gemm: on targets without TMA, all that are dense or grouped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from problems import make
from strategy_problems import unused_names
from tma_specs import laid_out

from convgen import frontend, planner
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.targets import TARGETS

SPECS = Path(__file__).parents[2] / "specs"
GEMM = strategies.STRATEGIES["implicit_gemm"]
KERNEL = {"kernel": "mma_gemm"}


def gradients() -> Iterator[ConvProblem]:
    """Of every f16 and bf16 layer of the suites, and transposed convolutions, which are some."""
    for path in sorted(SPECS.glob("*.conv")):
        for request in frontend.load(path.read_text(encoding="utf-8"), str(path), targets=TARGETS):
            problem = replace(request.problem, epilogue=None)
            if problem.op in (Op.FPROP, Op.DGRAD) and problem.x.dtype in ("f16", "bf16"):
                yield replace(problem, op=Op.DGRAD)


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_auto_takes_no_explicit_im2col(target: str, some) -> None:
    layers = list(gradients())
    taken = {planner.untuned(problem, TARGETS[target], "auto", {}).strategy.name for problem in some(layers)}
    assert len(layers) > 100 and taken == {"implicit_gemm", "depthwise"}


ODD = {
    "dilated far": make("dgrad", 8, 64, 64, (500,), (3,), dilation=200),
    "3 groups of 5 channels": make("dgrad", 8, 15, 15, (28, 28), (3, 3), pad=1, groups=3),
    "c off 8": make("dgrad", 8, 60, 64, (28, 28), (3, 3), pad=1),
    "k off 8": make("dgrad", 8, 64, 61, (28, 28), (3, 3), stride=2, pad=1),
    "planes": laid_out(make("dgrad", 8, 60, 61, (28, 28), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
}


@pytest.mark.costly
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ODD)
def test_nor_of_odd_shapes(name: str, target: str) -> None:
    assert planner.untuned(ODD[name], TARGETS[target], "auto", {}).strategy.name != "im2col"


def test_hopper_keeps_its_own_kernels(some) -> None:
    """Where mma_gemm is expected to be about as fast, auto takes a kernel whose dgrad has been measured."""
    layers = list(gradients())[::4]  # planning them takes a while
    taken = [planner.untuned(problem, TARGETS["sm_90a"], "auto", {}).strategy.name for problem in some(layers)]
    assert len(layers) > 25 and taken.count("implicit_gemm") <= 1


def microseconds(problem: ConvProblem) -> float:
    return GEMM.estimate(problem, TARGETS["sm_80"], KERNEL)


def test_a_gradient_is_estimated_as_the_forward_convolution_of_its_phases() -> None:
    forward = make("fprop", 64, 128, 256, (28, 28), (3, 3), pad=1)
    assert microseconds(forward) < microseconds(replace(forward, op=Op.DGRAD)) < 1.4 * microseconds(forward)
    # a quarter of the products, which phases do not multiply with zeros, and as many pixels
    strided = make("dgrad", 64, 128, 256, (28, 28), (3, 3), stride=2, pad=1)
    assert microseconds(strided) < 0.6 * microseconds(replace(forward, op=Op.DGRAD))


def test_filters_are_read_as_they_lie() -> None:
    """No layout of a filter costs a copy of it, and channels innermost no gathering."""
    problem = make("dgrad", 8, 64, 64, (28, 28), (3, 3), pad=1)
    for w in ("krsc", "kcrs", "crsk", "rsck"):
        plan = GEMM.plan(laid_out(problem, w=w), TARGETS["sm_80"], {**KERNEL, "split_k": 1})
        assert len(plan.launches) == 1
        assert ("held[" in GEMM.render(plan)) == (w == "kcrs")


def test_a_reader_defines_nothing_that_only_an_even_one_needs() -> None:
    """One tap of two groups of 3 channels: a thread's rows of gemm_k follow from digits, not from a step."""
    problem = make("dgrad", 1, 4, 6, (1,), (1,), groups=2)
    source = GEMM.render(GEMM.plan(problem, TARGETS["sm_90a"], KERNEL))
    assert not unused_names(source)
