"""The cost model of tma_halo: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at
which TMA fetches rows, the latency that stages in flight must cover, the tail of a partly filled wave, the
epilogue, device memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_cost.py, then
fit_jointly.py; both say how far the model's choice is from the best that was measured).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from convgen.ir.problem import SECTOR
from convgen.kernels.parts import cost
from convgen.kernels.parts.cost import CYCLES, over, product, ragged


@dataclass(frozen=True)
class Rates:
    """Fitted figures on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    start: float = 1.0  # from launch to the first wgmma, and out again; in a chain half a microsecond less,
    spread: float = 0.2  # more, as blocks are launched on all multiprocessors
    shared_wait: float = 22.07
    mma: float = 1.01
    row: float = 2.671  # cycles a row of a box, of x or w
    ragged: float = 1.372
    latency: float = 696.1
    stages_held: float = 2.204
    # (as `resident_row`, `resident_bytes`, and `store`: tuning runs of 584 layers on H100s and H200s, 2026-11-27)
    tap: float = 110.0  # cycles of waiting and signalling, a tap of streamed filters
    resident_row: float = 1.5  # cycles a row of resident filters, loaded once,
    resident_bytes: float = 60.0  # and their bytes a cycle, where consumers lay them out
    line: float = 6.5  # cycles a request for a line of them, which multiprocessors get one after the other;
    queue: float = 2.0  # and what it adds to the latency of streamed ones, whose loads overlap (218 layers);
    alike: float = 1.3e7  # bytes of resident filters a microsecond, by all multiprocessors, of the same (227 layers)
    store: float = 4e-4  # a vector of a tile's elements that is stored, or read of an operand
    serial_store: float = 3.807e-05  # a tile's element: what the other consumers' MMAs do not hide
    l2: float = 6.0e6  # bytes of halo tiles and filters: the most that any of 31 layers had, not part of the fit
    memory: float = 4.75e6
    ragged_writes: float = 0.9048  # more bytes of y, where its pixels begin inside a sector,
    odd_writes: float = 1.771  # and where they are no vectors of 8 bytes
    split: float = 350.0  # bytes that a sector counts for which two blocks store a part of, on an H100
    apart: float = 0.63  # of that, if separate blocks read and write the sectors of a line


H200 = Rates()
#: Bytes of a pixel that the layers stored whose `ragged_writes` were fitted.
WIDE = 96


def _of_tap(pixels: int, channels: int, shares: int, by_channels: bool, products: float, r: Rates) -> float:
    """Microseconds of the tensor cores for a tap of a tile, and a block of input channels."""
    step = product(pixels, r.shared_wait) if by_channels else pixels / 64 * product(channels, r.shared_wait)
    return shares * products * step * r.mma / CYCLES


def _written(writes: int, y_pitch: int, stored: int, r: Rates) -> float:
    """The effective bytes of results: the fewer bytes of a pixel a block stores, the more sectors it shares with other
    blocks."""
    return cost.written(writes, y_pitch, r.ragged_writes * max(1.0, WIDE / stored), r.odd_writes)


def _in_sectors(k: int, pitch: int) -> float:
    """The ratio of bytes that L2 delivers for rows of k elements to their own bytes: it delivers whole sectors."""
    return (2 * k + SECTOR - math.gcd(pitch, SECTOR)) / (2 * k)


def _stored(pixels: int, channels: int, accesses: float, functions: float, r: Rates) -> float:
    """Microseconds of a consumer's epilogue, without waiting."""
    return pixels * channels * (functions / CYCLES + r.store * accesses)


def time(
    *, pixels: int, channels: int, k: int, stages: int, weight_stages: int, consumers: int, shares: int,
    by_channels: bool, blocks: int, products: float, box: int, filter_box: int, tiles: int, channel_tiles: int,
    taps: int, apart: bool, crowd: float, operands: int,
    reads: int, writes: int, x_pitch: int, w_pitch: int, y_pitch: int, stored: int, accesses: float, splits: float,
    sms: int, rates: Rates = H200, functions: float = 0.0, most: int = 0,
) -> float:  # fmt: skip
    """Microseconds of a tma_halo kernel of 2-byte elements: `blocks` halo tiles of `box` bytes a tile, which
    `shares` consumers share, `pixels` x `channels` each.  Filters of a tap and a block are `filter_box` bytes,
    `weight_stages` of them in flight; 0: resident, and of a line of them `crowd` requests come beyond the first of each
    multiprocessor.  An output channel's begin `w_pitch` bytes apart; 0: consumers lay them out.  `apart`: a group's
    channels are a sector, of lines that blocks of other groups share.  `stored` bytes of a pixel of y are stored
    together; `splits` sectors are stored in two parts, by two blocks.  Of each element of y, a consumer computes
    `functions` cycles, and reads `operands`; for this and to store it, it makes `accesses`: of vectors, their shares.
    With `most` tiles, what no number of them from `tiles` to that goes below.  The rest as for `tma_im2col`."""
    r = rates
    memory = r.memory * (r.apart if apart else 1.0)
    busy_sms = min(tiles * channel_tiles, sms)
    start = r.start + r.spread * busy_sms / sms
    written = _written(writes, y_pitch, stored, r)
    mma = _of_tap(pixels, channels, shares, by_channels, products, r)
    latency = r.latency / CYCLES
    a_byte = r.row / (2 * k) / CYCLES
    halo, dearer = box * a_byte * ragged(r.ragged, x_pitch), ragged(r.ragged, w_pitch)
    filters = filter_box * a_byte * dearer
    if weight_stages:
        prologue, load = filters, blocks * (halo + taps * filters)
        come = latency + r.queue * crowd / CYCLES + filters
        tap = max(mma + r.tap / CYCLES, come / max(weight_stages - r.stages_held, 0.25))
    else:
        kept = taps * blocks * filter_box
        brought = kept / (2 * k) * r.resident_row * dearer + r.line * crowd if w_pitch else kept / r.resident_bytes
        prologue, load, tap = max(brought / CYCLES, kept * busy_sms / r.alike), blocks * halo, mma
    # of a tile: its taps, their waiting for halo tiles, its stores
    share = 1 / max(max(tiles, most) * channel_tiles / sms, 1) / memory
    hidden = (stages - 1) * taps * tap
    stored_us = _stored(pixels, channels, accesses, functions, r)
    epilogue = over(stored_us + latency * (operands > 0), written * share)
    alone = blocks * taps * tap + (blocks - 1) * max(latency + halo - hidden, 0.0) + epilogue
    between = max(latency + halo - hidden - epilogue, 0.0)
    # of a multiprocessor that always has another tile to multiply while one is stored; consumers of a tile in common
    # hide each other's waiting
    busy = max(blocks * taps * (mma if shares > 1 else tap) + r.serial_store * pixels * channels, load)
    busy = max(busy, (reads + written) * share, shares * stored_us)  # a multiprocessor stores for all its consumers
    turns = math.ceil(tiles / max(sms // channel_tiles, 1))
    in_turn = math.ceil(turns * shares / consumers)
    time = max((turns - 1) * busy + alone, in_turn * alone + (in_turn - 1) * between)
    streamed = taps * filter_box * _in_sectors(k, w_pitch) if weight_stages else 0
    fetched = blocks * (box * _in_sectors(k, x_pitch) + streamed) * tiles * channel_tiles
    time = max(time, fetched / r.l2)
    moved = reads + written + splits * r.split
    return over(latency + halo + prologue + time + start, moved / memory + start)


def least(
    *, channels: int, k: int, shares: int, by_channels: bool, blocks: int, products: float,
    filter_box: int, channel_tiles: int, taps: int, apart: bool, operands: int, reads: int, writes: int,
    x_pitch: int, w_pitch: int, y_pitch: int, stored: int, accesses: float, splits: float, sms: int, resident: bool,
    rates: Rates = H200,
) -> Callable[[int, int], float]:  # fmt: skip
    """Microseconds that tiles do not go below, by the pixels of a consumer and their number, whatever their halo tiles
    and their rings: once filters have come where they are `resident` for sure, one tile after the other waits for the
    tensor cores, and bytes for device memory."""
    r = rates
    memory = r.memory * (r.apart if apart else 1.0)
    prologue = taps * blocks * filter_box / r.resident_bytes / CYCLES if resident else 0.0
    moved = reads + _written(writes, y_pitch, stored, r) + splits * r.split

    def us(pixels: int, tiles: int) -> float:
        mma = _of_tap(pixels, channels, shares, by_channels, products, r)
        turns = math.ceil(tiles / max(sms // channel_tiles, 1))
        time = turns * blocks * taps * mma + (turns - 1) * r.serial_store * pixels * channels
        time += _stored(pixels, channels, accesses, 0.0, r)
        start = r.start + r.spread * min(tiles * channel_tiles, sms) / sms
        return over(r.latency / CYCLES + prologue + time + start, moved / memory + start)

    return us
