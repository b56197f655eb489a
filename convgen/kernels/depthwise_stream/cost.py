"""The cost model of depthwise_stream: microseconds from a configuration, before anything is compiled.

The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py; docs/decisions/cost_models.md says how far
the choice by them is from the best that was measured).  Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.cost import CYCLES, SCHEDULERS, over


@dataclass(frozen=True)
class Rates:
    """Fitted figures on one GPU.  TMA reads device memory.  In a sequence of launches, the next one's blocks may wait
    beside those that run."""

    start: float = 0.83
    beside: float = 0.13  # microseconds saved if all blocks of the next launch fit beside these
    latency: float = 845.0  # cycles from asking for a slab to its arrival
    issue: float = 0.765  # cycles of a scheduler an instruction
    alone: float = 1.55  # cycles per instruction of a warp that waits for its own results
    shared: float = 1.64  # cycles for 128 bytes from shared memory
    slab: float = 229.0  # cycles of waiting and signalling, for each slab that a band reads
    filter: float = 60.0  # cycles per element that a thread loads
    sm_bytes: float = 60.0  # a cycle, that one multiprocessor can take
    pixel: float = 2.41  # cycles of the TMA unit for a pixel's channels, few as they may be
    outside: float = 0.0405  # cycles that the TMA unit takes to fill a byte outside x: 1/16 or so, hidden by nothing
    half: float = 0.59  # of the time of the bytes that make the pieces of slices up to half lines, of 64 bytes
    again: float = 0.44  # of the time of the bytes that are read again, for L2 has most of them
    sharing: float = 0.035  # of the memory's time, for each block of a multiprocessor after the first, where none wait
    part: float = 1.26  # of the memory's time, where sectors are written in parts
    reads: float = 4.16e6  # bytes a microsecond
    writes: float = 3.81e6


H200_FMA = Rates()
#: mma's results go the way of its inputs, and its instructions wait for one another.
H200_MMA = Rates(
    start=1.01, beside=0.014, latency=842.0, issue=0.827, alone=1.05, shared=0.0, slab=291.0, filter=8.19,
    sm_bytes=42.6, pixel=1.11, outside=0.009, half=1.68, again=1.14, reads=3.38e6, writes=4.5e6,
)  # fmt: skip


def stream_time(
    *, bands: int, resident: int, held: int, rounds: int, warps: int, instructions: float, lines: float,
    slab_bytes: int, pixels: int, outside: float, slabs: int, loads: float, ahead: int, filter_loads: int,
    reads: int, writes: int, again: float, half_lines: float, part_sectors: bool, rates: Rates,
) -> float:  # fmt: skip
    """Microseconds of a kernel whose blocks, `resident` on a multiprocessor that could hold `held`, make `bands` each:
    `rounds` tiles of `instructions` by each of `warps`, which read `lines` of 128 bytes from shared memory.  A band
    reads `slabs` of `slab_bytes`, `outside` of its bytes outside x, and on average `loads` of them are new; `ahead`
    more are in flight.  `again` is the share of x that is read again, `half_lines` how many bytes the half lines have
    that a byte of a slice touches."""
    r = rates
    waiting = held >= 2 * resident  # all blocks of the next launch, for these to end
    # where some of them wait and others do not, those that come last lie thick on the multiprocessors that end first
    blocks = resident if waiting else max(resident, held)
    tile = over(rounds * instructions * math.ceil(warps / SCHEDULERS) * r.issue, rounds * warps * lines * r.shared)
    alone = over(rounds * instructions * r.alone, tile) + r.slab * slabs
    work = over(alone, blocks * tile)
    load = max(slab_bytes / r.sm_bytes, pixels * r.pixel) * blocks
    # with none ahead, the next slab waits for this band; fewer than none is what the limits refuse, and has a time too
    each = (
        max(over(work, load * loads), (r.latency + load) / (ahead + 1))
        if ahead > 0
        else work + load * loads + r.latency
    )
    each += outside * r.outside * blocks
    of_memory = CYCLES * (1 + (half_lines - 1) * r.half) * (r.part if part_sectors else 1.0) * blocks / resident
    if not waiting:
        of_memory *= 1 + (resident - 1) * r.sharing
    reading = of_memory * reads * (1 + again * r.again) / r.reads
    writing = of_memory * writes / r.writes
    # nothing hides the first band's reading, nor the last one's work and writing
    first = reading * min(1.0, slabs / (slabs + bands - 1))
    last = writing / bands
    fill = r.latency + max(first, slabs * load, filter_loads * r.filter)
    between = over((bands - 1) * each, reading - first + writing - last)
    return (fill + between + work + last) / CYCLES + r.start - (r.beside if waiting else 0.0)
