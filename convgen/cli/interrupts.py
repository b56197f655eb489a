"""Ctrl-C, also where C code makes another error of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType


@contextmanager
def noted(came: list[int]) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt as ever, and is noted: NumPy's C code, while it is imported, raises an
    ImportError in its place."""

    @wraps(signal.default_int_handler)  # who asks what the handler is shall find it
    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
