"""What strategies offer for measuring can be said in the language, and means the same there; a search's layouts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import islice

import pytest
from gemm_problems import PLANES, laid_out
from gpu_runs import spec_text
from problems import make

from convgen import frontend
from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies
from convgen.kernels.base import AnyKernel
from convgen.kernels.registry import KERNELS
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
PROBLEMS = {
    "1x1": make(Op.FPROP, 8, 256, 64, (14, 14), (1, 1)),
    "3x3": make(Op.FPROP, 8, 128, 128, (28, 28), (3, 3), pad=1),
    "strided": make(Op.FPROP, 8, 64, 64, (28, 28), (3, 3), stride=2, pad=1),
    "stem 7x7": make(Op.FPROP, 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3),
    "stem 3x3": make(Op.FPROP, 8, 3, 64, (112, 112), (3, 3), pad=1),
    "stem in planes": laid_out(make(Op.FPROP, 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3), PLANES),
    "groups in planes": laid_out(make(Op.FPROP, 8, 128, 128, (28, 28), (3, 3), pad=1, groups=32), PLANES),
    "one channel": make(Op.FPROP, 8, 1, 20, (28, 28), (5, 5)),
    "unaligned": make(Op.FPROP, 8, 1024, 425, (13, 13), (1, 1)),
    "groups": make(Op.FPROP, 8, 128, 128, (28, 28), (3, 3), pad=1, groups=32),
    "depthwise": make(Op.FPROP, 8, 96, 96, (28, 28), (3, 3), pad=1, groups=96),
    "depthwise, short rows": make(Op.FPROP, 8, 32, 32, (14,), (3,), 2, dilation=5, groups=32, dtype="e5m2"),
    "f32": make(Op.FPROP, 8, 3, 64, (56, 56), (3, 3), pad=1, dtype="f32"),
    "dgrad": make(Op.DGRAD, 8, 64, 128, (14, 14), (3, 3), pad=1),
    "wgrad": make(Op.WGRAD, 8, 64, 128, (14, 14), (3, 3), pad=1),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", strategies.NAMES)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_candidates_can_be_said(name: str, problem: ConvProblem) -> None:
    strategy = strategies.STRATEGIES[name]
    if strategy.obstacles(problem, TARGET, {}) or not hasattr(strategy, "candidates"):
        return
    known = {name: strategy.options}
    offered = strategy.candidates(problem, TARGET)
    assert offered
    for options in offered:
        (request,) = frontend.load(spec_text(problem, name, options), strategies=known, targets=TARGETS)
        assert (request.problem, request.strategy, request.options) == (problem, name, options)
        assert not strategy.obstacles(problem, TARGET, options)
    for options in offered[:: max(1, len(offered) // 8)]:
        plan = strategy.plan(problem, TARGET, options)
        assert (plan.options or options) == options


def test_a_tuner_tries_bands_of_pixel_tiles_where_many_tiles_of_channels_read_them() -> None:
    """The cost model does not tell them apart; of 2,048 channels of 7x7 pixels they are 13% faster."""

    def bands(k: int) -> set[object]:
        problem = make(Op.FPROP, 64, 512, k, (7, 7), (1, 1))
        return {options["raster"] for options in strategies.STRATEGIES["tma_im2col"].candidates(problem, TARGET)}

    assert bands(2048) == {1, 4}
    assert bands(256) == {1}


@pytest.mark.costly
@pytest.mark.parametrize("kernel", [row.kernel for row in KERNELS], ids=[row.name for row in KERNELS])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_what_layouts_hand_on_is_what_each_finds_itself(kernel: AnyKernel, problem: ConvProblem) -> None:
    for read in (problem, with_residual(problem)):
        if kernel.unserved(read, TARGET, {}):
            continue
        for layout in islice(kernel.space(read, TARGET, {}), 0, None, 41):
            alone = replace(layout)
            assert kernel.time(layout) == kernel.time(alone)
            assert kernel.illegal(layout) == kernel.illegal(alone)
            fields = {f.name for f in dataclasses.fields(layout)}
            for name, known in vars(layout).items():
                assert name in fields or known == getattr(alone, name), name


def with_residual(problem: ConvProblem) -> ConvProblem:
    """With an epilogue that adds a tensor like the result."""
    y = problem.result
    z = replace(y, name="z", role="operand")
    body = ep.Assignment(y.name, ep.Binary("+", ep.Acc(), ep.OperandRef("z")))
    return replace(problem, epilogue=ep.Epilogue((z,), (body,)))


@pytest.mark.costly
@pytest.mark.parametrize("target", [t for t in TARGETS.values() if "mma" in t.features], ids=str)
def test_implicit_gemm_chooses_a_tile_that_fits(target) -> None:
    """Large layers ask for large tiles, and some multiprocessors have 100 KB of shared memory."""
    for dtype in ("f16", "f32"):
        for n, c, k, size in ((64, 256, 256, 56), (8, 512, 512, 28), (64, 64, 64, 56)):
            problem = make(Op.FPROP, n, c, k, (size, size), (3, 3), pad=1, dtype=dtype)
            (launch, *_) = strategies.STRATEGIES["implicit_gemm"].plan(problem, target, {}).launches
            assert not strategies.STRATEGIES["implicit_gemm"].obstacles(problem, target, {})
            assert launch.shared_bytes <= target.shared_bytes_per_block


@pytest.mark.costly
@pytest.mark.parametrize("problem", [p for p in PROBLEMS.values() if p.op is Op.FPROP])
def test_no_estimate_of_implicit_gemm_beats_the_hardware(problem: ConvProblem) -> None:
    """f16's peak and the memory's rate are an H200's (NVIDIA's data sheet), operations and bytes a microsecond."""
    strategy = strategies.STRATEGIES["implicit_gemm"]
    offered = strategy.candidates(problem, TARGET)
    for options in [{}, *offered[:: max(1, len(offered) // 20)]]:
        us = strategy.estimate(problem, TARGET, options)
        assert 1000 > us > 1 + max(2 * problem.macs / 989.5e6, problem.min_bytes / 4.8e6)
