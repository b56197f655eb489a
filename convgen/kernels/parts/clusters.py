"""Clusters of blocks: how large they may be, and the option of kernels whose clusters share a tile's k loop."""

from __future__ import annotations

from typing import Annotated

from convgen.kernels.config import Field

MAX_CLUSTER = 8  # blocks that every GPU with clusters takes (CUDA C++ Programming Guide, "Thread Block Clusters")
SIZES = range(1, MAX_CLUSTER + 1)
SPLIT_K = Annotated[
    int,
    Field(
        "blocks of a cluster that share a tile's k loop; their sums are added in a fixed order", low=1, high=MAX_CLUSTER
    ),
]
