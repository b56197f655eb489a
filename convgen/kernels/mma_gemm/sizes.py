"""Sizes that a call decides, in mma_gemm: where they occur, and how large they may be.

Offsets are sums of coordinates times steps, of which those along rows and images then depend on sizes.  What runs along
the channels stays as it is, and with it the vectors that threads load and store.
"""

from __future__ import annotations

from convgen.ir.plan import Limit
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.size import Size
from convgen.kernels.base import Obstacles
from convgen.kernels.mma_gemm.layout import Layout
from convgen.kernels.parts import lowering


def size_obstacles(problem: ConvProblem) -> Obstacles:
    """Why the kernel needs fixed sizes, whatever its configuration."""
    found, hint = Obstacles(), "leave `dynamic` out"
    if problem.op is not Op.FPROP:
        found.no(f"op {problem.op} needs fixed sizes", hint)
    for tensor, channel in ((problem.x, "c"), (problem.y, "k")):
        if tensor.innermost != channel:
            found.no(f"{tensor.name} needs fixed sizes, unless its channels are innermost", hint)
    if lowering.index_type(problem, ()) != "int":
        found.no("tensors of 2^31 elements need fixed sizes", hint)
    return found


def illegal_sizes(layout: Layout) -> Obstacles:
    """Why a configuration needs fixed sizes."""
    found, config = Obstacles(), layout.config
    if not layout.problem.dynamic:
        return found
    if config.split_k > 1:
        found.no(f"split_k {config.split_k} needs fixed sizes", "split_k 1", "split_k")
    if layout.apart:
        found.no(f"math {config.math} needs fixed sizes", "math tf32", "math")
    if isinstance(layout.walks["x"].digits[-1].step, Size):
        found.no("neighbors along gemm_k lie a row of x apart, which needs fixed sizes", "order channel_first", "order")
    return found


def limits(layout: Layout) -> tuple[Limit, ...]:
    """Limits on sizes that a call decides."""
    problem = layout.problem
    pixels = layout.tiles[0] * layout.config.tile_m
    found = lowering.index_limits(problem, layout.index)
    return (*found, Limit("pixels of tiles", pixels, lowering.INT_LIMIT - 1)) if isinstance(pixels, Size) else found
