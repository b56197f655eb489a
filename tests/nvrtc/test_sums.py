"""Kernels whose threads keep sums of their channels compile as chosen for layers of networks in training: no spills."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import compilation, spec

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

STATISTICS = "result s: f32[k]  result squares: f32[k]  s = acc  squares = acc * acc  y = acc"
GRADIENT = """operand saved: bf16[n, h, w, c]  operand read: bf16[n, h, w, c]  operand mean: f32[c]
  result s: f32[c]  result products: f32[c]
  g = select(saved > 0, acc, 0)  s = g  products = g * (read - mean)  x = g"""
OF_SILU = """operand read: bf16[n, h, w, c]  operand mean: f32[c]  operand scale: f32[c]  operand weight: f32[c]
  operand bias: f32[c]  operand center: f32[c]  result s: f32[c]  result products: f32[c]
  z = (read - mean) * scale * weight + bias  gate = sigmoid(z)  g = acc * gate * (1 + z * (1 - gate))
  s = g  products = g * (read - center)  x = g"""
OF_RELU = """operand b: f32[k]  operand mean: f32[k]  result s: f32[k]  result products: f32[k]
  v = relu(acc + b)  s = v  products = v * (v - mean)  y = v"""
EPILOGUES = {"fprop": STATISTICS, "dgrad": GRADIENT, "dgrad of silu": OF_SILU}
#: Where a spec may state a math that has too few registers.
SPILL = [("dgrad of silu", "mma")]
#: Channels, height and width, taps along each, stride.
LAYERS = [
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (192, 28, 3, 1), (240, 28, 5, 1),
    (576, 14, 3, 1), (672, 14, 5, 1), (960, 7, 3, 1), (1152, 7, 5, 1), (96, 56, 7, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pass_", "math"), [(p, m) for p in EPILOGUES for m in ("", "fma", "mma") if (p, m) not in SPILL]
)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_depthwise(layer: tuple[int, int, int, int], pass_: str, math: str) -> None:
    c, size, filter, stride = layer
    op = pass_.split()[0]
    problem = make(op, 64, c, c, (size, size), (filter, filter), stride=stride, pad=filter // 2, groups=c, dtype="bf16")
    options: Options = {"kernel": "depthwise_stream", **({"math": math} if math else {})}
    if strategies.STRATEGIES["depthwise"].obstacles(problem, TARGETS["sm_90a"], options):
        pytest.skip(f"math {math} does not serve it without sums, either")
    check_spills_nothing(problem, "depthwise", options, EPILOGUES[pass_])


#: Channels, those of the output, height and width, taps along each, stride.
STEMS = [
    (3, 64, 224, 7, 2), (3, 32, 224, 3, 2), (3, 64, 224, 3, 1), (3, 96, 224, 4, 4), (4, 16, 224, 3, 2),
    (1, 32, 28, 5, 1), (3, 128, 224, 3, 2), (3, 256, 64, 3, 1), (5, 33, 64, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("epilogue", [STATISTICS, OF_RELU], ids=["statistics", "relu"])
@pytest.mark.parametrize("kernel", ["stem_mma", "stem_wgmma"])
@pytest.mark.parametrize("stem", STEMS, ids=str)
def test_stems(stem: tuple[int, int, int, int, int], kernel: str, epilogue: str) -> None:
    c, k, size, filter, stride = stem
    problem = make("fprop", 64, c, k, (size, size), (filter, filter), stride, filter // 2, dtype="bf16")
    if strategies.STRATEGIES["implicit_gemm"].obstacles(problem, TARGETS["sm_90a"], {"kernel": kernel}):
        pytest.skip(f"{kernel} does not serve it without sums, either")
    check_spills_nothing(problem, "implicit_gemm", {"kernel": kernel}, epilogue)


def check_spills_nothing(problem: ConvProblem, strategy: str, options: Options, epilogue: str) -> None:
    """Of a kernel that makes partial sums itself."""
    made = compilation(spec(problem, strategy, options, epilogue))
    assert {w.name for w in made.plan.workspaces} == {f"partial.{t.name}" for t in made.request.problem.sums}
    compiled = compile_source(made.source, TARGETS["sm_90a"])
    found = compiled.resources[made.plan.launches[0].entry]
    assert "warning" not in compiled.log
    assert found.spill_stores == found.spill_loads == found.stack == 0, str(made.plan.config)
