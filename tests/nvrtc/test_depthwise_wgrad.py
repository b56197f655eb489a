"""depthwise_wgrad compiles as chosen for layers of networks: no spills, registers within the launch's."""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import compilation, spec, typed

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS


def layer(n: int, c: int, size: int, filter: int, stride: int = 1) -> ConvProblem:
    return make("wgrad", n, c, c, (size, size), (filter, filter), stride=stride, pad=filter // 2, groups=c)


KERNELS: dict[str, tuple[ConvProblem, Options, str]] = {
    "mobilenet_v2/dw144_56": (layer(64, 144, 56, 3), {}, "sm_90a"),
    "mobilenet_v2/dw96_112_s2": (layer(64, 96, 112, 3, 2), {}, "sm_90a"),
    "mobilenet_v2/dw576_14_s2": (layer(8, 576, 14, 3, 2), {}, "sm_80"),
    "mobilenet_v2/dw960_7": (layer(64, 960, 7, 3), {"split_k": 8}, "sm_90a"),
    "convnext/stage1": (layer(64, 96, 56, 7), {}, "sm_90a"),
    "convnext/stage4": (typed(layer(8, 768, 7, 7), w="f32"), {}, "sm_120"),
    "wide loads": (layer(64, 192, 28, 3), {"vector": 4}, "sm_90a"),
    "threads load their own rows": (layer(64, 144, 56, 3), {"loads": "own"}, "sm_90a"),
    "float32": (make("wgrad", 64, 192, 192, (28, 28), (7, 7), pad=3, groups=192, dtype="f32"), {}, "sm_90a"),
    "all rows of a wide filter": (layer(64, 96, 56, 7), {"loads": "shared", "vector": 1, "tile.r": 7}, "sm_90a"),
    "one axis": (make("wgrad", 4, 1536, 1536, (2048,), (4,), pad=((3, 0),), groups=1536, dtype="bf16"), {}, "sm_90a"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str) -> None:
    problem, options, target = KERNELS[name]
    made = compilation(spec(problem, "depthwise", {"kernel": "depthwise_wgrad", **options}, target=target))
    compiled = compile_source(made.source, TARGETS[target])
    assert "warning" not in compiled.log
    for entry, found in compiled.resources.items():
        (launch,) = (one for one in made.plan.launches if one.entry == entry)
        assert found.spill_stores == found.spill_loads == 0
        assert -(-found.registers // 8) * 8 * launch.block * launch.blocks_per_sm <= TARGETS[target].registers_per_sm
