"""Pictures of a convolution, drawn to scale: its geometry, tiles over its output, shared memory, times."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from convgen.ir.index_map import matrix_view
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Layout
from convgen.picture import COLORS, Picture
from convgen.units import duration

_WIDTH = 640
#: Cells of an axis that get lines, or rectangles, of their own; and tiles, down and to the right.
_MOST_CELLS, _MOST_TILES = 40, (200, 40)


def geometry(problem: ConvProblem, alone: bool = False) -> str:
    """The last two spatial axes: the padded input with the window of an output pixel, and the output with the pixel."""
    h, w = _Axis(problem, -2), _Axis(problem, -1)
    left, top, between = 10.0, 34.0, 60.0
    each = (_WIDTH - 2 * left - between) / 2  # an output is no wider than its padded input
    scale = min(each / w.padded, each / h.padded, 24)
    right = max(left + w.padded * scale + between, 240)
    picture = Picture(_WIDTH, top + max(h.padded, h.output) * scale + 16, f"Geometry of {problem.name}", alone)
    x, w_, y = (f"{t.name}: {' x '.join(map(str, e))}" for t, e in zip(
        (problem.x, problem.w, problem.y), (problem.input, problem.filter, problem.output), strict=True))  # fmt: skip
    picture.text(left, 20, f"{x}, with padding; window of {w_}", "ink small")
    picture.text(right, 20, y, "ink small")
    picture.rectangle(left, top, w.padded * scale, h.padded * scale, "grid", "padding")
    picture.rectangle(left + w.pad * scale, top + h.pad * scale, w.input * scale, h.input * scale, "paper")
    picture.rectangle(
        left + w.pad * scale, top + h.pad * scale, w.input * scale, h.input * scale, "a", "the input", faint=True
    )
    picture.rectangle(right, top, w.output * scale, h.output * scale, "c", "the output", faint=True)
    at_h, at_w = min(1, h.output - 1), min(1, w.output - 1)
    for r, high in h.marks:
        for s, wide in w.marks:
            picture.rectangle(
                left + (at_w * w.stride + s * w.dilation) * scale,
                top + (at_h * h.stride + r * h.dilation) * scale,
                wide * scale, high * scale, "b", f"tap {r}, {s}", faint=True,
            )  # fmt: skip
    picture.rectangle(right + at_w * scale, top + at_h * scale, scale, scale, "c", f"output pixel {at_h}, {at_w}")
    if max(h.padded, w.padded) <= _MOST_CELLS:
        _cells(picture, left, top, w.padded, h.padded, scale)
        _cells(picture, right, top, w.output, h.output, scale)
    return str(picture)


class _Axis:
    """Numbers of a spatial axis; an axis that is not there has one pixel."""

    def __init__(self, problem: ConvProblem, axis: int) -> None:
        def of(values: Sequence[int], missing: int = 1) -> int:
            return values[axis] if len(values) >= -axis else missing

        self.input, self.taps, self.output = of(problem.input), of(problem.filter), of(problem.output)
        self.stride, self.dilation = of(problem.stride), of(problem.dilation)
        self.pad, high = of(problem.pad_lo, 0), of(problem.pad_hi, 0)
        self.padded = self.pad + self.input + high

    @property
    def marks(self) -> list[tuple[int, int]]:
        """The taps that are drawn, each with the pixels that it and those up to the next one span."""
        step = math.ceil(self.taps / _MOST_CELLS)
        return [(i, (min(step, self.taps - i) - 1) * self.dilation + 1) for i in range(0, self.taps, step)]


def _cells(picture: Picture, left: float, top: float, columns: int, rows: int, scale: float) -> None:
    for i in range(columns + 1):
        picture.line(left + i * scale, top, left + i * scale, top + rows * scale)
    for i in range(rows + 1):
        picture.line(left, top + i * scale, left + columns * scale, top + i * scale)


def tiles(plan: Plan) -> str:
    """Tiles over the result as a matrix: gemm_m down, gemm_n to the right; empty where the plan has no such tiles."""
    options = plan.options
    extents = {v.name: v.extent for v in matrix_view(plan.problem).variables}
    m, n = extents.get("gemm_m"), extents.get("gemm_n")
    tile_m, tile_n = options.get("tile.m"), options.get("tile.n")
    if not (isinstance(tile_m, int) and isinstance(tile_n, int) and m and n):
        return ""
    rows, columns = math.ceil(m / tile_m), math.ceil(n / tile_n)
    used = m * n / (rows * tile_m * columns * tile_n)
    # wide rather than tall: a page scrolls down
    scale_m, scale_n = min(_WIDTH - 120, 4 * m) / (rows * tile_m), 160 / (columns * tile_n)
    picture = Picture(_WIDTH, 60 + columns * tile_n * scale_n, f"Tiles of {plan.problem.name}")
    said = f"{rows} x {columns} tiles of {tile_m} x {tile_n}; {used:.0%} of their elements are the result's"
    picture.text(100, 20, said, "ink small")
    picture.text(100, 40, f"gemm_m: {m}", "quiet small")
    picture.text(92, 56 + columns * tile_n * scale_n / 2, f"gemm_n: {n}", "quiet small", "end")
    step_m, step_n = (math.ceil(tiles / most) for tiles, most in zip((rows, columns), _MOST_TILES, strict=True))
    for i in range(0, rows, step_m):
        for j in range(0, columns, step_n):
            high, wide = min(tile_m * step_m, m - i * tile_m), min(tile_n * step_n, n - j * tile_n)
            title = f"tile {i}, {j}: {min(tile_m, m - i * tile_m)} x {min(tile_n, n - j * tile_n)}"
            x, y = 100 + i * tile_m * scale_m, 48 + j * tile_n * scale_n
            picture.rectangle(x, y, max(high * scale_m - 1, 0.5), max(wide * scale_n - 1, 0.5), "a", title)
    return str(picture)


def shared_memory(plan: Plan, alone: bool = False) -> str:
    """The contents of a block's shared memory, to scale with the target's; empty if a kernel needs none."""
    launch = max(plan.launches, key=lambda one: one.shared_bytes, default=None)
    if launch is None or not launch.shared_bytes:
        return ""
    limit = plan.target.shared_bytes_per_block
    rows = shared_rows(plan) or {"used": launch.shared_bytes}
    rest = launch.shared_bytes - sum(rows.values())
    scale = (_WIDTH - 20) / limit
    picture = Picture(_WIDTH, 66 + 20 * len(rows), f"Shared memory of {plan.problem.name}", alone)
    share = f"{launch.shared_bytes:,} of {limit:,} bytes, {launch.shared_bytes / limit:.0%}"
    picture.text(10, 18, f"a block's shared memory: {share}", "ink small")
    picture.rectangle(10, 26, limit * scale, 24, "grid", "free")
    x = 10.0
    for i, (name, size) in enumerate(rows.items()):
        color = COLORS[i % len(COLORS)]
        picture.rectangle(x, 26, size * scale, 24, color, f"{name}: {size:,} bytes")
        picture.rectangle(10, 60 + 20 * i, 12, 12, color)
        picture.text(28, 70 + 20 * i, f"{name}: {size:,} bytes", "ink small")
        x += size * scale
    if rest > 0:
        picture.rectangle(x, 26, rest * scale, 24, "quiet", f"alignment: {rest:,} bytes")
    return str(picture)


def shared_rows(plan: Plan) -> dict[str, int]:
    """Bytes by their purpose, if the kernel tells."""
    table = plan.layout.shared_table if isinstance(plan.layout, Layout) else ()
    return {f"{name} ({text})": _product(text) for name, text in table}


def _product(text: str) -> int:
    """`7 stages x 2 k blocks x 128` is 7 * 2 * 128."""
    return math.prod(int(found[0]) for part in text.split(" x ") if (found := re.match(r"\d+", part)))


def times(rows: Mapping[str, float], least: float) -> str:
    """Bars of microseconds by name, over a line for the least that the hardware can take."""
    most = max([*rows.values(), least])
    scale = (_WIDTH - 240) / most
    picture = Picture(_WIDTH, 40 + 24 * len(rows), "Times")
    picture.text(170 + least * scale, 14, f"roofline {duration(least * 1e-6)}", "quiet small", "middle")
    for i, (name, us) in enumerate(rows.items()):
        picture.text(162, 40 + 24 * i, name, "ink small", "end")
        shown = duration(us * 1e-6)
        picture.rectangle(170, 28 + 24 * i, us * scale, 16, "a", shown, faint=i > 0)
        picture.text(176 + us * scale, 40 + 24 * i, shown, "ink small")
    picture.line(170 + least * scale, 20, 170 + least * scale, 28 + 24 * len(rows), "b", "4 3")
    return str(picture)
