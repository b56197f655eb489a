"""The configuration of depthwise_wgrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels.config import Field
from convgen.kernels.parts.channel_vectors import VECTOR
from convgen.kernels.parts.clusters import MAX_CLUSTER
from convgen.kernels.parts.limits import MAX_THREADS
from convgen.kernels.parts.pixel_slices import SLICES, Sliced

#: Blocks on a multiprocessor, at most, that are considered.
MOST_BLOCKS = 16


@dataclass(frozen=True)
class Config(Sliced):
    """A thread's sums, a block's share of the channels, and the blocks that divide the pixels among them."""

    vector: VECTOR
    slice: Annotated[int, Field("output channels per block", low=1, high=1024)]
    tile_r: Annotated[int, Field("filter rows per thread", low=1, high=64)]
    tile_q: Annotated[int, Field("output columns per thread", low=1, high=64)]
    band: Annotated[int, Field("output rows that a thread walks down", low=1, high=1 << 30)]
    stages: Annotated[
        int, Field("output rows in shared memory, in flight or in use; 1: loads to registers instead", high=16)
    ]
    threads: Annotated[int, Field("maximum threads per block", low=32, high=MAX_THREADS)]
    blocks: Annotated[int, Field("blocks per SM", low=1, high=MOST_BLOCKS)]
    split_k: Annotated[
        int,
        Field("blocks of a cluster that share the pixels; their sums are added in a fixed order", high=MAX_CLUSTER),
    ] = 1
    slices: SLICES = 1
    loads: Annotated[
        str,
        Field(
            "own: each thread copies the rows that it needs; shared: TMA loads a block's rows once", ("own", "shared")
        ),
    ] = "own"
