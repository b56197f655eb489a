"""The outcome of an experiment: our figures beside a document's, as a table, as JSON and as a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from convgen import __version__
from convgen.bench import plot
from convgen.bench.results import commit
from convgen.tables import Explanation, Table

#: Labels side by side; more go one below the other.
MOST_ACROSS = 12


@dataclass(frozen=True)
class Series:
    """A value for each label, None where there is none; `printed` where they are the document's, not ours."""

    name: str
    values: Sequence[float | None]
    digits: int = 2
    printed: bool = False

    def shown(self, value: float | None) -> str:
        return "" if value is None else f"{value:.{self.digits}f}"


@dataclass(frozen=True)
class Outcome:
    """Series over labels; `notes` say why they differ from the document's."""

    title: str
    axis: str  # what the labels are
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str  # of the series that the picture shows
    notes: Sequence[str] = ()
    drawn: Sequence[str] = ()  # names of these series; empty: all
    logarithmic: bool = False

    def __post_init__(self) -> None:
        assert all(len(s.values) == len(self.labels) for s in self.series), self.title

    def table(self) -> Explanation:
        names = tuple(s.name for s in self.series)
        columns = zip(*(map(s.shown, s.values) for s in self.series), strict=True)
        rows = tuple((label, *cells) for label, cells in zip(self.labels, columns, strict=True))
        return Explanation((Table(self.title, (self.axis, *names), rows, "\n".join(self.notes), names),))

    def to_json(self, command: str, source: str) -> str:
        """The outcome with everything needed to reproduce it.  Nothing is timed here; the titles of weighed results
        name their GPU."""
        rows = [
            {self.axis: label} | {s.name: s.values[i] for s in self.series} for i, label in enumerate(self.labels)
        ]  # fmt: skip
        record: Mapping[str, object] = {
            "convgen": __version__,
            "commit": commit(),
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": source,
            "title": self.title,
            "unit": self.unit,
            "notes": list(self.notes),
            "rows": rows,
        }
        return json.dumps(record, indent=1)

    def draw(self, path: Path) -> bytes:
        """The picture's file, in the format of the path's suffix: bars, the document's hatched, along a page's height
        where there are many.  Raises UsageError."""
        plot.check(path)
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        shown = [s for s in self.series if s.name in self.drawn or not self.drawn]
        tall = len(self.labels) > MOST_ACROSS
        inches = 0.5 * len(self.labels) * len(shown)
        figure = Figure(figsize=(8.0, 0.2 * inches) if tall else (max(6.0, inches), 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        width = 0.8 / len(shown)
        for i, s in enumerate(shown):
            at = [place + (i - (len(shown) - 1) / 2) * width for place in range(len(self.labels))]
            bars = axes.barh if tall else axes.bar
            bars(at, [v or 0 for v in s.values], width, label=s.name, hatch="//" if s.printed else None)
        along, across = ("y", "x") if tall else ("x", "y")
        axes.set(**{f"{along}label": self.axis, f"{across}label": self.unit})
        axes.set(**{f"{along}ticks": range(len(self.labels)), f"{along}ticklabels": self.labels})
        axes.set(**{f"{across}scale": "log" if self.logarithmic else "linear"})
        if tall:
            axes.set_ylim(len(self.labels) - 0.5, -0.5)
        axes.set_title(self.title, loc="right" if tall else "left")
        axes.legend()
        file = io.BytesIO()
        figure.savefig(file, format=path.suffix.lower().removeprefix("."), dpi=130)
        return file.getvalue()
