"""Configurations of depthwise_wgrad that are worth considering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Part
from convgen.kernels.config import Options, considered
from convgen.kernels.depthwise_wgrad.config import MOST_BLOCKS, Config
from convgen.kernels.depthwise_wgrad.constraints import LEAST_COPY, thread_registers, unshared, widest_vector
from convgen.kernels.depthwise_wgrad.cost import least, times
from convgen.kernels.depthwise_wgrad.layout import Layout, walks
from convgen.kernels.parts.channel_vectors import inputs
from convgen.kernels.parts.hopper import launch_blocks
from convgen.kernels.parts.limits import MAX_THREADS, WARP
from convgen.kernels.parts.pixel_slices import most_slices
from convgen.targets import Target

#: Rows in shared memory, if they are copied there.
STAGES = 4
#: Bands of a column, and their lengths where columns are long.
PARTS, LONG_BANDS = (1, 2, 4, 8), (32, 128)
#: Parts of a filter's rows, one per thread; 0: one row each.
ROW_PARTS = (1, 2, 0)
#: What follows from a thread's part, from a block's channels, and from its threads, however the pixels are divided.
OF_THREAD = ("shared", "walks", "inputs", "rows", "read_columns", "held", "thread_taps", "parts", "tiles", "registers")
OF_SLICE = ("vectors", "channel_slices", "pixel_bytes")
OF_BLOCKS = ("step", "walked", "column_strips")
#: Channels that a block shares rows of, at most.
WIDEST_SLICE = 192
#: Of the threads that a block may have, so many at least are to have work.
LEAST_BUSY = 0.75


@dataclass(frozen=True)
class Way:
    """The configurations worth considering for one way of loading rows."""

    vectors: tuple[int, ...]
    tile_qs: tuple[int, ...]
    #: Channels of a block.
    slices: tuple[int, ...]


def _ways(problem: ConvProblem, target: Target, fixed: Options) -> dict[str, Way]:
    """The ways to load rows, by the value of `loads`."""
    k = problem.k
    # where a step has few products, loads are to be wide
    vectors = (2, 4) if walks(problem)[2].axis.filter > 1 else (4, 8)
    # of half a warp, one, or two
    own = Way(vectors, (2, 4, 7), ())
    # the fewer channels a thread has, the more taps and columns; neighbors' loads cost nothing
    parts = {c for c in (32, 64, 96) if c < k + WARP} | ({k} if k <= WIDEST_SLICE else set())
    shared = Way((1, *vectors), (2, 4, 7, 14), tuple(sorted(parts)))
    both = {"own": own, "shared": shared}
    if "loads" in fixed:
        return {name: way for name, way in both.items() if name == fixed["loads"]}
    return both if not unshared(problem, target) else {"own": own}


def parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
    """The blocks worth considering, each with all divisions of the pixels among blocks."""

    def given(name: str, values: Iterable[int]) -> list[int]:
        return sorted(set(considered(fixed, name, values)))

    _, down, columns = walks(problem)
    widest, taps = widest_vector(problem), down.axis.filter
    tile_rs = given("tile.r", (-(-taps // (parts or taps)) for parts in ROW_PARTS))
    bands = given("band", [*(min(b, down.outputs) for b in LONG_BANDS), *(-(-down.outputs // p) for p in PARTS)])
    threads = given("threads", (128, 256, 384))
    for loads, way in _ways(problem, target, fixed).items():
        vectors = given("vector", (min(v, widest) for v in way.vectors))
        tile_qs = given("tile.q", (min(q, columns.outputs) for q in way.tile_qs))
        for v, r, q in product(vectors, tile_rs, tile_qs):
            stages = int(fixed.get("stages", _stages(problem, loads, v)))
            slices = way.slices or (min(problem.k, channels * v) for channels in (16, 32, 64))
            thread = Layout(problem, target, Config(v, v, r, q, bands[0], stages, WARP, blocks=1, loads=loads))
            thread.knowing(*OF_THREAD)
            for channels in given("slice", slices):
                slice = thread.sibling(slice=channels).knowing(*OF_SLICE)
                for most in threads:
                    one = slice.sibling(threads=most).knowing("block")
                    if channels % v or one.block > MAX_THREADS:
                        yield Part(0.0, [one])
                    elif not one.shared or fixed.keys() & {"loads", "threads"} or _fits(one):
                        one = one.sibling(blocks=int(fixed.get("blocks", _blocks(one)))).knowing(*OF_BLOCKS)
                        yield Part(least(one, bands[0], _clusters(target, fixed)[-1]), _divided(one, bands, fixed))


def _divided(layout: Layout, bands: Iterable[int], fixed: Options) -> Iterator[Part[Layout]]:
    """Divides the pixels into bands, and these among blocks.  Their times are found before they are laid out."""
    us = times(layout)
    for band in bands:
        for split_k, slices in _shares(layout, band, fixed):
            yield Part(us(band, split_k, slices), _one(layout, band, split_k, slices))


def _one(layout: Layout, band: int, split_k: int, slices: int) -> Iterator[Layout]:
    yield layout.sibling(band=band, split_k=split_k, slices=slices)


def _fits(layout: Layout) -> bool:
    """Whether a block that shares rows has whole warps, most of the threads that it may have, and their registers."""
    if layout.threads % WARP or layout.threads < LEAST_BUSY * layout.config.threads:
        return False
    return layout.registers <= thread_registers(layout, 1)


def _blocks(layout: Layout) -> int:
    """The number of blocks for which a multiprocessor has registers, threads and shared memory."""
    most = min(MOST_BLOCKS, layout.target.resident_blocks(layout.block, 1, layout.shared_bytes))
    return max(1, min(most, launch_blocks(layout.target, -(-layout.block // WARP) * WARP, layout.registers)))


def _stages(problem: ConvProblem, loads: str, vector: int) -> int:
    least = min(inputs(problem, vector) * problem.x.element.bytes, vector * problem.y.element.bytes)
    return STAGES if loads == "shared" or least >= LEAST_COPY else 1


def _shares(layout: Layout, band: int, fixed: Options) -> Iterator[tuple[int, int]]:
    """(split_k, slices): a cluster's blocks by slices of the pixels, that fill the GPU once, or half of it."""
    rounds = layout.rounds(band, 1)
    clusters = _clusters(layout.target, fixed)
    for split_k in clusters if "split_k" in fixed else [s for s in clusters if s <= rounds]:
        if "slices" in fixed:
            yield split_k, int(fixed["slices"])
            continue
        most = most_slices(layout.problem, rounds // split_k)
        at_once = layout.target.clustered_sms(split_k) * layout.config.blocks
        full = at_once // (layout.channel_slices * split_k)
        for slices in {max(min(full, most), 1), max(min(full // 2, most), 1)} if split_k == 1 else {1}:
            yield split_k, slices


def _clusters(target: Target, fixed: Options) -> tuple[int, ...]:
    """Blocks of a cluster."""
    if "split_k" in fixed:
        return (int(fixed["split_k"]),)
    return (1, 4, 8) if "cluster" in target.features else (1,)
