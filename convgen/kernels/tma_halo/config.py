"""The configuration of tma_halo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field
from convgen.kernels.parts.packing import GROUP_PACK

LONGEST_SIDE = 256  # of a tensor map's box


class RingConfig(config.Config):
    """Consumer warpgroups that take whole tiles in turn (`pingpong`), each with a ring of its own, or that share a tile
    and a ring (`cooperative`).  A ring has `stages` halo tiles and `weight_stages` boxes of filters."""

    consumers: int
    schedule: str
    stages: int
    weight_stages: int
    tile_k: int

    @property
    def rings(self) -> int:
        return self.consumers if self.schedule == "pingpong" else 1

    @property
    def shares(self) -> int:
        """Consumers that share a tile."""
        return self.consumers // self.rings


@dataclass(frozen=True)
class Config(RingConfig):
    """`tile_m` pixels of padded width a tile, in strips of `strip` output columns, or over `images` whole images;
    `tile_n` output channels a block; `tile_k` input channels a halo tile (its swizzle span).

    `pingpong` consumer warpgroups take whole tiles in turn, each with a ring of its own of `stages` halo tiles;
    `cooperative` ones split a tile's channels (`swap_ab` 1) or pixels and share a ring.  A tile's channels are those
    of `fold` output rows: what the rows read in common is then multiplied once for all of them, by filters shifted
    down a row each, with zeros above and below.  A strided dgrad folds the pixels of all its phases."""

    tile_m: Annotated[int, Field("pixels per tile, in rows of padded width", range(16, 257, 16))]
    strip: Annotated[int, Field("output columns per strip", low=1, high=LONGEST_SIDE)]
    images: Annotated[int, Field("whole images per tile", low=1, high=LONGEST_SIDE)]
    tile_n: Annotated[int, Field("output channels per tile", (16, 32, 48, 64, 128, 192))]
    tile_k: Annotated[int, Field("input channels per halo tile", (16, 32, 64))]
    stages: Annotated[int, Field("halo tiles in flight per ring", low=1, high=8)]
    weight_stages: Annotated[
        int, Field("filter taps in flight per ring; 0: all filters stay in shared memory", low=0, high=16)
    ]
    consumers: Annotated[int, Field("consumer warpgroups", low=1, high=3)]
    schedule: Annotated[str, Field("how consumers share the work", ("pingpong", "cooperative"))]
    swap_ab: Annotated[int, Field("1: wgmma's m runs over output channels, its n over pixels", (0, 1))]
    group_pack: GROUP_PACK = 1
    fold: Annotated[
        int, Field("output rows, or phases, that a tile computes side by side, as more channels", (1, 2, 4, 8))
    ] = 1

    @property
    def own_channels(self) -> int:
        """Output channels of a tile, of each row or phase that it folds."""
        return self.tile_n // self.fold

    @property
    def lays_out_filters(self) -> bool:
        """Whether filters have zeros filled in: the consumers lay them out, not TMA."""
        return self.group_pack > 1 or self.fold > 1

    @property
    def consumer_pixels(self) -> int:
        return self.tile_m if self.swap_ab else self.tile_m // self.shares

    @property
    def consumer_channels(self) -> int:
        return self.tile_n // self.shares if self.swap_ab else self.tile_n
