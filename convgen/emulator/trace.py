"""Records what happens in an emulation, in its order.

    with recording() as launches:
        kernel.emulate(x, w)

A context enables it, not an argument, because a kernel's arguments are its tensors and may have any name.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy

#: Events of a launch that are kept; the first blocks have the same story as the last.
CAPACITY = 1 << 21


class Did(enum.IntEnum):
    """runtime/trace.h says what each means."""

    START = 0
    EXIT = 1
    LOAD = 2
    LANDED = 3
    ARRIVE = 4
    PHASE = 5
    WAIT = 6
    SYNC = 7
    STORE = 8
    STORE_WAIT = 9
    STORE_READ = 10
    MULTIPLY = 11
    MULTIPLY_WAIT = 12
    MMA = 13
    COPY = 14
    COPY_WAIT = 15
    CLUSTER_ARRIVE = 16
    CLUSTER_WAIT = 17


FIELDS = ("what", "block", "warp", "line", "on_block", "on", "value", "amount")
_EVENT = numpy.dtype([(name, numpy.int32 if name == "line" else numpy.uint32) for name in FIELDS])


class _Events(ctypes.Structure):
    _fields_ = (("room", ctypes.c_void_p), ("capacity", ctypes.c_uint32), ("count", ctypes.c_uint32))


@dataclass(frozen=True)
class Launch:
    """The events of one launch: rows of `FIELDS`, and the generated source whose lines they name."""

    entry: str
    source: str
    events: Any
    left_out: int


@dataclass
class Recording:
    """The launches of an emulation so far."""

    launches: list[Launch] = field(default_factory=list)

    @contextmanager
    def of(self, entry: str, source: str) -> Iterator[int]:
        """Room for the events of a launch: the address that the runtime takes."""
        room = numpy.zeros(CAPACITY, _EVENT)
        events = _Events(room.ctypes.data, CAPACITY, 0)
        yield ctypes.addressof(events)
        kept = min(events.count, CAPACITY)
        self.launches.append(Launch(entry, source, room[:kept].copy(), events.count - kept))


_at_hand: ContextVar[Recording | None] = ContextVar("recording", default=None)


def at_hand() -> Recording | None:
    """The recording that this context asked for."""
    return _at_hand.get()


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Records emulations inside; the list has their launches afterwards."""
    made = Recording()
    token = _at_hand.set(made)
    try:
        yield made.launches
    finally:
        _at_hand.reset(token)
