"""Obstacles to kernels that keep lines of x in shared memory (`lines`): problems, tiles and shared memory."""

from __future__ import annotations

from convgen.ir.plan import Limit
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.base import Obstacle
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.image_count import image_limits, image_obstacles
from convgen.kernels.parts.lines import Lines, window


def unserved(problem: ConvProblem) -> list[Obstacle]:
    """Obstacles to lines, whatever the configuration."""
    elsewhere = "kernel mma_gemm"
    if window(problem) is None:
        what = f"a window's row is not contiguous in {problem.x.name}, or there are groups or three spatial dims"
        return [Obstacle(what, elsewhere, "kernel")]
    order = tuple(d for d in output.pixel_dims(problem) if d in problem.y.dims)
    if order != tuple(d for d in ("n", *problem.spatial.output) if d in problem.y.dims):
        return [Obstacle(f"{problem.y.name}'s pixels lie in the order {' '.join(order)}", "n p q", "kernel")]
    return image_obstacles(problem)


def uneven_tile(n: int, multiple: int) -> list[Obstacle]:
    """The obstacle that instructions do not fill a tile's channels."""
    if n % multiple == 0:
        return []
    up = -(-n // multiple) * multiple
    return [Obstacle(f"tile n={n} is not a multiple of {multiple} channels", f"n={up}", "tile.n")]


def too_large(layout: Lines) -> list[Obstacle]:
    """The obstacle that a layout does not fit shared memory."""
    blocks, target = layout.config.blocks, layout.target
    if layout.shared_bytes <= target.shared_limit(blocks):
        return []
    what = f"filters of {layout.problem.c} channels and {layout.problem.taps} taps, and the rows they need, take"
    room = f"{target} has {target.shared_limit(blocks)} for each of {blocks} blocks"
    hint, option = ("fewer stages", "stages") if layout.config.stages > 1 else ("a smaller tile", "tile.m")
    return [Obstacle(f"{what} {layout.shared_bytes} bytes of shared memory; {room}", hint, option)]


def limits(layout: Lines) -> tuple[Limit, ...]:
    """Limits on the number of images, if a call decides it."""
    pixels = layout.tiles * layout.config.tile_m
    of_tiles = (Limit("pixels of tiles", pixels, lowering.INT_LIMIT - 1),) if isinstance(pixels, Size) else ()
    return (*image_limits(layout.problem), *of_tiles)
