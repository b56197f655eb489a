"""The cost model of mma_wgrad: microseconds from a configuration, before anything is compiled.

A step takes the longest of its products, its copies and its reads of shared memory; waves of blocks, sums that are left
over and device memory come on top.  The rates are cautious guesses: nobody has timed this kernel.
"""

from __future__ import annotations

import math

from convgen.kernels.mma_wgrad.layout import Layout
from convgen.kernels.parts.cost import CYCLES, over
from convgen.targets import RESERVED_SHARED

INSTRUCTION = 2.2  # cycles of a multiprocessor's tensor cores for 16 x 8 x 16
#: Cycles of two channels to shared memory, by those that are copied at once.
COPY = {8: 0.06, 4: 0.12, 2: 0.24, 1: 1.0}
WAIT = 200.0  # cycles of a step that other blocks of a multiprocessor hide
BLOCK = 2.0  # microseconds of a block's first copies, and its stores
START, SUM = 4.5, 1.5  # of a launch, and of the second kernel
SUMS, MEMORY = 4e6, 3e6  # bytes a microsecond: of sums, and of device memory


def time(layout: Layout) -> float:
    """Microseconds of a layout's launches."""
    c, target = layout.config, layout.target
    by_shared = target.shared_bytes_per_sm // (layout.shared_bytes + RESERVED_SHARED)
    held = max(min(by_shared, target.threads_per_sm // c.threads, 4), 1)
    products = c.tile_m / 16 * c.tile_n / 8 * c.tile_k / 16 * INSTRUCTION
    copies = c.tile_k * (c.tile_m * COPY[layout.vector("y")] + c.tile_n * COPY[layout.vector("x")]) / 2
    blocks = layout.tiles * c.slices
    steps = math.ceil(layout.steps / c.slices)
    together = min(held, math.ceil(blocks / target.sms))
    waves = math.ceil(blocks / (target.sms * held))
    step = max(together * over(products, copies), WAIT)
    work = waves * (steps * step / CYCLES + BLOCK)
    us = over(work, (layout.problem.x.bytes + layout.problem.y.bytes) / MEMORY) + START
    if layout.stores_w:
        return us
    return us + SUM + layout.problem.w.size * 4 * (c.slices + 1) * 2 / SUMS
