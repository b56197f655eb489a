"""A configuration of tma_patch, and the options that a spec states it by."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.kernels.base import Option, Options
from convgen.kernels.parts import prepare
from convgen.kernels.parts.hopper import MAX_BOX

#: What wgmma's m runs over, as the option `swap_ab` says it.
SWAP_AB = {"pixels": 0, "channels": 1}


@dataclass(frozen=True)
class TmaPatchConfig:
    """`pixels` of padded width a tile, in strips of `strip` output columns, or over `images` whole images;
    `channels` output channels a block; `k` input channels a patch (its swizzle span).

    `pingpong` consumer warpgroups take whole tiles in turn, each with a ring of its own of `stages`
    patches; `cooperative` ones split a tile's channels or pixels and share a ring.  `weight_stages` taps
    of weights go with each ring; 0 keeps all weights in shared memory.  `rows` says what wgmma's m runs
    over, and what cooperative consumers split: output channels or pixels.  `bundle` neighbouring groups are
    multiplied as one.

    A tile's `channels` are those of `fold` output rows: what the rows read in common is then multiplied once
    for all of them, by filters shifted down a row each, with zeros above and below."""

    pixels: int
    strip: int
    images: int
    channels: int
    k: int
    stages: int
    weight_stages: int
    consumers: int
    schedule: str
    rows: str
    bundle: int
    fold: int

    @property
    def own_channels(self) -> int:
        """Output channels of a tile, of each of its rows."""
        return self.channels // self.fold

    @property
    def fills(self) -> bool:
        """Whether filters have zeros filled in: the consumers lay them out, not TMA."""
        return self.bundle > 1 or self.fold > 1

    @property
    def rings(self) -> int:
        return self.consumers if self.schedule == "pingpong" else 1

    @property
    def shares(self) -> int:
        """Consumers that share a tile."""
        return self.consumers // self.rings

    @property
    def consumer_pixels(self) -> int:
        return self.pixels if self.rows == "channels" else self.pixels // self.shares

    @property
    def consumer_channels(self) -> int:
        return self.channels // self.shares if self.rows == "channels" else self.channels

    @property
    def options(self) -> Options:
        """The options that ask for exactly this configuration."""
        return {
            "pixels": self.pixels, "strip": self.strip, "images": self.images, "channels": self.channels,
            "tile.k": self.k, "stages": self.stages, "weight_stages": self.weight_stages,
            "consumers": self.consumers, "schedule": self.schedule, "swap_ab": SWAP_AB[self.rows],
            "group_pack": self.bundle, "fold": self.fold,
        }  # fmt: skip

    def __str__(self) -> str:
        where = f"{self.images} images" if self.images > 1 else f"strips of {self.strip}"
        weights = f"weights {self.weight_stages} taps ahead" if self.weight_stages else "all weights resident"
        bundle = f", {self.bundle} groups as one" if self.bundle > 1 else ""
        bundle += f", {self.fold} output rows as channels" if self.fold > 1 else ""
        patches = f"{self.stages} patch{'es' if self.stages > 1 else ''} a ring"
        return (
            f"{self.pixels} pixels x {self.channels} channels over {self.k}, {where}, {self.consumers} "
            f"{self.schedule} consumer{'s' if self.consumers > 1 else ''}, {patches}, {weights}, "
            f"m runs over {self.rows}{bundle}"
        )


OPTIONS = (
    Option("pixels", "pixels of padded width a tile", choices=tuple(range(16, 257, 16))),
    Option("strip", "output columns a strip", 1, MAX_BOX),
    Option("images", "whole images a tile", 1, MAX_BOX),
    Option("channels", "output channels a block", choices=(16, 32, 48, 64, 128, 192)),
    Option("tile.k", "input channels a patch", choices=(16, 32, 64)),
    Option("stages", "patches in flight for each ring", 1, 8),
    Option("weight_stages", "taps of weights in flight for each ring, 0: all weights resident", 0, 16),
    Option("consumers", "consumer warpgroups", 1, 3),
    Option("schedule", "how consumers share the work", choices=("pingpong", "cooperative")),
    Option("swap_ab", "1: wgmma's m runs over output channels, 0: over pixels", choices=(0, 1)),
    prepare.BUNDLE,
    Option("fold", "output rows whose channels are a tile's: few output channels", choices=(1, 2, 4, 8)),
)
