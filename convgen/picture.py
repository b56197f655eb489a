"""Pictures as SVG: rectangles, lines and text in the colors of a light or a dark page.

    picture = Picture(200, 40)
    picture.rectangle(10, 10, 80, 20, "a", "what a pointer over it shows")
    picture.text(100, 25, "80", "quiet")
    str(picture)  # one <svg> element

Classes name colors: `ink`, `quiet` and `grid` for text and lines, `a` to `f` for things that are told apart.
"""

from __future__ import annotations

from html import escape

_LIGHT = {
    "ink": "#1f2328", "quiet": "#59636e", "grid": "#d1d9e0", "paper": "#ffffff",
    "a": "#0969da", "b": "#bc4c00", "c": "#1a7f37", "d": "#8250df", "e": "#bf3989", "f": "#9a6700",
}  # fmt: skip
_DARK = {
    "ink": "#f0f6fc", "quiet": "#9198a1", "grid": "#3d444d", "paper": "#0d1117",
    "a": "#4493f8", "b": "#f0883e", "c": "#3fb950", "d": "#ab7df8", "e": "#db61a2", "f": "#d29922",
}  # fmt: skip
#: Colors for things that are told apart.
COLORS = tuple("abcdef")


def _rules(colors: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{color};--line:{color}}}" for name, color in colors.items())


#: What a page with pictures needs once; a picture that stands alone has it inside.
STYLE = (
    "svg{font:13px system-ui,-apple-system,'Segoe UI',sans-serif}"
    "line,path{stroke:var(--line);fill:none}.bold{font-weight:600}.big{font-size:16px}.small{font-size:11px}"
    + _rules(_LIGHT)
    + "@media(prefers-color-scheme:dark){"
    + _rules(_DARK)
    + "}"
)


class Picture:
    """A drawing of a size in pixels, from the top left.  `about` says what it shows to who cannot see it."""

    def __init__(self, width: float, height: float, about: str = "", alone: bool = False) -> None:
        self._size, self._about, self._alone = (width, height), about, alone
        self._parts: list[str] = []

    def rectangle(
        self, x: float, y: float, width: float, height: float, color: str, title: str = "", faint: bool = False
    ) -> None:
        """A filled area; `title` is shown by a pointer over it."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        opacity = ' fill-opacity=".3"' if faint else ""
        box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._parts.append(f'<rect {box} class="{color}"{opacity}>{inner}</rect>')

    def line(self, x: float, y: float, to_x: float, to_y: float, color: str = "grid", dashes: str = "") -> None:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<line x1="{_n(x)}" y1="{_n(y)}" x2="{_n(to_x)}" y2="{_n(to_y)}" class="{color}"{dashed}/>')

    def text(self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start") -> None:
        """Text whose base line is at y; `style` is a color and words such as bold or small."""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{style}"{where}>{escape(text)}</text>')

    def __str__(self) -> str:
        width, height = map(_n, self._size)
        style = f"<style>{STYLE}</style>" if self._alone else ""
        label = f' role="img" aria-label="{escape(self._about)}"' if self._about else ""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"{label}>'
        return "\n".join([head + style, *self._parts, "</svg>"])


def _n(value: float) -> str:
    """A number without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
