"""The configuration of depthwise_stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field
from convgen.kernels.parts.channel_vectors import VECTOR
from convgen.kernels.parts.limits import MAX_THREADS


@dataclass(frozen=True)
class Config(config.Config):
    """The outputs of a thread (mma: of a warp), and a block's share of the channels and pixels."""

    math: Annotated[
        str,
        Field(
            "fma: on ordinary cores; mma: on tensor cores",
            ("fma", "mma"),
        ),
    ]
    tile_p: Annotated[int, Field("output rows per thread (mma: per warp)", low=1, high=64)]
    tile_q: Annotated[int, Field("output columns per thread (mma: per warp)", low=1, high=64)]
    vector: VECTOR
    slice: Annotated[int, Field("output channels per block", low=1, high=256)]
    strip: Annotated[int, Field("output columns per block", low=1, high=256)]
    band: Annotated[int, Field("output rows that a block computes at once", low=1, high=256)]
    stages: Annotated[int, Field("slabs of rows in shared memory", low=1, high=64)]
    threads: Annotated[int, Field("threads per block, not counting the producer", low=32, high=MAX_THREADS)]
    blocks: Annotated[int, Field("blocks per SM", low=1, high=16)]
