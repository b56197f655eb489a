"""A configuration of tma_im2col, and the options that a spec states it by."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.kernels.base import Option, Options
from convgen.kernels.parts import prepare


@dataclass(frozen=True)
class TmaIm2colConfig:
    """Tile in GEMM terms (m pixels, n output channels, k channels of a tap), pipeline stages, consumer
    warpgroups, and how they share the work: `cooperative` consumers split a tile's rows, `pingpong`
    consumers take whole tiles in turn, one multiplying while the other stores.

    `rows` says what wgmma's m runs over: `pixels`, 64 at a time, with 8 to 256 channels as its n, or
    `channels`, 64 at a time, with 16 to 256 pixels: tiles that fit the number of multiprocessors better.
    `stream` deals out all k steps of all tiles evenly, and a second kernel finishes the tiles that blocks share.
    The blocks of a `cluster` take neighbouring tiles that have pixels (`shares` x) or channels (w) in common,
    and TMA brings those to all of them at once.  `raster` pixel tiles go with all channels before the next."""

    m: int
    n: int
    k: int
    stages: int
    consumers: int
    schedule: str
    order: str
    blocks: int
    merge: int
    split: int
    rows: str
    cluster: int
    shares: str
    raster: int
    stream: int
    bundle: int

    @property
    def options(self) -> Options:
        """The options that ask for exactly this configuration."""
        return {
            "tile.m": self.m, "tile.n": self.n, "tile.k": self.k, "stages": self.stages,
            "consumers": self.consumers, "schedule": self.schedule, "order": self.order,
            "blocks": self.blocks, "merge": self.merge, "split": self.split,
            "rows": self.rows, "cluster": self.cluster, "shares": self.shares, "raster": self.raster,
            "stream": self.stream,
            "bundle": self.bundle,
        }  # fmt: skip

    @property
    def shared(self) -> str:
        """The operand that a cluster's blocks load together: "x", "w", or "" for none."""
        return self.shares if self.cluster > 1 else ""

    @property
    def by_channels(self) -> bool:
        return self.rows == "channels"

    @property
    def own_rows(self) -> int:
        """Rows of a consumer's accumulators."""
        rows = self.n if self.by_channels else self.m
        return rows if self.schedule == "pingpong" else rows // self.consumers

    @property
    def columns(self) -> int:
        """Columns of the accumulators: wgmma's n."""
        return self.m if self.by_channels else self.n

    @property
    def columns_axis(self) -> str:
        """The tile's axis that they run along."""
        return "m" if self.by_channels else "n"

    def __str__(self) -> str:
        blocks = f", {self.blocks} blocks a multiprocessor" if self.blocks > 1 else ""
        blocks += f", {self.merge} k steps a stage" if self.merge > 1 else ""
        blocks += f", k split over {self.split} blocks" if self.split > 1 else ""
        blocks += ", m runs over channels" if self.by_channels else ""
        blocks += f", {self.cluster} blocks share {self.shares}" if self.shared else ""
        blocks += f", {self.raster} pixel tiles together" if self.raster > 1 else ""
        blocks += ", k steps shared evenly" if self.stream else ""
        blocks += f", {self.bundle} groups as one" if self.bundle > 1 else ""
        return (
            f"tile {self.m}x{self.n}x{self.k}, {self.stages} stages, {self.consumers} {self.schedule} "
            f"consumer{'s' if self.consumers > 1 else ''}, {self.order}{blocks}"
        )


OPTIONS = (
    Option("tile.m", "output pixels a tile", choices=tuple(range(16, 257, 16))),
    Option("tile.n", "output channels a tile", choices=tuple(range(8, 257, 8))),
    Option("tile.k", "channels a k step: the swizzle span (16, 32, 64 for 2-byte types)", choices=(16, 32, 64)),
    Option("stages", "k steps in flight", 2, 32),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("schedule", "how consumers share the work", choices=("cooperative", "pingpong")),
    Option("order", "what the k loop runs over inside", choices=("channels_inner", "taps_inner")),
    Option("blocks", "blocks a multiprocessor", 1, 4),
    Option("merge", "k steps that share a stage: for few channels", 1, 64),
    Option("split", "blocks of a cluster that share a tile's k steps, summed in a fixed order", choices=(1, 2, 4, 8)),
    Option("rows", "what wgmma's m runs over", choices=("pixels", "channels")),
    Option("cluster", "blocks of neighbouring tiles that load an operand together", choices=(1, 2, 4)),
    Option("shares", "the operand that they load together", choices=("x", "w")),
    Option("raster", "pixel tiles that go with all output channels before the next", 1, 64),
    Option("stream", "1: blocks share all k steps evenly; a second kernel finishes the tiles in parts", choices=(0, 1)),
    prepare.BUNDLE,
)
