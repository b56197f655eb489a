"""The cost model of the kernels that keep lines of x in shared memory (`lines`): microseconds of a configuration.

Each term is a resource: the tensor cores, shared memory, the latency of a worker's chain, the copies, device
memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py; those of writes: fit_jointly.py).
Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from convgen.kernels.parts.cost import CYCLES, LESS, over, turns, written
from convgen.kernels.parts.limits import MAX_THREADS

QUADS, QUAD = 8, 4
#: Cycles until elements of device memory have arrived that threads ask for together, and are stored; and of each such
#: element.
WAIT, ALONE = 450, 0.25


@cache  # configurations of a search have few steps among them
def conflicts(pixel_words: float) -> int:
    """Words that a bank has to give for one load of a warp, of four words at each of eight pixels."""
    return turns(int(pixel * pixel_words) + part for pixel in range(QUADS) for part in range(QUAD))


@dataclass(frozen=True)
class LineRates:
    """Rates of a kernel that keeps lines in shared memory.  A worker is a warp, or a warpgroup; a part is what it
    multiplies at once."""

    products: float  # of the tensor cores' time
    reads: float  # of shared memory's time
    stores: float  # of the time to store a part at 128 bytes a cycle
    step: float  # cycles of a worker's chain: a k step of 16 (mma.sync) or 64 pixels,
    channel: float  # an output channel,
    part: float  # a part
    tile: float  # cycles between tiles
    latency: float  # cycles of a halo tile's copy, bytes of it a cycle, and cycles of each of its copies
    copy: float
    each: float
    filters: float  # cycles that a thread takes for a byte of filters
    start: float  # microseconds of a launch
    memory: float  # bytes a microsecond
    sharing: float  # of the memory's time, for each block of a multiprocessor after the first
    ragged_writes: float  # more bytes of y, where blocks share its sectors,
    odd_writes: float  # where pixels are no vectors of 4 bytes,
    word_writes: float  # and where they are, but none of 8


MMA_LINES = LineRates(1.9, 1.55, 3.85, 38.0, 0.87, 39.9, 603, 109, 17.5, 0.169, 22.9, 1.2, 4.2e6, 0.0, 4.01, 7.81, 3.26)
WGMMA_LINES = LineRates(
    1.53, 1.27, 0.0, 45.0, 6.31, 0.0, 892, 1453, 51.3, 0.029, 48.9, 2.08, 3.79e6, 0.045, 1.83, 8.02, 3.53
)


def lines_time(
    *, products: float, shared: float, stores: float, steps: float, channels: int, parts: int, workers: int,
    threads: int, tiles: int, blocks: int, stages: int, halo_tile: int, copies: int, waits: int, alone: int,
    filters: int, reads: int, writes: int, y_pitch: int, in_parts: bool, sms: int, rates: LineRates,
    functions: float = 0.0,
) -> float:  # fmt: skip
    """Microseconds of `tiles` of `parts` parts, each of `products` cycles of the tensor cores, `shared` and `stores`
    of shared memory, and `steps` steps of a worker's chain; `halo_tile` and `filters` are bytes of a block,
    which takes `copies`, or `alone` elements that threads copy themselves, for which they wait `waits` times;
    `reads` and `writes` bytes of device memory, and pixels of y lie `y_pitch` bytes apart,
    which blocks store whole or `in_parts`.  The epilogue's functions take `functions` cycles for a tile."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    busy = max(products * r.products, shared * r.reads + stores * r.stores)
    chain = r.part + r.step * steps + r.channel * channels
    part = max(resident * workers * busy, chain + busy)
    tile = math.ceil(parts / workers) * part + r.tile
    copy = r.latency + (halo_tile / r.copy + copies * r.each) * resident
    tile = max(tile, copy) if stages > 1 else tile + copy / math.sqrt(resident)
    tile += waits * WAIT + alone * ALONE + functions * resident
    rounds = math.ceil(tiles / (sms * blocks))
    time = (rounds * tile + copy + r.filters * filters / threads) / CYCLES + r.start
    bytes = reads + written(writes, y_pitch, r.ragged_writes, r.odd_writes, in_parts, words=r.word_writes)
    return over(time, bytes / r.memory * (1 + r.sharing * (resident - 1)) + r.start)


def least(*, products: float, parts: float, filters: int, reads: int, writes: int, sms: int, rates: LineRates) -> float:
    """A lower bound in microseconds for all tiles of so many channels whose `parts` each take `products` cycles of the
    tensor cores.  The rest as for `lines_time`."""
    r = rates
    cycles = parts / sms * products * r.products + r.latency + r.filters * filters / MAX_THREADS
    return over(cycles / CYCLES + r.start, (reads + writes) / r.memory + r.start) * LESS
