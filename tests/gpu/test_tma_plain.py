"""tma_plain on a GPU, exact on integers."""

from __future__ import annotations

import pytest
from gpu_tma import exact
from problems import make
from tma_specs import TARGET, spec

from convgen.targets import Target

pytest.importorskip("cupy")


@pytest.mark.parametrize(
    "problem",
    [
        make("fprop", 4, 64, 64, (16, 16), (3, 3), pad=1),
        make("fprop", 33, 136, 264, (19, 23), (3, 3), stride=2, pad=1, dtype="bf16"),
        make("fprop", 5, 8, 24, (31, 30), (5, 4), stride=(1, 3), pad=((2, 1), (0, 3)), dilation=(2, 1)),
    ],
    ids=["tutorial", "strided", "dilated"],
)
@pytest.mark.parametrize("tile_n", [8, 64, 256])
def test_results(problem, tile_n: int, target: Target, seed: int) -> None:
    if target != TARGET:
        pytest.skip(f"this kernel is for {TARGET}, this GPU is for {target}")
    exact(spec(problem, "tma_im2col", {"kernel": "tma_plain", "tile.n": tile_n}), seed)
