"""The launches of tma_wgrad: preparing its factors, zeros before atomic sums, the product, and adding up sums that are
left over."""

from __future__ import annotations

from dataclasses import replace

from convgen.ir.index_map import TmaAxis
from convgen.ir.plan import Launch, Param, TensorMap, Workspace
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import gradient
from convgen.kernels.tma_wgrad.layout import A_SPAN, Layout


def _strides(tensor: Tensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes between neighbors along all dims but the innermost, which comes first."""
    found = [(tensor.pitch or dims[0]) * tensor.element.bytes]
    for extent in dims[1:-1]:
        found.append(found[-1] * extent)
    return tuple(found)


def longer(layout: Layout) -> tuple[list[TmaAxis], list[TmaAxis]]:
    """How TMA walks x and y, where taps share a box: over as many positions of each axis as are walked."""
    g, walked = layout.gemm, layout.gemm.walked(layout.shared_axes)
    dims = zip(g.axes, g.problem.spatial.output, g.problem.output, walked, strict=True)
    of_x, of_y = [], []
    for axis, dim, output, extent in dims:
        of_x.append(replace(axis, upper=axis.upper + (extent - output) * axis.element_stride))
        of_y.append(TmaAxis(dim, 0, extent - output, 1, 0, 0))
    return of_x, of_y


def a_map(layout: Layout) -> TensorMap:
    """Boxes of a step's pixels by 64 channels: of y as the matrix [pixels, channels]; if the walked rows are longer
    than y's, in im2col mode, which fills in zeros there."""
    config, problem = layout.config, layout.gemm.problem
    y, rank = problem.y, problem.rank
    channels, span = y.extent("k"), A_SPAN * y.element.bytes
    if not layout.shared_axes:
        dims: tuple[int, ...] = (channels, layout.pixels)
        pixels = layout.part_pixels if config.shared == "a" else config.tile_k
        return TensorMap("y", "tiled", y.dtype, dims, _strides(y, dims), (1, 1), box=(A_SPAN, pixels),
                         swizzle=span)  # fmt: skip
    dims, axes = (channels, *problem.output[::-1], problem.n), longer(layout)[1][::-1]
    return TensorMap(
        "y", "im2col", y.dtype, dims, _strides(y, dims), (1,) * (rank + 2), lower=(0,) * rank,
        upper=tuple(a.upper for a in axes), channels=A_SPAN, pixels=config.tile_k, swizzle=span,
    )  # fmt: skip


def b_map(layout: Layout) -> TensorMap:
    """Boxes of a step's pixels by `span` channels: of x in im2col mode, or of the matrix [pixels, channels] that a
    pointwise convolution has."""
    g, config = layout.gemm, layout.config
    problem, x = g.problem, g.problem.x
    channels, pixels = x.extent("c"), layout.part_pixels if config.shared == "b" else config.tile_k
    if g.pointwise:
        dims: tuple[int, ...] = (channels, layout.pixels)
        return TensorMap("x", "tiled", x.dtype, dims, _strides(x, dims), (1, 1), box=(config.span, pixels),
                         swizzle=layout.span)  # fmt: skip
    axes, dims = longer(layout)[0][::-1], (channels, *problem.input[::-1], problem.n)
    return TensorMap(
        "x", "im2col", x.dtype, dims, _strides(x, dims), (1, *(a.element_stride for a in axes), 1),
        lower=tuple(a.lower for a in axes), upper=tuple(a.upper for a in axes),
        channels=config.span, pixels=pixels + layout.reach, swizzle=layout.span,
    )  # fmt: skip


def launches(layout: Layout) -> tuple[Launch, ...]:
    g, config, problem = layout.gemm, layout.config, layout.problem
    entry = f"convgen_{problem.name}"
    params = (
        Param("a_map", "tensor_map", "y", a_map(layout)),
        Param("b_map", "tensor_map", "x", b_map(layout)),
        layout.result.vector_param,
        *(p.vector_param for p in gradient.y_sum_pointer(layout.problem, layout.shares * layout.y_parts)),
    )
    product = Launch(
        entry,
        (layout.tiles * config.split_k, config.slices, 1),
        layout.threads,
        (*g.prepared.params(params), *(p.param for p in layout.factors)),
        layout.shared_bytes,
        cluster=config.launched,
        dependent=True,
        blocks_per_sm=config.blocks,
    )
    return (*g.prepared.launches(), *gradient.launches(layout, product))


def workspaces(layout: Layout) -> tuple[Workspace, ...]:
    """Prepared factors, the slices' sums, and those of y."""
    sums = gradient.workspaces(layout, layout.shares * layout.y_parts)
    return (*layout.gemm.prepared.workspaces, *sums)
