"""Deals a tile's columns out to lanes so that a lane's columns of several instructions are neighbors in y."""

from __future__ import annotations


def column_of(run: int) -> str:
    """C text: the tile's column that stands in place `at` of the tile's columns in shared memory.

    Place j * 8 + 2 * t + e is column 2 * t + e of instruction j, which lane t of a quad holds; it becomes
    neighbor 2 * j + e of lane t's run.
    """
    per_run = run // 2
    if per_run <= 1:
        return "at"
    shift = per_run.bit_length() - 1
    return f"(at & ~{4 * run - 1}) | (at >> 1 & 3) << {shift + 1} | (at >> 3 & {per_run - 1}) << 1 | (at & 1)"


def lane_column(run: int, place: int, lane: int) -> int:
    """The warp's column of a lane's sum in place `place` of its row (see `column_of`); `lane` is that of the quad."""
    run = max(run, 2)
    return place // run * (4 * run) + lane * run + place % run


def lane_column_text(run: int, place: str) -> str:
    """The same as C text."""
    run = max(run, 2)
    first = "accumulator_column(lane)" if run == 2 else f"accumulator_column(lane) * {run // 2}"
    return f"{place} / {run} * {4 * run} + {first} + {place} % {run}"
