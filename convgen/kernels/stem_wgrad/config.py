"""The configuration of stem_wgrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels.config import Field
from convgen.kernels.parts.pixel_slices import SLICES, Sliced


@dataclass(frozen=True)
class Config(Sliced):
    """A block's output channels, the two pipelines that feed it (pixels of y, rows of x), the warps that share its
    products, and the slices of the pixels.  A block has all taps."""

    tile_m: Annotated[int, Field("output channels per tile", range(64, 257, 64))]
    tile_k: Annotated[int, Field("pixels of an output row per stage", range(16, 257, 16))]
    stages: Annotated[int, Field("pipeline stages of y", low=2, high=32)]
    depth: Annotated[int, Field("output rows whose rows of x are in flight or in use", low=2, high=8)]
    warps_m: Annotated[int, Field("warps along m", (4, 8, 12))]
    warps_n: Annotated[int, Field("groups of warps along n", low=1, high=3)] = 1
    slices: SLICES = 1

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.warps_m // 4 * self.warps_n

    @property
    def own_fragments(self) -> int:
        """Fragments of 64 output channels that a consumer has."""
        return self.tile_m // (16 * self.warps_m)
