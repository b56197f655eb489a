"""The tuning database: what was measured for which convolution, on which GPU, and so what `auto` takes.

Two SQLite files of one schema: the user's own, which `convgen tune` writes and many processes may share,
and a read-only one that ships with convgen.  The choice is a query: the fastest measurement that was
verified against the reference.  Reading costs two look-ups and imports sqlite3 alone.
"""

from __future__ import annotations

import enum
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from convgen.diagnostics import warn
from convgen.ir.problem import ConvProblem
from convgen.kernels import registry, renamed, strategies
from convgen.planner.database_file import (
    COLUMNS,
    INSERT,
    NotATuningDatabase,
    check_ours,
    connect_to_read,
    connect_to_write,
    no_database,
    one_process,
    set_aside,
    unwritable,
)
from convgen.planner.keys import THE_EPILOGUE, key, standing_in  # noqa: F401
from convgen.targets import Target

#: Raise when kernels change so much that old measurements mislead; rows of other numbers are not read.
TUNING_SCHEMA = 1
PACKAGED = Path(__file__).with_name("tuning.sqlite")
#: Measurements of a problem that are looked at, the fastest first.
_MOST_RANKED = 16


class DatabaseWarning(UserWarning):
    """A tuning database was set aside or left out."""


class Status(enum.StrEnum):
    """The state of a candidate."""

    TIMED = "timed"  # measured, not verified
    RIGHT = "right"  # measured, and its result is right
    WRONG = "wrong"  # its result is wrong
    FAILED = "failed"  # it does not compile, launch, or return


@dataclass(frozen=True)
class Measurement:
    """One candidate of one problem on one GPU."""

    key: str
    gpu: str
    strategy: str
    options: Mapping[str, int | str]
    status: Status
    us: float | None
    detail: str = ""
    date: str = ""

    @property
    def candidate(self) -> tuple[str, str]:
        """Identity among a problem's candidates."""
        return self.strategy, canonical(self.options)


@dataclass(frozen=True)
class Tuned:
    """The best configuration known; `us` was measured on `gpu`, on this very problem or on the same convolution without
    what is `left_out`: dynamic sizes, slices, or the epilogue, and perhaps what comes before it here."""

    strategy: str
    options: Mapping[str, int | str]
    us: float
    gpu: str
    left_out: str = ""

    @property
    def reason(self) -> str:
        return f"tuned on {self.gpu}{f', without {self.left_out}' if self.left_out else ''}: {self.us:.1f} us"


def canonical(options: Mapping[str, int | str]) -> str:
    """Options as text that is the same for equal options."""
    return json.dumps(dict(options), sort_keys=True, separators=(",", ":"))


def now() -> str:
    """The date of a measurement made now."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---- reading: what the planner asks ----------------------------------------------------------------


def user_path() -> Path:
    """The user's database: CONVGEN_TUNING_DB, or a file in the user's data folder."""
    if chosen := os.environ.get("CONVGEN_TUNING_DB"):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("convgen")) / "tuning.sqlite"


def lookup(problem: ConvProblem, target: Target, gpu: str | None = None, strategy: str | None = None) -> Tuned | None:
    """The first of `ranked`; None if there is none."""
    return next(ranked(problem, target, gpu, strategy), None)


def ranked(
    problem: ConvProblem, target: Target, gpu: str | None = None, strategy: str | None = None
) -> Iterator[Tuned]:
    """The best verified measurements of a problem, of one strategy if named, else of those that `auto` takes, the first
    to be taken first: another version of convgen may have measured what this one does not know.

    The user's measurements go before the packaged ones, those on `gpu` (the GPU at hand) before those on
    the GPU that stands for the target, those of the very tensors before those of packed ones, of the very epilogue
    before those of none, and of dynamic sizes before those of fixed ones.  Measurements without the epilogue are not
    those of strategies that would compute it in another launch, unless one is named.
    """
    gpus = [name for name in (gpu, target.gpu.name) if name]
    left_out = standing_in(problem)
    by_name, unfused = ((), ()) if strategy else (strategies.BY_NAME, strategies.UNFUSED)
    apart = {k: (*by_name, *unfused) if what == THE_EPILOGUE else by_name for k, what in left_out.items()}
    asked = [(k, name, apart[k]) for name in gpus for k in left_out]
    for path in (user_path(), PACKAGED):
        for found in _best(path, asked, strategy):
            yield Tuned(found.strategy, found.options, found.us or 0.0, found.gpu, left_out[found.key])


def _warn_of_missing() -> None:
    """Where a database is named that is not there: a slip, unless `convgen tune` is still to create it."""
    if chosen := os.environ.get("CONVGEN_TUNING_DB"):
        warn(
            f"CONVGEN_TUNING_DB names {chosen}, which does not exist: your measurements are not used. "
            "`convgen tune` creates it.",
            DatabaseWarning,
        )


def stamp() -> list[tuple[int, int]]:
    """Changes whenever the user's database does: part of the key of whatever a choice was cached in."""
    found = []
    for suffix in ("", "-wal"):
        try:
            stat = os.stat(f"{user_path()}{suffix}")
        except (FileNotFoundError, NotADirectoryError):
            if not suffix:
                _warn_of_missing()
            continue
        except OSError:
            continue
        found.append((stat.st_size, stat.st_mtime_ns))
    return found


def _best(path: Path, asked: list[tuple[str, str, tuple[str, ...]]], strategy: str | None) -> Iterator[Measurement]:
    """The fastest right measurements for each key and GPU, of those whose results are the same in every run, of other
    strategies than those that stand beside them."""
    varying = [f"%{canonical({name: value})[1:-1]}%" for name, value in strategies.VARYING.items()]
    try:
        if path.is_file() and path.stat().st_size == 0:  # SQLite's empty database
            return
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError("it is a device or a pipe")
        with open(path, "rb"), closing(connect_to_read(path, path == PACKAGED)) as connection:
            for problem, gpu, apart in asked:
                query = (
                    f"SELECT {COLUMNS} FROM measurement WHERE key = ? AND gpu = ? AND schema = ? AND status = ? "
                    f"AND strategy = coalesce(?, strategy) AND strategy NOT IN ({', '.join('?' * len(apart))}) "
                    f"{'AND options NOT LIKE ? ' * len(varying)}"
                    f"ORDER BY us, strategy, options LIMIT {_MOST_RANKED}"
                )
                values = (problem, gpu, TUNING_SCHEMA, Status.RIGHT, strategy, *apart, *varying)
                for row in connection.execute(query, values):
                    yield _measurement(row)
    except (FileNotFoundError, NotADirectoryError):
        if path != PACKAGED:
            _warn_of_missing()
    except (sqlite3.Error, OSError, ValueError) as e:
        hint = "Set CONVGEN_TUNING_DB to a file."
        if os.path.isfile(path):
            hint = "Move it away, and `convgen tune` will create a new one; or set CONVGEN_TUNING_DB to another file."
        warn(
            f"{path} cannot be read as a tuning database ({getattr(e, 'strerror', None) or e}), and is ignored. {hint}",
            DatabaseWarning,
        )


def row_of(m: Measurement) -> tuple[object, ...]:
    """The values of `COLUMNS`."""
    return m.key, m.gpu, TUNING_SCHEMA, m.strategy, canonical(m.options), m.status, m.us, m.detail, m.date


def _measurement(row: tuple) -> Measurement:
    """Raises ValueError where a row holds what `convgen tune` never writes."""
    problem, gpu, _, strategy, text, status, us, detail, date = row
    try:
        options = json.loads(text)
    except RecursionError:
        raise ValueError("its options are nested too deeply") from None
    if not isinstance(options, dict) or not all(type(value) in (int, str) for value in options.values()):
        raise ValueError(f"its options {text:.40} are not an object of words and whole numbers")
    if not isinstance(us, float | None) or (us is None and status == Status.RIGHT):
        raise ValueError(f"its time {us!r:.40} is not a number")
    if us is not None and not 0 < us < math.inf:
        raise ValueError(f"its time {us} is not a time")
    if not isinstance(detail, str):
        raise ValueError("its detail is not a text")
    named, options = renamed.strategy(strategy), renamed.options(strategy, options)
    whole = registry.completed(str(options.get("kernel", named)), options)
    return Measurement(problem, gpu, named, whole, Status(status), us, detail, date)


# ---- writing: what `convgen tune` keeps ------------------------------------------------------------


class Database:
    """A database open for writing.  Every `record` is on disk when it returns; processes may share the file."""

    def __init__(self, path: Path, say: Callable[[str], None] | None = None) -> None:
        """Opens or creates.  A file that is no tuning database is set aside under another name, which `say` hears, by
        default a DatabaseWarning says.  Raises DatabaseError where nothing can be written."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # two must not both set a broken file aside, nor create the tables
            with one_process(path, ".lock"):
                try:
                    self._connection = connect_to_write(path)
                except NotATuningDatabase as e:
                    check_ours(path)
                    aside = set_aside(path)
                    message = f"{path} is not a tuning database ({e}): renamed to {aside.name}; a new one was created"
                    say(message) if say else warn(message, DatabaseWarning)
                    self._connection = connect_to_write(path)
        except (OSError, sqlite3.OperationalError) as e:
            raise unwritable(path, e) from None

    def record(self, measurement: Measurement) -> None:
        """Keep a measurement; it takes the place of an earlier one of the same candidate.  Raises DatabaseError."""
        with self._transaction() as connection:
            connection.execute(INSERT, row_of(measurement))

    def measurements(self, asked: str | None = None, gpu: str | None = None) -> list[Measurement]:
        """Every measurement of the current schema, of one key or one GPU if named, fastest first.

        Raises DatabaseError."""
        where: list[str] = ["schema = ?"]
        values: list[object] = [TUNING_SCHEMA]
        for column, value in (("key", asked), ("gpu", gpu)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        query = f"SELECT {COLUMNS} FROM measurement WHERE {' AND '.join(where)} ORDER BY us IS NULL, us"
        try:
            return [_measurement(row) for row in self._connection.execute(query, values)]
        except (sqlite3.Error, ValueError) as e:
            raise no_database(self.path, e) from None

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Raises DatabaseError where the file is locked for long, full, or gone."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except sqlite3.Error as e:
            raise unwritable(self.path, e) from None
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def read_all(path: Path) -> list[Measurement]:
    """Every measurement of the current schema in a database that is only read; none of an empty file.  Raises
    DatabaseError."""
    if path.stat().st_size == 0:
        return []
    try:
        with closing(connect_to_read(path, path == PACKAGED)) as connection:
            query = f"SELECT {COLUMNS} FROM measurement WHERE schema = ?"
            return [_measurement(row) for row in connection.execute(query, (TUNING_SCHEMA,))]
    except (sqlite3.Error, ValueError) as e:
        raise no_database(path, e) from None
