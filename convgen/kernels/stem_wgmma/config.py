"""The configuration of stem_wgmma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """A tile, its warps (four to a warpgroup), and the halo tiles of input rows in shared memory."""

    tile_m: Annotated[int, Field("output pixels per tile", low=64, high=2048)]
    tile_n: Annotated[int, Field("output channels per tile", range(8, 257, 8))]
    warps_m: Annotated[int, Field("warps along m", (4, 8, 12, 16))]
    stages: Annotated[int, Field("tiles of input rows in shared memory", low=1, high=8)]
    blocks: Annotated[int, Field("blocks per SM", low=1, high=8)] = 1

    @property
    def warpgroups(self) -> int:
        return self.warps_m // 4
