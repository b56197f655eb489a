"""The launch of depthwise_stream, and its tensor maps."""

from __future__ import annotations

from convgen.ir.plan import Launch, Param, TensorMap
from convgen.ir.tensor import Tensor
from convgen.kernels.depthwise_stream.constraints import PRODUCER
from convgen.kernels.depthwise_stream.layout import UNIT, Layout
from convgen.kernels.parts.elementwise import Pointer, epilogue_pointers, factor_pointers, result_pointers
from convgen.kernels.parts.persistent import persistent


def _images(tensor: Tensor, box: tuple[int, int, int], swizzle: int) -> TensorMap:
    """Boxes of rows of an image: channels, columns and rows of `tensor`, whose channels are innermost."""
    size = tensor.element.bytes
    channels, column, row, image = ("c", "w", "h", "n") if tensor.role == "x" else ("k", "q", "p", "n")
    outer = (column, row, image)
    strides = tuple(
        (tensor.stride(d) or tensor.size) * size if tensor.extent(d) > 1 else UNIT * -(-tensor.bytes // UNIT)
        for d in outer
    )
    extents = tuple(tensor.extent(d) for d in (channels, *outer))
    return TensorMap(tensor.role, "tiled", tensor.dtype, extents, strides, (1, 1, 1, 1), box=(*box, 1), swizzle=swizzle)


def _maps(layout: Layout) -> list[Param]:
    """x comes by its tensor map, and y leaves by one where results wait in shared memory."""
    problem, c, rows = layout.read, layout.config, (layout.box_channels, layout.width, layout.step)
    maps = [Param("x_map", "tensor_map", "x", _images(problem.x, rows, layout.swizzle))]
    if layout.staged_bytes:
        band = (layout.result_channels, c.strip, c.band)
        maps.append(Param("y_map", "tensor_map", "y", _images(problem.y, band, layout.swizzle)))
    return maps


def pointers(layout: Layout) -> list[Pointer]:
    """The parameters behind the tensor maps; x among them where sums may have to be made once more."""
    problem = layout.read
    factors = factor_pointers(problem)
    results = epilogue_pointers if layout.staged_bytes else result_pointers
    return [*(factors if layout.fills else factors[1:]), *results(problem)]


def launch(layout: Layout) -> Launch:
    params = [*_maps(layout), *(p.vector_param for p in pointers(layout))]
    return persistent(
        layout.problem, layout.assigned.params(params), tiles=layout.bands, slices=layout.slices,
        threads=layout.consumers + PRODUCER, shared_bytes=layout.shared_bytes,
        blocks_per_sm=layout.config.blocks, dependent=True,
    )  # fmt: skip
