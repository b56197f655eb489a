"""Why a tensor map cannot express a problem, or the hardware not run a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.index_map import tma_axes
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts.hopper import MAX_ELEMENT_STRIDE, launch_registers
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.kernels.tma_im2col.tiles import (
    accumulators_of,
    footprint,
    is_pointwise,
    k_stages,
    k_steps,
    plane,
    registers_of,
    threads,
    tile_count,
    x_in_planes,
)
from convgen.targets import Target


@dataclass(frozen=True)
class Im2colLimits:
    """Ranges of an im2col tensor map by rank (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA, im2col offsets)."""

    corner_low: int
    corner_high: int
    offset_high: int


LIMITS: dict[int, Im2colLimits] = {
    3: Im2colLimits(-32768, 32767, 65535),
    4: Im2colLimits(-128, 127, 255),
    5: Im2colLimits(-16, 15, 31),
}


def map_obstacles(problem: ConvProblem) -> list[Obstacle]:
    """What the im2col tensor map cannot express."""
    found = Obstacles()
    if is_pointwise(problem):
        return found
    rank = problem.rank + 2
    limits = LIMITS[rank]
    for axis, taps in zip(tma_axes(problem), problem.filter, strict=True):
        if axis.element_stride > MAX_ELEMENT_STRIDE:
            found.no(f"stride {axis.dim}={axis.element_stride} is above a tensor map's {MAX_ELEMENT_STRIDE}")
        for name, corner in (("lower", axis.lower), ("upper", axis.upper)):
            if not limits.corner_low <= corner <= limits.corner_high:
                found.no(
                    f"the im2col box's {name} corner on {axis.dim} is {corner}; "
                    f"rank {rank} allows [{limits.corner_low}, {limits.corner_high}]",
                    "less padding or dilation",
                )
        furthest = axis.offset(taps - 1)
        if furthest > limits.offset_high:
            found.no(
                f"the last tap on {axis.dim} is {furthest} pixels away; rank {rank} allows {limits.offset_high}",
                "a smaller dilation",
            )
    return found


def illegal(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found = [
        *_consumers(problem, target, config),
        *_groups(problem, config),
        *_k_loop(problem, config),
        *_cluster(problem, config),
    ]
    return found or _shared_memory(problem, target, config)


def _consumers(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> Obstacles:
    """How consumers share a tile, and the registers that it takes them."""
    found = Obstacles()
    no = found.no
    pingpong = config.schedule == "pingpong"
    if pingpong and config.consumers == 1:
        no("schedule pingpong needs 2 or 3 consumers", "consumers 2", "schedule")
    rows, axis = (config.n, "n") if config.by_channels else (config.m, "m")
    share = 64 * (1 if pingpong else config.consumers)
    if rows % share:
        each = "" if pingpong else f" for each of {config.consumers} consumers"
        no(f"tile {axis}={rows} does not split into 64 rows{each}", f"{axis}={share} or a multiple", f"tile.{axis}")
    if config.by_channels and plane(problem):
        no("rows channels is not served where channels lie outside of the pixels of y", "rows pixels", "rows")
    accumulators, budget = accumulators_of(config), registers_of(problem, config, target) - 40
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, threads(problem, config), config.blocks) - 28
    if config.columns // 2 > at_launch:
        axis = config.columns_axis
        no(f"tile {axis}={config.columns} with {config.consumers} consumers: ptxas has {at_launch + 28} registers for "
           f"it", f"{axis}={at_launch * 2 // 16 * 16} or less", f"tile.{axis}")  # fmt: skip
    if accumulators > budget:
        no(
            f"tile {config.m}x{config.n} keeps {accumulators} accumulators a thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more cooperative consumers",
            "tile.n",
        )
    return found


def _groups(problem: ConvProblem, config: TmaIm2colConfig) -> Obstacles:
    """A tile is of one group."""
    found = Obstacles()
    if problem.groups == 1:
        return found
    k, c = problem.k_per_group, problem.c_per_group
    if k % config.n:
        found.no(f"tile n={config.n} does not divide the {k} output channels of a group", option="tile.n")
    if c % config.k:
        found.no(f"tile k={config.k} does not divide the {c} input channels of a group", option="tile.k")
    if config.shared == "x" and k % (config.n * config.cluster):
        found.no(
            f"the {config.cluster} tiles of a cluster are of several groups, which read other channels of x",
            "shares w, or cluster 1",
            "shares",
        )
    return found


def _k_loop(problem: ConvProblem, config: TmaIm2colConfig) -> Obstacles:
    """How k steps are merged, and split or dealt out among blocks."""
    found = Obstacles()
    no = found.no
    steps, stages = k_steps(problem, config.k), k_stages(problem, config)
    if steps % config.merge:
        no(f"merge {config.merge} does not divide {steps} k steps", option="merge")
    if config.split > 1:
        if config.schedule == "pingpong":
            no("split goes with schedule cooperative", option="split")
        least, what = (16, "pixels") if config.by_channels else (8, "channels")
        if config.columns % (least * config.split):
            no(f"tile {config.columns_axis}={config.columns} does not split into {config.split} times {least} {what}",
               option="split")  # fmt: skip
        if config.cluster > 1:
            no("split makes clusters of its own", "cluster 1", "cluster")
        if stages < config.split:
            no(f"{stages} stages of k are fewer than split {config.split}", option="split")
    if config.stream:
        for name, value, plain in (
            ("schedule", config.schedule, "cooperative"), ("split", config.split, 1), ("cluster", config.cluster, 1),
            ("blocks", config.blocks, 1),
        ):  # fmt: skip
            if value != plain:
                no(f"stream goes with {name} {plain}, not {value}", f"{name} {plain}", name)
        if tile_count(problem, config) * stages >= 2**31:
            no("stream counts the k steps of all tiles in 32 bits, which these do not fit", "stream 0", "stream")
        if x_in_planes(problem):
            no("stream is not served where x is multiplied in planes", "stream 0", "stream")
    return found


def _cluster(problem: ConvProblem, config: TmaIm2colConfig) -> Obstacles:
    """What a cluster loads together, in slices."""
    found = Obstacles()
    if not config.shared:
        return found
    if x_in_planes(problem):
        found.no("a cluster does not share what lies in planes", "cluster 1", "cluster")
    axis, extent = ("m", config.m) if config.shared == "x" else ("n", config.n)
    if extent % (8 * config.cluster):
        found.no(f"tile {axis}={extent} does not split into {config.cluster} slices of whole 8 rows", option="cluster")
    return found


def _shared_memory(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> Obstacles:
    found = Obstacles()
    size, limit = footprint(problem, config), target.shared_limit(config.blocks)
    if size.total > limit:
        fits = (limit - (size.total - config.stages * size.stage)) // size.stage
        found.no(
            f"{config.stages} stages of a {config.m}x{config.n}x{config.k} tile take {size.total} bytes "
            f"of shared memory; {target} has {limit}",
            f"at most {fits} stages fit" if fits >= 2 else "a smaller tile",
            "stages" if fits >= 2 else "tile.m",
        )
    return found
