"""The configuration of stem_mma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """A tile, its warps, and the halo tiles of input rows in shared memory."""

    tile_m: Annotated[int, Field("output pixels per tile", low=16, high=2048)]
    tile_n: Annotated[int, Field("output channels per tile", low=16, high=512)]
    warps_m: Annotated[int, Field("warps along m", low=1, high=16)]
    stages: Annotated[int, Field("tiles of input rows in shared memory", low=1, high=8)]
    math: Annotated[str, Field("how f32 is multiplied", ("tf32x3", "tf32"))] = ""
    blocks: Annotated[int, Field("blocks per SM", low=1, high=8)] = 1

    @property
    def warp_m(self) -> int:
        """Output pixels of a warp."""
        return self.tile_m // self.warps_m
