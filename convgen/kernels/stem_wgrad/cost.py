"""The cost model of stem_wgrad: microseconds from a configuration, before anything is compiled.

Tensor cores (whose narrow products wait for shared memory), the loads and stores that make vectors of x, what TMA
brings of y, and device memory work side by side.  The rates of products, of L2, of memory and of the second kernel are
tma_wgrad's, which are fitted; those of vectors are guesses.  Ten layers of suites took 0.84 to 1.18 times its estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.ir.problem import SECTOR
from convgen.kernels.parts.cost import CYCLES, over, product
from convgen.kernels.parts.gradient import pass_bytes
from convgen.kernels.stem_wgrad.layout import BUILDERS, Layout


@dataclass(frozen=True)
class Rates:
    """Figures of stem_wgrad on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    start: float = 1.35  # from launch to the first wgmma, and out again
    shared_wait: float = 21.5  # cycles that 64 x n x 16 waits for its A operand: max(n / 2, n / 4 + this)
    mma: float = 1.08  # of the tensor cores' peak time
    l2: float = 60.0  # bytes a cycle for a multiprocessor
    latency: float = 750.0  # cycles from asking for a round of x to having it
    element: float = 6.0  # cycles of a warp's load of an element of its vectors, and of its part in storing them
    step: float = 60.0  # cycles between two stages: barriers
    store: float = 2.0e-4  # a tile's element
    sum: float = 1.53  # the second kernel
    sums: float = 3.4e7  # bytes of sums a microsecond, written and read
    sectors: float = 4.4e6  # bytes of L2's sectors a microsecond that a slice's sums are stored to
    memory: float = 3.34e6  # bytes a microsecond


H200 = Rates()


def time(layout: Layout, rates: Rates = H200) -> float:
    """Microseconds of a layout's launches."""
    r, c, problem = rates, layout.config, layout.problem
    columns = layout.part_columns
    each = product(columns, r.shared_wait) * r.mma
    mma = layout.chunks * (c.tile_k / 16 * layout.a_boxes * layout.vectors * each + r.step)
    bring = layout.chunks * layout.stage / r.l2
    build = layout.thread_vectors * (BUILDERS / 32) * layout.used * r.element
    first = layout.fresh_rounds * (r.latency + build)
    blocks = layout.m_tiles * c.slices
    waves = math.ceil(blocks / layout.target.sms)
    rows = math.ceil(layout.rows / c.slices)
    # rows of x for later output rows load while this one's are made
    row = max(mma, bring, build + r.latency / (c.depth - 1))
    images = rows / problem.output[0]
    elements = c.tile_m * layout.vectors * columns
    work = waves * ((rows * row + (1 + images) * first) / CYCLES + r.store * elements)
    us = over(work, (problem.x.bytes + problem.y.bytes) / r.memory) + r.start + layout.prepared.time
    if not layout.stores_w:
        us += r.sum + pass_bytes(problem, c.slices) / r.sums
        us += problem.w.size * c.slices * (4 if layout.gathers else SECTOR) / r.sectors
    return us
