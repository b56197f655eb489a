"""The configuration of mma_wgrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels.config import Field
from convgen.kernels.parts.packing import GROUP_PACK
from convgen.kernels.parts.pixel_slices import ORDERED, SLICES, SUMS, Sliced


@dataclass(frozen=True)
class Config(Sliced):
    """A tile in GEMM terms (m output channels, n filter elements, k pixels), the warps that share it, and the blocks
    that share the pixels."""

    tile_m: Annotated[int, Field("output channels per tile", (16, 32, 64, 128))]
    tile_n: Annotated[int, Field("filter elements (taps by input channels) per tile", (64, 128, 256))]
    tile_k: Annotated[int, Field("pixels per k block", (16, 32, 64))]
    warps_m: Annotated[int, Field("warps along m", (1, 2, 4))]
    warps_n: Annotated[int, Field("warps along n", (1, 2, 4))]
    stages: Annotated[int, Field("k blocks in flight", low=2, high=8)]
    slices: SLICES = 1
    group_pack: GROUP_PACK = 1
    sums: SUMS = ORDERED

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n
