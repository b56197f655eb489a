"""depthwise_stream with sums of channels compiles as chosen for layers of networks in training: no spills."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import compilation, spec

from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["depthwise"]
STATISTICS = "result s: f32[k]  result squares: f32[k]  s = acc  squares = acc * acc  y = acc"
GRADIENT = """operand saved: bf16[n, h, w, c]  operand read: bf16[n, h, w, c]  operand mean: f32[c]
  result s: f32[c]  result products: f32[c]
  g = select(saved > 0, acc, 0)  s = g  products = g * (read - mean)  x = g"""
EPILOGUES = {"fprop": STATISTICS, "dgrad": GRADIENT}
#: Channels, height and width, taps along each, stride.
LAYERS = [
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (192, 28, 3, 1), (240, 28, 5, 1),
    (576, 14, 3, 1), (672, 14, 5, 1), (960, 7, 3, 1), (1152, 7, 5, 1), (96, 56, 7, 1),
]  # fmt: skip


@pytest.mark.parametrize("op", EPILOGUES)
@pytest.mark.parametrize("math", ["", "fma", "mma"])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_sums(layer: tuple[int, int, int, int], math: str, op: str) -> None:
    c, size, filter, stride = layer
    problem = make(op, 64, c, c, (size, size), (filter, filter), stride=stride, pad=filter // 2, groups=c, dtype="bf16")
    options: Options = {"kernel": "depthwise_stream", **({"math": math} if math else {})}
    if STRATEGY.obstacles(problem, TARGETS["sm_90a"], options):
        pytest.skip(f"math {math} does not serve it without sums, either")
    made = compilation(spec(problem, "depthwise", options, EPILOGUES[op]))
    assert {w.name for w in made.plan.workspaces} == {"partial.s", f"partial.{made.request.problem.sums[1].name}"}
    compiled = compile_source(made.source, TARGETS["sm_90a"])
    found = compiled.resources[made.plan.launches[0].entry]
    assert "warning" not in compiled.log
    assert found.spill_stores == found.spill_loads == found.stack == 0, str(made.plan.config)
