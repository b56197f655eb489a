"""The configuration of tma_im2col."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field
from convgen.kernels.parts.clusters import MULTICAST, SPLIT_K, WIDE_CLUSTER
from convgen.kernels.parts.packing import GROUP_PACK

#: By `swap_ab`: the columns of a tile that a block of a cluster can finish are a multiple of so many.
LEAST_SPLIT = (8, 16)


@dataclass(frozen=True)
class Config(config.Config):
    """A tile in GEMM terms (m pixels, n output channels, k channels of a tap), the pipeline that feeds it, and the
    consumer warpgroups that share it: `cooperative` consumers split a tile's rows, `pingpong` consumers take whole
    tiles in turn, one multiplying while the other stores.

    Where `swap_ab` is 1, wgmma's m runs over output channels, 64 at a time, with 16 to 256 pixels as its n: tiles that
    fit the number of multiprocessors better.  The blocks of a `cluster` take neighboring tiles that have pixels
    (`multicast` a) or channels (b) in common, and TMA brings those to all of them at once."""

    tile_m: Annotated[int, Field("output pixels per tile", range(16, 257, 16))]
    tile_n: Annotated[int, Field("output channels per tile", range(8, 257, 8))]
    tile_k: Annotated[int, Field("channels per k block: the swizzle span (16, 32, 64 for 2-byte types)", (16, 32, 64))]
    stages: Annotated[int, Field("pipeline stages", low=2, high=32)]
    consumers: Annotated[int, Field("consumer warpgroups", low=1, high=3)]
    schedule: Annotated[str, Field("how consumers share the work", ("cooperative", "pingpong"))]
    order: Annotated[str, Field("what the inner loop of the k loop runs over", ("channels_inner", "taps_inner"))] = (
        "channels_inner"
    )
    blocks: Annotated[int, Field("blocks per SM", low=1, high=4)] = 1
    k_blocks: Annotated[int, Field("k blocks per stage; more than one is for few channels", low=1, high=64)] = 1
    split_k: SPLIT_K = 1
    swap_ab: Annotated[int, Field("1: wgmma's m runs over output channels, its n over pixels", (0, 1))] = 0
    cluster: WIDE_CLUSTER = 1
    multicast: MULTICAST = "a"
    raster: Annotated[
        int,
        Field(
            "rasterization: pixel tiles per band; a band is finished for all output channels before the next begins",
            low=1,
            high=64,
        ),
    ] = 1
    stream_k: Annotated[
        int, Field("1: blocks share the k blocks of all tiles evenly; a second kernel finishes shared tiles", (0, 1))
    ] = 0
    group_pack: GROUP_PACK = 1
    resident: Annotated[int, Field("1: a block loads B once; all its tiles have the same output channels", (0, 1))] = 0

    @property
    def shared(self) -> str:
        """The operand that a cluster's blocks load together: "a", "b", or "" for none."""
        return self.multicast if self.cluster > 1 else ""

    @property
    def own_rows(self) -> int:
        """Rows of a consumer's accumulators."""
        rows = self.tile_n if self.swap_ab else self.tile_m
        return rows if self.schedule == "pingpong" else rows // self.consumers

    @property
    def columns(self) -> int:
        """Columns of the accumulators: wgmma's n."""
        return self.tile_m if self.swap_ab else self.tile_n

    @property
    def columns_axis(self) -> str:
        """The tile's axis that they run along."""
        return "m" if self.swap_ab else "n"

    @property
    def accumulators(self) -> int:
        """Accumulators per consumer thread."""
        return self.own_rows // 64 * self.columns // 2
