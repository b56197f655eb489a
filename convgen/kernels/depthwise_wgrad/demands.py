"""What a step of a strip demands of a multiprocessor, however the pixels are divided among blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from convgen.kernels.parts.cost import HALF_LINE, WORD, lines, turns
from convgen.kernels.parts.limits import WARP

if TYPE_CHECKING:
    from convgen.kernels.depthwise_wgrad.layout import Layout


@dataclass(frozen=True)
class Step:
    """An output row of a strip, and the input rows that come with it."""

    products: int  # of a thread, as are the next three
    numbers: int  # that it loads
    loads: int
    tests: int  # of outputs that may not be there
    warps: int  # of a block
    pixels: float  # that TMA loads, and in how many boxes; 0 if threads load their own rows
    boxes: int
    lines: int  # of shared memory, one a cycle, that a warp reads
    stage: int  # bytes of a block
    in_flight: float
    bytes: float  # of all steps: x and y once, in halves of lines


def step_of(layout: Layout) -> Step:
    """The demands of one step of a layout."""
    c, read = layout.config, layout.rows * layout.read_columns
    problem, part = layout.problem, c.slice * layout.problem.x.element.bytes
    halves = lines(part, part, HALF_LINE) * HALF_LINE / part if layout.channel_slices > 1 else 1
    return Step(
        products=layout.thread_taps * c.tile_q * c.vector,
        numbers=read * layout.inputs + c.tile_q * c.vector,
        loads=read + c.tile_q,
        tests=c.tile_r * c.tile_q if layout.walks[2].ragged(c.tile_q) else 0,
        warps=math.ceil(layout.threads / WARP),
        pixels=_pixels(layout) if layout.shared else 0,
        boxes=layout.row_parts + 1 if layout.shared else 0,
        lines=_lines(layout) if layout.shared else 0,
        stage=layout.stage,
        in_flight=layout.in_flight,
        bytes=(problem.x.bytes + problem.y.bytes) * halves,
    )


def _pixels(layout: Layout) -> float:
    """Pixels of a step's boxes, each as often as it has lines."""
    problem, (of_x, of_y) = layout.problem, layout.pixel_bytes
    x_lines = lines(of_x, math.gcd(of_x, (problem.x.pitch or problem.c) * problem.x.element.bytes))
    y_lines = lines(of_y, math.gcd(of_y, (problem.y.pitch or problem.k) * problem.y.element.bytes))
    x_pixels = layout.row_parts * layout.rows * layout.box_columns[0]
    return layout.walkers_n * (x_pixels * x_lines + layout.box_columns[1] * y_lines)


def _lines(layout: Layout) -> int:
    """Lines of shared memory that a warp reads in a step."""
    c, (x_columns, y_columns), (x_pixel, y_pixel) = layout.config, layout.box_columns, layout.pixel_bytes
    threads = (layout.vectors, layout.parts, layout.walkers_q)
    beside = c.tile_q * layout.walks[2].step * x_pixel
    of_x = _load(layout.x_bytes, threads, layout.box_room[0], beside, layout.rows * x_columns * x_pixel)
    of_y = _load(layout.y_bytes, threads, 0, c.tile_q * y_pixel, y_columns * y_pixel)
    return layout.rows * layout.read_columns * of_x + c.tile_q * of_y


def _load(size: int, threads: tuple[int, int, int], part: int, walker: int, image: int) -> int:
    """Lines that a warp reads if its threads load `size` bytes each: neighboring channel vectors, then parts of the
    filters, walkers and images, so many bytes apart.  Many configurations look the same to a warp."""
    vectors = min(threads[0], WARP)
    parts = min(threads[1], -(-WARP // vectors))
    strips = -(-WARP // (vectors * parts))
    walkers = min(threads[2], strips)
    return _seen(size, vectors, parts, walkers, part * (parts > 1), walker * (walkers > 1), image * (strips > walkers))


@lru_cache(maxsize=4096)
def _seen(size: int, vectors: int, parts: int, walkers: int, part: int, walker: int, image: int) -> int:
    at = []
    for thread in range(WARP):
        strip = thread // (vectors * parts)
        apart = thread // vectors % parts * part + strip % walkers * walker + strip // walkers * image
        at.append(apart + thread % vectors * size)
    together = WARP * WORD // max(size, WORD)  # threads whose words fit a line
    ends = [(a // WORD, -(-(a + size) // WORD)) for a in at]
    return sum(
        turns(word for begin, end in ends[first : first + together] for word in range(begin, end))
        for first in range(0, WARP, together)
    )
