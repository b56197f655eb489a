"""A load as a table of its pixels and as pictures of the box that walks over the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from convgen.ir.problem import Padding
from convgen.loads.box import Load
from convgen.tables import Explanation, Table

#: Of a picture: more columns than this are left out in the middle.
_WIDEST = 24
_CELL, _MARGIN = 34, 46
_COLORS = {"loaded": "#2a6f97", "fill": "#e07a5f", "tensor": "#eef1f4", "outside": "#ffffff"}


@dataclass(frozen=True)
class Plane:
    """A picture of one image, or of one of its planes: rows by columns around the pixels that a load touches."""

    title: str
    row_dim: str  # empty: there is one row
    column_dim: str
    rows: Sequence[int]
    columns: Sequence[int]
    order: dict[tuple[int, int], int]  # (row, column) -> place in the load
    numbers: dict[tuple[int, int], int]  # of the pixels inside the tensor


def explain(load: Load) -> Explanation:
    """The pixels that are loaded, one by one."""
    return Explanation((_summary(load), _pixels(load)))


def _summary(load: Load) -> Table:
    tensor = load.problem.tensor(load.role)
    rows = [
        ("loads", f"{load.pixels} pixels of {load.channels} channels of {tensor}"),
        ("starts at", _at(("n", *(a.dim for a in load.axes), "channel"), load.start)),
        ("offsets", _at([a.dim for a in load.axes], load.offsets)),
        ("lower corner", _at([a.dim for a in load.axes], [a.lower for a in load.axes])),
        ("upper corner", _at([a.dim for a in load.axes], [a.upper for a in load.axes])),
        ("element strides", _at([a.dim for a in load.axes], [a.element_stride for a in load.axes])),
        ("reaches", ", ".join(f"{a.dim} {lo} to {hi}" for a, (lo, hi) in zip(load.axes, load.bounds, strict=True))),
    ]
    rows += [("refused", reason) for reason in load.refusals()]
    return Table(f"{load.problem.name}: a TMA im2col load", ("", ""), tuple(rows))


def _at(names: Sequence[str], values: Sequence[int]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


def _pixels(load: Load) -> Table:
    names = tuple(a.dim for a in load.axes)
    rows = tuple(
        (str(i), str(p.n), *map(str, p.at), str(p.number)) for i, p in enumerate(load.walk())
    )  # fmt: skip
    fill = "NaN" if load.problem.padding is Padding.NAN and load.role == "x" else "zeros"
    note = f"Pixels of the tensor are numbered from 1; 0 lies outside and arrives as {fill}."
    header = ("pixel", "n", *names, "number")
    return Table("Pixels", header, rows, note, header)


def planes(load: Load) -> list[Plane]:
    """The images that a load touches, cut to the box, the tensor's edge and what is loaded."""
    found: dict[tuple[int, ...], dict[tuple[int, int], int]] = {}
    for i, pixel in enumerate(load.walk()):
        *outer, row, column = (pixel.n, *((0,) * (len(pixel.at) == 1)), *pixel.at)
        found.setdefault(tuple(outer), {})[row, column] = i
    return [_plane(load, outer, order) for outer, order in found.items()]


def _plane(load: Load, outer: tuple[int, ...], order: dict[tuple[int, int], int]) -> Plane:
    dims, extents, bounds = [a.dim for a in load.axes], load.extents, load.bounds
    if len(dims) == 1:
        dims, extents, bounds = ["", *dims], (1, *extents), ((0, 0), *bounds)
    touched_rows, touched_columns = [row for row, _ in order], [column for _, column in order]
    rows = _window(bounds[-2], extents[-2], touched_rows)
    columns = _window(bounds[-1], extents[-1], touched_columns)
    exists, base = 0 <= outer[0] < load.problem.n, outer[0]
    for a, extent in zip(outer[1:], extents[:-2], strict=True):
        exists, base = exists and 0 <= a < extent, base * extent + a
    numbers = {
        (row, column): (base * extents[-2] + row) * extents[-1] + column + 1
        for row in rows for column in columns
        if exists and 0 <= row < extents[-2] and 0 <= column < extents[-1]
    }  # fmt: skip
    title = ", ".join(f"{dim} = {value}" for dim, value in zip(("n", *dims[:-2]), outer, strict=True))
    return Plane(title, dims[-2], dims[-1], rows, columns, order, numbers)


def _window(bound: tuple[int, int], extent: int, touched: Sequence[int]) -> Sequence[int]:
    """All coordinates of the tensor and the box if they are few, else those around the loaded pixels."""
    low, high = min(bound[0], 0), max(bound[1], extent - 1)
    if high - low >= _WIDEST:
        low, high = max(low, min(touched) - 1), min(high, max(touched) + 1)
    every = range(low, high + 1)
    return every if len(every) <= _WIDEST else [*every[: _WIDEST // 2], *every[-_WIDEST // 2 :]]


def ascii_picture(plane: Plane) -> str:
    """[7] is loaded, [0] is filled in, 8 is not loaded, and . is outside the tensor."""
    head = [f"{plane.column_dim}={column}" for column in plane.columns]
    lines = [["", *head]]
    for row in plane.rows:
        label = f"{plane.row_dim}={row}" if plane.row_dim else ""
        lines.append([label, *(_cell(plane, row, column) for column in plane.columns)])
    margin = max(len(line[0]) for line in lines)
    width = max(len(cell) for line in lines for cell in line[1:])
    text = [[line[0].ljust(margin), *(cell.rjust(width) for cell in line[1:])] for line in lines]
    for line, filler in zip(text, ("...", *("   " for _ in plane.rows)), strict=True):
        for i in reversed(_gaps(plane.columns)):
            line.insert(i + 1, filler)
    for i in reversed(_gaps(plane.rows)):
        text.insert(i + 1, ["..."])
    return "\n".join([plane.title, *(" ".join(line).rstrip() for line in text)])


def _gaps(coordinates: Sequence[int]) -> list[int]:
    """Where coordinates are left out: the index of the one after."""
    return [i for i in range(1, len(coordinates)) if coordinates[i] > coordinates[i - 1] + 1]


def _cell(plane: Plane, row: int, column: int) -> str:
    number = plane.numbers.get((row, column))
    if (row, column) in plane.order:
        return f"[{number or 0}]"
    return "." if number is None else str(number)


def svg(load: Load) -> str:
    """The planes below one another; in each cell its place in the load, and the color of where it comes from."""
    parts: list[str] = []
    top, widest = 0, 0
    for plane in planes(load):
        parts += _svg_plane(plane, top)
        top += _MARGIN + _CELL * (len(plane.rows) + 1)
        widest = max(widest, 2 * _MARGIN + _CELL * len(plane.columns))
    style = "font-family='monospace' font-size='11' text-anchor='middle'"
    body = "\n".join(parts)
    return f"<svg xmlns='http://www.w3.org/2000/svg' width='{widest}' height='{top}' {style}>\n{body}\n</svg>\n"


def _svg_plane(plane: Plane, top: int) -> list[str]:
    y = top + _MARGIN
    parts = [f"<text x='{_MARGIN}' y='{top + 16}' text-anchor='start'>{escape(plane.title)}</text>"]
    for j, column in enumerate(plane.columns):
        parts.append(_text(_MARGIN + (j + 0.5) * _CELL, y - 6, f"{plane.column_dim}={column}"))
    for i, row in enumerate(plane.rows):
        if plane.row_dim:
            parts.append(_text(_MARGIN / 2, y + (i + 0.6) * _CELL, f"{plane.row_dim}={row}"))
        for j, column in enumerate(plane.columns):
            order, inside = plane.order.get((row, column)), (row, column) in plane.numbers
            kind = ("loaded" if inside else "fill") if order is not None else "tensor" if inside else "outside"
            x, at = _MARGIN + j * _CELL, y + i * _CELL
            parts.append(
                f"<rect x='{x}' y='{at}' width='{_CELL}' height='{_CELL}' fill='{_COLORS[kind]}' stroke='#8d99ae'/>"
            )
            if order is not None:
                parts.append(_text(x + _CELL / 2, at + 0.6 * _CELL, str(order), "white"))
    return parts


def _text(x: float, y: float, text: str, color: str = "#333333") -> str:
    return f"<text x='{x:g}' y='{y:g}' fill='{color}'>{escape(text)}</text>"
