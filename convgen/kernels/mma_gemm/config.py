"""The configuration of mma_gemm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """A tile, the warps that share it, stages in flight, and how gemm_k is walked and split."""

    tile_m: Annotated[int, Field("output pixels per tile", low=16, high=2048)]
    tile_n: Annotated[int, Field("output channels of a group per tile", low=16, high=512)]
    tile_k: Annotated[int, Field("elements of gemm_k per k block", (16, 32, 64, 128))]
    warps_m: Annotated[int, Field("warps along m", low=1, high=16)]
    warps_n: Annotated[int, Field("warps along n", low=1, high=8)]
    stages: Annotated[int, Field("k blocks in flight", low=2, high=8)]
    split_k: Annotated[int, Field("parts of gemm_k; a second kernel adds their sums in order", low=1, high=64)] = 1
    order: Annotated[str, Field("the order of gemm_k", ("channel_first", "channel_last", "taps_inner"))] = (
        "channel_first"
    )
    math: Annotated[str, Field("how f32 is multiplied", ("tf32x3", "tf32"))] = ""
    relayout: Annotated[int, Field("1: x and w are first copied with channels innermost; for planes", (0, 1))] = 0
    blocks: Annotated[int, Field("blocks per SM", low=1, high=8)] = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n
