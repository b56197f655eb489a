"""implicit_gemm's and depthwise's sources compile for every target that serves the problem, without leftovers."""

from __future__ import annotations

from dataclasses import replace

import peers
import pytest
from gemm_problems import PLANES, depthwise_problems, gemm_problems, laid_out
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import unused_names

from convgen.frontend import load
from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.strategies import Strategy
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS, Target

GEMM, DEPTHWISE = strategies.STRATEGIES["implicit_gemm"], strategies.STRATEGIES["depthwise"]
SM_90A = TARGETS["sm_90a"]


def check(strategy: Strategy, problem: ConvProblem, target: Target, options: Options, spills: int = 0) -> str:
    plan = strategy.plan(problem, target, options)
    source = strategy.render(plan)
    compiled = compile_source(source, target)
    assert "warning" not in compiled.log, compiled.log
    assert set(compiled.resources) == {launch.entry for launch in plan.launches}
    for entry, used in compiled.resources.items():
        assert used.spill_stores <= spills, f"{entry}: {used}\n{plan.config}\n{problem}"
    assert not unused_names(source), source
    return source


def served(strategy: Strategy, problem: ConvProblem, options: Options) -> list[Target]:
    return [t for t in TARGETS.values() if not strategy.obstacles(problem, t, options)]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), problem=gemm_problems(), order=st.sampled_from(("channel_first", "channel_last", "taps_inner")))
def test_gather_compiles(data: st.DataObject, problem: ConvProblem, order: str) -> None:
    options = {"kernel": "mma_gemm", "order": order}
    # single bytes, gathered one by one, may take a few registers more than there are
    spills = 64 if problem.x.element.bytes == 1 else 0
    check(GEMM, problem, data.draw(st.sampled_from(served(GEMM, problem, options))), options, spills)


OF_NETWORKS = {
    "mma_gemm": make("fprop", 32, 256, 256, (28, 28), pad=1),
    "stem_mma": make("fprop", 32, 4, 64, (28, 28), pad=1),
    "stem_wgmma": make("fprop", 32, 4, 64, (28, 28), pad=1),
    "small_groups": make("fprop", 32, 128, 128, (28, 28), pad=1, groups=32),
    "depthwise_direct": make("fprop", 32, 256, 256, (28, 28), pad=1, groups=256),
    "depthwise_stream": make("fprop", 32, 256, 256, (28, 28), pad=1, groups=256),
}


@pytest.mark.parametrize("blocks", (2, 4, 8))
@pytest.mark.parametrize("kernel", OF_NETWORKS)
def test_blocks_that_are_asked_for_leave_threads_the_registers_they_need(kernel: str, blocks: int) -> None:
    problem, options = OF_NETWORKS[kernel], {"kernel": kernel, "blocks": blocks}
    strategy = DEPTHWISE if problem.groups == problem.c else GEMM
    for target in served(strategy, problem, options):
        check(strategy, problem, target, options)


#: Found by test_gather_compiles, with other seeds than CI's.
FOUND = {
    "three steps of single bytes at once": "x: s8[n=2, h=3, c=4, w=5]  filter w: s8[r=3, s=1, c=2, k=2]"
    "  output y: s8[n, p, q, k]  groups 2  pad h=(0, 2) w=(0, 1)  accumulate s32",
    "all of y beside the image": "x: f32[n=1, d=1, h=2, w=1, c=2]  filter w: f32[k=1, t=1, r=2, s=1, c=2]"
    "  output y: f32[n, o=1, p=1, q=1, k]  stride d=1 h=1 w=2  pad d=(0, 0) h=(0, 0) w=(1, 0)",
}


@pytest.mark.parametrize("order", ["channel_first", "channel_last", "taps_inner"])
@pytest.mark.parametrize("found", FOUND)
def test_found_compile(found: str, order: str) -> None:
    (request,) = load(f"conv found {{ input {FOUND[found]} }}")
    for target in (TARGETS["sm_80"], SM_90A):
        check(GEMM, request.problem, target, {"kernel": "mma_gemm", "order": order})


@settings(max_examples=10, deadline=None)
@given(data=st.data(), problem=depthwise_problems())
def test_depthwise_compiles(data: st.DataObject, problem: ConvProblem) -> None:
    check(DEPTHWISE, problem, data.draw(st.sampled_from(served(DEPTHWISE, problem, {}))), {})


#: Layers that people run, at the sizes that they run them at.
LAYERS = {
    "resnet50/conv1": make("fprop", 64, 3, 64, (224, 224), (7, 7), stride=2, pad=3),
    "vgg16/conv1_1": make("fprop", 64, 3, 64, (224, 224), (3, 3), pad=1),
    "alexnet/conv1": make("fprop", 64, 3, 64, (224, 224), (11, 11), stride=4, pad=2),
    "zfnet/conv1": make("fprop", 64, 3, 96, (224, 224), (7, 7), stride=2, pad=1),
    "yolov2/conv1": make("fprop", 64, 3, 32, (416, 416), (3, 3), pad=1),
    "yolov2/conv22": make("fprop", 64, 1024, 425, (13, 13), (1, 1)),
    "lenet/conv2": make("fprop", 64, 20, 50, (12, 12), (5, 5)),
    "resnext/g32_128_56": make("fprop", 64, 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    "resnext/g32_1024_7": make("fprop", 64, 1024, 1024, (7, 7), (3, 3), pad=1, groups=32),
    "resnet50/res3_3x3": make("fprop", 8, 128, 128, (28, 28), (3, 3), pad=1),
    "float32": make("fprop", 8, 128, 128, (28, 28), (3, 3), pad=1, dtype="f32"),
    "float32 stem": make("fprop", 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3, dtype="f32"),
    "three dimensions": make("fprop", 2, 32, 64, (8, 28, 28), (3, 3, 3), pad=1),
}
DEPTHWISE_LAYERS = {
    "mobilenet/96_112_s2": make("fprop", 64, 96, 96, (112, 112), (3, 3), stride=2, pad=1, groups=96),
    "mobilenet/144_56": make("fprop", 64, 144, 144, (56, 56), (3, 3), pad=1, groups=144),
    "convnext/96_56": make("fprop", 64, 96, 96, (56, 56), (7, 7), pad=3, groups=96),
    "5x5": make("fprop", 8, 240, 240, (28, 28), (5, 5), pad=2, groups=240),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str) -> None:
    for target in (TARGETS["sm_80"], SM_90A):
        check(GEMM, LAYERS[layer], target, {})


@pytest.mark.parametrize("layer", ["resnet50/conv1", "resnet50/res3_3x3"])
def test_layers_in_planes(layer: str) -> None:
    check(GEMM, laid_out(LAYERS[layer], PLANES), SM_90A, {})


@pytest.mark.parametrize("layer", DEPTHWISE_LAYERS)
def test_depthwise_layers(layer: str) -> None:
    problem = DEPTHWISE_LAYERS[layer]
    check(DEPTHWISE, problem, SM_90A, {})
    check(DEPTHWISE, laid_out(problem, PLANES), SM_90A, {})


def test_depthwise_dgrad() -> None:
    problem = replace(DEPTHWISE_LAYERS["convnext/96_56"], op=Op.DGRAD)
    for options in (
        {"kernel": "depthwise_direct"},
        *({"kernel": "depthwise_stream", "math": m} for m in ("fma", "mma")),
    ):
        check(DEPTHWISE, problem, SM_90A, options)


@pytest.mark.parametrize(("c", "size", "taps"), [(96, 112, 3), (576, 14, 3), (240, 28, 5), (384, 14, 7)])
def test_strided_depthwise_dgrad(c: int, size: int, taps: int) -> None:
    problem = make("dgrad", 64, c, c, (size, size), (taps, taps), stride=2, pad=taps // 2, groups=c)
    check(DEPTHWISE, problem, SM_90A, {})
    check(DEPTHWISE, problem, SM_90A, {"kernel": "depthwise_direct"})
    check(DEPTHWISE, laid_out(problem, PLANES), SM_90A, {})


@pytest.mark.parametrize("layer", ["resnet50/conv1", "vgg16/conv1_1", "zfnet/conv1", "resnext/g32_128_56"])
def test_promising_candidates_do_not_spill(layer: str) -> None:
    for options in GEMM.candidates(LAYERS[layer], SM_90A)[1:3]:  # test_layers has the first
        check(GEMM, LAYERS[layer], SM_90A, options)


@pytest.mark.parametrize("layer", DEPTHWISE_LAYERS)
def test_promising_candidates_of_depthwise_do_not_spill(layer: str) -> None:
    for options in DEPTHWISE.candidates(DEPTHWISE_LAYERS[layer], SM_90A)[1:3]:  # test_depthwise_layers has the first
        check(DEPTHWISE, DEPTHWISE_LAYERS[layer], SM_90A, options)


@pytest.mark.parametrize("layer", [*DEPTHWISE_LAYERS, "resnet50/conv1", "vgg16/conv1_1", "zfnet/conv1", "yolov2/conv1"])
def test_bias_and_relu_do_not_spill(layer: str) -> None:
    problem = {**LAYERS, **DEPTHWISE_LAYERS}[layer]
    bias = Tensor("b", "operand", "f32", ("k",), (problem.k,))
    value = ep.Call("relu", (ep.Binary("+", ep.Acc(), ep.OperandRef("b")),))
    fused = replace(problem, epilogue=ep.Epilogue((bias,), (ep.Assignment("y", value),)))
    check(DEPTHWISE if layer in DEPTHWISE_LAYERS else GEMM, fused, SM_90A, {})


OPERANDS = {  # by channel: scales and biases; like the result: z and u
    "scale": "operand a: f32[k]  operand b: f32[k]  y = relu(acc * a + b)",
    "residual": "operand b: f32[k]  operand z: f16[n, p, q, k]  y = relu(acc + b + z)",
    "scale, residual": "operand a: f32[k]  operand b: f32[k]  operand z: f16[n, p, q, k]  y = relu(acc * a + b + z)",
    "scale, two": "operand a: f32[k]  operand b: f32[k]  operand z: f16[n, p, q, k]  operand u: f16[n, p, q, k]"
    "  y = relu(acc * a + b + z + u)",
}

#: Of 16 warps: output channels and operands.
WITHOUT_REGISTERS = {(96, "scale, two"), (128, "scale"), (128, "scale, residual"), (128, "scale, two")}


@pytest.mark.parametrize("warps", [8, 16])
@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("k", [64, 96, 128])
def test_operands_do_not_spill_in_first_layers(k: int, operands: str, warps: int) -> None:
    """What has no registers for them is refused: spilling made a layer with a residual 1.6 times as slow (H100)."""
    (request,) = load(
        f"conv layer {{ input x: f16[n=64, h=56, w=56, c=64]  filter w: f16[k={k}, r=1, s=1, c=64]"
        f"  output y: f16[n, p, q, k]  epilogue {{ {OPERANDS[operands]} }} }}"
    )
    options = {"kernel": "stem_wgmma", "tile.m": 256, "tile.n": k, "warps.m": warps}
    refused = GEMM.obstacles(request.problem, SM_90A, options)
    assert bool(refused) == (warps == 16 and (k, operands) in WITHOUT_REGISTERS)
    if not refused:
        check(GEMM, request.problem, SM_90A, options, spills=16)


# ---- what is served ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c, row in peers.cases().items() if row["op"] == "fprop"])
def test_every_fprop_case_of_the_peers_is_served(case: str) -> None:
    problem = peers.problem(peers.cases()[case])
    assert not GEMM.obstacles(problem, SM_90A, {})
    if problem.groups == problem.c > 1 and problem.rank < 3:
        assert not DEPTHWISE.obstacles(problem, SM_90A, {})


def test_kernels_by_layer() -> None:
    def kernel(problem: ConvProblem, target: Target = SM_90A) -> str:
        return GEMM.plan(problem, target, {}).kernel

    assert {kernel(LAYERS["resnet50/conv1"]), kernel(LAYERS["yolov2/conv1"])} <= {"stem_wgmma", "stem_mma"}
    assert kernel(LAYERS["resnet50/conv1"], TARGETS["sm_80"]) == kernel(LAYERS["float32 stem"]) == "stem_mma"
    assert kernel(LAYERS["resnext/g32_128_56"]) == "small_groups"
    assert kernel(LAYERS["yolov2/conv22"]) == kernel(LAYERS["three dimensions"]) == "mma_gemm"


def test_options_of_a_configuration_give_it_again() -> None:
    for strategy, layers in ((GEMM, LAYERS), (DEPTHWISE, DEPTHWISE_LAYERS)):
        for problem in layers.values():
            offered = strategy.candidates(problem, SM_90A)
            for options in offered[:: max(1, len(offered) // 8)]:
                assert not strategy.obstacles(problem, SM_90A, options)
                assert strategy.plan(problem, SM_90A, options).options == options


REFUSED = [
    (make("dgrad", 1, 8, 8, (5, 5), (3, 3), dtype="f32"), {}, "dgrad", ""),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3)), {"math": "tf32"}, "f32", "math"),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3)), {"tile.m": 40, "warps.m": 2}, "tile m=40", "tile.m"),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3)), {"tile.k": 16}, "32 bytes", "tile.k"),
    (
        make("fprop", 1, 64, 8, (5, 5), (3, 3)),
        {"kernel": "mma_gemm", "tile.m": 256, "tile.n": 256, "stages": 8},
        "shared memory",
        "stages",
    ),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3), groups=2), {"kernel": "stem_mma"}, "groups", "kernel"),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3)), {"kernel": "small_groups"}, "one group", "kernel"),
    (make("fprop", 1, 8, 8, (5, 5), (3, 3)), {"kernel": "mma_gemm", "stages": 1}, "from 2 to 8", "stages"),
    (
        make("fprop", 1, 8, 8, (5, 5), (3, 3)),
        {"tile.m": 256, "tile.n": 256, "warps.m": 8, "warps.n": 8},
        "2048",
        "warps.m",
    ),
    (make("fprop", 1, 65536, 65536, (5, 5), (3, 3), groups=65536), {"kernel": "mma_gemm"}, "65536 groups", ""),
    (make("fprop", 1, 64, 64, (5, 5), (3, 3), groups=16), {"kernel": "small_groups", "slice": 3}, "slice 3", "slice"),
    (make("fprop", 1, 64, 64, (5, 5), (3, 3), groups=16), {"kernel": "small_groups", "slice": 64}, "slice 64", "slice"),
    (make("fprop", 1, 3, 8, (5, 5), (3, 3)), {"kernel": "stem_mma", "tile.n": 24}, "multiple of 16", "tile.n"),
    (make("fprop", 1, 3, 8, (5, 5), (3, 3)), {"kernel": "stem_wgmma", "tile.n": 20}, "in steps of 8", "tile.n"),
    (make("fprop", 1, 3, 8, (5, 5), (3, 3), groups=3), {"kernel": "stem_wgmma"}, "groups", "kernel"),
    (make("fprop", 1, 3, 8, (5, 5), (3, 3), dtype="s8"), {"kernel": "stem_wgmma"}, "f16 and bf16", "kernel"),
    (make("fprop", 1, 1, 8, (5, 5), (3, 3)), {"kernel": "stem_wgmma"}, "a quad of lanes", "kernel"),
]


@pytest.mark.parametrize(("problem", "options", "says", "option"), REFUSED)
def test_refusals_say_which_constraint_failed(problem: ConvProblem, options: Options, says: str, option: str) -> None:
    found = GEMM.obstacles(problem, SM_90A, options)
    assert any(says in o.message and o.option == option for o in found), found


def test_types_that_are_not_multiplied() -> None:
    wide = make("fprop", 1, 8, 8, (5, 5), (3, 3), dtype="s32")
    assert any("s32" in o.message for o in GEMM.obstacles(wide, SM_90A, {}))
    fp8 = make("fprop", 1, 16, 16, (5, 5), (3, 3), dtype="e4m3")
    assert GEMM.obstacles(fp8, TARGETS["sm_80"], {}) and not GEMM.obstacles(fp8, TARGETS["sm_89"], {})
