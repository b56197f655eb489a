"""The cost model of depthwise_direct: microseconds from a configuration, before anything is compiled.

The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py; docs/decisions/cost_models.md says how far
the choice by them is from the best that was measured).  Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.cost import CYCLES, SCHEDULERS, over


@dataclass(frozen=True)
class Rates:
    """Fitted figures on one GPU.  Threads read device memory themselves."""

    start: float = 2.49  # microseconds of a launch
    issue: float = 1.8  # cycles of a scheduler an instruction
    alone: float = 3.29  # cycles per instruction of a warp that waits for its own results
    row: float = 204.0  # cycles of waiting for an input row that a thread's tile reads
    shared: float = 1.37  # cycles for 128 bytes through shared memory or L1
    filter: float = 141.0  # cycles for each filter element that a thread loads, one after the other
    memory: float = 3.76e6  # bytes a microsecond


H200 = Rates()


def direct_time(
    *, instructions: float, rows: int, lines: float, warps: float, blocks: int, tiles: int, filters: float, bytes: int,
    sms: int, rates: Rates,
) -> float:  # fmt: skip
    """Microseconds for `tiles`, one per block at a time, whose `warps` issue `instructions` each for `rows` of x, and
    move `lines` of 128 bytes through shared memory and L1; a multiprocessor holds `blocks`, and a thread loads
    `filters` elements."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    rounds = math.ceil(tiles / (sms * resident))
    busy = resident * warps * max(instructions * r.issue / SCHEDULERS, lines * r.shared)
    tile = over(busy, instructions * r.alone + rows * r.row)
    cycles = rounds * tile + filters * r.filter
    return over(cycles / CYCLES, bytes / r.memory) + r.start
