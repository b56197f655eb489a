"""Why a tensor map cannot express a problem, or the hardware not run a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.index_map import tma_axes
from convgen.ir.problem import ConvProblem
from convgen.strategies.base import Obstacle
from convgen.strategies.hopper import MAX_ELEMENT_STRIDE, block_threads, launch_registers
from convgen.strategies.tma_im2col.config import TmaIm2colConfig
from convgen.strategies.tma_im2col.tiles import (
    accumulators_of,
    footprint,
    is_pointwise,
    k_stages,
    k_steps,
    plane,
    registers_of,
    shared_limit,
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
    found: list[Obstacle] = []
    if is_pointwise(problem):
        return found
    rank = problem.rank + 2
    limits = LIMITS[rank]
    for axis, taps in zip(tma_axes(problem), problem.filter, strict=True):
        if axis.element_stride > MAX_ELEMENT_STRIDE:
            found.append(
                Obstacle(f"stride {axis.dim}={axis.element_stride} is above a tensor map's {MAX_ELEMENT_STRIDE}")
            )
        for name, corner in (("lower", axis.lower), ("upper", axis.upper)):
            if not limits.corner_low <= corner <= limits.corner_high:
                found.append(
                    Obstacle(
                        f"the im2col box's {name} corner on {axis.dim} is {corner}; "
                        f"rank {rank} allows [{limits.corner_low}, {limits.corner_high}]",
                        "less padding or dilation",
                    )
                )
        furthest = axis.offset(taps - 1)
        if furthest > limits.offset_high:
            found.append(
                Obstacle(
                    f"the last tap on {axis.dim} is {furthest} pixels away; rank {rank} allows {limits.offset_high}",
                    "a smaller dilation",
                )
            )
    return found


def illegal(problem: ConvProblem, target: Target, config: TmaIm2colConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found: list[Obstacle] = []

    def no(message: str, hint: str = "", option: str = "") -> None:
        found.append(Obstacle(message, hint, option))

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
    accumulators, budget = accumulators_of(config), registers_of(config, target) - 40
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, block_threads(config.consumers, config.blocks), config.blocks) - 28
    if config.columns // 2 > at_launch:
        axis = "m" if config.by_channels else "n"
        no(f"tile {axis}={config.columns} with {config.consumers} consumers: ptxas has {at_launch + 28} registers for "
           f"it", f"{axis}={at_launch * 2 // 16 * 16} or less", f"tile.{axis}")  # fmt: skip
    if accumulators > budget:
        no(
            f"tile {config.m}x{config.n} keeps {accumulators} accumulators a thread; "
            f"{config.consumers} consumers leave {max(budget, 0)} registers for them",
            "a smaller tile, or more cooperative consumers",
            "tile.n",
        )
    if problem.groups > 1 and problem.k_per_group % config.n:
        no(f"tile n={config.n} does not divide the {problem.k_per_group} output channels of a group", option="tile.n")
    if problem.groups > 1 and problem.c_per_group % config.k:
        no(f"tile k={config.k} does not divide the {problem.c_per_group} input channels of a group", option="tile.k")
    steps = k_steps(problem, config.k)
    if steps % config.merge:
        no(f"merge {config.merge} does not divide {steps} k steps", option="merge")
    if config.split > 1:
        if pingpong:
            no("split goes with schedule cooperative", option="split")
        least = 16 if config.by_channels else 8
        if config.columns % (least * config.split):
            what = "pixels" if config.by_channels else "channels"
            axis = "m" if config.by_channels else "n"
            no(f"tile {axis}={config.columns} does not split into {config.split} times {least} {what}", option="split")
        if config.cluster > 1:
            no("split makes clusters of its own", "cluster 1", "cluster")
        if k_stages(problem, config) < config.split:
            no(f"{k_stages(problem, config)} stages of k are fewer than split {config.split}", option="split")
    if config.stream:
        for name, value, plain in (
            ("schedule", config.schedule, "cooperative"), ("split", config.split, 1), ("cluster", config.cluster, 1),
            ("blocks", config.blocks, 1),
        ):  # fmt: skip
            if value != plain:
                no(f"stream goes with {name} {plain}, not {value}", f"{name} {plain}", name)
        if tile_count(problem, config) * k_stages(problem, config) >= 2**31:
            no("stream counts the k steps of all tiles in 32 bits, which these do not fit", "stream 0", "stream")
        if x_in_planes(problem):
            no("stream is not served where x is multiplied in planes", "stream 0", "stream")
    if config.shared and x_in_planes(problem):
        no("a cluster does not share what lies in planes", "cluster 1", "cluster")
    if problem.groups > 1 and config.shared == "x" and problem.k_per_group % (config.n * config.cluster):
        no(f"the {config.cluster} tiles of a cluster are of several groups, which read other channels of x",
           "shares w, or cluster 1", "shares")  # fmt: skip
    if config.shared:
        slice_of = config.m if config.shared == "x" else config.n
        if slice_of % (8 * config.cluster):
            axis = "m" if config.shared == "x" else "n"
            no(f"tile {axis}={slice_of} does not split into {config.cluster} slices of whole 8 rows", option="cluster")
    if found:
        return found
    size, limit = footprint(problem, config), shared_limit(target, config)
    if size.total > limit:
        fits = (limit - (size.total - config.stages * size.stage)) // size.stage
        no(
            f"{config.stages} stages of a {config.m}x{config.n}x{config.k} tile take {size.total} bytes "
            f"of shared memory; {target} has {limit}",
            f"at most {fits} stages fit" if fits >= 2 else "a smaller tile",
            "stages" if fits >= 2 else "tile.m",
        )
    return found
