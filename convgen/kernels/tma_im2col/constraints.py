"""Why a tensor map cannot express a problem, or the hardware not run a configuration of tma_im2col."""

from __future__ import annotations

import math

from convgen.ir.phases import phase_count
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts.clusters import MAX_CLUSTER
from convgen.kernels.parts.hopper import (
    COLUMNS_BOX,
    MULTIPLY_REGISTERS,
    SWIZZLE_ALIGNMENT,
    accumulators_at_launch,
    im2col_obstacles,
)
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.parts.partial_sums import OF_IMAGES, image_pixels
from convgen.kernels.tma_im2col.config import LEAST_SPLIT
from convgen.kernels.tma_im2col.gemm import LEAST_BOX, Gemm
from convgen.kernels.tma_im2col.layout import PIXELS, Layout
from convgen.kernels.tma_im2col.prologue import CHANNELS, UNPACK

#: Of a strided dgrad: rows of a table in constant memory.
MOST_PHASES = 256


def phase_obstacles(problem: ConvProblem) -> list[Obstacle]:
    """Why a strided dgrad's table of phases does not fit."""
    if problem.op is not Op.DGRAD or (count := phase_count(problem)) <= MOST_PHASES:
        return []
    return [Obstacle(f"the stride makes {count} phases of dgrad; at most {MOST_PHASES} are served")]


def map_obstacles(gemm: Gemm) -> list[Obstacle]:
    """Why the im2col tensor map cannot express the walk."""
    return [] if gemm.pointwise else im2col_obstacles(gemm.axes, gemm.problem.filter)


def prologue_obstacles(problem: ConvProblem) -> Obstacles:
    """Why consumers cannot apply a prologue to tiles of x."""
    found = Obstacles()
    if problem.prologue is None:
        return found
    if problem.taps > 1 or any((*problem.pad_lo, *problem.pad_hi)):
        found.no("a prologue needs a filter of one tap and no padding")
    if problem.groups > 1 or problem.c % CHANNELS:
        found.no(f"a prologue takes one group, and a multiple of {CHANNELS} input channels")
    for t in problem.prologue.operands:
        if t.dtype not in UNPACK or t.dims not in (("c",), ("n", "c")) or (t.pitch or 0) % CHANNELS:
            types = f"{', '.join(list(UNPACK)[:-1])} or {list(UNPACK)[-1]}"
            found.no(f"{t.name} of the prologue is {t}; it must have the dims [c] or [n, c] and be {types}")
    return found


def illegal(layout: Layout) -> list[Obstacle]:
    """Why the hardware cannot run a configuration."""
    found = [*_consumers(layout), *_images(layout), *_groups(layout), *_phases(layout), *_k_loop(layout),
             *_cluster(layout), *_columns_of_b(layout), *_resident(layout), *_fill(layout),
             *_prologue(layout)]  # fmt: skip
    return found or _shared_memory(layout)


def _consumers(layout: Layout) -> Obstacles:
    """Obstacles to how consumers divide a tile, and to the registers that they need."""
    config, found = layout.config, Obstacles()
    no = found.no
    pingpong = config.schedule == "pingpong"
    if pingpong and config.consumers == 1:
        no("schedule pingpong needs 2 or 3 consumers", "consumers 2", "schedule")
    rows, axis = (config.tile_n, "n") if config.swap_ab else (config.tile_m, "m")
    share = 64 * (1 if pingpong else config.consumers)
    if rows % share:
        each = "" if pingpong else f" for each of {config.consumers} consumers"
        no(f"tile {axis}={rows} does not split into 64 rows{each}", f"{axis}={share} or a multiple", f"tile.{axis}")
    if layout.gemm.problem.sums and config.tile_m % PIXELS:
        no(f"tile m={config.tile_m} is not a multiple of {PIXELS} pixels, which are summed at once",
           f"m={PIXELS} or a multiple", "tile.m")  # fmt: skip
    if config.swap_ab and layout.gemm.plane:
        no("swap_ab is not served if channels lie outside of the pixels in y", "swap_ab 0", "swap_ab")
    accumulators = config.accumulators
    budget = layout.free_registers - layout.sum_registers - layout.prologue_registers
    at_launch = accumulators_at_launch(layout.target, layout.threads, config.blocks)
    if config.columns // 2 > at_launch:
        axis = config.columns_axis
        registers = at_launch + MULTIPLY_REGISTERS
        most = at_launch * 2 // 16 * 16
        no(f"tile {axis}={config.columns} with {config.consumers} consumers: ptxas has {registers} registers for it",
           f"{axis}={most} or less" if most else "fewer consumers or blocks", f"tile.{axis}")  # fmt: skip
    if accumulators > budget:
        no(
            f"tile {config.tile_m}x{config.tile_n} keeps {accumulators} accumulators per thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more cooperative consumers",
            "tile.n",
        )
    return found


def _images(layout: Layout) -> Obstacles:
    """Pixels that are summed at once must belong to one image if each image has its own sums."""
    problem, summed, found = layout.gemm.problem, layout.partial_pixels, Obstacles()
    of_images = any(t.dims == OF_IMAGES for t in problem.sums)
    if of_images and summed % PIXELS == 0 and (pixels := image_pixels(problem)) % summed:
        fits = math.gcd(summed, pixels) * layout.config.split_k
        found.no(f"{summed} pixels, which are summed at once, do not divide an image's {pixels}",
                 f"tile m={fits}", "tile.m")  # fmt: skip
    return found


def _fill(layout: Layout) -> Obstacles:
    """Obstacle: TMA's fill value for padding also fills channels past the last one."""
    g, k, found = layout.gemm, layout.config.tile_k, Obstacles()
    if g.problem.padding is Padding.NAN and g.channels % k:
        beyond = f"boxes of {k} channels reach beyond the {g.channels} of {g.problem.x.name}"
        found.no(f"{beyond}, into NaN that is not padding", f"tile k={LEAST_BOX}", "tile.k")
    return found


def _prologue(layout: Layout) -> Obstacles:
    """Each consumer applies it to the rows of A that it multiplies itself, one k block at a time."""
    config, found = layout.config, Obstacles()
    if layout.gemm.problem.prologue is None:
        return found
    if config.swap_ab and config.consumers > 1 and config.schedule == "cooperative":
        found.no("swap_ab with a prologue: cooperative consumers would share the tile of x", "consumers 1", "consumers")
    if layout.own_pixels * config.tile_k % (128 * CHANNELS):
        found.no(f"128 threads do not share {layout.own_pixels} pixels of {config.tile_k} channels evenly",
                 "tile k=64", "tile.k")  # fmt: skip
    if config.k_blocks > 1:
        found.no("a prologue takes one k block per stage", "k_blocks 1", "k_blocks")
    return found


def _groups(layout: Layout) -> Obstacles:
    """A tile is of one group."""
    group, config, found = layout.gemm.group, layout.config, Obstacles()
    if group is None:
        return found
    k = group.k
    if k % config.tile_n:
        found.no(f"tile n={config.tile_n} does not divide the {k} output channels of a group", option="tile.n")
    if config.shared == "a" and k % (config.tile_n * config.cluster):
        found.no(
            f"the {config.cluster} tiles of a cluster belong to several groups, which read different channels of x",
            "multicast b, or cluster 1",
            "multicast",
        )
    return found


def _k_loop(layout: Layout) -> Obstacles:
    """How k blocks share stages, and are split or dealt out among blocks."""
    config, found = layout.config, Obstacles()
    no = found.no
    stages = layout.k_stages
    if config.split_k > 1:
        if config.schedule == "pingpong":
            no("split_k needs schedule cooperative", option="split_k")
        least, what = LEAST_SPLIT[config.swap_ab], "pixels" if config.swap_ab else "channels"
        if config.columns % (least * config.split_k):
            no(f"tile {config.columns_axis}={config.columns} does not split into {config.split_k} times {least} {what}",
               option="split_k")  # fmt: skip
        if (blocks := config.cluster * config.split_k) > MAX_CLUSTER:
            no(f"cluster {config.cluster} and split_k {config.split_k} make a cluster of {blocks} blocks; "
               f"at most {MAX_CLUSTER} are served", f"cluster {MAX_CLUSTER // config.split_k}", "cluster")  # fmt: skip
        if stages < config.split_k:
            no(f"a tile has {stages} stages of k, fewer than split_k {config.split_k}", option="split_k")
    if config.stream_k:
        for name, value, plain in (
            ("schedule", config.schedule, "cooperative"), ("split_k", config.split_k, 1),
            ("cluster", config.cluster, 1), ("blocks", config.blocks, 1),
        ):  # fmt: skip
            if value != plain:
                no(f"stream_k needs {name} {plain}, not {value}", f"{name} {plain}", name)
        if layout.tile_count * stages >= INT_LIMIT:
            no("stream_k counts the k blocks of all tiles in 32 bits, which are too few here", "stream_k 0", "stream_k")
        if layout.gemm.a_planes:
            no("stream_k is not served if x is multiplied in planes", "stream_k 0", "stream_k")
        if layout.gemm.problem.sums:
            no("stream_k is not served with sums over pixels", "stream_k 0", "stream_k")
    return found


def _phases(layout: Layout) -> Obstacles:
    """The k loops of a strided dgrad's phases differ in length."""
    config, found = layout.config, Obstacles()
    uneven = next((blocks for blocks in layout.phase_k_blocks if blocks % config.k_blocks), 0)
    if uneven:
        found.no(f"k_blocks {config.k_blocks} does not divide the {uneven} of a tile", option="k_blocks")
    if layout.gemm.phases and config.split_k > 1:
        found.no("split_k is not served for a strided dgrad, whose k loops differ in length", "split_k 1", "split_k")
    if layout.gemm.phases and config.stream_k:
        found.no("stream_k is not served for a strided dgrad, whose k loops differ in length", "stream_k 0", "stream_k")
    return found


def _cluster(layout: Layout) -> Obstacles:
    """Obstacles to loading together, in slices, by a cluster."""
    config, found = layout.config, Obstacles()
    if not config.shared:
        return found
    if layout.gemm.a_planes:
        found.no("a cluster cannot share an operand that lies in planes", "cluster 1", "cluster")
    axis, extent = ("m", config.tile_m) if config.shared == "a" else ("n", config.tile_n)
    if extent % (8 * config.cluster):
        found.no(f"tile {axis}={extent} does not split into {config.cluster} slices of whole 8 rows", option="cluster")
    return found


def _resident(layout: Layout) -> Obstacles:
    """Obstacles to loading B once per block."""
    config, found = layout.config, Obstacles()
    if not config.resident:
        return found
    if config.raster > 1 and layout.n_tiles > 1:
        found.no("resident 1 needs raster 1: in bands, a block's tiles differ in output channels", "raster 1", "raster")
    if layout.gemm.phases:
        found.no("resident 1 is not served for a strided dgrad, whose phases have different taps",
                 "resident 0", "resident")  # fmt: skip
    if config.split_k > 1:
        found.no("resident 1 needs split_k 1: blocks share a tile's k steps", "split_k 1", "split_k")
    if config.shared == "b":
        found.no("resident 1 needs multicast a: each block loads all of its B once", "multicast a", "multicast")
    if config.stream_k:
        found.no("resident 1 needs stream_k 0: a block would begin within a tile", "stream_k 0", "stream_k")
    return found


def _shared_memory(layout: Layout) -> Obstacles:
    config, target, found = layout.config, layout.target, Obstacles()
    limit = target.shared_limit(config.blocks)
    if layout.shared_bytes > limit:
        fits = (limit - (layout.shared_bytes - config.stages * layout.stage)) // layout.stage
        found.no(
            f"{config.stages} stages of a {config.tile_m}x{config.tile_n}x{config.tile_k} tile take "
            f"{layout.shared_bytes} bytes of shared memory; {target} has {limit}",
            f"at most {fits} stages fit" if fits >= 2 else "a smaller tile",
            "stages" if fits >= 2 else "tile.m",
        )
    return found


def _columns_of_b(layout: Layout) -> Obstacles:
    """If B's columns are contiguous, TMA loads them 64 at a time, and wgmma may leave out the last ones."""
    config, found = layout.config, Obstacles()
    share = COLUMNS_BOX * config.cluster
    if layout.gemm.b_columns and config.shared == "b" and config.tile_n % share:
        found.no(f"tile n={config.tile_n} is not a multiple of {share} channels, which lie together in the filter",
                 f"n={share} or a multiple", "tile.n")  # fmt: skip
    if layout.gemm.b_columns and config.k_blocks * config.tile_m * layout.span % SWIZZLE_ALIGNMENT:
        found.no(f"stages of {config.tile_m} pixels by {config.tile_k} channels do not align B to "
                 f"{SWIZZLE_ALIGNMENT} bytes", "a larger tile k", "tile.k")  # fmt: skip
    return found
