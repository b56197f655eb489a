"""implicit_gemm and depthwise on a GPU: peers' problems, random ones, layers at their sizes, candidates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import gpu_runs
import peers
import pytest
from gemm_problems import CHANNELS_LAST, PLANES, depthwise_problems, gemm_problems, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make

from convgen.driver import target_at_hand
from convgen.ir import verify
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels import strategies

cupy = pytest.importorskip("cupy")
SEEDS = st.integers(0, 2**32 - 1)
MOST_FLOP = 20e9


def check(problem: ConvProblem, options: Mapping[str, int | str], seed: int, strategy: str = "implicit_gemm") -> None:
    """Fails unless every element of the result is within rounding of the reference."""
    arrays = gpu_runs.inputs(problem, seed)
    out = gpu_runs.outputs(problem)
    kernel = gpu_runs.compiled(problem, strategy, options)
    gpu_runs.run(kernel, problem, arrays, out)
    report = verify.check(problem, arrays, out, cupy, kernel.manifest.arithmetic)
    cupy.get_default_memory_pool().free_all_blocks()
    assert report, f"{report}\nseed {seed}, {kernel}\n{problem}"


@pytest.mark.parametrize("case", [c for c, row in peers.cases().items() if row["op"] == "fprop"])
def test_peers(case: str, seed: int) -> None:
    check(peers.problem(peers.cases()[case], MOST_FLOP), {}, seed)


@pytest.mark.parametrize("channels", [64, 1024])
def test_sums_of_f32_do_not_drift_with_their_length(channels: int, seed: int) -> None:
    problem = make("fprop", 2, channels, 64, (14, 14), (3, 3), pad=1, dtype="f32")
    arrays, out = gpu_runs.inputs(problem, seed), gpu_runs.outputs(problem)
    kernel = gpu_runs.compiled(problem, "implicit_gemm", {"kernel": "mma_gemm", "split_k": 1})
    gpu_runs.run(kernel, problem, arrays, out)
    report = verify.check(problem, arrays, out, cupy, kernel.manifest.arithmetic)
    assert report and report.rel_l2 < 4e-6, report


@settings(max_examples=60, deadline=None)
@given(problem=gemm_problems(), seed=SEEDS, order=st.sampled_from(("channel_first", "channel_last", "taps_inner")))
def test_gather_serves_any_problem(problem: ConvProblem, seed: int, order: str) -> None:
    check(problem, {"kernel": "mma_gemm", "order": order}, seed)


@settings(max_examples=40, deadline=None)
@given(problem=gemm_problems(), seed=SEEDS)
def test_the_default_serves_any_problem(problem: ConvProblem, seed: int) -> None:
    check(problem, {}, seed)


@settings(max_examples=40, deadline=None)
@given(problem=depthwise_problems(), seed=SEEDS)
def test_depthwise_serves_any_problem(problem: ConvProblem, seed: int) -> None:
    check(problem, {}, seed, "depthwise")


STEMS = {
    "resnet50/conv1": make("fprop", 4, 3, 64, (224, 224), (7, 7), stride=2, pad=3),
    "vgg16/conv1_1": make("fprop", 4, 3, 64, (224, 224), (3, 3), pad=1),
    "alexnet/conv1": make("fprop", 4, 3, 64, (224, 224), (11, 11), stride=4, pad=2),
    "zfnet/conv1": make("fprop", 4, 3, 96, (224, 224), (7, 7), stride=2, pad=1),
    "yolov2/conv1": make("fprop", 2, 3, 32, (416, 416), (3, 3), pad=1),
    "lenet/conv1": make("fprop", 64, 1, 20, (28, 28), (5, 5)),
    "227 pixels": make("fprop", 4, 3, 96, (227, 227), (11, 11), stride=4),
}
OTHERS = {
    "yolov2/conv22": make("fprop", 8, 1024, 425, (13, 13), (1, 1)),
    "lenet/conv2": make("fprop", 64, 20, 50, (12, 12), (5, 5)),
    "resnet50/res3_3x3": make("fprop", 8, 128, 128, (28, 28), (3, 3), pad=1),
    "resnet50/res5_3x3": make("fprop", 4, 512, 512, (7, 7), (3, 3), pad=1),
    "zfnet/conv2": make("fprop", 4, 96, 256, (55, 55), (5, 5), stride=2),
}
GROUPED = {
    f"resnext/{c}_{size}": make("fprop", 4, c, c, (size, size), (3, 3), pad=1, groups=32)
    for c, size in ((128, 56), (256, 28), (512, 14), (1024, 7))
}
DEPTHWISE = {
    f"{c}_{size}_{filter_}_s{stride}": make(
        "fprop", 4, c, c, (size, size), (filter_,) * 2, stride, filter_ // 2, groups=c
    )
    for c, size, filter_, stride in ((96, 112, 3, 2), (144, 56, 3, 1), (96, 56, 7, 1), (240, 28, 5, 1), (384, 14, 7, 2))
}


@pytest.mark.parametrize("layer", [*STEMS, *OTHERS, *GROUPED])
@pytest.mark.parametrize("layouts", [CHANNELS_LAST, PLANES], ids=["nhwc", "nchw"])
def test_layers(layer: str, layouts: Mapping[str, str], seed: int) -> None:
    problem = (STEMS | OTHERS | GROUPED)[layer]
    check(laid_out(problem, layouts), {}, seed)


@pytest.mark.parametrize("layer", DEPTHWISE)
@pytest.mark.parametrize("layouts", [CHANNELS_LAST, PLANES], ids=["nhwc", "nchw"])
def test_depthwise_layers(layer: str, layouts: Mapping[str, str], seed: int) -> None:
    check(laid_out(DEPTHWISE[layer], layouts), {}, seed, "depthwise")


@pytest.mark.parametrize("layer", DEPTHWISE)
@pytest.mark.parametrize("layouts", [CHANNELS_LAST, PLANES], ids=["nhwc", "nchw"])
def test_depthwise_dgrad(layer: str, layouts: Mapping[str, str], seed: int) -> None:
    """Of unit stride and strided: by the kernel of the lowest estimate, and by each kernel."""
    problem = replace(laid_out(DEPTHWISE[layer], layouts), op=Op.DGRAD)
    every = ({}, {"kernel": "depthwise_direct"}, *({"kernel": "depthwise_stream", "math": m} for m in ("fma", "mma")))
    for options in every:
        if not strategies.STRATEGIES["depthwise"].obstacles(problem, target_at_hand(), options):
            check(problem, options, seed, "depthwise")


@pytest.mark.parametrize("dtype", ["bf16", "f32", "s8", "e4m3"])
@pytest.mark.parametrize("layer", ["resnet50/conv1", "resnet50/res3_3x3"])
def test_types(layer: str, dtype: str, seed: int) -> None:
    whole = (STEMS | OTHERS)[layer]
    problem = make("fprop", 1, whole.c, whole.k, whole.input, whole.filter, whole.stride, whole.pad_lo, dtype=dtype)
    check(problem, {}, seed)
    if dtype == "f32":
        check(problem, {"math": "tf32"}, seed)


@pytest.mark.parametrize("layer", ["resnet50/conv1", "vgg16/conv1_1", "yolov2/conv22", "resnet50/res5_3x3", *GROUPED])
def test_candidates(layer: str, seed: int) -> None:
    problem = (STEMS | OTHERS | GROUPED)[layer]
    offered = strategies.STRATEGIES["implicit_gemm"].candidates(problem, target_at_hand())
    for options in [*offered[:6], *random.Random(seed).sample(offered, min(6, len(offered)))]:
        check(problem, options, seed)


@pytest.mark.parametrize("layer", DEPTHWISE)
def test_depthwise_candidates(layer: str, seed: int) -> None:
    problem = DEPTHWISE[layer]
    offered = strategies.STRATEGIES["depthwise"].candidates(problem, target_at_hand())
    for options in [*offered[:4], *random.Random(seed).sample(offered, min(4, len(offered)))]:
        check(problem, options, seed, "depthwise")
