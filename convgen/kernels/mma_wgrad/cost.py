"""The cost model of mma_wgrad: microseconds from a configuration, before anything is compiled.

A step takes a block the time of one warp: its addresses and copies, and then, for every 16 pixels, ldmatrix and the
products.  Blocks that share a multiprocessor overlap until its schedulers, or rows that begin inside a sector, have no
more time to give.  Waves of blocks, sums that are left over and device memory come on top.  The rates are fitted to 308
timings of 23 layers on an H100 (benchmarks/results/mma_wgrad_h100.json), `memory` then scaled to an H200's: 18% of
error, root mean square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.ir.problem import SECTOR
from convgen.kernels.mma_wgrad.layout import CHUNK, ELEMENT, Layout
from convgen.kernels.parts.cost import CYCLES, on, over
from convgen.kernels.parts.gradient import pass_bytes


@dataclass(frozen=True)
class Rates:
    """Figures of mma_wgrad on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    fragments: float = 135.0  # cycles of a warp to read the fragments of 16 pixels, and to begin with them
    mma: float = 6.0  # of a warp, for a product of 16 x 8 x 16,
    mma_busy: float = 8.5  # and of a scheduler, where warps wait for it
    chunk: float = 64.0  # of a warp, to find where 8 channels lie and copy them,
    chunk_busy: float = 27.5  # and of a scheduler
    element: float = 7.2  # more for each, where they are copied one by one,
    wait: float = 540.0  # a step: such copies are waited for
    ragged: float = 17.7  # bytes a cycle for a multiprocessor, of rows that begin inside a sector
    block: float = 0.69  # a block's first copies, and its stores
    start: float = 3.5  # of the launches
    sums: float = 3.96e6  # bytes of sums a microsecond, written and read
    memory: float = 3.2e6  # bytes a microsecond


H200 = Rates()


def time(layout: Layout) -> float:
    """Microseconds of a layout's launches."""
    c, problem, sms = layout.config, layout.problem, layout.target.sms
    r = on(H200, layout.target.gpu)
    rows, columns = layout.fragments
    products = c.tile_k / 16 * rows * columns
    chunks = c.tile_k * (c.tile_m + c.tile_n) / CHUNK / c.threads  # of a thread
    one_by_one = [width for role, width in (("y", c.tile_m), ("x", c.tile_n)) if layout.vector(role) == 1]
    elements = r.element * c.tile_k * sum(one_by_one) / c.threads
    alone = c.tile_k / 16 * r.fragments + products * r.mma + chunks * r.chunk + elements + r.wait * len(one_by_one)
    busy = c.threads / 128 * (products * r.mma_busy + (chunks + elements / r.chunk) * r.chunk_busy)
    inside = ((problem.k, min(c.tile_m, layout.rows)), (problem.c, c.tile_n))
    ragged = sum(width for channels, width in inside if channels * ELEMENT % SECTOR) * c.tile_k * ELEMENT / r.ragged
    blocks = layout.tiles * c.slices
    together = min(layout.held, math.ceil(blocks / sms))
    step = over(over(alone, together * busy), together * ragged)
    waves = math.ceil(blocks / (sms * layout.held))
    work = waves * (math.ceil(layout.steps / c.slices) * step / CYCLES + r.block)
    us = over(work, (problem.x.bytes + problem.y.bytes) / r.memory) + r.start
    return us + sum(pass_bytes(problem, slices) / r.sums for slices in layout.sum_passes)
