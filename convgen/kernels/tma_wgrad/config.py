"""The configuration of tma_wgrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels.config import Field
from convgen.kernels.parts.clusters import CLUSTER, MULTICAST, SPLIT_K
from convgen.kernels.parts.packing import GROUP_PACK
from convgen.kernels.parts.pixel_slices import ORDERED, SLICES, SUMS, Sliced

#: Columns of a tile.
MOST_TILE_COLUMNS = 768


@dataclass(frozen=True)
class Config(Sliced):
    """A tile in GEMM terms (m output channels, n filter elements, k pixels), the pipeline that feeds it, and the
    warps that share it, four to a warpgroup.

    x comes in boxes of `tile_k` pixels by `span` channels, one for each tap; where `row_taps` is 1, a box has the
    few pixels more that make it serve all taps of a filter row, and where `halo` is 1, all taps of its last two
    axes; where `lower_rows` is 1, a first launch makes a row's taps channels of x. The pixels are shared by
    `slices` times `split_k` blocks: those of a cluster add their sums through shared memory, a second kernel adds
    those of the slices, both in a fixed order; with `sums` atomic, slices are added as they come. Or the blocks of
    a `cluster` take neighboring tiles that have y (`multicast` a) or x (b) in common, and TMA brings that to all of
    them at once."""

    tile_m: Annotated[int, Field("output channels per tile", range(64, 257, 64))]
    tile_n: Annotated[int, Field("filter elements (taps by input channels) per tile", low=16, high=MOST_TILE_COLUMNS)]
    tile_k: Annotated[int, Field("pixels per k block", (16, 32, 64, 128))]
    span: Annotated[int, Field("input channels per box of x: the swizzle span", (16, 32, 64))]
    stages: Annotated[int, Field("pipeline stages", low=2, high=32)]
    warps_m: Annotated[int, Field("warps along m", (4, 8, 12))]
    warps_n: Annotated[int, Field("groups of warps along n", low=1, high=3)] = 1
    row_taps: Annotated[int, Field("1: one box of x, shifted, serves all taps of a filter row", (0, 1))] = 0
    halo: Annotated[
        int, Field("1: x is loaded with its halo; one box, or one per phase of the stride, serves all taps", (0, 1))
    ] = 0
    lower_rows: Annotated[
        int, Field("1: x is first copied with the taps of a filter row as channels; for few channels", (0, 1))
    ] = 0
    split_k: SPLIT_K = 1
    slices: SLICES = 1
    blocks: Annotated[int, Field("blocks per SM", low=1, high=4)] = 1
    group_pack: GROUP_PACK = 1
    cluster: CLUSTER = 1
    multicast: MULTICAST = "a"
    sums: SUMS = ORDERED

    @property
    def shared(self) -> str:
        """The operand that a cluster's blocks load together: "a", "b", or "" for none."""
        return self.multicast if self.cluster > 1 else ""

    @property
    def launched(self) -> int:
        """Blocks of a cluster, whatever they share."""
        return max(self.split_k, self.cluster)

    @property
    def consumers(self) -> int:
        """Consumer warpgroups."""
        return self.warps_m // 4 * self.warps_n

    @property
    def own_rows(self) -> int:
        """Rows of a consumer's accumulators."""
        return self.tile_m // (self.warps_m // 4)

    @property
    def own_columns(self) -> int:
        return self.tile_n // self.warps_n

    @property
    def accumulators(self) -> int:
        """Accumulators per consumer thread."""
        return self.own_rows // 64 * self.own_columns // 2
