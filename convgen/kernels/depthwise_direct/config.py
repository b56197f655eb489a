"""The configuration of depthwise_direct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field
from convgen.kernels.parts.channel_vectors import VECTOR
from convgen.kernels.parts.limits import MAX_THREADS


@dataclass(frozen=True)
class Config(config.Config):
    """The outputs of a thread, and the number of threads."""

    tile_p: Annotated[int, Field("output rows per thread", low=1, high=64)]
    tile_q: Annotated[int, Field("output columns per thread", low=1, high=64)]
    vector: VECTOR
    threads: Annotated[int, Field("maximum threads per block", low=32, high=MAX_THREADS)]
    blocks: Annotated[int, Field("blocks per SM", low=1, high=16)]
