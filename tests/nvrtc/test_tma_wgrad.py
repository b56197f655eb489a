"""tma_wgrad compiles for sm_90a: wgmma not serialized, no spills, registers within the launch's.

`compile_source` raises where ptxas says that it makes a kernel slow (C75xx).
"""

from __future__ import annotations

import pytest
from problems import make
from tma_specs import TARGET, compilation, laid_out, spec, typed

from convgen.kernels.base import Options
from convgen.runtime.nvrtc import compile_source

LAYER = make("wgrad", 64, 256, 256, (56, 56), (3, 3), pad=1)
SHAPES: dict[str, Options] = {
    "one consumer": {"tile.m": 64, "tile.n": 256, "warps.m": 4, "warps.n": 1, "row_taps": 0},
    "two blocks": {"tile.m": 64, "tile.n": 192, "warps.m": 4, "warps.n": 1, "row_taps": 1, "blocks": 2},
    "two consumers": {"tile.m": 128, "tile.n": 256, "warps.m": 8, "warps.n": 1, "row_taps": 0, "split_k": 8},
    "two fragments": {"tile.m": 256, "tile.n": 192, "warps.m": 8, "warps.n": 1, "row_taps": 1, "split_k": 2},
    "two along n": {"tile.m": 128, "tile.n": 384, "warps.m": 4, "warps.n": 2, "row_taps": 0},
    "three along n": {"tile.m": 64, "tile.n": 576, "warps.m": 4, "warps.n": 3, "row_taps": 1, "split_k": 4},
    "three along m": {"tile.m": 192, "tile.n": 192, "warps.m": 12, "warps.n": 1, "row_taps": 0},
    "slices as they come": {
        "tile.m": 256, "tile.n": 128, "warps.m": 8, "warps.n": 1, "row_taps": 0, "slices": 4, "sums": "atomic",
    },
    "rows of slices as they come": {
        "tile.m": 128, "tile.n": 192, "warps.m": 8, "warps.n": 1, "row_taps": 1, "slices": 4, "sums": "atomic",
    },
}  # fmt: skip


#: Of which constants and tests are left out that others need.
GEOMETRIES = {
    "groups": make("wgrad", 8, 256, 256, (28, 28), (3, 3), pad=1, groups=2),
    "small groups": make("wgrad", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    "first layer in planes": laid_out(make("wgrad", 8, 3, 64, (224, 224), (7, 7), 2, 3), x="nchw", w="kcrs", y="nkpq"),
    "1x1": make("wgrad", 1, 64, 64, (7, 7), (1, 1)),
    "groups, f32": typed(make("wgrad", 8, 256, 256, (28, 28), (3, 3), pad=1, groups=2), w="f32"),
    "1x1, f32": typed(make("wgrad", 64, 64, 64, (7, 7), (1, 1)), w="f32"),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str) -> None:
    atomic = {"sums": "atomic"} if name.endswith(", f32") else {}
    made = compilation(spec(GEOMETRIES[name], "tma_im2col", {"kernel": "tma_wgrad", **atomic}))
    assert "warning" not in compile_source(made.source, TARGET).log


@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("stride", [1, 4])
def test_sums_that_are_stored_one_by_one(channels: int, stride: int) -> None:
    """Of whole tiles: none of the stores has a test of its own."""
    problem = laid_out(make("wgrad", 4, 384, channels, (40, 40), (3, 3), (1, stride)), w="kcrs")
    options = {
        "tile.m": 64,
        "tile.n": 64,
        "tile.k": 128,
        "span": 64,
        "warps.m": 4,
        "stages": 4,
        "split_k": 1,
        "slices": 1,
    }
    made = compilation(spec(problem, "tma_im2col", {"kernel": "tma_wgrad", **options}))
    assert "warning" not in compile_source(made.source, TARGET).log


#: Shapes that sum y, too.
BIASES = dict.fromkeys(("two blocks", "two fragments", "three along n"), "result db: f32[k]  db = y  w = acc")


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    problem = typed(LAYER, w="f32") if SHAPES[name]["row_taps"] else LAYER
    options = {"kernel": "tma_wgrad", "span": 64, **SHAPES[name]}
    made = compilation(spec(problem, "tma_im2col", options, BIASES.get(name, "")))
    compiled = compile_source(made.source, TARGET)
    assert "warning" not in compiled.log
    resources = compiled.resources
    assert set(resources) == {launch.entry for launch in made.plan.launches}
    for launch in made.plan.launches:
        found = resources[launch.entry]
        assert found.spill_stores == found.spill_loads == 0 and found.shared == 0
        allocated = -(-found.registers // 8) * 8
        assert allocated * launch.block * launch.blocks_per_sm <= TARGET.registers_per_sm
