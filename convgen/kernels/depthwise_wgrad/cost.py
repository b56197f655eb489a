"""The cost model of depthwise_wgrad: microseconds from a configuration, before anything is compiled.

Threads issue instructions, or wait for the rows that are under way, of which device memory needs enough.  Waves of
strips and the sums of a block's threads come on top.  The rates are fitted to 1,094 configurations of MobileNetV2's and
ConvNeXt's layers at batch 8 and 64 on an H200 (benchmarks/results/depthwise_wgrad_sweep_h200.json): half of the
estimates are within 7%, and what they choose is 2.6% behind the best that was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, LINE, lines, over

SCHEDULERS = 4  # of a multiprocessor
WARP = 32
HALF_LINE = 64  # bytes that L2 takes from device memory at once


@dataclass(frozen=True)
class Rates:
    """Figures on one GPU.  Cycles are a multiprocessor's, times are in microseconds."""

    start: float = 1.2  # of a launch
    issue: float = 1.154  # cycles of a scheduler an instruction
    alone: float = 2.11  # cycles of a warp an instruction, where it waits for its own results
    latency: float = 953.0  # cycles from asking for rows to having them
    strip: float = 66.9  # instructions that place a strip
    row: float = 14.7  # instructions around a row's
    load: float = 8.13  # instructions of a load, to shared memory and from there
    join: float = 0.414  # a block's threads meet, or a cluster's blocks
    joined: float = 33.7  # cycles of a thread's sum that others add to
    sum: float = 1.76  # the second kernel
    sums: float = 4.42e6  # bytes of sums a microsecond, written and read
    memory: float = 3.4e6  # bytes a microsecond
    narrow: float = 1.57  # more bytes, where blocks of other channels read the rest of a line


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
    instructions = products + numbers + r.load * loads + r.row
    if layout.walks[2].ragged(c.tile_q):
        instructions += c.tile_r * c.tile_q  # each output is asked whether it is there
    warps = resident * math.ceil(layout.threads / WARP)
    step = max(instructions * max(warps * r.issue / SCHEDULERS, r.alone), r.latency / max(c.stages - 1, 1))
    work = waves * (strips * (steps * step + warps * r.strip * r.issue / SCHEDULERS) / CYCLES)
    # a thread's sums; as many are added up by it, over the lanes
    work += waves * (r.join * (1 + (c.split_k > 1)) + layout.thread_taps * c.vector * r.joined / CYCLES)
    in_flight = resident * layout.threads * layout.in_flight * target.sms
    memory = min(r.memory, in_flight / r.latency * CYCLES)
    apart = layout.channel_slices > 1 and c.slice * layout.problem.x.element.bytes < LINE
    us = over(work, _bytes(layout) * (r.narrow if apart else 1.0) / memory) + r.start
    if not layout.stores_w:
        us += r.sum + layout.problem.w.size * 4 * (c.slices + 1) * 2 / r.sums
    return us


def _bytes(layout: Layout) -> float:
    """That device memory reads: x and y once, in halves of lines."""
    problem, part = layout.problem, layout.config.slice * layout.problem.x.element.bytes
    halves = lines(part, part, HALF_LINE) * HALF_LINE / part if layout.channel_slices > 1 else 1
    return (problem.x.bytes + problem.y.bytes) * halves
