"""Text and tables as HTML, for notebooks and pages.  Looks are theirs; what is here is structure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape


def preformatted(text: str) -> str:
    """Text whose blanks and line breaks count."""
    return f'<pre style="text-align:left">{escape(text)}</pre>'


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), caption: str = "", note: str = ""
) -> str:
    """Rows under headers; columns named in `right` are set flush right."""
    alignments = [' style="text-align:right"' if name in right else ' style="text-align:left"' for name in header]
    head = "".join(f"<th{align}>{escape(name)}</th>" for name, align in zip(header, alignments, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{align}>{escape(text)}</td>" for text, align in zip(row, alignments, strict=True))
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{title}{head}<tbody>{body}</tbody></table>{said}"
