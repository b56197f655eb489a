"""Writes the database that ships with convgen: the best verified measurement of every problem, GPU and strategy."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from convgen.kernels import strategies
from convgen.planner.database import Measurement, Status, row_of
from convgen.planner.database_file import CREATE, INSERT, LAYOUT

Best = Mapping[tuple[str, str, str], Measurement]


def export(measurements: Iterable[Measurement], path: Path) -> int:
    """Write the best verified measurement of every problem, GPU and strategy as a packaged database, of those whose
    results are the same in every run; how many.  The same measurements give the same bytes.  Raises OSError."""
    return update(path, lambda _: measurements)


def update(path: Path, change: Callable[[Path | None], Iterable[Measurement]]) -> int:
    """Like `export`, of what `change` makes of the present file, or of None: one process at a time changes a folder's
    files.

    A database that is in use, beside which SQLite keeps a log, stays the file that it is.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with _alone(path.parent):
            best = _best(change(path if path.is_file() else None))
            if os.path.exists(f"{path}-wal"):
                _fill(best, path)
            else:
                _fill(best, fresh)
                os.replace(fresh, path)
        return len(best)
    except sqlite3.Error as e:
        raise OSError(None, str(e)) from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _best(measurements: Iterable[Measurement]) -> Best:
    best: dict[tuple[str, str, str], Measurement] = {}
    for m in measurements:
        if strategies.varies(m.options):
            continue
        kept = best.get((m.key, m.gpu, m.strategy))
        if m.status == Status.RIGHT and m.us is not None and (kept is None or m.us < (kept.us or 0.0)):
            best[m.key, m.gpu, m.strategy] = m
    return best


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fill(best: Best, path: Path) -> None:
    """Makes these measurements all that a file has."""
    rows = [row_of(m) for _, m in sorted(best.items())]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"{CREATE}; PRAGMA user_version = {LAYOUT}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM measurement")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
