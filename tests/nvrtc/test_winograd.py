"""winograd compiles for every target with mma.sync: no warnings, transforms without spills."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import EPILOGUES, compilation, laid_out, spec, typed

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

LAYER = make("fprop", 64, 256, 256, (56, 56), (3, 3), pad=1)
SINGLE = typed(LAYER, x="f32", w="f32", y="f32")
KERNELS: dict[str, tuple[ConvProblem, Options, str, str]] = {
    "float32, tile 4": (SINGLE, {"tile": 4}, "residual", "sm_90a"),
    "float32, tile 2, planes": (laid_out(SINGLE, x="nchw", w="kcrs", y="nkpq"), {"tile": 2}, "bias f32", "sm_80"),
    "float16 by TMA": (LAYER, {"tile": 2, "product": "tma_im2col"}, "residual", "sm_90a"),
    "bfloat16, tile 4": (typed(LAYER, x="bf16", w="bf16"), {"tile": 4}, "locals", "sm_120"),
    "fused, pingpong": (make("fprop", 64, 64, 64, (224, 224), (3, 3), pad=1), {"form": "fused"}, "residual", "sm_90a"),
    "fused, streamed, bfloat16": (
        typed(LAYER, x="bf16", w="bf16", y="bf16"),
        {"form": "fused", "weight_stages": 3},
        "bias f32",
        "sm_90a",
    ),
    "beyond 32 bits": (make("fprop", 600, 64, 64, (224, 224), (3, 3), pad=1), {"tile": 4}, "none", "sm_86"),
}
#: Bytes that the products of float32 may spill: where sums that are NaN are made once more.
RARE = 32


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str) -> None:
    problem, options, epilogue, target = KERNELS[name]
    assert epilogue in EPILOGUES
    made = compilation(spec(problem, "winograd", options, epilogue, target=target))
    compiled = compile_source(made.source, TARGETS[target])
    assert "warning" not in compiled.log
    for launch in made.plan.launches:
        found = compiled.resources[launch.entry]
        product = launch == made.plan.launch()
        assert max(found.spill_stores, found.spill_loads) <= (RARE if product else 0), launch.entry
        assert -(-found.registers // 8) * 8 * launch.block <= TARGETS[target].registers_per_sm
