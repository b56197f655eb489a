"""Writes the database that ships with convgen: the best verified measurement of every problem, GPU and strategy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from convgen.kernels import strategies
from convgen.planner.database import COLUMNS, CREATE, LAYOUT, TUNING_SCHEMA, Measurement, Status, canonical


def export(measurements: Iterable[Measurement], path: Path) -> int:
    """Write the best verified measurement of every problem, GPU and strategy as a packaged database, of those whose
    results are the same in every run; how many.  The same measurements give the same bytes."""
    best: dict[tuple[str, str, str], Measurement] = {}
    for m in measurements:
        if strategies.varies(m.options):
            continue
        kept = best.get((m.key, m.gpu, m.strategy))
        if m.status == Status.RIGHT and m.us is not None and (kept is None or m.us < (kept.us or 0.0)):
            best[m.key, m.gpu, m.strategy] = m
    path = Path(os.path.realpath(path))
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        return _write(best, fresh, path)
    except sqlite3.Error as e:
        raise OSError(None, str(e)) from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _write(best: Mapping[tuple[str, str, str], Measurement], fresh: Path, path: Path) -> int:
    """Writes measurements to a fresh file and puts it in the place of another; how many."""
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.executescript(f"{CREATE}; PRAGMA user_version = {LAYOUT}")
        rows = [
            (m.key, m.gpu, TUNING_SCHEMA, m.strategy, canonical(m.options), m.status, m.us, m.detail, m.date)
            for _, m in sorted(best.items())
        ]
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO measurement ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", rows)
        connection.execute("COMMIT")
    os.replace(fresh, path)
    return len(rows)
