"""The cost model of winograd_fused: microseconds of its two launches.

Its terms are those of tma_halo, and so are its rates, which are fitted to measurements of that kernel.  An H200 takes
1.2 to 1.4 times as long as they say (docs/kernels/winograd_fused.md).  What is its own is shared memory, which is
nearly as busy as the tensor cores: of a step, 16 channels of a filter row, each consumer reads the filters of four
points, and six pixels of each quad, some at the same banks.
"""

from __future__ import annotations

import math
from collections import Counter

from convgen.kernels.parts.cost import CYCLES, over
from convgen.kernels.parts.prepare import BYTES_PER_US, LAUNCH_US
from convgen.kernels.tma_halo.cost import H200, Rates
from convgen.kernels.tma_im2col import cost as im2col
from convgen.kernels.winograd_fused.config import MATRIX_ROWS, QUADS
from convgen.kernels.winograd_fused.layout import POINTS, Layout

#: Bytes a cycle of a multiprocessor's shared memory.
SHARED = 128
#: Pixels of a quad that a step reads, and bytes of each: 16 channels.
PIXELS, PIXEL_BYTES = 6, 32
#: Cycles a filter row that the blocks of a cluster wait for one another, as in tma_im2col.
JOINT = im2col.H200.joint


def time(layout: Layout, rates: Rates = H200) -> float:
    """Microseconds of a layout's launches."""
    r, config, traffic = rates, layout.config, layout.prepared.traffic
    sms = layout.target.clustered_sms(config.cluster)
    memory = (traffic["reads"] + traffic["writes"]) / r.memory
    filter_rows, shares, n = layout.blocks * len(layout.rows.offsets), config.shares, config.tile_n
    outputs = shares * config.consumer_pixels * n
    steps = shares * filter_rows * layout.last_products
    tensor = steps * POINTS * n / 2 * r.mma
    # bytes that TMA loads for a tile, and cycles of a halo tile's and a filter row's
    streamed = layout.filter_box if config.weight_stages else 0
    brought = layout.blocks * layout.halo.box + filter_rows * streamed
    halo, filters = (r.latency + box / layout.span * r.row for box in (layout.halo.box, streamed))
    read = POINTS * n * PIXEL_BYTES + QUADS * PIXELS * PIXEL_BYTES * conflicts(layout)
    shared = (steps * read + brought + 2 * outputs * layout.read.y.element.bytes) / SHARED
    tiles = layout.tiles * layout.channel_tiles
    waits = [tensor + r.serial_store * outputs * CYCLES, shared, brought / layout.span * r.row]
    if config.weight_stages:
        waits.append(filter_rows * filters / max(config.weight_stages - r.stages_held, 0.25))
        waits[0] += filter_rows * (r.tap + (JOINT if config.cluster > 1 else 0.0))
    if config.stages == 1:  # nothing is loaded while a consumer multiplies
        waits.append((layout.blocks * halo + tensor) / config.rings)
    busy = max(*waits, memory * sms / tiles * CYCLES)
    # a cluster's blocks are of one channel tile
    workers = max(sms // (layout.channel_tiles * config.cluster), 1) * config.cluster
    turns = math.ceil(layout.tiles / workers)
    turns = math.ceil(turns / config.rings) * config.rings
    resident = 0.0 if config.weight_stages else layout.filter_bytes / r.resident_bytes
    fetched = brought - filter_rows * streamed * (1 - 1 / config.cluster)
    main = max((halo + resident + turns * busy) / CYCLES, fetched * tiles / r.l2)
    prepared = LAUNCH_US + (layout.problem.w.bytes + layout.u.bytes) / BYTES_PER_US
    return over(main + r.start, memory + r.start) + prepared + layout.prepared.time


def conflicts(layout: Layout) -> float:
    """How many times longer ldmatrix takes than where eight quads lie on eight neighboring pixels of a phase: rows of
    a strip begin a pixel further on."""
    quads = layout.config.quads
    worst = []
    for first in range(0, quads * MATRIX_ROWS, MATRIX_ROWS):  # until they lie alike again
        pixels = (quad + quad // quads for quad in range(first, first + MATRIX_ROWS))
        worst.append(max(Counter(pixel % MATRIX_ROWS for pixel in pixels).values()))
    return sum(worst) / len(worst)
