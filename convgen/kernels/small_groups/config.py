"""The configuration of small_groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """Output rows and joined groups of a block, and the warps that share a joined group's pixels."""

    tile_p: Annotated[int, Field("output rows per block", low=1, high=64)]
    slice: Annotated[int, Field("joined groups per block", low=1, high=64)]
    warps_m: Annotated[int, Field("warps along m", low=1, high=16)]
    stages: Annotated[int, Field("tiles of input rows in shared memory", low=1, high=8)]
    blocks: Annotated[int, Field("blocks per SM", low=1, high=8)] = 1
