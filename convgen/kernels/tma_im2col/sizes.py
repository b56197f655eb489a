"""Sizes that a call decides, in tma_im2col: where they occur, and how large they may be.

Their places are few: the tensor maps of x and of what lies as y does, the number of tiles, and the pixel at which a
tile's windows begin.  TMA does the rest, so everything shaped like y has to leave and arrive by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from convgen.ir.plan import Limit
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size
from convgen.kernels.base import IMAGES, Obstacle, Obstacles
from convgen.kernels.parts.clusters import MAX_CLUSTER
from convgen.kernels.parts.hopper import LIMITS
from convgen.kernels.parts.lowering import INT_LIMIT, used_operands
from convgen.kernels.tma_im2col.gemm import Gemm
from convgen.kernels.tma_im2col.layout import Layout
from convgen.kernels.tma_im2col.maps import a_map

LARGEST_TILE = 256  # pixels, or channels
MOST_PIXELS = 2**31 - 1 - LARGEST_TILE
MOST_COLUMNS = 2**31 - 1 - LARGEST_TILE * MAX_CLUSTER
#: Bytes of a tensor map's stride (CUDA driver API, cuTensorMapEncodeTiled).
MOST_STRIDE = 2**40 - 16
UNFILLED = Obstacle("groups whose channels do not fill a product need fixed sizes", "leave `dynamic` out")


def size_obstacles(problem: ConvProblem, gemm: Gemm, packed: Iterable[Gemm]) -> Obstacles:
    """Why the kernel needs fixed sizes, whatever its configuration; `packed` in each way that may be worth it."""
    found = Obstacles()
    if not problem.dynamic:
        return found
    hint = "leave `dynamic` out"
    if gemm.phases:
        found.no(f"op {problem.op} with a stride needs fixed sizes", hint)
    x, y = gemm.assigned.problem.x, gemm.assigned.problem.y
    if problem.prologue and set(problem.dynamic) - IMAGES:
        found.no("a prologue needs images of fixed sizes", "`dynamic n` alone")
    if any(copy.source.role == "x" for copy in gemm.prepared.copies):
        lies = "lies otherwise than n, pixels, channels in rows of 16 bytes"
        found.no(f"{x.name} needs fixed sizes, since it is copied: it {lies}", hint)
    if not gemm.stores_pixels:
        lies = "lies otherwise than n, pixels, channels of 2 bytes in rows of 16"
        found.no(f"{y.name} needs fixed sizes, since TMA cannot store it: it {lies}", hint)
    for axis in gemm.axes:  # whose corner varies with what a stride leaves over
        if axis.upper - axis.element_stride < LIMITS[len(gemm.axes) + 2].corner_low:
            found.no(f"the window along {axis.dim} is too large for sizes that a call decides", hint)
    if all(g.own_zeros for g in packed):
        found.append(UNFILLED)
    return found


def illegal_sizes(layout: Layout) -> Obstacles:
    """Why a configuration needs fixed sizes."""
    found, problem, config = Obstacles(), layout.gemm.problem, layout.config
    if not problem.dynamic:
        return found
    if config.stream_k:
        found.no("stream_k needs fixed sizes", "stream_k 0", "stream_k")
    if layout.gemm.own_zeros:
        found.append(UNFILLED)
    passing = {c.name for c in (*layout.arriving, *layout.leaving)}
    if not set(problem.dynamic) - IMAGES:
        passing |= {t.name for t in layout.of_images if t.dims[0] == "n"}
    for t in (*used_operands(problem), *problem.elementwise):
        if t.dims != ("k",) and t.name not in passing:
            found.no(f"{t.name} needs fixed sizes, since TMA does not move it: it is {t}", "leave `dynamic` out")
    return found


def limits(layout: Layout) -> tuple[Limit, ...]:
    """Limits on sizes that a call decides."""
    found = [("pixels of the result", layout.gemm.pixels, MOST_PIXELS)]
    found += [
        ("bytes from one image to the next", stride, MOST_STRIDE)
        for stride in a_map(layout, layout.config.tile_m).strides[-1:]
    ]
    # of each image, which threads read by its number
    of_images = (t for t in layout.gemm.problem.operands if {"n"} <= {*t.dims} <= {"n", "c", "k"})
    found += [(f"elements of {t.name}", t.span, INT_LIMIT - 1) for t in of_images]
    return tuple(Limit(what, size, most) for what, size, most in found if isinstance(size, Size))
