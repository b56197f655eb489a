"""The configuration of winograd_fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from convgen.kernels.config import Field
from convgen.kernels.tma_halo.config import RingConfig

#: Neighboring outputs that a fragment's rows g and g + 8 make: two tiles of F(2, 3).
QUAD = 4
#: Quads that a matrix of ldmatrix has as rows: at once from shared memory, if they lie in different banks.
MATRIX_ROWS = 8
#: Quads of a consumer: a thread keeps four products for each two outputs, which leaves room for no more.
QUADS = 32
#: Of a tensor map's box, whose phases have every fourth pixel and one more than the strip has quads.
LONGEST_STRIP = 252


@dataclass(frozen=True)
class Config(RingConfig):
    """Two consumer warpgroups of 128 outputs by `tile_n` channels each, in strips of `strip` output columns.

    `pingpong` consumers take whole tiles in turn, each with its own ring of `stages` halo tiles; `cooperative` ones
    split a tile's outputs and share a ring, and the filters that stream.  The blocks of a `cluster` take neighboring
    tiles of the same output channels, and each loads a slice of a filter row for all of them."""

    form: Annotated[str, Field("fused: F(2, 3) along rows, in one kernel after the filters' transform", ("fused",))]
    strip: Annotated[int, Field("output columns per strip", range(QUAD, LONGEST_STRIP + 1, QUAD))]
    tile_n: Annotated[int, Field("output channels per tile", (32, 64))]
    tile_k: Annotated[int, Field("input channels per halo tile", (16, 32, 64))]
    stages: Annotated[int, Field("halo tiles in flight per ring", low=1, high=8)]
    weight_stages: Annotated[
        int, Field("filter rows in flight per ring; 0: all filters stay in shared memory", low=0, high=8)
    ]
    schedule: Annotated[str, Field("how consumers share the work", ("pingpong", "cooperative"))]
    cluster: Annotated[int, Field("blocks of neighboring tiles that load filters together", (1, 2, 4))] = 1

    consumers = 2
    #: Fields that tma_halo's template needs, with the only value that they have here.
    swap_ab: ClassVar[int] = 0
    fold: ClassVar[int] = 1
    group_pack: ClassVar[int] = 1
    images: ClassVar[int] = 1
    consumer_pixels: ClassVar[int] = QUAD * QUADS

    @property
    def consumer_channels(self) -> int:
        return self.tile_n

    @property
    def quads(self) -> int:
        """Quads in a row of a strip."""
        return self.strip // QUAD

    @property
    def tile_quads(self) -> int:
        return QUADS * self.shares
