"""Why the hardware cannot run a configuration."""

from __future__ import annotations

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts.hopper import MAX_BOX, MAX_ELEMENT_STRIDE, REGISTERS, launch_registers
from convgen.kernels.tma_patch.config import TmaPatchConfig
from convgen.kernels.tma_patch.geometry import geometry, pixels_outside, threads
from convgen.kernels.tma_patch.patch import windows
from convgen.targets import Target


def illegal(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> list[Obstacle]:
    """What a configuration asks for that the hardware does not have."""
    found = [*_tile(problem, config), *_fold(problem, config), *_strips(problem, config), *_registers(target, config)]
    return found or _patches(problem, target, config)


def _tile(problem: ConvProblem, config: TmaPatchConfig) -> Obstacles:
    """How consumers share a tile, and which weights go with it."""
    found = Obstacles()
    no = found.no
    if config.schedule == "cooperative" and config.consumers == 1:
        no("schedule cooperative needs 2 or 3 consumers", "consumers 2, or schedule pingpong", "schedule")
    if config.rows == "channels" and config.channels != 64 * config.shares:
        no(f"swap_ab 1 goes with 64 channels for each consumer of a tile: channels {64 * config.shares}",
           option="channels")  # fmt: skip
    if config.rows == "pixels" and config.channels > 64:
        no("swap_ab 0 goes with at most 64 channels", option="channels")
    if config.rows == "pixels" and config.pixels % (64 * config.shares):
        no(f"swap_ab 0 takes a multiple of {64 * config.shares} pixels", option="pixels")
    if problem.groups > 1 and problem.k_per_group % config.own_channels:
        no(f"{config.own_channels} channels do not divide the {problem.k_per_group} output channels of a group",
           option="channels")  # fmt: skip
    if problem.groups > 1 and problem.c_per_group % config.k:
        no(f"tile k={config.k} does not divide the {problem.c_per_group} input channels of a group", option="tile.k")
    if config.fills and config.weight_stages:
        no(
            f"{'fold' if config.fold > 1 else 'group_pack'} goes with resident weights",
            "weight_stages 0",
            "weight_stages",
        )
    if config.weight_stages == 1:
        no("a consumer holds two stages of weights", "weight_stages 2 or more, or 0", "weight_stages")
    return found


def _fold(problem: ConvProblem, config: TmaPatchConfig) -> Obstacles:
    """Output rows as channels."""
    found = Obstacles()
    if config.fold == 1:
        return found
    no = found.no
    h, _ = windows(problem, config.fold)
    rows = windows(problem)[0].output
    if config.fold > rows:
        no(f"fold {config.fold} is more than the output's rows, {rows}", option="fold")
    if config.channels % (8 * config.fold):
        no(f"{config.channels} channels do not split into {config.fold} rows of 8 or more", option="fold")
    if h.stride > MAX_ELEMENT_STRIDE:
        no(f"fold {config.fold} makes a stride of {h.stride}; a tensor map has {MAX_ELEMENT_STRIDE}", option="fold")
    if not h.step:
        no(f"the taps of {config.fold} output rows are not evenly spaced", "fold 1", "fold")
    if not pixels_outside(problem):
        no(f"fold goes with channels innermost in {problem.y.name}", "fold 1", "fold")
    return found


def _strips(problem: ConvProblem, config: TmaPatchConfig) -> Obstacles:
    """Strips of an image, or whole images."""
    found = Obstacles()
    no = found.no
    _, w = windows(problem, config.fold)
    if config.strip > w.output:
        no(f"strip {config.strip} is wider than the output's {w.output} columns", option="strip")
    if config.images > 1 and config.strip != w.output:
        no(f"images {config.images} go with strips of all {w.output} columns", f"strip {w.output}", "strip")
    if config.images > problem.n:
        no(f"images {config.images} are more than the {problem.n} there are", option="images")
    return found


def _registers(target: Target, config: TmaPatchConfig) -> Obstacles:
    """Accumulators of a thread."""
    found = Obstacles()
    accumulators = config.consumer_pixels * config.consumer_channels // 128
    registers = REGISTERS[config.consumers]
    # ptxas compiles a wgmma with the registers of the launch, before setmaxnreg gives more
    at_launch = launch_registers(target, threads(config), 1) - 28
    budget = min((registers.consumer if registers else 255) - 56, at_launch)
    if accumulators > budget:
        found.no(
            f"{accumulators} accumulators a thread; {config.consumers} consumers leave {budget} registers for them",
            "fewer pixels or consumers",
            "pixels",
        )
    return found


def _patches(problem: ConvProblem, target: Target, config: TmaPatchConfig) -> Obstacles:
    """Boxes and shared memory."""
    found = Obstacles()
    no = found.no
    h, w = windows(problem, config.fold)
    size = geometry(problem, config)
    if config.images > 1 and size.line_tiles > 1:
        no(
            f"{config.images} images take {size.patch.line} pixels of padded width",
            "fewer images, more pixels",
            "images",
        )
    sides = (size.patch.width * w.stride, size.patch.tallest * h.stride)
    if max(sides) > MAX_BOX:
        no(f"a patch spans {sides[1]} x {sides[0]} pixels of x; a box has at most {MAX_BOX} a side",
           "a narrower strip", "strip")  # fmt: skip
    if size.total > target.shared_bytes_per_block:
        no(
            f"patches, weights and chunks take {size.total} bytes of shared memory; "
            f"{target} has {target.shared_bytes_per_block}",
            "fewer pixels, stages or consumers, streamed weights",
            "pixels",
        )
    return found
