"""The configuration of tma_plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """A tile is of 64 pixels, the rows of one wgmma, over k blocks of 64 channels of a tap, 128 bytes."""

    tile_n: Annotated[int, Field("output channels per tile", range(8, 257, 8))]
