"""Clusters of blocks: how large they may be, and the options of kernels whose clusters share a tile's k loop, or an
operand."""

from __future__ import annotations

from typing import Annotated

from convgen import plurals
from convgen.kernels.config import Field

MAX_CLUSTER = 8  # blocks that every GPU with clusters takes (CUDA C++ Programming Guide, "Thread Block Clusters")
SIZES = range(1, MAX_CLUSTER + 1)
SPLIT_K = Annotated[
    int,
    Field(
        "blocks of a cluster that share a tile's k loop; their sums are added in a fixed order", low=1, high=MAX_CLUSTER
    ),
]
#: For kernels whose neighboring tiles share an operand, which TMA loads into all blocks of a cluster at once.
TOGETHER = "blocks of neighboring tiles that load an operand together"
CLUSTER = Annotated[int, Field(TOGETHER, (1, 2, 4))]
WIDE_CLUSTER = Annotated[int, Field(TOGETHER, (1, 2, 4, 8))]
MULTICAST = Annotated[str, Field("the operand that a cluster loads together", ("a", "b"))]


def others_sums(tile_m: int, tile_n: int, split_k: int) -> int:
    """Bytes of the partial sums, in float32, that a block gets from the others with which it shares a tile's k loop."""
    return tile_m * tile_n * 4 // split_k * (split_k - 1)


def sums_row(sums: int, split_k: int, in_place: bool) -> tuple[str, str]:
    """Their row in a table of shared memory: in their own place, or overlaying stages."""
    each = f"{plurals.counted(split_k - 1, 'other block')} x {sums // (split_k - 1)}"
    return "sums", f"{each}, in place of stages" if in_place else each
