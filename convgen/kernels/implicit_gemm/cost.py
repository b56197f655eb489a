"""Cost models of the kernels: microseconds from a configuration, before anything is compiled.

Each term is a resource: the tensor cores, shared memory, the latency of a worker's chain, the copies, device
memory.  The rates are fitted to measurements on an H200 (benchmarks/NOTES.md says how far the choice by them is
from the best that was measured).  Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.cost import CYCLES, over

BANKS, QUADS, QUAD = 32, 8, 4
SCHEDULERS = 4  # of a multiprocessor
INSTRUCTION = 6.4  # cycles of a scheduler's tensor core for 16 x 8 x 16


def conflicts(pixel_words: float) -> int:
    """Words that a bank has to give for one load of a warp, of four words at each of eight pixels."""
    words: dict[int, set[int]] = {}
    for pixel in range(QUADS):
        for part in range(QUAD):
            word = int(pixel * pixel_words) + part
            words.setdefault(word % BANKS, set()).add(word)
    return max(map(len, words.values()))


@dataclass(frozen=True)
class LineRates:
    """Of a kernel that keeps lines in shared memory.  A worker is a warp, or a warpgroup; a part is what it
    multiplies at once."""

    products: float  # of the tensor cores' time
    reads: float  # of shared memory's time
    stores: float  # of the time to store a part at 128 bytes a cycle
    step: float  # cycles of a worker's chain: a k step of 16 (mma.sync) or 64 pixels,
    channel: float  # an output channel,
    part: float  # a part
    tile: float  # cycles between tiles
    latency: float  # cycles of a patch's copy, and bytes of it a cycle
    copy: float
    filters: float  # cycles that a thread takes for a byte of filters
    start: float  # microseconds of a launch
    memory: float  # bytes a microsecond
    sharing: float  # of the memory's time, for each block of a multiprocessor after the first


MMA_LINES = LineRates(1.9, 1.55, 3.85, 38.0, 0.87, 39.9, 603, 109, 17.5, 22.9, 1.2, 4.2e6, 0.0)
WGMMA_LINES = LineRates(1.53, 1.27, 0.0, 45.0, 6.31, 0.0, 892, 1453, 51.3, 48.9, 2.08, 3.79e6, 0.045)


def lines_time(
    *, products: float, reads: float, stores: float, steps: float, channels: int, parts: int, workers: int,
    threads: int, tiles: int, blocks: int, stages: int, patch: int, filters: int, bytes: int, sms: int,
    rates: LineRates,
) -> float:  # fmt: skip
    """Microseconds of `tiles` of `parts` parts, each of `products` cycles of the tensor cores, `reads` and `stores`
    of shared memory, and `steps` steps of a worker's chain; `patch` and `filters` are bytes of a block."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    shared = max(products * r.products, reads * r.reads + stores * r.stores)
    chain = r.part + r.step * steps + r.channel * channels
    part = max(resident * workers * shared, chain + shared)
    tile = math.ceil(parts / workers) * part + r.tile
    copy = r.latency + patch / r.copy * resident
    tile = max(tile, copy) if stages > 1 else tile + copy / math.sqrt(resident)
    rounds = math.ceil(tiles / (sms * blocks))
    time = (rounds * tile + copy + r.filters * filters / threads) / CYCLES + r.start
    return over(time, bytes / r.memory * (1 + r.sharing * (resident - 1)) + r.start)


@dataclass(frozen=True)
class GatherRates:
    """Of the kernel that gathers tiles."""

    products: float = 0.895  # of a scheduler's share of the tensor cores' time
    shared: float = 0.825  # of the time that shared memory takes at 128 bytes a cycle
    step: float = 8.3  # cycles of waiting and signalling, which other blocks of a multiprocessor hide,
    latency: float = 183.0  # and of a step's copies, shared out over the stages that wait for them
    copy: float = 0.011  # cycles of a copy to shared memory
    result: float = 33.2  # cycles for each result of a thread,
    store: float = 182.3  # and for each of its stores
    l2: float = 12e6  # bytes a microsecond
    ragged: float = 1.55  # times longer where pixels begin inside a sector of L2, for x and for y
    memory: float = 3e6
    start: float = 1.57  # microseconds of a launch
    reduce: float = 0.61  # of a reduction, and bytes of it a microsecond
    reduced: float = 3.6e6


GATHER = GatherRates()


def gather_time(
    *, instructions: float, reads: float, writes: float, copies: float, alone: float, warps: int, steps: int,
    stages: int, held: int, results: float, stores: float, tiles: int, traffic: float, ragged: int, reduced: int,
    bytes: int, sms: int, rates: GatherRates,
) -> float:  # fmt: skip
    """Microseconds of `tiles` of `steps` steps.  A step takes a warp `instructions` of the tensor cores, and a block
    `reads` and `writes` cycles of shared memory, `copies` to it, and `alone` cycles for elements that are loaded
    one by one; `traffic` is its bytes from L2; `ragged` says of how many of x and y the
    pixels begin inside a sector.  A multiprocessor holds `held` blocks.  `results` and `stores` are
    a thread's, `reduced` the bytes that a reduction adds up."""
    r = rates

    def wave(blocks: int) -> float:
        tensor = math.ceil(blocks * warps / SCHEDULERS) * instructions * INSTRUCTION * r.products
        shared = blocks * (reads + writes) * r.shared
        wait = (r.step + r.latency / max(stages - 1, 1)) / blocks
        step = over(tensor, shared) + blocks * (copies * r.copy + alone) + wait
        return steps * step + r.result * results + r.store * stores

    full, rest = divmod(tiles, sms * held)
    last = math.ceil(rest / sms)
    # blocks end at different times: behind full waves, the last ones run beside blocks of the wave before
    cycles = wave(held) * (full + last / held) if full else wave(last)
    time = over(over(cycles / CYCLES, bytes / r.memory), tiles * steps * traffic / r.l2)
    time = time * r.ragged**ragged + r.start
    return time + (r.reduce + reduced / r.reduced if reduced else 0.0)


@dataclass(frozen=True)
class GroupedRates:
    """Of the kernel of small groups."""

    start: float = 1.6  # microseconds of a launch
    step: float = 8.7  # cycles of a warp's step: 16 pixels by the channels of a k slice,
    alone: float = 69.0  # and where it waits for its own results
    latency: float = 2160.0  # cycles of a patch's copy, and bytes of it a cycle
    copy: float = 17.3
    filters: float = 17.3  # bytes a cycle, of the filters that every warp holds
    memory: float = 3.5e6  # bytes a microsecond


GROUPED = GroupedRates()


def grouped_time(
    *, steps: int, warps: int, tiles: int, blocks: int, stages: int, patch: int, filters: int, bytes: int, sms: int,
    rates: GroupedRates,
) -> float:  # fmt: skip
    """Microseconds of `tiles` whose `warps` take `steps` each; `patch` and `filters` are bytes of a block."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    work = max(resident * warps * steps * r.step, steps * r.alone)
    copy = r.latency + resident * patch / r.copy
    each = max(work, copy) if stages * resident > 1 else work + copy
    rounds = math.ceil(tiles / (sms * resident))
    cycles = resident * filters / r.filters + copy + work + (rounds - 1) * each
    return over(cycles / CYCLES, bytes / r.memory) + r.start
