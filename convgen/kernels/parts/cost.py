"""A cost model of the Hopper kernels: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at
which TMA fetches rows, the latency that stages in flight must cover, the tail of a partly filled wave, the
epilogue, device memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_cost.py, which
also says how far the model's choice is from the best that was measured: benchmarks/NOTES.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.ir.tensor import Tensor

Config = TypeVar("Config")

#: Of a multiprocessor, a microsecond: what rates by the cycle rest on.
CYCLES = 1755.0
LINE = 128  # bytes that L2 holds together; it moves a sector


@dataclass(frozen=True)
class Rates:
    """Fitted figures of tma_im2col on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    start: float = 1.45  # from launch to the first wgmma, and out again
    shared_wait: float = 36.63  # cycles that 64 x n x 16 waits for its A operand: max(n / 2, n / 4 + this)
    mma: float = 1.053  # of the tensor cores' peak time
    l2: float = 62.63  # bytes a cycle for a multiprocessor
    row: float = 2.446  # cycles a row of a box
    weight_row: float = 1.632
    straddle: float = 0.7542  # more, for each line that a row touches beyond its first
    ragged: float = 0.7259  # more, where rows begin inside a sector
    latency: float = 748.1  # cycles of a load, to be covered by stages in flight
    stages_held: float = 1.192  # stages that are being read and so not in flight
    store: float = 8.609e-5  # a tile's element
    ragged_store: float = 0.2835  # more, where pixels of y begin inside a sector
    turn: float = 0.6977  # between the MMAs of two tiles
    multicast: float = 0.2468  # how much of the x that a cluster need not fetch twice counts; of w, nothing
    joint: float = 43.61  # cycles a stage that the blocks of a cluster wait for one another
    split: float = 0.4704  # joining a cluster, a tile
    split_store: float = 0.0002586  # a partial sum's element
    finish: float = 6.0  # the second kernel of a stream (not fitted, as the next)
    part: float = 2.4e-4  # an element of a tile's part, written and read again
    memory: float = 4.75e6  # bytes a microsecond


@dataclass(frozen=True)
class PatchRates:
    """The same for tma_patch, whose loads and epilogues overlap differently."""

    start: float = 0.7998
    shared_wait: float = 22.36
    mma: float = 1.01
    row: float = 3.499  # cycles a row of a box, of x or w
    ragged: float = 0.942
    latency: float = 754.2
    stages_held: float = 1.315
    tap: float = 100.1  # cycles of waiting and signalling, a tap of streamed weights
    weights: float = 48.46  # bytes a cycle of resident weights, loaded once
    serial_store: float = 4.63e-5  # a tile's element: what the other consumers' MMAs do not hide
    memory: float = 4.75e6
    apart: float = 0.63  # of that, where blocks of their own read and write the sectors of a line


H200 = Rates()
H200_PATCH = PatchRates()


def varied(ranked: Iterable[Config], kind: Callable[[Config], object], of_a_kind: int, most: int) -> list[Config]:
    """The first so many, at most `of_a_kind` alike: a model is surer within a kind than between kinds."""
    found: list[Config] = []
    alike: Counter[object] = Counter()
    for config in ranked:
        alike[kind(config)] += 1
        if alike[kind(config)] <= of_a_kind:
            found.append(config)
    return found[:most]


def over(time: float, memory: float) -> float:
    """The larger of two times, rounded where they are close: neither overlaps the other perfectly."""
    return (time**4 + memory**4) ** 0.25


@cache
def lines(row: int, pitch: int, line: int = LINE) -> float:
    """Lines of L2 that a row of so many bytes touches on average, rows beginning `pitch` bytes apart."""
    step = math.gcd(pitch, line)
    starts = range(0, line, step)
    return sum(-(-(start + row) // line) for start in starts) / len(starts)


def traffic(problem: ConvProblem) -> dict[str, int]:
    """What the models ask of a problem: bytes of device memory read and written, bytes of a row of x and y, which is a
    pixel, or a channel's plane."""
    written = problem.y.bytes

    def pitch(tensor: Tensor, channel: str) -> int:
        plane = tensor.stride(channel)
        return (plane if plane > 1 else tensor.extent(channel)) * tensor.element.bytes

    return dict(
        reads=problem.min_bytes - written, writes=written, x_pitch=pitch(problem.x, "c"), y_pitch=pitch(problem.y, "k")
    )


def loading(rates: Rates, row: int, pitch: int) -> float:
    """How many times dearer rows are to load than aligned ones."""
    return 1 + rates.straddle * (lines(min(row, pitch), pitch) - 1) + rates.ragged * (pitch % SECTOR != 0)


def _storing(rates: Rates, pitch: int) -> float:
    return 1 + rates.ragged_store * (pitch % SECTOR != 0)


def im2col_time(
    *, rows: int, columns: int, m: int, n: int, k: int, stages: int, consumers: int, pingpong: bool, blocks: int,
    merge: int, split: int, cluster: int, shared: str, stream: int, tiles: int, steps: int, products: float, reads: int,
    writes: int, x_pitch: int, y_pitch: int, sms: int, rates: Rates = H200,
) -> float:  # fmt: skip
    """Microseconds of a tma_im2col kernel of 2-byte elements: `tiles` of m x n, `steps` of k each (on average
    `products` of 16), `rows` x `columns` of them as wgmma sees it; a `cluster` of blocks fetches the operand
    `shared` once; a `stream` deals the steps out evenly, and a second kernel finishes what blocks share.  `reads` and
    `writes` are bytes of device memory, a pixel of x and of y takes `x_pitch` and `y_pitch` bytes."""
    r = rates
    units = tiles * split
    mma = rows / 64 * products * max(columns / 2, columns / 4 + r.shared_wait) * r.mma
    x_rows = m * (1 - min(r.multicast, 1.0) * (1 - 1 / cluster) * (shared == "x"))
    load = max((x_rows + n) * k * 2 / r.l2, x_rows * r.row + n * r.weight_row) * loading(r, 2 * k, x_pitch)
    ring = (r.latency / merge + load) / max(stages - r.stages_held, 0.25)
    own_steps = math.ceil(steps / split)
    # of a tile: its multiplying and its storing, and the bytes of device memory that go with each
    share = 1 / max(units / sms, 1) / r.memory
    main = over(own_steps * (max(mma, load, ring) + r.joint * (cluster > 1) / merge) / CYCLES, reads * share)
    epilogue = r.store * m * n * _storing(r, y_pitch) / split
    if split > 1:
        epilogue += r.split + r.split_store * m * n * (split - 1) / split
    alone = main + over(epilogue, writes * share)
    # of a multiprocessor that always has another tile to multiply while one is stored; a cluster joins in step
    busy = alone if split > 1 else max(own_steps * max(mma, load) / CYCLES + r.turn, (reads + writes) * share)
    if stream:
        parts = r.finish + r.part * m * n
        return over(units / sms * busy + epilogue + parts + r.start, (reads + writes) / r.memory + r.start)
    in_turn = math.ceil(units / (sms * blocks * (consumers if pingpong else 1)))
    time = max((math.ceil(units / sms) - 1) * busy + alone, in_turn * alone)
    return over(time + r.start, (reads + writes) / r.memory + r.start)


def patch_time(
    *, pixels: int, channels: int, k: int, stages: int, weight_stages: int, consumers: int, shares: int,
    by_channels: bool, blocks: int, products: float, box: int, weight_box: int, tiles: int, channel_tiles: int,
    taps: int, apart: bool,
    reads: int, writes: int, x_pitch: int, y_pitch: int, sms: int, rates: PatchRates = H200_PATCH,
) -> float:  # fmt: skip
    """Microseconds of a tma_patch kernel of 2-byte elements: `blocks` patches of `box` bytes a tile, which
    `shares` consumers share, `pixels` x `channels` each.  Weights of a tap and a block are `weight_box` bytes,
    `weight_stages` of them in flight; 0: resident.  `apart`: a group's channels are a sector, of lines that blocks
    of other groups share.  The rest as for im2col_time."""
    r = rates
    memory = r.memory * (r.apart if apart else 1.0)
    if by_channels:
        step = max(pixels / 2, pixels / 4 + r.shared_wait)
    else:
        step = pixels / 64 * max(channels / 2, channels / 4 + r.shared_wait)
    mma = shares * products * step * r.mma / CYCLES
    latency = r.latency / CYCLES
    a_byte = r.row / (2 * k) * (1 + r.ragged * (x_pitch % SECTOR != 0)) / CYCLES
    patch, weights = box * a_byte, weight_box * a_byte
    if weight_stages:
        prologue, load = weights, blocks * (patch + taps * weights)
        tap = max(mma + r.tap / CYCLES, (latency + weights) / max(weight_stages - r.stages_held, 0.25))
    else:
        prologue, load, tap = taps * blocks * weight_box / r.weights / CYCLES, blocks * patch, mma
    # of a tile: its taps, what its patches keep them waiting, its storing
    share = 1 / max(tiles * channel_tiles / sms, 1) / memory
    hidden = (stages - 1) * taps * tap
    epilogue = writes * share
    alone = blocks * taps * tap + (blocks - 1) * max(latency + patch - hidden, 0.0) + epilogue
    between = max(latency + patch - hidden - epilogue, 0.0)
    # of a multiprocessor that always has another tile to multiply while one is stored
    busy = max(blocks * taps * mma + r.serial_store * pixels * channels, load, (reads + writes) * share)
    turns = math.ceil(tiles / max(sms // channel_tiles, 1))
    in_turn = math.ceil(turns * shares / consumers)
    time = max((turns - 1) * busy + alone, in_turn * alone + (in_turn - 1) * between)
    return over(latency + patch + prologue + time + r.start, (reads + writes) / memory + r.start)
