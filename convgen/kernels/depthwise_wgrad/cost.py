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
from functools import lru_cache

from convgen.kernels.depthwise_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, LINE, WORD, lines, on, over, turns
from convgen.kernels.parts.limits import WARP

SCHEDULERS = 4  # of a multiprocessor
INSTRUCTION, CODE = 16, 48 << 10  # bytes: of an instruction, and of loops that run from a cache
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
    r = on(rates or (H200_SHARED if layout.shared else H200), target.gpu)
    blocks = layout.channel_slices * layout.shares
    resident = min(c.blocks, math.ceil(blocks / target.clustered_sms(c.split_k)))
    waves = math.ceil(blocks / layout.slots)
    strips = layout.rounds
    steps = min(c.band, layout.walks[1].outputs) + layout.held - 1
    loads = layout.rows * layout.read_columns + c.tile_q
    numbers = layout.rows * layout.read_columns * layout.inputs + c.tile_q * c.vector
    products = layout.thread_taps * c.tile_q * c.vector
    instructions = products + numbers + r.load * loads + r.row
    if layout.walks[2].ragged(c.tile_q):
        instructions += c.tile_r * c.tile_q  # each output is asked whether it is there
    if layout.held * instructions * INSTRUCTION > CODE:
        instructions *= r.fetch
    warps = resident * math.ceil(layout.threads / WARP)
    step = max(instructions * max(warps * r.issue / SCHEDULERS, r.alone), r.latency / max(c.stages - 1, 1))
    if layout.shared:
        brought = resident * max(_boxes(layout, r), layout.stage / r.l2)
        step = over(over(step, brought), warps * _read(layout) * r.shared)
    work = waves * (strips * (steps * step + warps * r.strip * r.issue / SCHEDULERS) / CYCLES)
    # a thread's sums; as many are added up by it, over the lanes
    work += waves * (r.join * (1 + (c.split_k > 1)) + layout.thread_taps * c.vector * r.joined / CYCLES)
    in_flight = resident * layout.in_flight * target.sms
    memory = min(r.memory, in_flight / r.latency * CYCLES)
    apart = layout.channel_slices > 1 and c.slice * layout.problem.x.element.bytes < LINE
    us = over(work, _bytes(layout) * (r.narrow if apart else 1.0) / memory) + r.start
    if not layout.stores_w:
        us += r.sum + layout.problem.w.size * 4 * (c.slices + 1) * 2 / r.sums
    return us


def _boxes(layout: Layout, rates: Rates) -> float:
    """Cycles of TMA for the boxes of a step."""
    problem, (of_x, of_y) = layout.problem, layout.pixel_bytes
    x_lines = lines(of_x, math.gcd(of_x, (problem.x.pitch or problem.c) * problem.x.element.bytes))
    y_lines = lines(of_y, math.gcd(of_y, (problem.y.pitch or problem.k) * problem.y.element.bytes))
    x_pixels = layout.row_parts * layout.rows * layout.box_columns[0]
    pixels = layout.lanes_n * (x_pixels * x_lines + layout.box_columns[1] * y_lines)
    return pixels * rates.pixel + (layout.row_parts + 1) * rates.box


def _read(layout: Layout) -> int:
    """Lines of shared memory, one a cycle, that a warp reads in a step."""
    c, (x_columns, y_columns), (x_pixel, y_pixel) = layout.config, layout.box_columns, layout.pixel_bytes
    threads = (layout.vectors, layout.parts, layout.lanes_q)
    beside = c.tile_q * layout.walks[2].step * x_pixel
    of_x = _load(layout.x_bytes, threads, layout.box_room[0], beside, layout.rows * x_columns * x_pixel)
    of_y = _load(layout.y_bytes, threads, 0, c.tile_q * y_pixel, y_columns * y_pixel)
    return layout.rows * layout.read_columns * of_x + c.tile_q * of_y


@lru_cache(maxsize=4096)  # many configurations differ in what matters not
def _load(size: int, threads: tuple[int, int, int], part: int, lane: int, image: int) -> int:
    """Lines that a warp reads whose threads load `size` bytes each: neighboring channel vectors, then parts of the
    filters, lanes and images, so many bytes apart."""
    vectors, parts, lanes = threads
    at = []
    for thread in range(WARP):
        strip = thread // (vectors * parts)
        apart = thread // vectors % parts * part + strip % lanes * lane + strip // lanes * image
        at.append(apart + thread % vectors * size)
    together = WARP * WORD // max(size, WORD)  # threads whose words fit a line
    ends = [(a // WORD, -(-(a + size) // WORD)) for a in at]
    return sum(
        turns(word for begin, end in ends[first : first + together] for word in range(begin, end))
        for first in range(0, WARP, together)
    )


def _bytes(layout: Layout) -> float:
    """That device memory reads: x and y once, in halves of lines."""
    problem, part = layout.problem, layout.config.slice * layout.problem.x.element.bytes
    halves = lines(part, part, HALF_LINE) * HALF_LINE / part if layout.channel_slices > 1 else 1
    return (problem.x.bytes + problem.y.bytes) * halves
