"""What follows from a problem and a configuration: the halo tile, tiles, threads, shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels.parts import prepare
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.cost import LANES, functions, requests
from convgen.kernels.parts.hopper import (
    COLUMNS_BOX,
    PRODUCT_CHANNELS,
    block_threads,
    lies_as,
    mean_products,
    products,
)
from convgen.kernels.parts.partial_sums import PartialSum, partial_bytes, partial_sums
from convgen.kernels.parts.window_axis import WindowAxis
from convgen.kernels.tma_halo.config import Config
from convgen.kernels.tma_halo.halo import Halo, depth, halo_of, windows
from convgen.kernels.tma_halo.rings import STORE_VECTOR, RingLayout, y_channels_last
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
    """Whether the filter's output channels are neighbors, which TMA loads 64 at a time."""
    w = problem.w
    return math.gcd(problem.k, w.pitch or 0) % 8 == 0 and lies_as(w, ("c", *problem.spatial.filter, "k"))


def b_columns(problem: ConvProblem, config: Config) -> bool:
    """Whether the filters of the problem as it is read are multiplied with their output channels contiguous."""
    return not config.lays_out_filters and output_channels_inside(problem)


#: How many times longer it takes where y is planes (ResNet-50 on an NVIDIA H200).
PLANES = 1.2
#: Instructions for an element that is summed: where its pixel lies, and whether y has it.
SUM_CYCLES = 6


@dataclass(frozen=True)
class Layout(RingLayout[Config]):
    """The layout of tma_halo."""

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
        return self.assigned.strided

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
    def lines(self) -> int:
        """Strips of all images, or of all that a tile has whole."""
        return -(-self.read.n * self.windows[0].output // self.config.images) * self.strips

    @cached_property
    def tiles(self) -> int:
        """Tiles of pixels, in all images."""
        return self.lines * self.line_tiles

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
    def own_zeros(self) -> bool:
        """Whether x's elements are multiplied by extra zeros in filters: those that consumers fill in, and those after
        a group's channels, if the group ends inside a product."""
        return self.config.lays_out_filters or (self.read.groups > 1 and self.group.c % PRODUCT_CHANNELS != 0)

    # ---- sums

    @property
    def partial_sums(self) -> tuple[PartialSum, ...]:
        """The partial sums of all sums: a tile makes one row of each sum, or one per folded row of pixels or phase."""
        rows = self.tiles * self.config.fold // self.read.n if self.config.images == 1 else 0
        return partial_sums(self.read, rows)

    @property
    def partial_bytes(self) -> dict[str, int]:
        """Bytes of each sum's rows, by its name."""
        return partial_bytes(self.read, self.partial_sums, self.tiles * self.config.fold)

    # ---- shared memory, in bytes

    @property
    def filter_box(self) -> int:
        """A tap's input channels of a block, for a tile's output channels, or for whole boxes of contiguous ones."""
        return (self.column_boxes * COLUMNS_BOX if self.b_columns else self.config.tile_n) * self.span

    @property
    def column_boxes(self) -> int:
        """TMA loads of such a box where output channels are contiguous."""
        return -(-self.config.tile_n // COLUMNS_BOX)

    @cached_property
    def filter_boxes(self) -> int:
        _, h, w = self.windows
        return self.halos * len(h.offsets) * len(w.offsets)

    @property
    def epi_tile_shape(self) -> tuple[int, int]:
        return _epi_tile_pixels(self.config.consumer_pixels), self.config.consumer_channels

    # ---- the estimate

    def us(self, us: float) -> float:
        """Microseconds including what precedes the kernel, if the kernel takes so many with channels last."""
        return self.prepared.time + us * self.dearer

    @cached_property
    def dearer(self) -> float:
        """How many times longer it takes than with channels last."""
        return 1.0 if y_channels_last(self.read) else PLANES

    @cached_property
    def shape_demands(self) -> dict[str, Any]:
        """The cost model's input for a lower bound on tiles of any number of pixels."""
        problem, config, (_, h, w) = self.read, self.config, self.windows
        stores = 1 / (self.store_vector if y_channels_last(problem) else STORE_VECTOR)
        operands = sum(t.size == problem.result.size for t in (*problem.operands, *problem.elementwise))
        return dict(
            channels=config.consumer_channels, k=config.tile_k, shares=config.shares, by_channels=config.swap_ab > 0,
            blocks=self.halos, products=mean_products(products(config.tile_k), self.last_products, self.blocks),
            filter_box=self.filter_box, channel_tiles=self.channel_tiles, taps=len(h.offsets) * len(w.offsets),
            sms=self.target.sms, apart=problem.groups > 1 and min(self.span, self.stored) <= SECTOR,
            stored=self.stored,
            splits=int(self.splits), w_pitch=0 if config.lays_out_filters else self._filter_row * problem.taps,
            **self.prepared.traffic,
            operands=operands, accesses=stores + operands / (STORE_VECTOR if self.in_vectors else 1),
        )  # fmt: skip

    @cached_property
    def tile_demands(self) -> dict[str, Any]:
        """The cost model's input for a tile in any strip."""
        more = SUM_CYCLES / LANES * bool(self.read.sums)
        return dict(
            **self.shape_demands, pixels=self.config.consumer_pixels, consumers=self.config.consumers,
            functions=functions(self.problem) + more,
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
        """The cost model's input for a tile in its strip, however deep its rings are."""
        found = {**self.tile_demands, "box": self.halo.box, "tiles": int(self.tiles), "crowd": self._crowd}
        if self.read.sums:
            found["writes"] += 2 * sum(self.partial_bytes.values())
        return found

    @property
    def _crowd(self) -> float:
        """Requests for a line of filters by all multiprocessors with a tile of the same channels, except for the first
        of each."""
        if self.config.lays_out_filters or self.b_columns:
            return 0.0
        together = min(int(self.tiles) * self.channel_tiles, self.target.sms) / self.channel_tiles
        return (requests(self._filter_row, self._filter_row * self.read.taps, self.span) - 1) * together

    @property
    def _filter_row(self) -> int:
        """Bytes of a filter's tap."""
        return self.read.c_per_group * self.read.w.element.bytes

    # ---- threads

    @property
    def threads(self) -> int:
        """Threads per block.  Streamed filters have their own producer warp."""
        least = 128 * self.config.consumers + (64 if self.config.weight_stages else 32)
        return max(block_threads(self.config.consumers), least)


@cache
def _epi_tile_pixels(pixels: int) -> int:
    return max(p for p in (64, 48, 32, 16) if pixels % p == 0)


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    return Layout(problem, target, config, as_read(problem, config.group_pack, config.fold))
