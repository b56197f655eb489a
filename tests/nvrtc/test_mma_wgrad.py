"""mma_wgrad compiles for every target with cp.async: no spills, registers within the launch's."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import compilation, laid_out, spec, typed

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

LAYER = make("wgrad", 32, 64, 256, (28, 28), (3, 3), pad=1)
KERNELS: dict[str, tuple[ConvProblem, Options, str]] = {
    "large tile": (LAYER, {"tile.m": 128, "tile.n": 128, "slices": 4}, "sm_80"),
    "tall tile": (typed(LAYER, w="f32"), {"tile.m": 128, "tile.n": 64, "slices": 1}, "sm_86"),
    "slices as they come": (
        typed(LAYER, w="f32"), {"tile.m": 128, "tile.n": 128, "slices": 4, "sums": "atomic"}, "sm_80",
    ),
    "small tile, three channels": (make("wgrad", 8, 3, 64, (224, 224), (7, 7), 2, 3), {"tile.m": 64}, "sm_90a"),
    "channels before pixels": (laid_out(LAYER, x="nchw", y="nkpq", w="kcrs"), {"tile.n": 128}, "sm_120"),
    "1x1": (make("wgrad", 8, 64, 128, (14, 14), (1, 1)), {}, "sm_80"),
    "small groups": (make("wgrad", 8, 256, 256, (28, 28), (3, 3), pad=1, groups=64), {}, "sm_89"),
}  # fmt: skip
#: Of rows that sum y, too.
BIAS = {"large tile": "result db: f32[k]  db = y  w = acc"}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str) -> None:
    problem, options, target = KERNELS[name]
    fixed = {"kernel": "mma_wgrad", **options}
    made = compilation(spec(problem, "implicit_gemm", fixed, BIAS.get(name, ""), target=target))
    compiled = compile_source(made.source, TARGETS[target])
    assert "warning" not in compiled.log
    for entry, found in compiled.resources.items():
        (launch,) = (one for one in made.plan.launches if one.entry == entry)
        assert found.spill_stores == found.spill_loads == 0
        assert -(-found.registers // 8) * 8 * launch.block <= TARGETS[target].registers_per_sm
