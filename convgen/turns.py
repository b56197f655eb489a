"""Turns of threads.  A process that was forked has none that another thread of its parent had: that is not in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

_turns: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
_taking_turns = threading.Lock()


@contextmanager
def turn(key: Hashable) -> Iterator[None]:
    """Lets one thread per key in at a time: the others wait, and then find its result."""
    with _taking_turns:
        own = _turns.setdefault(key, threading.Lock())
    with own:
        yield


def _forget_turns() -> None:
    global _taking_turns
    _taking_turns = threading.Lock()
    _turns.clear()


os.register_at_fork(after_in_child=_forget_turns)
