"""Tuning databases as files of SQLite: how they are opened, which are refused, and which are set aside."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from convgen.diagnostics import ConvgenError

#: The file's own layout (PRAGMA user_version).
LAYOUT = 1
_BUSY_SECONDS = 60.0
CREATE = """
CREATE TABLE IF NOT EXISTS measurement (
  key TEXT NOT NULL,        -- `key` of the problem
  gpu TEXT NOT NULL,        -- the GPU's name
  schema INTEGER NOT NULL,  -- TUNING_SCHEMA
  strategy TEXT NOT NULL,
  options TEXT NOT NULL,    -- JSON object, keys sorted
  status TEXT NOT NULL,     -- Status
  us REAL,                  -- microseconds a launch; NULL where it failed
  detail TEXT NOT NULL,     -- the configuration, or what failed
  date TEXT NOT NULL,       -- ISO 8601, UTC
  PRIMARY KEY (key, gpu, schema, strategy, options)
) WITHOUT ROWID
"""
#: What a file of SQLite begins with.
MAGIC = b"SQLite format 3\0"
COLUMNS = "key, gpu, schema, strategy, options, status, us, detail, date"
INSERT = f"INSERT OR REPLACE INTO measurement ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(',')))})"


class DatabaseError(ConvgenError):
    """A tuning database that cannot be used."""


class NotATuningDatabase(Exception):
    """A file of something else, of another layout, or broken."""


def connect_to_read(path: Path, immutable: bool = False) -> sqlite3.Connection:
    """A file that is `immutable` may lie where SQLite cannot make its lock files.  So is one where nobody may, unless
    somebody who could has left changes beside it."""
    path = path.resolve()
    changes = path.with_name(f"{path.name}-wal")
    if not os.access(path.parent, os.W_OK) and not (changes.exists() and changes.stat().st_size):
        immutable = True
    flags = "mode=ro&immutable=1" if immutable else "mode=ro"
    return sqlite3.connect(f"{path.as_uri()}?{flags}", uri=True, timeout=_BUSY_SECONDS)


@contextmanager
def one_process(path: Path, suffix: str) -> Iterator[None]:
    """One process at a time, of those that name the same file beside a database.  Raises DatabaseError."""
    try:
        lock = open(f"{path}{suffix}", "w")  # noqa: SIM115
    except OSError as e:
        raise unwritable(path, e) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Opens or creates.  Raises NotATuningDatabase, sqlite3.OperationalError."""
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        layout, tables = _layout(connection)
        if tables and layout != LAYOUT:
            raise NotATuningDatabase(f"its layout is {layout}, and this convgen's is {LAYOUT}")
        (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise NotATuningDatabase(sound)
        _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(f"BEGIN IMMEDIATE; {CREATE}; PRAGMA user_version = {LAYOUT}; COMMIT")
        connection.execute(f"SELECT {COLUMNS} FROM measurement LIMIT 1")
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as e:
        connection.close()
        raise NotATuningDatabase(str(e)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _layout(connection: sqlite3.Connection) -> tuple[int, set[str]]:
    """The number of the file's layout, and the names of its tables."""
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    return layout, {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _patiently(act: Callable[[], object]) -> None:
    """SQLite's busy timeout does not cover the change to WAL while another process reads."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def set_aside(path: Path) -> Path:
    """Renames a database and its companions; the new name of the database."""
    stamped = f"{path.name}.broken-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    for suffix in ("-wal", "-shm", ""):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            os.replace(companion, path.with_name(stamped + suffix))
    return path.with_name(stamped)


def check_ours(path: Path) -> None:
    """Raises DatabaseError for what is to stay as it is: a file of text, another program's database, and one of another
    version of convgen.  A tuning database that is damaged is not."""
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
        if start != MAGIC[: len(start)]:
            raise no_database(path, "it is no SQLite file")
        with closing(connect_to_read(path, immutable=True)) as connection:  # which leaves no other file
            layout, tables = _layout(connection)
    except FileNotFoundError:
        return
    except (OSError, sqlite3.Error):  # it is damaged and does not tell
        return
    if tables and "measurement" not in tables:
        raise no_database(path, f"it is another program's, with {len(tables)} tables of other names")
    if tables and layout > LAYOUT:
        raise no_database(path, f"a newer convgen wrote it (its layout is {layout}, and this one's is {LAYOUT})")


def unwritable(path: Path, reason: Exception) -> DatabaseError:
    why = getattr(reason, "strerror", None) or reason
    return DatabaseError(
        f"{path}: the tuning database cannot be written: {why}\nhint: set CONVGEN_TUNING_DB to another file"
    )


def no_database(path: Path, reason: Exception | str) -> DatabaseError:
    return DatabaseError(
        f"{path}: not a tuning database: {reason}\nhint: move it away, and `convgen tune` will create a new one"
    )
