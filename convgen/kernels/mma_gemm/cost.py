"""The cost model of mma_gemm: microseconds from a configuration, before anything is compiled.

Each term is a resource: the tensor cores, shared memory, the latency of a step, the copies, L2, device memory.
The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py, then fit_jointly.py).  Cycles are a
multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.cost import CYCLES, LESS, LINE, SCHEDULERS, over

#: Times longer that a dgrad is taken to be than the forward convolution of the same product, for each of its phases.  A
#: margin, not measured: where another kernel, whose dgrad has been, is expected to be about as fast, that one is taken.
GRADIENT = 1.1
INSTRUCTION = 6.4  # cycles of a scheduler's tensor core for 16 x 8 x 16


@dataclass(frozen=True)
class Rates:
    """Fitted figures on one GPU."""

    products: float = 0.747  # of a scheduler's share of the tensor cores' time
    shared: float = 1.314  # of the time that shared memory takes at 128 bytes a cycle
    step: float = 8.479  # cycles of waiting and signalling, which other blocks of a multiprocessor hide,
    latency: float = 183.7  # and of a step's copies, shared out over the stages that wait for them
    copy: float = 0.01408  # cycles of a copy to shared memory,
    line: float = 0.184  # of a line of L1, for each time that more of them are under way than it holds,
    gathered: float = 380.0  # and of a step whose elements go through registers, which other blocks also hide
    result: float = 27.53  # cycles for each result of a thread,
    store: float = 89.5  # and for each of its stores
    l2: float = 12e6  # bytes a microsecond
    ragged: float = 1.461  # times longer where pixels begin inside a sector of L2, for x and for y
    memory: float = 4.01e6
    odd_writes: float = 7.1  # more bytes of y, where its pixels are no vectors of 4 bytes,
    word_writes: float = 1.6  # and where they are, but none of 8
    start: float = 0.739  # microseconds of a launch,
    spread: float = 1.876  # and more, as blocks are launched on all multiprocessors
    reduce: float = 1.0  # of a reduction, and bytes of it a microsecond
    reduced: float = 3.6e6


H200 = Rates()
#: The first steps of a tile, whose short copies other tiles hide.
FIRST = 1.5
#: Bytes of L1 that shared memory leaves at least: both are parts of one memory of a multiprocessor (NVIDIA, "CUDA C++
#: Programming Guide", compute capability 8.0, 8.9 and 9.0).
LEAST_L1 = 28 * 1024


def evicted(under_way: float, shared: float, shared_per_sm: int) -> float:
    """How many times L1's room beside so much shared memory the lines in flight exceed it by; 0 if they fit."""
    return max(under_way / (LEAST_L1 + max(shared_per_sm - shared, 0)) - 1, 0)


def gemm_time(
    *, instructions: float, shared_reads: float, shared_writes: float, copies: float, alone: float, pieces: float,
    lines: float, gathered: float, warps: int, steps: int, stages: int, shared_bytes: int, held: int, results: float,
    stores: float, tiles: int, traffic: float, ragged: int, reduced: int, bytes: float, sms: int, shared_per_sm: int,
    rates: Rates, functions: float = 0.0,
) -> float:  # fmt: skip
    """Microseconds of `tiles` of `steps` steps.  A step takes a warp `instructions` of the tensor cores, and a block
    `shared_reads` and `shared_writes` cycles of shared memory, `copies` to it, `alone` cycles for elements that are
    loaded one by one, and, but for a tile's `FIRST` steps, `pieces` cycles for copies of less than a chunk, which touch
    so many `lines` of L1, and of which some may be `gathered` through registers; `traffic` is its bytes from L2;
    `ragged` says of how many of x and y the pixels begin inside a sector.  A multiprocessor holds `held` blocks of so
    many `shared_bytes`.  `results` and `stores` are a thread's, `reduced` the bytes that a reduction adds up, and
    `functions` the cycles that those of the epilogue take for a tile."""
    r, under_way = rates, lines * LINE * min(stages - 1, steps)

    def wave(blocks: int) -> float:
        tensor = math.ceil(blocks * warps / SCHEDULERS) * instructions * INSTRUCTION * r.products
        shared = blocks * (shared_reads + shared_writes) * r.shared
        wait = (r.step + r.latency / max(stages - 1, 1)) / blocks
        step = over(tensor, shared) + blocks * (copies * r.copy + alone) + wait
        again = lines * r.line * evicted(blocks * under_way, held * shared_bytes, shared_per_sm)
        further = max(steps - FIRST, 0) * (blocks * (pieces + again) + gathered * r.gathered / blocks)
        return steps * step + further + r.result * results + r.store * stores + blocks * functions

    full, rest = divmod(tiles, sms * held)
    last = math.ceil(rest / sms)
    # blocks end at different times: after full waves, the last ones run beside blocks of the previous wave
    cycles = wave(held) * (full + last / held) if full else wave(last)
    time = over(over(cycles / CYCLES, bytes / r.memory), tiles * steps * traffic / r.l2)
    time = time * r.ragged**ragged + r.start + r.spread * min(tiles / sms, 1)
    return time + (r.reduce + reduced / r.reduced if reduced else 0.0)


def least(
    *, instructions: float, shared: float, copies: float, alone: float, pieces: float, warps: int, steps: float,
    splits: int, held: int, results: float, stores: float, tiles: int, traffic: float, ragged: int, bytes: float,
    sms: int, rates: Rates,
) -> float:  # fmt: skip
    """Microseconds that no such tile goes below, whatever its stages, with gemm_k in up to `splits` parts and up to
    `held` blocks a multiprocessor, which multiplies for one after the other.  `ragged` is of x alone.  The rest as for
    `gemm_time`."""
    r = rates
    tensor = warps / SCHEDULERS * instructions * INSTRUCTION * r.products
    block = steps * (max(tensor, shared * r.shared) + copies * r.copy + alone)
    block += max(steps - splits * FIRST, 0) * pieces
    storing = max(tiles / (sms * held), 1) * (r.result * results + r.store * stores)
    cycles = max(tiles / sms, 1 / splits) * block + storing
    time = over(over(cycles / CYCLES, bytes / r.memory), tiles * steps * traffic / r.l2)
    return (time * r.ragged**ragged + r.start + r.spread * min(tiles / sms, 1)) * LESS
