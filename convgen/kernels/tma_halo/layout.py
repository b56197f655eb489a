"""What follows from a problem and a configuration: the halo tile, tiles, threads, shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels import base
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.cost import LANES, functions
from convgen.kernels.parts.hopper import (
    COLUMNS_BOX,
    PRODUCT_CHANNELS,
    SWIZZLE_ALIGNMENT,
    aligned,
    block_threads,
    lies_as,
    mean_products,
    memory_order,
    products,
)
from convgen.kernels.parts.operand_tiles import EpilogueTile
from convgen.kernels.parts.partial_sums import PartialSum, partial_bytes, partial_sums
from convgen.kernels.parts.window_axis import WindowAxis
from convgen.kernels.tma_halo.config import Config, RingConfig
from convgen.kernels.tma_halo.halo import Halo, depth, halo_of, windows
from convgen.targets import Target


def as_read(problem: ConvProblem, group_pack: int, fold: int) -> prepare.Prepared:
    """The forward convolution that has the problem's product, as the kernel reads it."""
    assigned = assignment(problem)
    forward = assigned.problem
    # dgrad's filter has its output channels innermost as it lies
    copied = group_pack == fold == 1 and not (assigned.backward and output_channels_inside(forward))
    return prepare.channels_last(forward, taps_outside=False, group_pack=group_pack, copy_w=copied)


@lru_cache(maxsize=64)
def group_of(problem: ConvProblem, group_pack: int) -> prepare.Group:
    """Input and output channels of so many groups."""
    forward = assignment(problem).problem
    if forward.groups == 1:
        return prepare.Group(as_read(problem, 1, 1).problem.c, forward.k)
    return prepare.Group(group_pack * forward.c_per_group, group_pack * forward.k_per_group)


def output_channels_inside(problem: ConvProblem) -> bool:
    """Whether the filter's output channels are neighbors, which TMA brings 64 at a time."""
    w = problem.w
    return math.gcd(problem.k, w.pitch or 0) % 8 == 0 and lies_as(w, ("c", *problem.spatial.filter, "k"))


def b_columns(problem: ConvProblem, config: Config) -> bool:
    """Whether the filters of the problem as it is read are multiplied with their output channels contiguous."""
    return not config.fills and output_channels_inside(problem)


def y_channels_last(problem: ConvProblem) -> bool:
    """Whether the channels of y are neighbors."""
    return memory_order(problem.y, ("n", *problem.spatial.output, "k"))


@lru_cache(maxsize=64)
def in_vectors(problem: ConvProblem) -> bool:
    """Whether y is stored `STORE_VECTOR` channels of a pixel at once, not element by element."""
    return y_channels_last(problem) and math.gcd(problem.k, problem.y.pitch or 0) % STORE_VECTOR == 0


#: Elements of y that a thread stores at once.
STORE_VECTOR = 8
#: Epilogue tiles of the operands that a consumer has in flight: halo tiles want the room.
SLOTS = 2

#: Instructions for an element that is summed: where its pixel lies, and whether y has it.
SUM_CYCLES = 6

C = TypeVar("C", bound=RingConfig)


@dataclass(frozen=True)
class RingLayout(base.Layout[C]):
    """A configuration of a problem as the kernel reads it: rings of halo tiles and of boxes of filters, and an epilogue
    tile for each consumer.  Sizes in bytes."""

    prepared: prepare.Prepared

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @property
    def span(self) -> int:
        """Of a pixel's channels, and of an output channel's: the swizzle's span."""
        return self.config.tile_k * self.read.x.element.bytes

    @property
    def blocks(self) -> int:
        """Of a group's input channels."""
        return -(-self.channels // self.config.tile_k)

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.read.c

    @property
    def uneven(self) -> bool:
        """Whether the last channel tile of each group, or pack, has fewer channels."""
        return False

    @property
    def partial_sums(self) -> tuple[PartialSum, ...]:
        """Of all sums."""
        return ()

    # ---- shared memory

    @property
    def halo(self) -> Halo:
        """The halo tile of a tile."""
        raise NotImplementedError

    @property
    def weight_box(self) -> int:
        """What streams at once of the filters."""
        raise NotImplementedError

    @property
    def weight_boxes(self) -> int:
        """Such boxes of a tile's output channels."""
        raise NotImplementedError

    @property
    def epi_tile_shape(self) -> tuple[int, int]:
        """Pixels and channels of an epilogue tile, of which a consumer has one."""
        raise NotImplementedError

    @property
    def weights(self) -> int:
        """Of all filters: of those in flight, or of a tile's output channels."""
        return self._weights(self.config.weight_stages)

    def _weights(self, stages: int) -> int:
        return aligned((self.config.rings * stages or self.weight_boxes) * self.weight_box)

    @property
    def epi_tile_pixels(self) -> int:
        return self.epi_tile_shape[0]

    @cached_property
    def epi_tile_bytes(self) -> int:
        return aligned(math.prod(self.epi_tile_shape) * self.read.y.element.bytes)

    @cached_property
    def in_vectors(self) -> bool:
        return in_vectors(self.read)

    @cached_property
    def arriving(self) -> tuple[EpilogueTile, ...]:
        """Operands, in epilogue tiles like those of y."""
        return operand_tiles.copied(self.read, STORE_VECTOR, *self.epi_tile_shape) if self.in_vectors else ()

    @property
    def slots(self) -> int:
        """Of each consumer, for an epilogue tile of each of them."""
        return SLOTS if self.arriving else 0

    @cached_property
    def slot(self) -> int:
        return aligned(sum(tile.bytes for tile in self.arriving))

    @property
    def shared_bytes(self) -> int:
        """Of a block, with barriers, and room to begin where a swizzle does."""
        return self.config.stages * self.stage_bytes + self.fixed_by(self.config.weight_stages)

    @property
    def stage_bytes(self) -> int:
        """Of a halo tile in each ring, with its two barriers."""
        return self.config.rings * (self.halo.bytes + 16)

    def fixed_by(self, weight_stages: int) -> int:
        """All but the halo tiles, with another number of boxes of filters: it does not depend on the halo tile."""
        barriers = 8 * self._barriers(0, weight_stages)
        return SWIZZLE_ALIGNMENT + self.epilogue_bytes + self._weights(weight_stages) + barriers

    @cached_property
    def epilogue_bytes(self) -> int:
        """Of the epilogue tiles of all consumers."""
        return self.config.consumers * (self.epi_tile_bytes + self.slots * self.slot)

    def _barriers(self, stages: int, weight_stages: int) -> int:
        """Two of each stage; where all filters stay, one on which they arrive."""
        return 2 * self.config.rings * (stages + weight_stages) + (0 if weight_stages else 1)

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        c = self.config
        rings, consumers = base.counted(c.rings, "ring"), base.counted(c.consumers, "consumer")
        held = f"{self.weight_boxes} boxes"
        if c.weight_stages:
            held = f"{rings} x {base.counted(c.weight_stages, 'stage')}"
        rows = [
            ("halo tiles", f"{rings} x {base.counted(c.stages, 'stage')} x {self.halo.bytes}"),
            ("weights", f"{held} x {self.weight_box}"),
            ("y", f"{consumers} x {self.epi_tile_bytes}"),
        ]
        if self.arriving:
            names = " and ".join(tile.name for tile in self.arriving)
            rows.append((names, f"{consumers} x {self.slots} slots x {self.slot}"))
        return (*rows, ("barriers", f"{self._barriers(c.stages, c.weight_stages)} x 8"))


@dataclass(frozen=True)
class Layout(RingLayout[Config]):
    """Of tma_halo."""

    @property
    def assigned(self) -> Assignment:
        return assignment(self.problem)

    @property
    def b_columns(self) -> bool:
        """Whether wgmma takes the filters with their output channels contiguous, not their input channels."""
        return b_columns(self.read, self.config)

    @property
    def last_products(self) -> int:
        """Products, of 16 channels each, in the last block of input channels."""
        return products(self.channels - (self.blocks - 1) * self.config.tile_k)

    @cached_property
    def group(self) -> prepare.Group:
        """The channels of a group, or of those that are multiplied as one."""
        return group_of(self.problem, self.config.group_pack)

    @property
    def channels(self) -> int:
        return self.group.c

    # ---- tiles

    @cached_property
    def windows(self) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
        """Along d, h and w, as many output rows as one as the configuration folds, or all phases."""
        return (depth(self.read), *windows(self.read, self.config.fold, self.strided))

    @property
    def strided(self) -> ConvProblem | None:
        """The problem, where it is a strided dgrad."""
        return self.problem if self.assigned.phases else None

    @property
    def folds(self) -> tuple[int, int]:
        """Output rows and columns that a tile's channels are of: one pixel of each phase, or `fold` rows."""
        if not self.strided:
            return self.config.fold, 1
        h, w = (1, *self.strided.stride) if self.strided.rank == 1 else self.strided.stride
        return h, w

    @cached_property
    def halo(self) -> Halo:
        c, (_, h, w) = self.config, self.windows
        return halo_of(h, w, c.tile_m, c.strip, c.images, self.span)

    @property
    def halos(self) -> int:
        """Halo tiles of a tile: each block of input channels has one for each tap along d."""
        return self.blocks * len(self.windows[0].offsets)

    @property
    def strips(self) -> int:
        return -(-self.windows[2].output // self.config.strip)

    @property
    def line_tiles(self) -> int:
        """Tiles down a strip."""
        return -(-self.halo.line // self.config.tile_m)

    @cached_property
    def tiles(self) -> int:
        """Of pixels, all images."""
        return -(-self.read.n * self.windows[0].output // self.config.images) * self.strips * self.line_tiles

    @property
    def group_tiles(self) -> int:
        """Channel tiles of a group, or of a pack."""
        return -(-self.group.k // self.config.own_channels)

    @property
    def uneven(self) -> bool:
        return self.read.groups > 1 and self.group.k % self.config.own_channels != 0

    @property
    def channel_tiles(self) -> int:
        if self.uneven:
            return -(-self.read.k // self.group.k) * self.group_tiles
        return -(-self.read.k // self.config.own_channels)

    @property
    def spoils(self) -> bool:
        """Whether filters have zeros that meet x's elements: those that consumers fill in, and those behind a group's
        channels, where the group ends inside a product."""
        return self.config.fills or (self.read.groups > 1 and self.group.c % PRODUCT_CHANNELS != 0)

    # ---- sums

    @property
    def partial_sums(self) -> tuple[PartialSum, ...]:
        """Of all sums: a tile makes a row of each, or one for each row of pixels, or phase, that it folds."""
        rows = self.tiles * self.config.fold // self.read.n if self.config.images == 1 else 0
        return partial_sums(self.read, rows)

    @property
    def partial_bytes(self) -> dict[str, int]:
        """Of each sum's rows, by its name."""
        return partial_bytes(self.read, self.partial_sums, self.tiles * self.config.fold)

    # ---- shared memory, in bytes

    @property
    def weight_box(self) -> int:
        """A tap's input channels of a block, for a tile's output channels, or for whole boxes of contiguous ones."""
        return (self.column_boxes * COLUMNS_BOX if self.b_columns else self.config.tile_n) * self.span

    @property
    def column_boxes(self) -> int:
        """TMA loads of such a box where output channels are contiguous."""
        return -(-self.config.tile_n // COLUMNS_BOX)

    @cached_property
    def weight_boxes(self) -> int:
        _, h, w = self.windows
        return self.halos * len(h.offsets) * len(w.offsets)

    @property
    def epi_tile_shape(self) -> tuple[int, int]:
        return _epi_tile_pixels(self.config.consumer_pixels), self.config.consumer_channels

    # ---- the estimate

    @cached_property
    def tile_demands(self) -> dict[str, Any]:
        """What the cost model asks of a tile in any strip."""
        problem, config, (_, h, w) = self.read, self.config, self.windows
        return dict(
            pixels=config.consumer_pixels, channels=config.consumer_channels, k=config.tile_k,
            consumers=config.consumers, shares=config.shares, by_channels=config.swap_ab > 0, blocks=self.halos,
            products=mean_products(products(config.tile_k), self.last_products, self.blocks),
            weight_box=self.weight_box, channel_tiles=self.channel_tiles, taps=len(h.offsets) * len(w.offsets),
            sms=self.target.sms, apart=problem.groups > 1 and min(self.span, self.stored) <= SECTOR,
            stored=self.stored, splits=self.splits, **self.prepared.traffic,
            functions=functions(self.problem) + SUM_CYCLES / LANES * bool(self.read.sums),
        )  # fmt: skip

    @property
    def stored(self) -> int:
        """Bytes of a pixel that a tile stores."""
        return self.config.own_channels * self.read.y.element.bytes

    @cached_property
    def splits(self) -> int:
        """Sectors of y that two channel tiles share, where all pixels begin with one."""
        e, k, own = self.read.y.element.bytes, self.read.k, self.config.own_channels
        if (self.read.y.pitch or k) * e % SECTOR or not y_channels_last(self.read):
            return 0
        packs = range(0, k, self.group.k)
        first = [k0 for pack in packs for k0 in range(pack, min(pack + self.group.k, k), own)]
        return sum(k0 * e % SECTOR != 0 for k0 in first) * self.read.output_pixels

    @cached_property
    def demands(self) -> dict[str, Any]:
        """And of one in its strip, however deep its rings are."""
        found = {**self.tile_demands, "box": self.halo.box, "tiles": self.tiles}
        if self.read.sums:
            found["writes"] += 2 * sum(self.partial_bytes.values())
        return found

    # ---- threads

    @property
    def threads(self) -> int:
        """Of a block.  Streamed weights have a producer, and so a warp, of their own."""
        least = 128 * self.config.consumers + (64 if self.config.weight_stages else 32)
        return max(block_threads(self.config.consumers), least)


@cache
def _epi_tile_pixels(pixels: int) -> int:
    return max(p for p in (64, 48, 32, 16) if pixels % p == 0)


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    return Layout(problem, target, config, as_read(problem, config.group_pack, config.fold))
