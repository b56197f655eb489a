"""stem_wgrad compiles as chosen for first layers: no spills, no serialized products, registers within the launch's."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import TARGET, compilation, laid_out, spec, typed
from wgrad_specs import BIAS, STEM_GEOMETRIES, STEM_PLAIN

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source

LAYERS: dict[str, tuple[ConvProblem, Options]] = {
    "resnet50/conv1": (make("wgrad", 64, 3, 64, (224, 224), (7, 7), 2, 3), {}),
    "vgg16/conv1_1": (typed(make("wgrad", 8, 3, 64, (224, 224), (3, 3), pad=1, dtype="bf16"), w="f32"), {}),
    "alexnet/conv1": (make("wgrad", 64, 3, 64, (224, 224), (11, 11), 4, 2), {"warps.n": 3}),
    "zfnet/conv1": (make("wgrad", 64, 3, 96, (224, 224), (7, 7), 2, 1), {"tile.m": 128}),
    "one channel": (laid_out(make("wgrad", 64, 1, 32, (28, 28), (5, 5)), x="nchw"), {}),
    **{name: (problem, STEM_PLAIN | options) for name, (problem, options) in STEM_GEOMETRIES.items()},
}


@pytest.mark.parametrize("name", LAYERS)
def test_kernel(name: str) -> None:
    problem, options = LAYERS[name]
    made = compilation(spec(problem, "implicit_gemm", {"kernel": "stem_wgrad", **options}, BIAS))
    compiled = compile_source(made.source, TARGET)
    assert "warning" not in compiled.log and "C75" not in compiled.log
    for entry, found in compiled.resources.items():
        (launch,) = (one for one in made.plan.launches if one.entry == entry)
        assert found.spill_stores == found.spill_loads == 0
        assert -(-found.registers // 8) * 8 * launch.block <= TARGET.registers_per_sm
