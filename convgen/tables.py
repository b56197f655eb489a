"""Titled tables of text: `str()` sets them plainly, rich in colors, and notebooks as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen import hypertext

if TYPE_CHECKING:
    from rich.console import Group

#: Styles of cells in colors.
_STYLES = {"yes": "green", "no": "red", "before": "dim", "after": "green"}


@dataclass(frozen=True)
class Table:
    """A titled table of text.  Columns named in `right` are set flush right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    right: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = [self.header, *self.rows] if any(self.header) else list(self.rows)
        widths = [max(len(row[i]) for row in shown) for i in range(len(self.header))]
        lines = [self.title, "-" * len(self.title)]
        for row in shown:
            cells = [
                cell.rjust(width) if name in self.right else cell.ljust(width)
                for cell, width, name in zip(row, widths, self.header, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return hypertext.table(self.header, self.rows, self.right, self.title, self.note)


@dataclass(frozen=True)
class Explanation:
    """Tables, in reading order."""

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables)) + "\n"

    def _repr_html_(self) -> str:
        return "\n".join(t._repr_html_() for t in self.tables)

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        parts: list[RichTable | Text] = []
        for table in self.tables:
            grid = RichTable(
                title=Text(table.title, "bold"),
                title_justify="left",
                caption=Text(table.note, "dim") if table.note else None,
                caption_justify="left",
                box=None,
                show_header=any(table.header),
                header_style="dim",
                pad_edge=False,
            )
            for name in table.header:
                grid.add_column(name, justify="right" if name in table.right else "left", overflow="fold")
            for row in table.rows:
                grid.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
            parts += [grid, Text()]
        return Group(*parts)
