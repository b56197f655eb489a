"""Why the hardware cannot run a configuration of tma_wgrad."""

from __future__ import annotations

import math
from dataclasses import replace

from convgen import plurals
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts import gradient
from convgen.kernels.parts.hopper import (
    MAX_PIXELS,
    MULTIPLY_REGISTERS,
    OTHER_REGISTERS,
    SWIZZLE_ALIGNMENT,
    accumulators_at_launch,
    im2col_obstacles,
)
from convgen.kernels.tma_wgrad.launches import longer
from convgen.kernels.tma_wgrad.layout import Layout

#: Consumer warpgroups of a block, and columns of a product (PTX ISA, "wgmma.mma_async").
MOST_CONSUMERS, MOST_COLUMNS = 3, 256
#: Rows after which a swizzle repeats.
SWIZZLE_ROWS = 8


def illegal(layout: Layout) -> list[Obstacle]:
    """Why the hardware cannot run a configuration."""
    found = [*_row_taps(layout), *_halo(layout), *_tile(layout)]
    return found or [*_cluster(layout), *_registers(layout), *_k_loop(layout), *_shared_memory(layout)]


def _row_taps(layout: Layout) -> Obstacles:
    """Where a box of x serves a filter row, neighboring pixels of y must be neighbors in x."""
    problem, found = layout.gemm.problem, Obstacles()
    if not layout.config.row_taps:
        return found
    if layout.config.halo:
        found.no("a halo also serves the taps of filter rows", "row_taps 0", "row_taps")
    dim, taps, stride = problem.spatial.input[-1], problem.filter[-1], problem.stride[-1]
    if taps == 1 or stride > 1:
        found.no(f"row_taps 1 is for filter rows of several taps and unit stride, not {taps} and stride {dim}={stride}",
                 "row_taps 0", "row_taps")  # fmt: skip
    if taps * layout.config.span > MOST_COLUMNS:
        found.no(f"{taps} taps of {layout.config.span} channels are more than a product's {MOST_COLUMNS} columns",
                 "a smaller span, or row_taps 0", "span")  # fmt: skip
    if not found:
        found += [replace(o, hint="row_taps 0", option="row_taps") for o in _longer_walk(layout)]
    return found


def _halo(layout: Layout) -> Obstacles:
    """Where x comes with its halo, several taps must be shifts of one phase of it."""
    found, (h, w) = Obstacles(), layout.windows
    if not layout.config.halo or layout.config.row_taps:
        return found
    for axis in (h, w):
        if axis.phases != tuple(range(len(axis.phases))):
            found.no(f"taps are {', '.join(map(str, axis.phases))} pixels off a stride of {axis.stride}, and a halo is "
                     "for phases without gaps", "halo 0", "halo")  # fmt: skip
    if layout.phases == layout.box_taps:
        found.no("a halo is for taps that are shifts of one another; this filter has none", "halo 0", "halo")
    if layout.part_columns > MOST_COLUMNS:
        found.no(f"{layout.taps[-1]} taps of {layout.config.span} channels are more than a product's {MOST_COLUMNS} "
                 "columns", "a smaller span, or halo 0", "span")  # fmt: skip
    if not found:
        found += [replace(o, hint="halo 0", option="halo") for o in _longer_walk(layout)]
    return found


def _longer_walk(layout: Layout) -> Obstacles:
    """What tensor maps cannot express of x and y, both walked over rows, and where they share a halo columns, that are
    longer than y's."""
    problem, found = layout.gemm.problem, Obstacles()
    of_x, of_y = longer(layout)
    found += im2col_obstacles(of_x, problem.filter)
    found += im2col_obstacles(of_y, problem.filter)
    pixels = layout.config.tile_k + layout.reach
    if pixels > MAX_PIXELS:
        found.no(f"a box of x that serves several taps has {pixels} pixels; a tensor map allows {MAX_PIXELS}")
    return found


def _tile(layout: Layout) -> Obstacles:
    """How a tile splits into boxes, and consumers share it."""
    config, found = layout.config, Obstacles()
    if config.consumers > MOST_CONSUMERS:
        found.no(f"{config.warps_m} by {config.warps_n} warps are {config.consumers} warpgroups",
                 f"at most {MOST_CONSUMERS}", "warps.n")  # fmt: skip
    rows = 16 * config.warps_m
    if config.tile_m % rows:
        found.no(f"tile m={config.tile_m} does not split into 64 rows for each of {config.warps_m // 4} warpgroups",
                 f"m={rows} or a multiple", "tile.m")  # fmt: skip
    each = layout.part_columns if config.halo else layout.box_columns  # which consumers share
    columns = math.lcm(layout.box_columns, config.warps_n * each)
    if config.tile_n % columns:
        what = f"{layout.box_taps} taps by {config.span}" if layout.box_taps > 1 else f"{config.span}"
        found.no(f"tile n={config.tile_n} does not split into boxes of {what} channels for {config.warps_n} along n",
                 f"n={columns} or a multiple", "tile.n")  # fmt: skip
    elif layout.part_columns > MOST_COLUMNS:
        found.no(f"tile n={config.tile_n} has {layout.part_columns} columns in a product",
                 f"n={MOST_COLUMNS * config.warps_n} or less", "tile.n")  # fmt: skip
    elif layout.part_columns % (8 * config.split_k):
        found.no(f"{layout.part_columns} columns do not split into {config.split_k} times 8", option="split_k")
    return found


def _cluster(layout: Layout) -> Obstacles:
    """How the blocks of a cluster load an operand together: each some pixels of every step."""
    config, found = layout.config, Obstacles()
    if config.cluster == 1:
        return found
    if config.split_k > 1:
        found.no("the blocks of a cluster share an operand or a tile's k loop, not both", "split_k 1", "split_k")
    if layout.shared_axes:
        option = "halo" if config.halo else "row_taps"
        found.no("the blocks of a cluster do not share boxes that serve several taps", f"{option} 0", option)
    if layout.part_pixels % SWIZZLE_ROWS:
        found.no(f"{config.tile_k} pixels a step do not split into {config.cluster} times a multiple of {SWIZZLE_ROWS}",
                 f"tile k={SWIZZLE_ROWS * config.cluster} or more", "tile.k")  # fmt: skip
    tiles, what = (layout.n_tiles, "n") if config.shared == "a" else (layout.m_tiles, "m")
    if tiles % config.cluster:
        found.no(f"{tiles} tiles along {what} do not split into clusters of {config.cluster}",
                 "another multicast, or cluster 1", "cluster")  # fmt: skip
    return found


def _registers(layout: Layout) -> Obstacles:
    config, found = layout.config, Obstacles()
    at_launch = accumulators_at_launch(layout.target, layout.threads, config.blocks)
    if layout.part_columns // 2 > at_launch:
        found.no(f"{layout.part_columns} columns with {config.consumers} consumers: ptxas has "
                 f"{at_launch + MULTIPLY_REGISTERS} "
                 f"registers for them", "fewer columns", "tile.n")  # fmt: skip
    budget = layout.registers - OTHER_REGISTERS
    if config.accumulators > budget:
        found.no(
            f"tile {config.tile_m}x{config.tile_n} keeps {config.accumulators} accumulators per thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more warps",
            "tile.n",
        )
    return found


def _k_loop(layout: Layout) -> Obstacles:
    config, found = layout.config, Obstacles()
    if layout.shares > layout.steps:
        steps = plurals.counted(layout.steps, "step")
        found.no(f"{layout.shares} shares are more than the {steps} of {config.tile_k} pixels",
                 "fewer slices", "slices" if config.slices > 1 else "split_k")  # fmt: skip
    if config.adds:
        found += gradient.atomic_obstacles(config.slices)
    return found


def _shared_memory(layout: Layout) -> Obstacles:
    config, target, found = layout.config, layout.target, Obstacles()
    limit = target.shared_limit(config.blocks)
    if layout.shared_bytes > limit:
        fits = (limit - SWIZZLE_ALIGNMENT) // (layout.stage + 16)
        found.no(
            f"{config.stages} stages of a {config.tile_m}x{config.tile_n}x{config.tile_k} tile, or a cluster's sums, "
            f"take {layout.shared_bytes} bytes of shared memory; {target} has {limit}",
            f"at most {fits} stages fit" if fits >= 2 else "a smaller tile",
            "stages" if fits >= 2 else "tile.m",
        )
    return found
