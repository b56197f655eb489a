"""The cost model of tma_im2col: microseconds from a configuration, before anything is compiled.

A few terms, each a resource: the tensor cores (whose narrow tiles wait for shared memory), L2, the rate at
which TMA fetches rows, the latency that stages in flight must cover, the tail of a partly filled wave, the
epilogue, device memory.  The rates are fitted to measurements on an H200 (benchmarks/fit_cost.py, then
fit_jointly.py; both say how far the model's choice is from the best that was measured).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.ir.problem import SECTOR
from convgen.kernels.parts.cost import CYCLES, lines, over, product, ragged


@dataclass(frozen=True)
class Rates:
    """Fitted figures of tma_im2col on one GPU.  Cycles are the multiprocessor's; times are in microseconds."""

    start: float = 0.864  # from launch to the first wgmma, and out again
    spread: float = 0.543  # more, as blocks are launched on all multiprocessors
    shared_wait: float = 26.98  # cycles that 64 x n x 16 waits for its A operand: max(n / 2, n / 4 + this)
    mma: float = 1.053  # of the tensor cores' peak time
    l2: float = 59.86  # bytes a cycle for a multiprocessor
    row: float = 2.713  # cycles a row of a box
    b_row: float = 1.805
    stage: float = 10.0  # cycles to signal a stage, besides what it loads
    line: float = 6.5  # cycles a request for a line of B, which multiprocessors get one after the other
    straddle: float = 0.5007  # more, for each line that a row touches beyond its first
    ragged_line: float = 2.4  # cycles a line that a row touches, where rows begin inside a sector (133 layers, H200)
    ragged_alone: float = 0.3  # more for such rows where filters stay, and rows of x come alone (386 layers, H200)
    latency: float = 736.9  # cycles of a load, to be covered by stages in flight
    stages_held: float = 1.577  # stages that are being read and so not in flight
    store: float = 0.00014  # a tile's element (as `joint`: tuning runs of 1,550 layers on H100s and H200s, 2026-11-27),
    epi_tile: float = 0.05  # an epilogue tile
    turn: float = 0.4528  # between the MMAs of two tiles
    multicast: float = 0.4826  # how much of the x that a cluster need not fetch twice counts; of w, nothing
    joint: float = 60.0  # cycles a stage that the blocks of a cluster wait for one another
    crowded: float = 0.1  # more time for each block beyond a multiprocessor's first (as `ragged_alone`)
    split: float = 0.2  # joining a cluster, a tile (fitted to 283 layers on an H100, as the next)
    split_store: float = 0.00022  # a partial sum's element
    meet: float = 0.14  # each of a split's blocks, where sums wait for the stages' place (9 layers, H200)
    finish: float = 6.0  # the second kernel of a stream (not fitted, as the next)
    part: float = 5e-4  # an element of a tile's part, written and read again
    rewrite: float = 150.0  # a step of a prologue, and cycles an element (not fitted: instructions counted)
    rewrite_element: float = 0.04
    row_sum: float = 0.047  # cycles of a tile's element, for each sum over rows (shuffles counted, not fitted)
    memory: float = 4.75e6  # bytes a microsecond
    l2_kept: float = 23e6  # bytes between two reads of the same, up to which L2 has it still,
    l2_lost: float = 52e6  # and from which on it has lost it (H100: 20 kernels counted by ncu and timed)
    cut_sector: float = 2.0  # a sector of y that TMA fills in part, for a whole one,
    cut_by_threads: float = 1.0  # and that threads fill in part (H200)
    # Bytes of a sector that two tiles fill, where it leaves L2 in between: written twice, and read to be filled up
    # (ncu, and 536 configurations of 40 layers, H200).
    seam: float = 500.0
    line_seam: float = 300.0  # of a line that two tiles fill, each whole sectors of it (one layer, 57 configurations)
    seam_kept: float = 30e6  # bytes of y that L2 keeps until its other part comes
    # Bytes that a cluster's blocks write between the first and the last of them: L2 keeps up to so many until then, and
    # beyond so many nothing (6 layers, 200 configurations, H200).
    cluster_kept: float = 8e6
    cluster_lost: float = 24e6


H200 = Rates()
#: Microseconds that a stream does not go below, for its second kernel, nor an order of taps that keeps x in L2, for the
#: bytes from which on it is worth it.
LEAST_REFINED = H200.start + min(H200.finish, H200.l2_kept / H200.memory)


def _touched(k: int, pitch: int) -> float:
    """Lines that k channels of a pixel touch."""
    return lines(min(2 * k, pitch), pitch)


def _straddling(k: int, pitch: int, r: Rates) -> float:
    """How many times dearer rows are to load than those that begin with a line."""
    return 1 + r.straddle * (_touched(k, pitch) - 1)


def _loading(aligned: float, rows: float, k: int, pitch: int, r: Rates) -> float:
    """Cycles of loads that take `aligned` ones where rows begin with a line; a multiprocessor fetches `rows`."""
    load = aligned * _straddling(k, pitch, r)
    return max(load, rows * _touched(k, pitch) * r.ragged_line) if pitch % SECTOR else load


def _filled_up(seams: float, together: float, writes: int, r: Rates) -> float:
    """How many bytes of lines that tiles fill together cost time: L2 keeps the rest for small results, and for blocks
    that stay together."""
    lost = min(max((together - r.cluster_kept) / (r.cluster_lost - r.cluster_kept), 0.0), 1.0)
    return seams * max(1 - r.seam_kept / writes, 0.0) * lost


def time(
    *, rows: int, columns: int, m: int, n: int, b_rows: int, resident: int, crowd: float, k: int, stages: int,
    consumers: int, pingpong: bool, blocks: int, k_blocks: int, split_k: int, cluster: int, shared: str,
    stream_k: int, tiles: int, steps: float, products: float, reads: float, writes: int, x_pitch: int, sms: int,
    rates: Rates = H200, rewritten: int = 0, epi_tiles: int = 0, row_sums: int = 0, functions: float = 0.0,
    again: int = 0, between: int = 0, cut: float = 0.0, by_tma: bool = True, seams: float = 0.0,
    line_seams: float = 0.0, together: float = math.inf, in_place: bool = False,
) -> float:  # fmt: skip
    """Microseconds of a tma_im2col kernel of 2-byte elements: `tiles` of m x n, `steps` of k each (on average
    `products` of 16), `rows` x `columns` of them as wgmma sees it, with `b_rows` of B; a `cluster` of blocks fetches
    the operand `shared` once, and a block the `resident` rows of B; of a line of B, `crowd` requests beyond the first
    of each multiprocessor come for a tile; `stream_k` deals the steps out evenly, so that blocks do not ask for the
    same B at the same time, and a second kernel finishes what they share; sums of a split come beside the stages, or
    `in_place` of them. `reads` and `writes` are bytes of device memory, a pixel of x takes `x_pitch` bytes; of the
    sectors of y, epilogue tiles fill a share `cut` in part, `by_tma` or by threads, and tiles of neighboring channels
    fill `seams` together, and `line_seams` lines, after up to `together` bytes of others; taps read `again` so many
    bytes of x, after `between` others. Of x, consumers write `rewritten` elements a step anew. Of y they make
    `row_sums` sums over pixels that are rows of fragments, and compute `functions` cycles of each element, all of a
    multiprocessor's consumers at about the same time."""
    r = rates
    written = writes * (1 + cut * ((r.cut_sector if by_tma else r.cut_by_threads) - 0.5))
    written += _filled_up(seams * r.seam + line_seams * r.line_seam, together, writes, r)
    reads += again * min(max((between - r.l2_kept) / (r.l2_lost - r.l2_kept), 0.0), 1.0)
    units = tiles * split_k
    start = r.start + r.spread * min(units / sms, 1)
    loaded, queue = b_rows, r.line * crowd / CYCLES
    if resident:  # all of B comes before the first product
        start, loaded, queue = start + resident * r.b_row * _straddling(k, x_pitch, r) / CYCLES, 0, 0.0
    mma = rows / 64 * products * product(columns, r.shared_wait) * r.mma
    a_rows = m * (1 - min(r.multicast, 1.0) * (1 - 1 / cluster) * (shared == "a"))
    b_row = r.row if stream_k else r.b_row
    load = max((a_rows + loaded) * k * 2 / r.l2, a_rows * r.row + loaded * b_row)
    fetched = m / (cluster if shared == "a" else 1) + loaded / (cluster if shared == "b" else 1)
    load = _loading(load, fetched, k, x_pitch, r)
    load = load * ragged(r.ragged_alone if resident else 0.0, x_pitch) + r.stage / k_blocks
    if rewritten:  # while the step before is multiplied
        mma = max(mma, r.rewrite + rewritten * r.rewrite_element)
    ring = (r.latency / k_blocks + load) / max(stages - r.stages_held, 0.25)
    own_steps = math.ceil(steps / split_k)
    # of a tile: its multiplying and its storing, and the bytes of device memory that go with each
    share = 1 / max(units / sms, 1) / r.memory
    main = own_steps * (max(mma, load, ring) + r.joint * (cluster > 1) / k_blocks) / CYCLES
    main = over(main + queue, reads * share)
    epilogue = r.epi_tile * epi_tiles + r.store * m * n / split_k
    epilogue += row_sums * r.row_sum * m * n / split_k / CYCLES
    epilogue += functions * m * n * blocks * (consumers if pingpong else 1) / split_k / CYCLES
    if split_k > 1:
        epilogue += r.split + r.split_store * m * n * (split_k - 1) / split_k + r.meet * split_k * in_place
    alone = main + over(epilogue, written * share)
    # of a multiprocessor that always has another tile to multiply while one is stored; a cluster joins in step
    busy = alone
    if split_k == 1:
        busy = max(own_steps * max(mma, load) / CYCLES + r.turn + queue, (reads + written) * share)
    if stream_k:
        parts = r.finish + r.part * m * n
        stores = math.ceil(units / sms) * over(epilogue, written * share)  # its consumers multiply nothing meanwhile
        return over(units / sms * main + stores + parts + start, (reads + written) / r.memory + start)
    in_turn = math.ceil(units / (sms * blocks * (consumers if pingpong else 1)))
    time = max((math.ceil(units / sms) - 1) * busy + alone, in_turn * alone) * (1 + r.crowded * (blocks - 1))
    return over(time + start, (reads + written) / r.memory + start)
