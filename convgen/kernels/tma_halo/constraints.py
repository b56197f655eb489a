"""Why the hardware cannot run a configuration."""

from __future__ import annotations

import math

from convgen.ir.size import Size
from convgen.kernels.base import Obstacle, Obstacles
from convgen.kernels.parts.hopper import MAX_BOX, MAX_ELEMENT_STRIDE, REGISTERS, accumulators_at_launch
from convgen.kernels.parts.limits import MAX_REGISTERS
from convgen.kernels.parts.partial_sums import OF_IMAGES
from convgen.kernels.tma_halo.config import LONGEST_SIDE
from convgen.kernels.tma_halo.halo import windows
from convgen.kernels.tma_halo.layout import Layout
from convgen.kernels.tma_halo.rings import STORE_VECTOR, y_channels_last


def illegal(layout: Layout) -> list[Obstacle]:
    """Why the hardware cannot run a configuration."""
    found = [
        *_sizes(layout), *_tile(layout), *_sums(layout), *_fold(layout), *_strips(layout), *_registers(layout)
    ]  # fmt: skip
    return found or [*_boxes(layout), *_shared_memory(layout)]


def illegal_tile(layout: Layout) -> bool:
    """Whether a tile is illegal in any strip, and however deep its rings are."""
    return bool(_tile(layout) or _sums(layout) or _registers(layout) or _fold(layout))


def illegal_strip(layout: Layout) -> bool:
    """Whether the strip, or the number of images, is illegal for any tile."""
    return bool(_sizes(layout) or _strips(layout))


def illegal_together(layout: Layout) -> bool:
    """Whether a tile and a strip, each of them legal, are illegal together however deep the tile's rings are."""
    return bool(_boxes(layout))


def _sizes(layout: Layout) -> Obstacles:
    """Obstacles to options that need fixed sizes."""
    found, x = Obstacles(), layout.read.x
    if layout.config.images > 1 and any(isinstance(window.output, Size) for window in layout.windows):
        found.no(f"images {layout.config.images} need images of fixed sizes", "images 1", "images")
    if layout.problem.dynamic and any(copy.source.role == "x" for copy in layout.prepared.copies):
        lies = "lies otherwise than n, pixels, channels in rows of 16 bytes"
        found.no(f"{x.name} needs fixed sizes, since it is copied: it {lies}", "leave `dynamic` out")
    return found


def _tile(layout: Layout) -> Obstacles:
    """How consumers share a tile, and which filters go with it."""
    config, found = layout.config, Obstacles()
    no = found.no
    if config.schedule == "cooperative" and config.consumers == 1:
        no("schedule cooperative needs 2 or 3 consumers", "consumers 2, or schedule pingpong", "schedule")
    if config.swap_ab and config.tile_n != 64 * config.shares:
        no(f"swap_ab 1 needs 64 channels per consumer of a tile: tile n={64 * config.shares}",
           option="tile.n")  # fmt: skip
    if not config.swap_ab and config.tile_n > 64:
        no("swap_ab 0 takes at most 64 channels", option="tile.n")
    if not config.swap_ab and config.tile_m % (64 * config.shares):
        no(f"swap_ab 0 takes a multiple of {64 * config.shares} pixels", option="tile.m")
    if layout.uneven and (config.own_channels >= layout.group.k + 64 or layout.group.k % STORE_VECTOR):
        no(f"{config.own_channels} channels do not go with the {layout.group.k} output channels of a group",
           option="tile.n")  # fmt: skip
    if config.lays_out_filters and config.weight_stages:
        no(
            f"{'fold' if config.fold > 1 else 'group_pack'} needs resident filters",
            "weight_stages 0",
            "weight_stages",
        )
    if config.weight_stages == 1:
        no("a consumer holds two stages of filters", "weight_stages 2 or more, or 0", "weight_stages")
    return found


def _sums(layout: Layout) -> Obstacles:
    """Sums of channels, which threads have where channels are rows of their fragments."""
    found, sums = Obstacles(), layout.read.sums
    if sums and not layout.config.swap_ab:
        found.no("swap_ab 0 is not served with sums over pixels", "swap_ab 1", "swap_ab")
    return found


def _fold(layout: Layout) -> Obstacles:
    """Output rows, or a strided dgrad's phases, as channels."""
    problem, config, found = layout.read, layout.config, Obstacles()
    no, phases = found.no, layout.strided is not None
    _, h, w = layout.windows
    if phases:
        folded = math.prod(layout.folds)
        if config.fold != folded:
            no(f"a tile of this dgrad has the channels of {folded} phases", f"fold {folded}", "fold")
        if not w.step:
            no("the taps of the phases are not evenly spaced along w")
    elif config.fold == 1:
        return found
    rows, unfolded = windows(problem)[0].output, "" if phases else "fold 1"
    if not phases and config.fold > rows and not isinstance(rows, Size):
        no(f"fold {config.fold} is more than the output's rows, {rows}", option="fold")
    if config.tile_n % (8 * config.fold):
        no(f"{config.tile_n} channels do not split into {config.fold} rows of 8 or more", option="fold")
    if h.stride > MAX_ELEMENT_STRIDE:
        no(f"fold {config.fold} makes a stride of {h.stride}; a tensor map has {MAX_ELEMENT_STRIDE}", option="fold")
    if not h.step:
        no(f"the taps of {config.fold} output rows are not evenly spaced", unfolded, "fold")
    if not y_channels_last(problem):
        no(f"fold needs channels innermost in {problem.y.name}", unfolded, "fold")
    return found


def _strips(layout: Layout) -> Obstacles:
    """Strips of an image, or whole images."""
    problem, config, found = layout.read, layout.config, Obstacles()
    no = found.no
    *_, w = layout.windows
    if config.strip > w.output and not isinstance(w.output, Size):
        no(f"strip {config.strip} is wider than the output's {w.output} columns", option="strip")
    if config.images > 1 and config.strip != w.output and not isinstance(w.output, Size):
        hint = f"strip {w.output}" if w.output <= LONGEST_SIDE else "images 1"
        no(f"images {config.images} need strips of all {w.output} columns", hint, "strip")
    if config.images > 1 and problem.rank == 3:
        no("images of three spatial dims are not joined", "images 1", "images")
    if config.images > 1 and any(t.dims == OF_IMAGES for t in problem.sums):
        no("tiles of several images have no sums of each", "images 1", "images")
    if config.images > problem.n and not isinstance(problem.n, Size):  # TMA fills the others with zeros
        no(f"images {config.images} are more than the {problem.n} there are", option="images")
    return found


def _registers(layout: Layout) -> Obstacles:
    """Accumulators of a thread."""
    config, found = layout.config, Obstacles()
    accumulators = config.consumer_pixels * config.consumer_channels // 128
    registers = REGISTERS[config.consumers]
    at_launch = accumulators_at_launch(layout.target, layout.threads, 1)
    budget = min((registers.consumer if registers else MAX_REGISTERS) - 56, at_launch)
    if accumulators > budget:
        found.no(
            f"{accumulators} accumulators per thread; {config.consumers} consumers leave {budget} registers for them",
            "fewer pixels or consumers",
            "tile.m",
        )
    return found


def _boxes(layout: Layout) -> Obstacles:
    """Boxes of x."""
    config, halo, found = layout.config, layout.halo, Obstacles()
    no = found.no
    _, h, w = layout.windows
    if config.images > 1 and layout.line_tiles > 1:
        no(
            f"{config.images} images take {halo.line} pixels of padded width",
            "fewer images, more pixels",
            "images",
        )
    sides = (halo.width * w.stride, halo.tallest * h.stride)
    if max(sides) > MAX_BOX:
        no(f"a halo tile spans {sides[1]} x {sides[0]} pixels of x; a box has at most {MAX_BOX} per side",
           "a narrower strip", "strip")  # fmt: skip
    return found


def _shared_memory(layout: Layout) -> Obstacles:
    found, limit = Obstacles(), layout.target.shared_bytes_per_block
    if layout.shared_bytes > limit:
        found.no(
            f"halo tiles, filters and epilogue tiles take {layout.shared_bytes} bytes of shared memory; "
            f"{layout.target} has {limit}",
            "fewer pixels, stages or consumers, streamed filters",
            "tile.m",
        )
    return found
