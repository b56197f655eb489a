"""The tensor maps of A and B: of x and w."""

from __future__ import annotations

import itertools
import math
import operator

from convgen.ir.plan import Param, TensorMap
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import prepare
from convgen.kernels.parts.hopper import COLUMNS_BOX
from convgen.kernels.tma_halo.config import Config
from convgen.kernels.tma_halo.layout import Layout, b_columns


def a_maps(layout: Layout) -> dict[int, tuple[str, TensorMap]]:
    """The maps of x, with their parameters' names: one for each height that a phase may have."""
    problem, config, halo, (d, h, w) = layout.read, layout.config, layout.halo, layout.windows
    c, e = problem.x.extent("c"), problem.x.element.bytes
    pixel = (problem.x.pitch or c) * e
    # one plane of an image with depth
    planes, plane = ((d.extent,), (1,)) if problem.rank == 3 else ((), ())
    extents = (c, w.extent, h.extent, *planes, problem.n)
    heights = sorted({phase.height for phase in halo.phases})
    return {
        height: (
            "a_map" if len(heights) == 1 else f"a_map_{height}",
            TensorMap(
                "x", "tiled", problem.x.dtype, extents,
                tuple(pixel * step for step in itertools.accumulate(extents[1:-1], operator.mul, initial=1)),
                (1, w.stride, h.stride, *plane, 1),
                # counted in pixels of x: TMA loads one in `stride` of them
                box=(config.tile_k, halo.width * w.stride, height * h.stride, *plane, config.images),
                swizzle=config.tile_k * e,
            ),
        )
        for height in heights
    }  # fmt: skip


def b_param(problem: ConvProblem, config: Config) -> Param:
    """B: w by its tensor map, or as a pointer where the consumers lay filters out themselves."""
    if config.lays_out_filters:
        return Param("w", "pointer", "w", alignment=problem.w.element.bytes * filter_vector(problem.w))
    return Param("b_map", "tensor_map", "w", _b_map(problem, config))


def _b_map(problem: ConvProblem, config: Config) -> TensorMap:
    """Boxes of a tap's input channels by a tile's output channels, or of as many by 64 where these are contiguous."""
    c, e, taps = problem.c_per_group, problem.w.element.bytes, problem.taps
    if b_columns(problem, config):
        tap = (problem.w.pitch or problem.k) * e
        return TensorMap(
            "w", "tiled", problem.w.dtype, (problem.k, taps, problem.w.extent("c")), (tap, taps * tap), (1, 1, 1),
            box=(COLUMNS_BOX, 1, config.tile_k), swizzle=COLUMNS_BOX * e,
        )  # fmt: skip
    tap = (problem.w.pitch or c) * e
    return TensorMap(
        "w", "tiled", problem.w.dtype, (c, taps, problem.k), (tap, taps * tap), (1, 1, 1),
        box=(config.tile_k, 1, config.tile_n), swizzle=config.tile_k * e,
    )  # fmt: skip


def filter_vector(w: Tensor) -> int:
    """Channels of a filter, or filters for a channel, that are one aligned load: those that are neighbors."""
    inner = w.innermost
    return math.gcd(prepare.VECTOR, w.extent(inner), w.pitch or 0) if inner in ("c", "k", "k_in_group") else 1
