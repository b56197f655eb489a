"""mma_gemm's dgrad compiles for every target with cp.async: no spills, registers within the launch's, no leftovers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from mma_dgrad_specs import KERNEL, LAYERS
from strategy_problems import unused_names
from tma_specs import compilation, mma_dgrads, spec

from convgen.ir.problem import ConvProblem
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

EPILOGUE = "operand saved: f16[n, h, w, c]  x = select(saved > 0, acc, 0)"


def check(problem: ConvProblem, target: str, epilogue: str = "") -> None:
    made = compilation(spec(problem, "implicit_gemm", KERNEL, epilogue, target))
    compiled = compile_source(made.source, TARGETS[target])
    assert "warning" not in compiled.log, compiled.log
    assert not unused_names(made.source), made.source
    for launch in made.plan.launches:
        found = compiled.resources[launch.entry]
        assert found.spill_stores == found.spill_loads == 0, f"{found}\n{made.plan.config}\n{problem}"
        allocated = -(-found.registers // 8) * 8
        assert allocated * launch.block * launch.blocks_per_sm <= TARGETS[target].registers_per_sm


@pytest.mark.parametrize(("layer", "target"), [
    (layer, target) for i, layer in enumerate(LAYERS) for target in ("sm_80", ("sm_90a", "sm_120")[i % 2])
])  # fmt: skip
def test_layer(layer: str, target: str) -> None:
    check(LAYERS[layer], target, EPILOGUE if LAYERS[layer].rank == 2 and LAYERS[layer].y.dtype == "f16" else "")


@settings(max_examples=8, deadline=None)
@given(problem=mma_dgrads())
def test_any_problem(problem: ConvProblem) -> None:
    check(problem, "sm_80")
