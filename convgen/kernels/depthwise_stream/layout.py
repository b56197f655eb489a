"""How depthwise_stream divides a problem: what follows from a configuration for either way to multiply."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convgen.ir.problem import SECTOR
from convgen.ir.tensor import Tensor
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.parts.channel_vectors import inputs
from convgen.kernels.parts.depthwise import Depthwise
from convgen.kernels.parts.hopper import launch_registers
from convgen.kernels.parts.limits import MAX_THREADS, WARP
from convgen.kernels.parts.output import channel_operands
from convgen.kernels.parts.persistent import workers

ALIGNMENT = 128  # bytes: where TMA may write
UNIT = 16  # bytes: what a lane loads of a pixel at most
WORD = 4  # bytes: what a lane loads of a pixel at least
SUM = 4  # bytes
PRODUCER = WARP  # threads: one of them loads
USUAL_OPERANDS = 2  # of channels: a bias and a scale, for which all counts of registers allow
ADDRESSES = 10  # registers: of an operand's loads, and what the compiler keeps for them
COMPUTED = 3  # values of a channel that a longer formula holds: BatchNorm's result and functions of it


@dataclass(frozen=True)
class Layout(Depthwise[Config]):
    """Everything that follows from a problem and a configuration; each way to multiply adds its own part."""

    #: Lanes of a warp that have a channel vector in common.
    tile_lanes = WARP

    @property
    def blocks(self) -> Any:
        """mma's results on a warp's tile."""
        return None

    @property
    def own_zeros(self) -> bool:
        """Whether products include extra zeros, which turn infinities in x into NaNs."""
        return self.blocks is not None

    @property
    def result_channels(self) -> int:
        """Channels of a pixel among a band's results."""
        return self.config.slice

    @property
    def swizzle(self) -> int:
        """The swizzle's span in bytes, for x in shared memory and for results being stored to y."""
        return 0

    @property
    def alignment(self) -> int:
        """Bytes, of the base of shared memory."""
        return ALIGNMENT

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filters in shared memory, a multiple of 16: barriers follow them."""
        return 0

    @property
    def filters_a_thread(self) -> int:
        """Filter elements that each thread loads into shared memory."""
        return -(-self.config.slice * self.read.taps // self.consumer_threads) if self.filter_bytes else 0

    @property
    def filters_at_once(self) -> int:
        """How many filters a thread loads at once: all loads of a batch precede its stores."""
        return min(self.filters_a_thread, 32)

    @property
    def filters_even(self) -> bool:
        """Whether all threads load equally many filter elements."""
        return self.config.slice * self.read.taps % self.consumer_threads == 0

    @property
    def staged_bytes(self) -> int:
        """Bytes of a band's results in shared memory before they are stored to y."""
        return 0

    @property
    def inputs(self) -> int:
        """Input channels of a thread."""
        return inputs(self.read, self.config.vector)

    @property
    def x_slice(self) -> int:
        """Input channels of a block."""
        return self.config.slice // self.multiplier

    @cached_property
    def slices(self) -> int:
        return -(-self.read.k // self.config.slice)  # whole ones, where limits allow the slice

    @property
    def element_bytes(self) -> int:
        return self.read.x.element.bytes

    @property
    def box_channels(self) -> int:
        """Channels of a pixel in shared memory."""
        return self.x_slice

    @property
    def pitch(self) -> int:
        """Bytes from a pixel to the next."""
        return self.box_channels * self.element_bytes

    @cached_property
    def strips(self) -> int:
        return -(-self.axes[1].output // self.config.strip)

    @cached_property
    def p_tiles(self) -> int:
        return -(-self.axes[0].output // self.config.band)

    @property
    def row_tiles(self) -> int:
        """Tiles of a thread or a warp down a band."""
        return self.config.band // self.config.tile_p

    @property
    def column_tiles(self) -> int:
        return -(-self.config.strip // self.config.tile_q)

    @cached_property
    def tiles(self) -> int:
        return self.row_tiles * self.column_tiles

    @cached_property
    def step(self) -> int:
        """Input rows of a slab: those that a band needs beyond the previous band's."""
        rows = self.axes[0]
        return rows.inputs(self.config.band) if self.p_tiles == 1 else rows.step(self.config.band)

    @cached_property
    def slabs(self) -> int:
        """Slabs that a band reads."""
        return -(-self.axes[0].inputs(self.config.band) // self.step)

    @property
    def loads(self) -> float:
        """Slabs that come for a band, on average: the first of an image's bands has none from the band before."""
        return 1 + (self.slabs - 1) / self.p_tiles

    @cached_property
    def inside(self) -> tuple[int, int]:
        """Rows and columns of x that the strips of an image need; columns that two strips need count twice."""
        rows, columns = self.axes
        loaded = self.step * (self.p_tiles + self.slabs - 1) - rows.pad
        width, step = columns.inputs(self.config.strip), columns.step(self.config.strip)
        starts = [strip * step - columns.pad for strip in range(self.strips)]
        read = sum(max(0, min(start + width, columns.input) - max(start, 0)) for start in starts)
        return max(0, min(loaded, rows.input)), read

    @cached_property
    def outside_bytes(self) -> float:
        """Bytes of a band's new slabs, on average, that TMA fills with zeros or that no output needs."""
        rows, columns = self.inside
        needed = rows * columns / (self.p_tiles * self.strips)
        return (self.step * self.loads * self.width - needed) * self.pitch

    @property
    def least_width(self) -> int:
        """Pixels of a row that the tiles read."""
        return self.axes[1].inputs(self.column_tiles * self.config.tile_q)

    @cached_property
    def width(self) -> int:
        """Pixels per row in shared memory: those that the tiles read, rounded up for alignment."""
        return next(w for w in itertools.count(self.least_width) if w * self.step * self.pitch % ALIGNMENT == 0)

    @property
    def row_bytes(self) -> int:
        return self.width * self.pitch

    @cached_property
    def slab_bytes(self) -> int:
        return self.step * self.row_bytes

    @cached_property
    def vectors(self) -> int:
        """Channel vectors of a block."""
        return self.config.slice // self.config.vector

    @cached_property
    def tiles_at_once(self) -> int:
        """Tiles that a block makes at once."""
        return max(1, min(self.tiles, self.config.threads // (self.vectors * self.tile_lanes)))

    @property
    def idle(self) -> bool:
        """Whether some of the threads that multiply have no tile."""
        return self.tiles_at_once * self.vectors * self.tile_lanes < self.consumer_threads

    @cached_property
    def consumer_threads(self) -> int:
        """Threads that multiply."""
        return -(-self.tiles_at_once * self.vectors * self.tile_lanes // WARP) * WARP

    @property
    def bands(self) -> int:
        """Bands of one slice."""
        return self.read.n * self.strips * self.p_tiles

    @property
    def stage_bytes(self) -> int:
        """Bytes of a slab and its barriers."""
        return self.slab_bytes + 16

    @cached_property
    def fixed_bytes(self) -> int:
        """The alignment of the base, results and filters."""
        return self.alignment + 2 * self.staged_bytes + self.filter_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of all slabs.  Once all slabs have been read, the sums of a block's results overlay them."""
        return max(self.config.stages * self.slab_bytes, self.sums_bytes)

    @property
    def sums_need_more(self) -> bool:
        """Whether sums take more room than the slabs."""
        return self.sums_bytes > self.config.stages * self.slab_bytes

    @property
    def shared_bytes(self) -> int:
        return self.fixed_bytes + self.config.stages * (self.stage_bytes - self.slab_bytes) + self.ring_bytes

    @property
    def workers(self) -> int:
        """Blocks of a slice, each with a run of the bands."""
        return workers(self.target, self.config.blocks, self.bands, self.slices)

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the sums of channels; each thread adds up its own results."""
        return tuple(t.name for t in self.read.sums)

    @cached_property
    def operand_registers(self) -> int:
        """Registers for per-channel operands beyond the usual ones: a thread keeps their values and intermediate
        results."""
        more = len(channel_operands(self.read)) - USUAL_OPERANDS
        return (more + COMPUTED) * self.config.vector if more > 0 else 0

    @property
    def tile_pixels(self) -> int:
        """Results of a thread's tile, each of a vector of channels."""
        return self.config.tile_p * self.config.tile_q

    @cached_property
    def early_registers(self) -> int:
        """For what the epilogues of a tile read, if it is loaded before the taps are added up: vectors of words, and
        their addresses."""
        of_pixel = (t.element.bytes * self.config.vector // WORD for t in self.vector_operands)
        return self.tile_pixels * sum(of_pixel) + ADDRESSES * len(self.vector_operands)

    @cached_property
    def vector_operands(self) -> list[Tensor]:
        """Those as large as the result, of which a thread loads a vector for each pixel."""
        y = self.read.y
        alike = (t for t in self.read.operands if t.dims[-1:] == y.dims[-1:] and t.size == y.size)
        return [t for t in alike if t.element.bytes * self.config.vector >= WORD]

    @cached_property
    def early(self) -> bool:
        """Whether that is loaded so early: threads have the registers for it."""
        return self.early_registers > 0 and self.fits_registers(self.config.blocks)

    def fits_registers(self, blocks: int, may_spill: bool = False) -> bool:
        """Whether threads have the registers that they need with so many blocks per multiprocessor; `may_spill` ignores
        those for operands, some of which are then loaded late."""
        threads = self.consumer_threads + PRODUCER
        needed = self.registers + (0 if may_spill else self.operand_registers + self.early_registers)
        return threads <= MAX_THREADS and needed <= launch_registers(self.target, threads, blocks)

    @property
    def partial_bytes(self) -> dict[str, int]:
        """Bytes of each sum's rows, one row per block, by the sum's name."""
        return {t.name: self.workers * t.bytes for t in self.read.sums}

    @property
    def sums_bytes(self) -> int:
        """A block's sums of the tiles that it makes at once, in whole units of the alignment."""
        size = len(self.sums) * self.tiles_at_once * self.config.slice * SUM
        return -(-size // self.alignment) * self.alignment

    @property
    def part_sectors(self) -> bool:
        """Whether sectors of y are written in parts, which cost as much as several."""
        return self.slices > 1 and self.config.slice * self.read.y.element.bytes % SECTOR > 0

    @cached_property
    def registers(self) -> int:
        """Registers per thread, from experience."""
        raise NotImplementedError

    @cached_property
    def instructions(self) -> float:
        """A warp's instructions per tile: products, conversions, loads and stores."""
        raise NotImplementedError

    @cached_property
    def lines(self) -> float:
        """Lines of 128 bytes that a warp reads from shared memory per tile, unless `instructions` includes them."""
        return 0.0
