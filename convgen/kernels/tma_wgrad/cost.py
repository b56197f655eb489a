"""The cost model of tma_wgrad: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at which TMA
fetches rows, the latency that stages in flight must cover, the waves of blocks, the sums that are left over, the
blocks that read the same rows at once, device memory.  The rates are fitted by benchmarks/fit_jointly.py to 1,177
timings on an H200, over layers of ResNet-50, ResNeXt-50, MobileNetV2, the strided suite and six more networks: 10% of
error, root mean square, and a choice that is 2% from the best that was timed.  `meet` was then set by the layers that
clusters made slower at batch 8, and taken off `join`; `ragged` by groups of 24 channels, on an H100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.kernels.parts.clusters import MAX_CLUSTER
from convgen.kernels.parts.cost import CYCLES, LESS, over, product, ragged
from convgen.kernels.parts.gradient import pass_bytes
from convgen.kernels.tma_wgrad.layout import ELEMENT, Layout


@dataclass(frozen=True)
class Rates:
    """Figures of tma_wgrad on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    start: float = 1.21  # from launch to the first wgmma, and out again
    shared_wait: float = 16.4  # cycles that 64 x n x 16 waits for its A operand: max(n / 2, n / 4 + this)
    mma: float = 1.09  # of the tensor cores' peak time
    l2: float = 63.3  # bytes a cycle for a multiprocessor
    row: float = 2.28  # cycles a row of a box
    ragged: float = 1.8  # times more, of rows that begin inside a sector
    latency: float = 983.0  # cycles of a load, to be covered by stages in flight
    stages_held: float = 1.04  # stages that are being read and so not in flight
    multicast: float = 0.67  # how much of the rows that a cluster need not fetch twice counts
    joint: float = 9.6  # cycles that a stage of a cluster takes longer
    meet: float = 0.5  # more, where the blocks of a cluster start together
    wave: float = 0.09  # between two blocks on a multiprocessor: barriers, the first load, the store
    store: float = 1.49e-4  # a tile's element
    join: float = 0.58  # of a cluster
    joined: float = 2.39e-4  # an element that goes to another block of the cluster
    sum: float = 1.58  # the second kernel
    sums: float = 1.59e7  # bytes of sums a microsecond, written and read
    memory: float = 3.71e6  # bytes a microsecond
    alike: float = 9.3e7  # bytes a microsecond, for each doubling of the blocks, or clusters, that read them at once


H200 = Rates()


def time(layout: Layout) -> float:
    """Microseconds of a layout's launches."""
    r, c = H200, layout.config
    mma, load = _multiplied(layout), _loaded(layout)
    ring = (r.latency + load) / max(c.stages - r.stages_held, 0.25)
    blocks = layout.tiles * layout.shares
    sms = layout.target.clustered_sms(c.launched)
    together = min(c.blocks, -(-blocks // sms))  # blocks that share a multiprocessor
    step = (max(together * max(mma, load), mma, ring) + r.joint * (c.cluster > 1)) / CYCLES
    steps = -(-layout.steps // layout.shares)
    elements = c.tile_m * c.tile_n
    last = r.store * elements / c.split_k
    if c.split_k > 1:
        last += r.join + r.joined * elements * (c.split_k - 1) / c.split_k
    waves = math.ceil(blocks / layout.blocks_at_once)
    work = waves * (steps * step + last + r.wave)
    start = r.start + r.meet * (c.launched > 1)
    us = start + over(work, layout.bytes_read / r.memory) + layout.bytes_alike / r.alike + layout.gemm.prepared.time
    return us + added(layout)


def least(layout: Layout) -> float:
    """Microseconds that the layout, whose pixels one block has, does not go below where more blocks share them, with no
    more stages: none is idle, and those of a multiprocessor wait for one another alone."""
    r, c = H200, layout.config
    load = _loaded(layout)
    ring = (r.latency + load) / max(c.stages - r.stages_held, 0.25)
    step = max(_multiplied(layout), load, ring / c.blocks) / CYCLES
    work = layout.tiles * layout.steps * step / layout.target.clustered_sms(1)
    work += r.store * c.tile_m * c.tile_n / MAX_CLUSTER + r.wave
    us = r.start + over(work, layout.bytes_read / r.memory) + layout.bytes_alike / r.alike
    return LESS * (us + layout.gemm.prepared.time)


def _multiplied(layout: Layout) -> float:
    """Cycles of the tensor cores for a step."""
    r, c = H200, layout.config
    each = product(layout.part_columns, r.shared_wait) * r.mma
    return c.tile_k / 16 * (c.tile_m / 64) * c.warps_n * layout.parts * each


def _loaded(layout: Layout) -> float:
    """Cycles until a step's boxes have come, of L2 or of TMA."""
    r, c = H200, layout.config
    saved = 1 - r.multicast * (1 - 1 / c.cluster)
    a_rows = layout.a_loaded * c.tile_k * (saved if c.shared == "a" else 1)
    b_rows = layout.b_loaded * layout.phases * (c.tile_k + layout.reach) * (saved if c.shared == "b" else 1)
    a_pitch, b_pitch = pitches(layout)
    rows = a_rows * ragged(r.ragged, a_pitch)
    rows += b_rows * ragged(r.ragged, b_pitch)
    brought = layout.a_loaded * layout.a_box + layout.b_loaded * layout.phases * layout.b_box
    return max(brought / r.l2, rows * r.row)


def added(layout: Layout) -> float:
    """The time of the second kernel, and of the sums that go to it through memory."""
    r = H200
    return sum(r.sum + pass_bytes(layout.problem, slices) / r.sums for slices in layout.sum_passes)


def pitches(layout: Layout) -> tuple[int, int]:
    """Bytes from a pixel to the next, of A (y) and of B (x) as they are read."""
    problem = layout.gemm.problem
    return (problem.y.pitch or problem.k) * ELEMENT, (problem.x.pitch or problem.c) * ELEMENT
