"""Why a configuration of depthwise_wgrad is meaningless, or beyond the hardware."""

from __future__ import annotations

from functools import lru_cache

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.depthwise_wgrad.layout import UNIT, Layout, walks
from convgen.kernels.parts import limits
from convgen.kernels.parts.depthwise import channel_run
from convgen.kernels.parts.hopper import MAX_BOX, ROW_ALIGNMENT, launch_registers
from convgen.targets import Target

WIDEST, LEAST_COPY = 16, 4  # bytes of a load, and of one by cp.async
MOST_COLUMNS = 32  # bits of a word
MOST_REGISTERS = 200


def illegal(layout: Layout) -> list[Obstacle]:
    """Why a configuration is meaningless or exceeds the hardware."""
    c, problem, target, found = layout.config, layout.problem, layout.target, Obstacles()
    widest = widest_vector(problem)
    if c.vector > widest or widest % c.vector:
        found.no(f"vector {c.vector}: {widest} channels are aligned neighbors of at most {WIDEST} bytes",
                 f"vector {widest} or less", "vector")  # fmt: skip
        return found
    if c.slice % c.vector:
        found.no(f"slice {c.slice} is not a multiple of vector {c.vector}", option="slice")
        return found
    if c.tile_r > layout.walks[1].axis.filter:
        found.no(f"tile r={c.tile_r} is more than the filter's {layout.walks[1].axis.filter} rows", option="tile.r")
        return found
    if c.stages > 1 and "cp_async" not in target.features:
        found.no(f"target {target} has no cp.async", "stages 1", "stages")
    if c.stages > 1 and not layout.shared and min(layout.x_bytes, layout.y_bytes) < LEAST_COPY:
        found.no(f"cp.async copies {LEAST_COPY} bytes or more, not {min(layout.x_bytes, layout.y_bytes)}",
                 "a larger vector, or stages 1", "stages")  # fmt: skip
    if c.split_k > 1 and "cluster" not in target.features:
        found.no(f"target {target} has no clusters", "split_k 1", "split_k")
    if layout.shared:
        found += _malformed_shared(layout)
    elif layout.columns > MOST_COLUMNS:
        found.no(f"{layout.columns} input columns under {c.tile_q} outputs are more than {MOST_COLUMNS}",
                 "a smaller tile", "tile.q")  # fmt: skip
    if layout.block > limits.MAX_THREADS:
        found.no(f"{c.slice} channels by {layout.parts} parts of their filters are {layout.block} threads",
                 f"at most {limits.MAX_THREADS}: a smaller slice, or larger tile r", "slice")  # fmt: skip
        return found
    if layout.registers > min(MOST_REGISTERS, thread_registers(layout, c.blocks)):
        found.no(f"{c.tile_r} filter rows by {c.tile_q} columns of {c.vector} channels do not fit the registers "
                 f"of a thread with {c.blocks} blocks", "a smaller tile, or fewer blocks", "tile.q")  # fmt: skip
    if layout.shared_bytes > target.shared_limit(c.blocks):
        found.no(f"sums of {layout.threads} threads take {layout.shared_bytes} bytes of shared memory, "
                 f"{target} has {target.shared_limit(c.blocks)}", "fewer threads", "threads")  # fmt: skip
    return found


@lru_cache(maxsize=64)  # called for each configuration of a search
def unshared(problem: ConvProblem, target: Target) -> Obstacles:
    """Why TMA cannot load the rows of a block's threads, whatever the configuration."""
    found = Obstacles()
    _, rows, columns = walks(problem)

    def no(reason: str) -> None:
        found.no(f"loads shared: {reason}", "loads own", "loads")

    if "tma" not in target.features:
        no(f"target {target} has no TMA")
    if problem.rank > 2:
        no("three spatial dims are not served")
    for t, dims in ((problem.x, ("n", rows.input, columns.input)), (problem.y, ("n", rows.output, columns.output))):
        if any(t.extent(d) > 1 and t.stride(d) * t.element.bytes % ROW_ALIGNMENT for d in dims if d):
            no(f"pixels, rows or images of {t.name} do not begin at multiples of {ROW_ALIGNMENT} bytes")
    if columns.axis.dilation > 1:
        no("the filter's columns are dilated, and neighboring ones are brought")
    if rows.step > 1 and rows.axis.dilation > 1:
        no("the input rows that come with an output row are not neighbors")
    return found


def _malformed_shared(layout: Layout) -> Obstacles:
    """Why a configuration with shared rows is meaningless or beyond TMA."""
    c, found = layout.config, Obstacles(unshared(layout.problem, layout.target))
    no = found.no
    if not layout.walks[2].input and c.tile_q > 1:
        no(f"loads shared: tile q={c.tile_q} columns of a tensor that has only rows", "tile q=1", "tile.q")
    if c.stages < 2:
        no("loads shared: rows come to shared memory", "stages 2 or more", "stages")
    if c.slice % layout.multiplier or any(size % UNIT for size in layout.pixel_bytes):
        no(f"loads shared: slice {c.slice} is not of whole {UNIT} bytes of channels of x and y", option="slice")
    if layout.threads % limits.WARP:
        no(f"loads shared: {layout.threads} threads, channel vectors by strips, are not whole warps",
           f"a slice that is a multiple of {limits.WARP * c.vector}", "threads")  # fmt: skip
    if max(*layout.box_columns, *layout.box_channels, layout.walkers_n) > MAX_BOX:
        no(f"loads shared: {layout.box_columns[0]} columns of {layout.box_channels[1]} channels of {layout.walkers_n} "
           f"images; a box has at most {MAX_BOX} of each", "a smaller slice, or fewer threads", "slice")  # fmt: skip
    return found


def widest_vector(problem: ConvProblem) -> int:
    """Channels of y that a thread may have, by alignment and the widest load."""
    by_y = WIDEST // problem.y.element.bytes
    by_x = WIDEST // problem.x.element.bytes * problem.k_per_group
    return min(channel_run(problem), 1 << min(by_y, by_x).bit_length() - 1)


def thread_registers(layout: Layout, blocks: int) -> int:
    """Registers of a thread if so many blocks run on a multiprocessor."""
    return launch_registers(layout.target, -(-layout.block // limits.WARP) * limits.WARP, blocks)
