"""Output for people: colors and tables on a terminal, plain text elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from convgen import plurals
from convgen.diagnostics import SpecError, format_rich, format_text
from convgen.spec import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Advance(Protocol):
    """Says how far a long piece of work is, in any unit, and what it is about, where that has changed."""

    def __call__(self, done: int, whole: int, what: str | None = None, /) -> None: ...


def prepare() -> None:
    """Makes output escape characters that a terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # closed, or not a text file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def write(text: str) -> None:
    """Text to standard output.  Raises UsageError where it cannot be written, BrokenPipeError."""
    if sys.stdout is None:
        raise UsageError("standard output cannot be written: it is closed")
    try:
        print(text)
    except BrokenPipeError:
        raise
    except OSError as e:
        raise UsageError(f"standard output cannot be written: {e.strerror}") from None


def flush() -> None:
    """Raises as `write` does."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        raise UsageError(f"standard output cannot be written: {e.strerror}") from None


def silence() -> None:
    """Lets the process end in peace where a stream takes no more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(message: str) -> None:
    """An error; further lines of the message are shown as they are."""
    _mark("error", "bold red", message)


def warn(message: str) -> None:
    _mark("warning", "bold yellow", message)


def diagnose(error: SpecError, stream: TextIO) -> None:
    """The diagnostics of a spec, and how many there are."""
    found = error.diagnostics
    if is_terminal(stream):
        _rich(stream).print(format_rich(found, error.text, error.path), soft_wrap=True)
    else:
        print(format_text(found, error.text, error.path), file=stream)
    print(f"\n{error.path}: {plurals.counted(len(found), 'error')}", file=stream)


def show(report: object) -> None:
    """Shows an object that knows its own text, and its colors by rich.  Raises as `write` does."""
    if is_terminal(sys.stdout):
        _rich(sys.stdout).print(report)
    else:
        write(str(report))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headers.  Raises as `write` does."""
    if is_terminal(sys.stdout):
        from rich import box
        from rich.table import Column, Table

        shown = Table(*(Column(header, overflow="fold") for header in headers), box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            shown.add_row(*(_escaped(cell) for cell in row))
        _rich(sys.stdout).print(shown)
        return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        write("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def gpu_needed(hint: str) -> Iterator[None]:
    """The error that a GPU is needed for something; its hint is for users without one, or without CuPy."""
    from convgen.runtime.errors import NoCupy, NoGpu

    try:
        yield
    except (NoGpu, NoCupy) as e:
        raise type(e)(f"{e}\nhint: {hint}") from None


#: Work that takes less time than this is not spoken of, and loads nothing for that.
PATIENCE_SECONDS = 0.3


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Shows that work goes on, on a terminal; the function that it gives changes what is said."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    shown = _Status(what)
    later = threading.Timer(PATIENCE_SECONDS, shown.start)
    later.daemon = True
    later.start()
    try:
        yield shown.say
    finally:
        later.cancel()
        shown.stop()


class _Status:
    """The message of a spinner, from its start until it is stopped."""

    def __init__(self, text: str) -> None:
        self._text, self._ended = text, False
        self._status: Status | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if not self._ended:
                self._status = _rich(sys.stderr).status(_escaped(self._text))
                self._status.start()

    def say(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._status:
                self._status.update(_escaped(text))

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._status:
                self._status.stop()


@contextmanager
def progress_bar(what: str) -> Iterator[Advance]:
    """A bar with the time that is left, on a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda done, whole, what=None: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_rich(sys.stderr), transient=True) as progress:
        task = progress.add_task(_escaped(what), total=None)
        yield lambda done, whole, what=None: progress.update(
            task, completed=done, total=whole, description=what and _escaped(what)
        )


def _mark(severity: str, style: str, message: str) -> None:
    """Writes to standard error; a failure to write has no other effect."""
    with suppress(OSError):
        if is_terminal(sys.stderr):
            from rich.text import Text

            _rich(sys.stderr).print(Text.assemble("convgen: ", (severity, style), f": {message}"), soft_wrap=True)
        elif sys.stderr is not None:
            print(f"convgen: {severity}: {message}", file=sys.stderr)


def _rich(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
