"""The cost model of depthwise_wgrad: microseconds from a configuration, before anything is compiled.

Threads issue instructions, or wait for the rows that are under way, of which device memory needs enough.  Where TMA
brings the rows of a block, its boxes and their pixels take time, and so do lines read from shared memory.  Waves of
strips and the sums of a block's threads come on top.  The rates are fitted to configurations of depthwise layers at
batch 8 to 64 on an H200: where threads load their own rows, 1,094 (benchmarks/results/depthwise_wgrad_sweep_h200.json),
of which what the model chooses is 2.8% behind the best; where rows are shared, 1,579 without ragged tiles
(depthwise_wgrad_shared_h200.json), half of whose estimates are within 5%, and 6% behind the best of both kinds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, LESS, LINE, on, over

SCHEDULERS = 4  # of a multiprocessor
INSTRUCTION, CODE = 16, 48 << 10  # bytes: of an instruction, and of loops that run from a cache


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
    fetch: float = 1.4  # times longer, of loops that are too long for the cache of instructions
    shared: float = 1.0  # cycles of a line from shared memory
    box: float = 30.0  # cycles of TMA for a box
    pixel: float = 2.3  # cycles of TMA for a pixel that it brings
    l2: float = 60.0  # bytes a cycle that it brings
    join: float = 0.414  # a block's threads meet, or a cluster's blocks
    joined: float = 33.7  # cycles of a thread's sum that others add to
    sum: float = 1.76  # the second kernel
    sums: float = 4.42e6  # bytes of sums a microsecond, written and read
    memory: float = 3.4e6  # bytes a microsecond
    narrow: float = 1.57  # more bytes, where blocks of other channels read the rest of a line


H200 = Rates()
#: Where a block's rows are shared: a thread loads from shared memory alone.
H200_SHARED = Rates(
    start=1.72, issue=1.085, alone=1.74, latency=1101.0, strip=7.8, row=18.7, load=2.67, fetch=1.45, shared=1.0,
    box=18.1, pixel=1.67, l2=39.4, join=0.0, joined=77.1, sum=1.41, sums=2.87e6, memory=4.01e6, narrow=1.0,
)  # fmt: skip


def time(layout: Layout, rates: Rates | None = None) -> float:
    """Microseconds of a layout's launches."""
    c, target = layout.config, layout.target
    r = _rates(layout, rates)
    blocks = layout.channel_slices * layout.shares
    resident = min(c.blocks, math.ceil(blocks / target.clustered_sms(c.split_k)))
    waves = math.ceil(blocks / layout.slots)
    work = waves * (layout.rounds * _strip(layout, resident, r) / CYCLES)
    # a thread's sums; as many are added up by it, over the lanes
    work += waves * (r.join * (1 + (c.split_k > 1)) + _joined(layout, r))
    us = over(work, _memory(layout, resident, r)) + r.start
    if not layout.stores_w:
        us += r.sum + layout.problem.w.size * 4 * (c.slices + 1) * 2 / r.sums
    return us


def least_of_bands(layout: Layout) -> float:
    """Microseconds that the layout, whose bands are whole columns, does not go below in shorter ones, however many
    blocks share them: as many as a multiprocessor may hold wait for one another the least, and none is idle."""
    c, r = layout.config, _rates(layout)
    blocks = layout.target.clustered_sms(1) * c.blocks
    work = layout.channel_slices * layout.strips / layout.walked / blocks * _strip(layout, c.blocks, r) / CYCLES
    return LESS * (over(work + r.join + _joined(layout, r), _memory(layout, c.blocks, r)) + r.start)


def row_costs(layout: Layout) -> list[tuple[float, float]]:
    """Cycles of a row and microseconds of device memory, however the layout's pixels are divided, with one block on a
    multiprocessor, two, and so on."""
    r = _rates(layout)
    return [(_row(layout, n, r), _memory(layout, n, r)) for n in range(1, layout.config.blocks + 1)]


def least(layout: Layout, costs: list[tuple[float, float]]) -> float:
    """Microseconds that a layout whose rows cost so much does not go below, however many blocks share its bands."""
    r, sms = _rates(layout), layout.target.clustered_sms(1)
    strips = layout.channel_slices * -(-layout.strips // layout.walked)
    steps, once = _steps(layout), r.join + _joined(layout, r)
    placing = layout.step.warps * r.strip * r.issue / SCHEDULERS
    beside = (
        over(math.ceil(strips / (sms * n)) * (steps * row + n * placing) / CYCLES + once, memory)
        for n, (row, memory) in enumerate(costs, 1)
    )
    return LESS * (min(beside) + r.start)


def _rates(layout: Layout, rates: Rates | None = None) -> Rates:
    return on(rates or (H200_SHARED if layout.shared else H200), layout.target.gpu)


def _strip(layout: Layout, resident: int, r: Rates) -> float:
    """Cycles of a strip, beside those of other blocks on the multiprocessor."""
    return _steps(layout) * _row(layout, resident, r) + resident * layout.step.warps * r.strip * r.issue / SCHEDULERS


def _steps(layout: Layout) -> int:
    """Rows of a strip."""
    return min(layout.config.band, layout.walks[1].outputs) + layout.held - 1


def _row(layout: Layout, resident: int, r: Rates) -> float:
    """Cycles of an output row, and of the input rows that come with it."""
    s = layout.step
    instructions = s.products + s.numbers + r.load * s.loads + r.row + s.tests
    if layout.held * instructions * INSTRUCTION > CODE:
        instructions *= r.fetch
    warps = resident * s.warps
    step = max(instructions * max(warps * r.issue / SCHEDULERS, r.alone), r.latency / max(layout.config.stages - 1, 1))
    if layout.shared:
        brought = resident * max(s.pixels * r.pixel + s.boxes * r.box, s.stage / r.l2)
        step = over(over(step, brought), warps * s.lines * r.shared)
    return step


def _joined(layout: Layout, r: Rates) -> float:
    """Microseconds of a thread's sums, to which others add."""
    return layout.thread_taps * layout.config.vector * r.joined / CYCLES


def _memory(layout: Layout, resident: int, r: Rates) -> float:
    """Microseconds of device memory, which needs enough bytes under way."""
    c, s = layout.config, layout.step
    in_flight = resident * s.in_flight * layout.target.sms
    memory = min(r.memory, in_flight / r.latency * CYCLES)
    apart = layout.channel_slices > 1 and c.slice * layout.problem.x.element.bytes < LINE
    return s.bytes * (r.narrow if apart else 1.0) / memory
