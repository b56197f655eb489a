"""The cost model of depthwise_wgrad: microseconds from a configuration, before anything is compiled.

Threads issue instructions, or wait for the rows that are under way, of which device memory needs enough.  Waves of
strips and the sums of a block's threads come on top.  The rates are guesses from the depthwise kernels'
(depthwise_direct/cost.py).  On an H200 they are within 14% of the times of seven of MobileNetV2's layers at batch 64,
and expect 63% of the time of an eighth (benchmarks/results/depthwise_gradients_h200.json).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, lines, over

SCHEDULERS = 4  # of a multiprocessor
WARP = 32
HALF_LINE = 64  # bytes that L2 takes from device memory at once


@dataclass(frozen=True)
class Rates:
    """Figures on one GPU.  Cycles are a multiprocessor's, times are in microseconds."""

    start: float = 2.6  # of a launch
    issue: float = 1.4  # cycles of a scheduler an instruction
    alone: float = 3.0  # cycles of a warp an instruction, where it waits for its own results
    latency: float = 750.0  # cycles from asking for rows to having them
    strip: float = 80.0  # instructions that place a strip
    row: float = 25.0  # instructions around a row's
    join: float = 0.6  # a block's threads meet, or a cluster's blocks
    joined: float = 30.0  # cycles of a thread's sum that others add to
    sum: float = 1.45  # the second kernel
    sums: float = 8.0e6  # bytes of sums a microsecond, written and read
    memory: float = 3.9e6  # bytes a microsecond


H200 = Rates()


def time(layout: Layout, rates: Rates = H200) -> float:
    """Microseconds of a layout's launches."""
    r, c, target = rates, layout.config, layout.target
    blocks = layout.channel_slices * layout.shares
    resident = min(c.blocks, math.ceil(blocks / target.sms))
    waves = math.ceil(blocks / layout.slots)
    strips = math.ceil(layout.strips / (layout.shares * layout.lanes))
    steps = min(c.band, layout.walks[1].outputs) + layout.held - 1
    loads = layout.rows * layout.read_columns + c.tile_q
    numbers = layout.rows * layout.read_columns * layout.inputs + c.tile_q * c.vector
    products = layout.thread_taps * c.tile_q * c.vector
    instructions = products + numbers + 2 * loads + r.row
    if layout.walks[2].ragged(c.tile_q):
        instructions += c.tile_r * c.tile_q  # each output is asked whether it is there
    warps = resident * math.ceil(layout.threads / WARP)
    step = max(instructions * max(warps * r.issue / SCHEDULERS, r.alone), r.latency / max(c.stages - 1, 1))
    work = waves * (strips * (steps * step + warps * r.strip * r.issue / SCHEDULERS) / CYCLES)
    # a thread's sums; as many are added up by it, over the lanes
    work += waves * (r.join * (1 + (c.split_k > 1)) + layout.thread_taps * c.vector * r.joined / CYCLES)
    in_flight = resident * layout.threads * layout.in_flight * target.sms
    memory = min(r.memory, in_flight / r.latency * CYCLES)
    us = over(work, _bytes(layout) / memory) + r.start
    if not layout.stores_w:
        us += r.sum + layout.problem.w.size * 4 * (c.slices + 1) * 2 / r.sums
    return us


def _bytes(layout: Layout) -> float:
    """That device memory reads: x and y once, in halves of lines."""
    problem, part = layout.problem, layout.config.slice * layout.problem.x.element.bytes
    halves = lines(part, part, HALF_LINE) * HALF_LINE / part if layout.channel_slices > 1 else 1
    return (problem.x.bytes + problem.y.bytes) * halves
