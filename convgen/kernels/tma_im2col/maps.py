"""The tensor maps of A, B and C."""

from __future__ import annotations

import itertools
import operator

from convgen.ir.plan import TensorMap
from convgen.ir.problem import Padding
from convgen.kernels.parts.hopper import COLUMNS_BOX
from convgen.kernels.parts.operand_tiles import EpilogueTile
from convgen.kernels.tma_im2col.layout import Layout


def a_map(layout: Layout, pixels: int) -> TensorMap:
    """Boxes of so many pixels by tile.k channels: of x in im2col mode, or of the matrix
    [pixels, channels] that a pointwise convolution has; in planes 64 pixels by tile.k channels of an image."""
    g, config, problem = layout.gemm, layout.config, layout.gemm.problem
    x, size = problem.x, g.element_bytes
    if g.a_planes:
        image = g.plane
        return TensorMap(
            "x", "tiled", x.dtype, (image, problem.c, problem.n), (image * size, problem.c * image * size), (1, 1, 1),
            box=(64, config.tile_k, 1), swizzle=128,
        )  # fmt: skip
    pixel = (x.pitch or problem.c) * size
    if g.pointwise:
        return TensorMap(
            "x", "tiled", x.dtype, (x.extent("c"), g.pixels), (pixel,), (1, 1),
            box=(config.tile_k, pixels), swizzle=layout.span, l2_promotion=_promotion(pixel),
        )  # fmt: skip
    axes = g.axes[::-1]
    dims = (x.extent("c"), *problem.input[::-1], problem.n)
    strides = tuple(itertools.accumulate(dims[1:-1], operator.mul, initial=pixel))
    return TensorMap(
        "x", "im2col", x.dtype, dims, strides, (1, *(a.element_stride for a in axes), 1),
        lower=tuple(a.lower for a in axes), upper=tuple(a.upper for a in axes),
        channels=config.tile_k, pixels=pixels, swizzle=layout.span, l2_promotion=_promotion(pixel),
        fill="nan" if problem.padding is Padding.NAN else "zero",
    )  # fmt: skip


def b_map(layout: Layout, rows: int) -> TensorMap:
    """Boxes of `rows` output channels by tile.k channels of one tap; where output channels are contiguous, of 64 of
    them at a time."""
    g, config, problem = layout.gemm, layout.config, layout.gemm.problem
    w, size = problem.w, problem.w.element.bytes
    c, k, taps = g.channels, problem.k, problem.taps
    if g.b_columns:
        return TensorMap(
            "w", "tiled", w.dtype, (k, taps, w.extent("c")),  # A's channels may be filled up with zeros
            ((w.pitch or k) * size, taps * (w.pitch or k) * size), (1, 1, 1),
            box=(COLUMNS_BOX, 1, config.tile_k), swizzle=COLUMNS_BOX * size,
        )  # fmt: skip
    row = w.pitch or c
    outer = ((k, row), (taps, row * k)) if g.taps_outside else ((taps, row), (k, row * taps))
    box = (config.tile_k, rows, 1) if g.taps_outside else (config.tile_k, 1, rows)
    return TensorMap(
        "w", "tiled", w.dtype, (c, *(e for e, _ in outer)), tuple(s * size for _, s in outer), (1, 1, 1),
        box=box, swizzle=layout.span, l2_promotion=_promotion(row * size),
    )  # fmt: skip


def c_map(layout: Layout) -> TensorMap:
    """Boxes of one epilogue tile: of the matrix [pixels, channels], or of planes [n, channels, pixels]."""
    g = layout.gemm
    shape = (layout.epi_tile_n, layout.epi_tile_m) if g.plane else (layout.epi_tile_m, layout.epi_tile_n)
    return EpilogueTile(g.problem.y, *shape).map(g.problem, g.plane)


def _promotion(row: int) -> int:
    """Bytes that L2 fetches together, of rows that begin so many bytes apart.  Where rows are whole blocks of 256
    bytes, the k loop reads the other half next; elsewhere, half of a block is another pixel's or filter's."""
    return 256 if row % 256 == 0 else 128
