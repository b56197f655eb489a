"""A cost model of the Hopper kernels: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at
which TMA fetches rows, the latency that stages in flight must cover, the tail of a partly filled wave, the
epilogue, device memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_cost.py, which
also says how far the model's choice is from the best that was measured: benchmarks/NOTES.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Fitted figures of one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    cycles: float = 1755.0  # a microsecond
    start: float = 2.16  # from launch to the first wgmma, and out again
    shared_wait: float = 23.4  # cycles that 64 x n x 16 waits for its A operand: max(n / 2, n / 4 + this)
    mma: float = 1.13  # of the tensor cores' peak time
    l2: float = 62.2  # bytes a cycle for each multiprocessor when all load
    l2_alone: float = 78.2  # bytes a cycle that one multiprocessor can take
    row: float = 1.54  # cycles a row of a box
    weight_row: float = 1.43
    latency: float = 851.0  # cycles of a load, to be covered by stages in flight
    stages_held: float = 1.55  # stages that are being read and so not in flight
    stage: float = 8.4  # cycles of waiting and signalling, a stage
    epilogue: float = 0.112  # a tile
    store: float = 4e-5  # a tile's element
    turn: float = 0.25  # a tile of a ping-pong pair
    split: float = 0.75  # joining a cluster
    split_store: float = 2.4e-4  # a partial sum's element
    memory: float = 4.387e6  # bytes a microsecond


@dataclass(frozen=True)
class PatchRates:
    """The same for tma_patch, whose loads and epilogues overlap differently."""

    start: float = 1.394
    shared_wait: float = 17.5
    mma: float = 1.163
    bytes: float = 62.0  # a cycle
    row: float = 2.06
    latency: float = 1669.0
    weights: float = 130.5  # bytes a cycle
    store: float = 1.2e-4
    serial_store: float = 2.7e-5  # of the store, what the other consumer's MMAs do not hide
    memory: float = 4.434e6


H200 = Rates()
H200_PATCH = PatchRates()


def _over(time: float, memory: float) -> float:
    """The larger of two times, rounded where they are close: neither overlaps the other perfectly."""
    return (time**4 + memory**4) ** 0.25


def im2col_time(
    *, m: int, n: int, k: int, stages: int, consumers: int, pingpong: bool, blocks: int, merge: int, split: int,
    tiles: int, steps: int, bytes: int, sms: int, rates: Rates = H200,
) -> float:  # fmt: skip
    """Microseconds of a tma_im2col kernel of 2-byte elements: `tiles` of m x n, `steps` of k each."""
    r = rates
    mma = m / 64 * (k / 16) * max(n / 2, n / 4 + r.shared_wait) * r.mma
    units = tiles * split
    bandwidth = min(r.l2_alone, r.l2 * sms / min(sms, units))
    load = max((m + n) * k * 2 / bandwidth, m * r.row + n * r.weight_row)
    load = max(load, r.latency / max(stages - r.stages_held, 0.25) / merge / blocks)
    own_steps = math.ceil(steps / split)
    main = own_steps * (max(mma, load) + r.stage / merge) / r.cycles
    busy = own_steps * max(mma, load) / r.cycles
    epilogue = r.epilogue + r.store * m * n
    waves = math.ceil(units / (sms * blocks))
    if pingpong:
        time = max(busy * blocks + r.turn, (main + epilogue) / consumers) * (waves - 1) + main + epilogue
    elif blocks > 1:
        time = (max(busy * min(blocks, math.ceil(units / sms)), main) + epilogue) * waves
    else:
        time = (main + epilogue) * waves
    if split > 1:
        time += r.split + r.split_store * m * n
    return _over(time + r.start, bytes / r.memory + r.start)


def patch_time(
    *, pixels: int, channels: int, k: int, stages: int, weight_stages: int, consumers: int, shares: int,
    by_channels: bool, blocks: int, box: int, weight_box: int, tiles: int, channel_tiles: int, taps: int, bytes: int,
    sms: int, rates: PatchRates = H200_PATCH,
) -> float:  # fmt: skip
    """Microseconds of a tma_patch kernel of 2-byte elements: `blocks` patches of `box` bytes a tile, which
    `shares` consumers share, `pixels` x `channels` each.  Weights of a tap and a block are `weight_box` bytes,
    `weight_stages` of them in flight; 0: resident."""
    r, cycles = rates, H200.cycles
    if by_channels:
        step = max(pixels / 2, pixels / 4 + r.shared_wait)
    else:
        step = pixels / 64 * max(channels / 2, channels / 4 + r.shared_wait)
    tap = shares * (k / 16) * step * r.mma / cycles
    latency = r.latency / cycles
    patch_load = max(box / r.bytes, box / (2 * k) * r.row) / cycles
    weights = taps * blocks * weight_box
    prologue = weights / r.weights / cycles
    load = patch_load * blocks
    if weight_stages:  # a consumer holds one stage, and gives back the one before
        prologue = 0.0
        load += weights / r.bytes / cycles
        tap = max(tap, (latency + weight_box / r.bytes / cycles) / max(weight_stages - 1.5, 0.5))
    main = taps * blocks * tap
    epilogue = r.store * pixels * channels
    # a ring that does not hold the next tile's patches waits for them, but for what the epilogue hides
    wait = max(latency + patch_load - epilogue, 0.0)
    exposed = 0.0 if stages >= 2 * blocks else 0.5 * wait if stages > blocks else wait
    exposed += max(blocks - stages, 0) * (latency + patch_load)
    if weight_stages and stages > 1:  # taps go on while the next patch comes
        exposed = max(latency + patch_load - taps * tap, 0.0) * blocks
    busy = max(main, load)
    if shares > 1:
        each = busy + epilogue + exposed
    else:
        each = max(busy + r.serial_store * pixels * channels, (main + epilogue + exposed) / consumers)
    turns = math.ceil(tiles / max(sms // channel_tiles, 1))
    time = latency + load / (1 if not weight_stages else taps) + prologue + each * (turns - 1) + main + epilogue
    return _over(time + r.start, bytes / r.memory + r.start)
