"""The page: one HTML file with everything in it, for a light or a dark screen of any width."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from html import escape

from convgen import __version__, hypertext
from convgen.diagnostics import SpecError
from convgen.driver import Compilation
from convgen.emulator import EmulationError, NoHostCompiler, views
from convgen.emulator.timeline import Timeline, timeline
from convgen.emulator.trace import recording
from convgen.explain import formulas, roofline
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.picture import STYLE
from convgen.report import pictures
from convgen.tables import Table

#: Multiply-adds that are emulated for a timeline.
_MOST_MACS = 1 << 28

_CSS = """
:root{color-scheme:light dark;--ink:#1f2328;--quiet:#59636e;--paper:#fff;--raised:#f6f8fa;--edge:#d1d9e0;--link:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#f0f6fc;--quiet:#9198a1;--paper:#0d1117;--raised:#151b23;--edge:#3d444d;
--link:#4493f8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid var(--edge)}h3{font-size:1rem}
a{color:var(--link)}nav a{margin-right:1rem;display:inline-block}
.wide{overflow-x:auto;max-width:100%}.wide svg{display:block;max-width:none}
table{border-collapse:collapse;font-size:.875rem}td,th{padding:.2rem .6rem;text-align:left;vertical-align:top;
border-bottom:1px solid var(--edge)}th{color:var(--quiet);font-weight:400}td.right,th.right{text-align:right}
code,pre{font:.8125rem/1.45 ui-monospace,SFMono-Regular,Menlo,monospace}
pre{background:var(--raised);padding:.75rem;overflow-x:auto;margin:.5rem 0}
.quiet,.note{color:var(--quiet);font-size:.875rem}.number{color:var(--quiet);user-select:none}
:target{background:color-mix(in srgb,var(--link) 25%,transparent)}
"""


def page(compilations: Iterable[Compilation], progress: Callable[[str], None] = lambda _: None) -> str:
    """A page of convolutions, each with its choice made."""
    found = _by_anchor(compilations)
    title = ", ".join(c.name for c in found.values())
    links = "".join(f'<a href="#{anchor}">{escape(c.name)}</a>' for anchor, c in found.items())
    body: list[str] = []
    for anchor, c in found.items():
        progress(f"explaining {c.name}")
        body += _convolution(c, anchor)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - convgen</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><style>{_CSS}{STYLE}</style></head>\n<body>\n'
        f"<nav>{links if len(found) > 1 else ''}</nav>\n"
        + "\n".join(body)
        + f'\n<p class="note">convgen {__version__}</p>\n</body></html>\n'
    )


def _by_anchor(compilations: Iterable[Compilation]) -> dict[str, Compilation]:
    """The entries by their anchors: a name that specs repeat gets a number, after a sign that no name contains."""
    found: dict[str, Compilation] = {}
    count = Counter[str]()
    for c in compilations:
        count[c.name] += 1
        found[f"{c.name}-{count[c.name]}" if count[c.name] > 1 else c.name] = c
    return found


def _convolution(c: Compilation, name: str) -> Iterator[str]:
    """The parts of one convolution's page, under the name that links go by."""
    problem, plan = c.request.problem, c.plan
    tables = {table.title.split(" on ")[0].split(" for ")[0]: table for table in c.explain().tables}
    line = _timeline(c)
    parts: dict[str, Iterable[str]] = {
        "Geometry": [_wide(pictures.geometry(problem)), _table(c.explain().tables[0])],
        "Index formulas": [_formulas(problem)],
        "Tiles": [_wide(pictures.tiles(plan)), *map(_table, filter(None, [tables.get("Matrix view")]))],
        "Shared memory": [_wide(pictures.shared_memory(plan))],
        "Timeline": _timeline_part(line, name),
        "Time": [_times(c), _table(tables["Roofline"])],
        "Strategies": [_table(tables[t]) for t in ("Strategies", "Plan", "Classes of sizes") if t in tables],
        "Tensor maps": [_table(table) for title, table in tables.items() if title.startswith(("TMA", "Tensor maps"))],
        "Source": _source(c.source, name),
    }
    shown = {title: "".join(part) for title, part in parts.items()}
    shown = {title: part for title, part in shown.items() if part}
    yield f'<h1 id="{name}">{escape(c.name)}: {problem.op} by {plan.strategy}</h1>'
    yield f"<p><code>{escape(plan.configuration)}</code></p>"
    yield "<nav>" + "".join(f'<a href="#{_id(name, t)}">{t}</a>' for t in shown) + "</nav>"
    for title, part in shown.items():
        yield f'<section><h2 id="{_id(name, title)}">{title}</h2>\n{part}</section>'


def _id(name: str, title: str) -> str:
    return f"{name}-{title.lower().replace(' ', '-')}"


def _wide(picture: str) -> str:
    """A block that scrolls by itself if it is wider than the page."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="picture">{picture}</div>' if picture else ""


def _table(table: Table) -> str:
    """A table of `convgen explain`."""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<div class="wide" tabindex="0">{hypertext.table(table.header, table.rows, table.right)}</div>{note}'


def _formulas(problem: ConvProblem) -> str:
    rows = "".join(
        f"<tr><th>{escape(f.name)}</th>"
        f"<td><code>{escape(f.before)}</code></td><td class='right'>{f.operations_before}</td>"
        f"<td><code>{escape(f.after)}</code></td><td class='right'>{f.operations_after}</td></tr>"
        for f in formulas(problem)
    )
    head = "".join(
        f"<th>{t}</th>" for t in ("", "as derived", "operations", "with this problem's numbers", "operations")
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


# ---- times ---------------------------------------------------------------------------------------------


def _times(c: Compilation) -> str:
    """The plan's estimate beside those of the strategies that serve, over the roofline."""
    problem, plan = c.request.problem, c.plan
    gpu = plan.target.gpu
    least = 1e6 * roofline(problem, gpu, plan).least
    rows = {f"this plan ({plan.strategy})": plan.us} if plan.us else {}
    for name, strategy in strategies.STRATEGIES.items():
        if name != plan.strategy and not strategy.obstacles(problem, plan.target, {}):
            us = strategy.estimate(problem, plan.target, {})
            rows |= {name: us} if us < math.inf else {}
    said = (
        f'<p class="note">By the cost models, on {escape(gpu.name)}; the plan: {escape(plan.reason or "as asked")}.</p>'
    )
    return _wide(pictures.times(rows, least)) + said if rows else said


# ---- the timeline --------------------------------------------------------------------------------------


def _timeline(c: Compilation) -> Timeline | str:
    """The timeline of the longest launch, emulated on one image; or why there is none."""
    from convgen.ir import verify

    try:
        small = c.on_images(1) if c.request.problem.n > 1 else c
    except SpecError:
        return "A single image cannot have this configuration, and emulating more takes long."
    problem = small.request.problem.static
    if problem.macs > _MOST_MACS:
        return "The layer is too large to be emulated for a page."
    arrays = verify.random_inputs(problem, 0)
    try:
        with recording() as launches:
            small.uncompiled().emulate(*(arrays[t.buffer] for t in problem.arguments))
    except (NoHostCompiler, EmulationError) as e:
        return str(e).splitlines()[0]
    return max(map(timeline, launches), key=lambda line: line.cycles)


def _timeline_part(line: Timeline | str, name: str) -> Iterator[str]:
    if isinstance(line, str):
        yield f'<p class="note">{escape(line)}</p>'
        return
    yield _wide(views.picture(line, alone=False, blocks=1))
    waits: dict[int, float] = {}
    for s in line.slices:
        if s.kind in ("wait", "sync"):
            waits[s.line] = waits.get(s.line, 0) + s.end - s.begin
    rows = sorted(waits.items(), key=lambda row: -row[1])[:6]
    cells = "".join(
        f'<tr><td class="right">{cycles:.0f}</td><td><a href="#{name}-line-{number}">line {number}</a></td>'
        f"<td><code>{escape(line.code(number))}</code></td></tr>"
        for number, cycles in rows
    )
    head = '<thead><tr><th class="right">cycles of warps</th><th>wait at</th><th></th></tr></thead>'
    yield f'<div class="wide" tabindex="0"><table>{head}<tbody>{cells}</tbody></table></div>' if cells else ""
    yield '<p class="note">One image in the emulator: the order of events is its own, durations are nominal.</p>'


# ---- the source ----------------------------------------------------------------------------------------

_HEADING = re.compile(r"^// -{4} (.*?):? ?-{2,}$|^// -{4} ([\w ]+)")


def _source(source: str, name: str) -> Iterator[str]:
    """The generated source with a link to each of its sections and an anchor at each line."""
    lines = source.splitlines()
    sections = {i: (found[1] or found[2]) for i, text in enumerate(lines, 1) if (found := _HEADING.match(text))}
    yield (
        "<nav>" + "".join(f'<a href="#{name}-line-{i}">{escape(title)}</a>' for i, title in sections.items()) + "</nav>"
    )
    width = len(str(len(lines)))
    numbered = "\n".join(
        f'<span id="{name}-line-{i}"><span class="number">{i:{width}} </span>{escape(text)}</span>'
        for i, text in enumerate(lines, 1)
    )
    yield f'<pre tabindex="0">{numbered}</pre>'
