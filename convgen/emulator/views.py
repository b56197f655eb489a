"""Timelines for people: Chrome's trace format, which ui.perfetto.dev and chrome://tracing open, and a picture.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from convgen.emulator.timeline import Slice, Timeline, merged
from convgen.picture import Picture

#: Color and meaning of a slice's kind.
KINDS: dict[str, tuple[str, str]] = {
    "load": ("a", "load"),
    "copy": ("a", "copy"),
    "multiply": ("c", "multiply"),
    "store": ("b", "store"),
    "wait": ("quiet", "wait"),
    "sync": ("d", "wait at a barrier"),
}
_TITLES = {
    "load": "TMA load",
    "copy": "cp.async",
    "multiply": "multiply",
    "store": "TMA store",
    "wait": "wait",
    "sync": "barrier",
}


# ---- Chrome's format -----------------------------------------------------------------------------------


def chrome_json(timelines: Sequence[Timeline]) -> str:
    """Launches one after another; a process is a block, and a cycle a microsecond."""
    events: list[dict[str, Any]] = []
    processes, flows, begin = count(1), count(1), 0.0
    for line in timelines:
        numbers = {block: next(processes) for block in sorted({block for block, _ in line.warps})}
        events += _named(line, numbers)
        rows = {(block, t): (pid, tid) for block, pid in numbers.items() for tid, t in enumerate(tracks(line, block))}
        for s in merged(line.slices):
            events += _slice(line, s, rows, begin, flows)
        begin += line.cycles
    note = "cycles are nominal, the order of events is the emulator's"
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"note": note}})


def _named(line: Timeline, numbers: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads, and their order."""
    for block, pid in numbers.items():
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{line.entry}, block {block}"}}
        for tid, track in enumerate(tracks(line, block)):
            name = {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name"}
            yield name | {"args": {"name": _label(line, block, track)}}
            yield name | {"name": "thread_sort_index", "args": {"sort_index": tid}}


def _slice(
    line: Timeline, s: Slice, rows: Mapping[tuple[int, str], tuple[int, int]], begin: float, flows: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """A slice, and an arrow from what a wait waits for; `rows` are process and thread by block and track."""
    place = dict(zip(("pid", "tid"), rows[s.block, s.track], strict=True))
    for_whom = _cause(line, s) if s.cause else None
    about = {"line": s.line, "source": line.code(s.line)} | ({"for": for_whom} if for_whom else {})
    shown = {"name": _TITLES[s.kind], "cat": s.kind, "ts": begin + s.begin} | place
    if (s.block, s.track) in line.warps:
        yield shown | {"ph": "X", "dur": s.end - s.begin, "args": about}
    else:  # several may be under way
        shown["id"] = next(flows)
        yield shown | {"ph": "b", "args": about}
        yield shown | {"ph": "e", "ts": begin + s.end}
    if s.cause and s.kind in ("wait", "sync") and (s.cause.block, s.cause.track) != (s.block, s.track):
        origin = dict(zip(("pid", "tid"), rows[s.cause.block, s.cause.track], strict=True))
        arrow = {"name": "wakes", "cat": "wakes", "id": next(flows)}
        yield arrow | origin | {"ph": "s", "ts": begin + min(s.cause.cycle, s.end)}
        yield arrow | place | {"ph": "f", "bp": "e", "ts": begin + s.end}


def _cause(line: Timeline, s: Slice) -> str:
    assert s.cause is not None
    where = "" if s.cause.block == s.block else f" of block {s.cause.block}"
    return _label(line, s.cause.block, s.cause.track) + where


def tracks(line: Timeline, block: int) -> list[str]:
    """A block's tracks from top to bottom: what loads, the warps in order, what multiplies and stores."""
    warps = sorted((t for b, t in line.warps if b == block), key=lambda t: int(t.split()[1]))
    units = {s.track: s.kind for s in line.slices if s.block == block and s.track not in warps}
    above = [t for t, kind in units.items() if kind in ("load", "copy")]
    products = sorted(t for t, kind in units.items() if kind == "multiply")
    return [*above, *warps, *products, *(t for t, kind in units.items() if kind == "store")]


def _label(line: Timeline, block: int, track: str) -> str:
    role = line.roles.get((block, track))
    return f"{track} ({role})" if role else track


# ---- a picture -----------------------------------------------------------------------------------------

_WIDTH, _LEFT, _ROW, _BAR = 1000, 170, 20, 14
#: Of a picture: blocks, and cycles.
_BLOCKS, _CYCLES = 2, 20_000.0


def picture(line: Timeline, alone: bool = True, blocks: int = _BLOCKS, cycles: float = _CYCLES) -> str:
    """The beginning of a launch's first blocks as SVG: rows are warps and units, time runs to the right."""
    every = sorted({block for block, _ in line.warps})
    shown = every[:blocks]
    end = max([s.end for s in line.slices if s.block in shown] + [line.cycles, 1])
    until = min(end, cycles)
    scale = (_WIDTH - _LEFT - 10) / until
    heights = [24 + _ROW * len(tracks(line, block)) for block in shown]
    drawn = Picture(_WIDTH, 66 + sum(heights), f"Timeline of {line.entry}", alone)
    first = f"the first {until:.0f} of " if until < end else ""
    drawn.text(
        10, 20, f"{line.entry}: {first}{end:.0f} nominal cycles; {len(shown)} of {len(every)} blocks", "ink bold"
    )
    _legend(drawn, line)
    y = 56.0
    for block in shown:
        drawn.text(10, y + 12, f"block {block}", "quiet small")
        y += 20
        for track in tracks(line, block):
            drawn.text(_LEFT - 8, y + 11, _label(line, block, track), "ink small", "end")
            if life := line.warps.get((block, track)):
                drawn.rectangle(_LEFT + life[0] * scale, y + 5, (min(life[1], until) - life[0]) * scale, 4, "grid")
            own = merged([s for s in line.slices if (s.block, s.track) == (block, track) and s.begin < until])
            lanes = _lanes(own)
            for s, lane in zip(own, lanes, strict=True):
                _bar(drawn, line, replace(s, end=min(s.end, until)), (lane, max(lanes) + 1), y, scale)
            y += _ROW
        y += 4
    return str(drawn)


def _legend(drawn: Picture, line: Timeline) -> None:
    x = _LEFT
    for kind in KINDS:
        if any(s.kind == kind for s in line.slices):
            color, meaning = KINDS[kind]
            drawn.rectangle(x, 32, 12, 12, color)
            drawn.text(x + 18, 42, meaning, "quiet small")
            x += 40 + 7 * len(meaning)


def _lanes(slices: Sequence[Slice]) -> list[int]:
    """A lane for each slice of a track, so that overlapping slices lie side by side."""
    free: list[float] = []
    found = []
    for s in slices:
        lane = next((i for i, end in enumerate(free) if end <= s.begin), len(free))
        free[lane : lane + 1] = [s.end]
        found.append(lane)
    return found


def _bar(drawn: Picture, line: Timeline, s: Slice, lane: tuple[int, int], y: float, scale: float) -> None:
    waits = s.kind in ("wait", "sync")
    for_whom = f" for {_cause(line, s)}" if waits and s.cause else ""
    title = f"{_TITLES[s.kind]}{for_whom}, {s.end - s.begin:.0f} cycles, line {s.line}: {line.code(s.line)}"
    width, height = max((s.end - s.begin) * scale, 0.5), 6 if waits else _BAR / lane[1]
    x, y = _LEFT + s.begin * scale, y + (4 if waits else lane[0] * height)
    drawn.rectangle(x, y, width, height * (1 if lane[1] == 1 else 0.85), KINDS[s.kind][0], title)
