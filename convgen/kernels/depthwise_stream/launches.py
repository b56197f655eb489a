"""The launch of depthwise_stream, and its tensor maps."""

from __future__ import annotations

from convgen.ir.plan import Launch, Param
from convgen.kernels.depthwise_stream.layout import PRODUCER, Layout
from convgen.kernels.parts import partial_sums
from convgen.kernels.parts.depthwise import boxes
from convgen.kernels.parts.elementwise import Pointer, epilogue_pointers, factor_pointers, result_pointers
from convgen.kernels.parts.persistent import fixed, persistent


def _maps(layout: Layout) -> list[Param]:
    """x comes by its tensor map, and y leaves by one where results wait in shared memory."""
    problem, c = layout.read, layout.config
    rows = {"c": layout.box_channels, "w": layout.width, "h": layout.step, "n": 1}
    maps = [Param("x_map", "tensor_map", "x", boxes(problem.x, rows, layout.swizzle))]
    if layout.staged_bytes:
        band = {"k": layout.result_channels, "q": c.strip, "p": c.band, "n": 1}
        maps.append(Param("y_map", "tensor_map", "y", boxes(problem.y, band, layout.swizzle)))
    return maps


def pointers(layout: Layout) -> list[Pointer]:
    """The parameters after the tensor maps; x is among them if sums may have to be recomputed."""
    problem = layout.read
    factors = factor_pointers(problem)
    results = epilogue_pointers if layout.staged_bytes else result_pointers
    return [*(factors if layout.own_zeros else factors[1:]), *results(problem), *partial_sums.pointers(problem)]


def launch(layout: Layout) -> Launch:
    """Blocks that make rows of partial sums are as many on every GPU, so that all add up the same."""
    params = [*_maps(layout), *(p.vector_param for p in pointers(layout))]
    found = persistent(
        layout.problem, layout.assigned.params(params), tiles=layout.bands, slices=layout.slices,
        threads=layout.consumer_threads + PRODUCER, shared_bytes=layout.shared_bytes,
        blocks_per_sm=layout.config.blocks, dependent=True,
    )  # fmt: skip
    if not layout.sums:
        return found
    return fixed(found, layout.workers * layout.slices, layout.target)
