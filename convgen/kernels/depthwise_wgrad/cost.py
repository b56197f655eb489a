"""The cost model of depthwise_wgrad: microseconds from a configuration, before anything is compiled.

Threads issue instructions, or wait for the rows that are under way, of which device memory needs enough.  Where TMA
brings the rows of a block, its boxes and their pixels take time, and so do lines read from shared memory.  Waves of
strips and the sums of a block's threads come on top.  The rates are fitted to configurations of depthwise layers at
batch 8 to 64 on an H200: where threads load their own rows, 1,094 (benchmarks/results/depthwise_wgrad_sweep_h200.json),
of which what the model chooses is 2.8% behind the best; where rows are shared, 1,579 without ragged tiles
(depthwise_wgrad_shared_h200.json), half of whose estimates are within 5%, and 6% behind the best of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, LESS, LINE, SCHEDULERS, on, over
from convgen.kernels.parts.gradient import left_over, pass_bytes

INSTRUCTION, CODE = 16, 48 << 10  # bytes: of an instruction, and of loops that run from a cache


@dataclass(frozen=True)
class Rates:
    """Figures on one GPU.  Cycles are a multiprocessor's, times are in microseconds."""

    start: float = 1.2  # of a launch
    issue: float = 1.154  # cycles of a scheduler an instruction
    alone: float = 2.11  # cycles per instruction of a warp that waits for its own results
    latency: float = 953.0  # cycles from asking for rows to having them
    strip: float = 66.9  # instructions that place a strip
    row: float = 14.7  # instructions around a row's
    load: float = 8.13  # instructions of a load, to shared memory and from there
    fetch: float = 1.4  # times longer, of loops that are too long for the cache of instructions
    shared: float = 1.0  # cycles of a line from shared memory
    box: float = 30.0  # cycles of TMA for a box
    pixel: float = 2.3  # cycles of TMA per pixel
    l2: float = 60.0  # bytes that it loads per cycle
    join: float = 0.414  # a block's threads meet, or a cluster's blocks
    joined: float = 33.7  # cycles per sum of a thread to which others add
    sum: float = 1.76  # the second kernel
    sums: float = 4.42e6  # bytes of sums a microsecond, written and read
    memory: float = 3.4e6  # bytes a microsecond
    narrow: float = 1.57  # more bytes, where blocks of other channels read the rest of a line


H200 = Rates()
#: For shared rows: a thread loads only from shared memory.
H200_SHARED = Rates(
    start=1.72, issue=1.085, alone=1.74, latency=1101.0, strip=7.8, row=18.7, load=2.67, fetch=1.45, shared=1.0,
    box=18.1, pixel=1.67, l2=39.4, join=0.0, joined=77.1, sum=1.41, sums=2.87e6, memory=4.01e6, narrow=1.0,
)  # fmt: skip


#: Microseconds by the rows of a band, and by the blocks that share the bands: `split_k` and `slices`.
Times = Callable[[int, int, int], float]


def time(layout: Layout, rates: Rates | None = None) -> float:
    """Microseconds of a layout's launches."""
    return times(layout, rates)(layout.config.band, layout.config.split_k, layout.config.slices)


def times(layout: Layout, rates: Rates | None = None) -> Times:
    """The times of a layout and of those that divide the pixels otherwise, where a row costs the same."""
    r, most = _rates(layout, rates), layout.config.blocks

    @cache
    def beside(resident: int) -> tuple[float, float]:
        return _row(layout, resident, r), _memory(layout, resident, r)

    def us(band: int, split_k: int, slices: int) -> float:
        blocks, sms = layout.channel_slices * split_k * slices, layout.target.clustered_sms(split_k)
        resident, waves = min(most, -(-blocks // sms)), -(-blocks // (sms * most))
        row, memory = beside(resident)
        work = waves * (layout.rounds(band, split_k * slices) * _strip(layout, band, row, resident, r) / CYCLES)
        # a thread's sums; it adds up equally many over the walkers
        work += waves * (r.join * (1 + (split_k > 1)) + _joined(layout, r))
        return over(work, memory) + r.start + _second(layout, slices, r)

    return us


def least(layout: Layout, shortest: int, most: int) -> float:
    """A lower bound in microseconds on all divisions of the pixels into bands of at least `shortest` rows, among at
    most so many blocks of a cluster, or by slices and a second kernel.  It assumes the most blocks that a
    multiprocessor may hold, none of them idle, and bands of whole columns, which share the fewest rows."""
    r, blocks = _rates(layout), layout.config.blocks
    column, strips = layout.walks[1].outputs, layout.column_strips / layout.walked
    alone, beside = _row(layout, 1, r), _row(layout, blocks, r)
    at_once = layout.target.clustered_sms(1) * blocks
    sliced = max(
        layout.channel_slices * strips / at_once * _strip(layout, column, beside, blocks, r),
        _strip(layout, shortest, alone, 1, r),
    )
    clusters = max(sliced, strips / most * _strip(layout, column, alone, 1, r))
    resident = min(blocks, -(-layout.channel_slices * most // layout.target.clustered_sms(most)))
    once = r.join + _joined(layout, r)
    us = min(
        over(clusters / CYCLES + once, _memory(layout, resident, r)) + _second(layout, 1, r),
        over(sliced / CYCLES + once, _memory(layout, blocks, r)) + _second(layout, 2, r),
    )
    return LESS * (us + r.start)


def _rates(layout: Layout, rates: Rates | None = None) -> Rates:
    return on(rates or (H200_SHARED if layout.shared else H200), layout.target.gpu)


def _strip(layout: Layout, band: int, row: float, resident: int, r: Rates) -> float:
    """Cycles of a strip, given those of its rows and of the multiprocessor's other blocks."""
    rows = min(band, layout.walks[1].outputs) + layout.held - 1
    return rows * row + resident * layout.step.warps * r.strip * r.issue / SCHEDULERS


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


def _second(layout: Layout, slices: int, r: Rates) -> float:
    """Microseconds of a second kernel, where one adds up slices."""
    left = left_over(layout.problem, slices)
    return r.sum + pass_bytes(layout.problem, slices) / r.sums if left else 0.0


def _joined(layout: Layout, r: Rates) -> float:
    """Microseconds for combining threads' sums."""
    return layout.thread_taps * layout.config.vector * r.joined / CYCLES


def _memory(layout: Layout, resident: int, r: Rates) -> float:
    """Microseconds of device memory, which needs enough bytes under way."""
    c, s = layout.config, layout.step
    in_flight = resident * s.in_flight * layout.target.sms
    memory = min(r.memory, in_flight / r.latency * CYCLES)
    apart = layout.channel_slices > 1 and c.slice * layout.problem.x.element.bytes < LINE
    return s.bytes * (r.narrow if apart else 1.0) / memory
