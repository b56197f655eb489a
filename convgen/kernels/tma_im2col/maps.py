"""The tensor maps of x, w and y."""

from __future__ import annotations

from convgen.ir.index_map import tma_axes
from convgen.ir.plan import TensorMap
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts.operand_tiles import Chunk
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.kernels.tma_im2col.tiles import Footprint, is_pointwise, plane, taps_outside, x_in_planes


def x_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    """Boxes of tile.m pixels (of a cluster's slice) by tile.k channels: of x in im2col mode, or of the matrix
    [pixels, channels] that a pointwise convolution has; in planes 64 pixels by tile.k channels of an image."""
    x, size = problem.x, problem.x.element.bytes
    span = config.k * size
    if x_in_planes(problem):
        image = plane(problem)
        return TensorMap(
            "x", "tiled", x.dtype, (image, problem.c, problem.n), (image * size, problem.c * image * size), (1, 1, 1),
            box=(64, config.k, 1), swizzle=128,
        )  # fmt: skip
    pixels = config.m // (config.cluster if config.shared == "x" else 1)
    if is_pointwise(problem):
        return TensorMap(
            "x", "tiled", x.dtype, (problem.c, problem.output_pixels), (problem.c * size,), (1, 1),
            box=(config.k, pixels), swizzle=span,
        )  # fmt: skip
    axes = tma_axes(problem)[::-1]
    dims = (problem.c, *problem.input[::-1], problem.n)
    strides, bytes_ = [], size
    for extent in dims[:-1]:
        bytes_ *= extent
        strides.append(bytes_)
    return TensorMap(
        "x", "im2col", x.dtype, dims, tuple(strides), (1, *(a.element_stride for a in axes), 1),
        lower=tuple(a.lower for a in axes), upper=tuple(a.upper for a in axes),
        channels=config.k, pixels=pixels, swizzle=span,
    )  # fmt: skip


def w_map(problem: ConvProblem, config: TmaIm2colConfig) -> TensorMap:
    """Boxes of tile.n output channels (of a cluster's slice) by tile.k input channels of one tap."""
    w, size = problem.w, problem.w.element.bytes
    c, k, taps = problem.c_per_group, problem.k, problem.taps
    outer = ((k, c), (taps, c * k)) if taps_outside(problem) else ((taps, c), (k, c * taps))
    rows = config.n // (config.cluster if config.shared == "w" else 1)
    box = (config.k, rows, 1) if taps_outside(problem) else (config.k, 1, rows)
    return TensorMap(
        "w", "tiled", w.dtype, (c, *(e for e, _ in outer)), tuple(s * size for _, s in outer), (1, 1, 1),
        box=box, swizzle=config.k * size,
    )  # fmt: skip


def y_map(problem: ConvProblem, size: Footprint) -> TensorMap:
    """Boxes of one chunk: of the matrix [pixels, channels], or of planes [n, channels, pixels]."""
    shape = (size.chunk_n, size.chunk_m) if plane(problem) else (size.chunk_m, size.chunk_n)
    return Chunk(problem.y, *shape).map(problem, plane(problem))
