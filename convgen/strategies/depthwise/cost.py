"""Cost models of depthwise's kernels: microseconds from a configuration, before anything is compiled.

The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py; benchmarks/NOTES.md says how far the
choice by them is from the best that was measured).  Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.strategies.cost import CYCLES, over

SCHEDULERS = 4  # of a multiprocessor


@dataclass(frozen=True)
class PatchesRates:
    """Of patches, whose threads read device memory themselves."""

    start: float = 2.06  # microseconds of a launch
    issue: float = 2.06  # cycles of a scheduler an instruction
    shared: float = 1.28  # cycles for 128 bytes through shared memory or L1
    filter: float = 244.0  # cycles for each filter element that a thread brings, one after the other
    memory: float = 3.39e6  # bytes a microsecond


@dataclass(frozen=True)
class StreamRates:
    """Of stream, where TMA reads device memory."""

    start: float = 1.2
    latency: float = 1020.0  # cycles from asking for a chunk to its arrival
    issue: float = 1.19  # cycles of a scheduler an instruction
    alone: float = 1.95  # cycles of a warp an instruction, where it waits for its own results
    band: float = 149.0  # cycles of waiting and signalling, a band
    filter: float = 2.1  # cycles an element that a thread brings
    sm_bytes: float = 46.5  # a cycle, that one multiprocessor can take
    pixel: float = 1.55  # cycles of the TMA unit for a pixel's channels, few as they may be
    part: float = 1.26  # of the memory's time, where sectors are written in parts
    reads: float = 4.04e6  # bytes a microsecond
    writes: float = 3.29e6


PATCHES = PatchesRates()
STREAM_FMA = StreamRates()
#: mma's results go the way of its inputs, and its instructions wait for one another.
STREAM_MMA = StreamRates(issue=1.65, alone=3.0, band=338.0, sm_bytes=19.4)


def patches_time(
    *, instructions: float, lines: float, warps: float, blocks: int, tiles: int, filters: float, bytes: int, sms: int,
    rates: PatchesRates,
) -> float:  # fmt: skip
    """Microseconds of `tiles`, one for each block at a time, whose `warps` take `instructions` each and `lines` of
    128 bytes through shared memory and L1; a multiprocessor has `blocks`, and a thread brings `filters` elements."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    rounds = math.ceil(tiles / (sms * resident))
    tile = resident * warps * max(instructions * r.issue / SCHEDULERS, lines * r.shared)
    cycles = rounds * tile + filters * r.filter
    return over(cycles / CYCLES, bytes / r.memory) + r.start


def stream_time(
    *, bands: int, blocks: int, rounds: int, warps: int, instructions: float, chunk_bytes: int, pixels: int,
    chunks: int, ahead: int, filter_loads: int, reads: int, writes: int, part_sectors: bool, rates: StreamRates,
) -> float:  # fmt: skip
    """Microseconds of a kernel whose blocks, `blocks` on a multiprocessor, make `bands` each:
    `rounds` tiles of `instructions` by each of `warps`; `chunks` of `chunk_bytes` at first and one a band, `ahead`
    of them in flight beyond what a band reads."""
    r = rates
    alone = rounds * instructions * r.alone + r.band
    busy = rounds * instructions * warps * blocks / SCHEDULERS * r.issue
    work = max(alone, busy)
    load = max(chunk_bytes / r.sm_bytes, pixels * r.pixel) * blocks
    # with none ahead, the next chunk waits for this band
    each = max(work, load, (r.latency + load) / (ahead + 1)) if ahead else work + load + r.latency
    fill = r.latency + chunks * load + filter_loads * r.filter
    cycles = fill + (bands - 1) * each + work
    memory = (reads / r.reads + writes / r.writes) * (r.part if part_sectors else 1.0)
    return over(cycles / CYCLES + r.start, memory + r.start)
