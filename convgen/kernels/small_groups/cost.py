"""The cost model of small_groups: microseconds from a configuration, before anything is compiled.

The rates are fitted to measurements on an H200 (benchmarks/fit_kernels.py).  Cycles are a multiprocessor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.cost import CYCLES, over


@dataclass(frozen=True)
class Rates:
    """Fitted figures on one GPU."""

    start: float = 1.6  # microseconds of a launch
    step: float = 8.7  # cycles of a warp's step: 16 pixels by the channels of a k slice,
    alone: float = 69.0  # and where it waits for its own results
    latency: float = 2160.0  # cycles of a halo tile's copy, and bytes of it a cycle
    copy: float = 17.3
    filters: float = 17.3  # bytes a cycle, of the filters that every warp holds
    memory: float = 3.5e6  # bytes a microsecond


H200 = Rates()


def groups_time(
    *, steps: int, warps: int, tiles: int, blocks: int, stages: int, halo_tile: int, filters: int, bytes: int, sms: int,
    rates: Rates,
) -> float:  # fmt: skip
    """Microseconds of `tiles` whose `warps` take `steps` each; `halo_tile` and `filters` are bytes of a block."""
    r = rates
    resident = min(blocks, math.ceil(tiles / sms))
    work = max(resident * warps * steps * r.step, steps * r.alone)
    copy = r.latency + resident * halo_tile / r.copy
    each = max(work, copy) if stages * resident > 1 else work + copy
    rounds = math.ceil(tiles / (sms * resident))
    cycles = resident * filters / r.filters + copy + work + (rounds - 1) * each
    return over(cycles / CYCLES, bytes / r.memory) + r.start
