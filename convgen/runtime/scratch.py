"""Scratch memory that kernels bring themselves, and the order of the calls that share it.

A stream does one thing after another, so all kernels use one workspace on it.  `turn` keeps the launches of a call
together: no other thread's call on the same stream comes between them.

A captured call runs whenever its graph is launched, beside anything.  Each capture has a workspace of its own for
each of its streams, which lives as long as CUDA keeps the graph and what was instantiated from it.  CUDA runs the
launches of one executable graph in turn, whatever their streams.  Executable graphs that were instantiated from one
graph share its workspace, as they share its arrays, and must not run at the same time: capture the calls again instead.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from convgen.runtime import cuda, cupy_library

#: Room for a POSIX semaphore on any machine.
_SEMAPHORE_BYTES = 64


class Scratch:
    """Memory on a GPU, for as long as something refers to it."""

    def __init__(self, memory: Any, size: int) -> None:
        self.memory, self.size = memory, size
        self.ptr: int = memory.ptr


class _Captured:
    """The workspaces of one capture, by stream, and whether its graph is gone."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self.is_gone = is_gone
        self.by_stream: dict[int, list[Scratch]] = {}


_lock = threading.Lock()
#: By GPU and stream.
_turns: dict[tuple[int, int], threading.Lock] = {}
#: By GPU and stream; the kernels that use one keep it.
_of_streams: WeakValueDictionary[tuple[int, int], Scratch] = WeakValueDictionary()
#: By the capture's number.
_captured: dict[int, _Captured] = {}


def turn(device: int, stream: int) -> threading.Lock:
    """The lock to hold while the launches of one call are enqueued."""
    with _lock:
        return _turns.setdefault((device, stream), threading.Lock())


def of_stream(device: int, stream: int, size: int) -> Scratch:
    """The workspace of a stream, of at least that many bytes; not of one that is being captured."""
    key = device, stream
    with _lock:
        found = _of_streams.get(key)
        if found is None or found.size < size:
            _drop_captured()
            found = Scratch(allocate(size, device, stream), size)
            if stream != cuda.PER_THREAD_STREAM:  # which is another stream in each thread
                _of_streams[key] = found
        return found


def of_capture(capture: cuda.Capture, device: int, stream: int, size: int) -> Scratch:
    """The workspace of a stream in a capture, of at least that many bytes."""
    with _lock:
        if capture.number not in _captured:
            _drop_captured()
            _captured[capture.number] = _Captured(_notice_of_end(capture.graph))
        made = _captured[capture.number].by_stream.setdefault(stream, [])
        if not made or made[-1].size < size or stream == cuda.PER_THREAD_STREAM:
            made.append(Scratch(allocate_for_capture(size, device), size))
        return made[-1]


def allocate(size: int, device: int, stream: int) -> Any:
    """Memory of CuPy's pool, in order with a stream."""
    from convgen.runtime.arrays import on_stream

    driver = cuda.driver()
    with driver.relaxed_capture(), driver.context(device), on_stream(device, stream):
        _capture_pool().free_all_blocks()
        return cupy_library.load().cuda.alloc(size)


def allocate_for_capture(size: int, device: int) -> Any:
    """Memory that no work under way is using, on any stream: the graph may be launched on another one at once."""
    driver = cuda.driver()
    with driver.relaxed_capture(), driver.context(device), cupy_library.load().cuda.Device(device):
        return _capture_pool().malloc(size)


@cache
def _capture_pool() -> Any:
    """Memory that captures alone use: what one gives back, later ones take, until a stream needs a new workspace."""
    return cupy_library.load().cuda.MemoryPool()


def release(device: int) -> None:
    """Gives back to the driver what captures on a GPU had whose graphs are gone."""
    with _lock:
        _drop_captured()
        if _capture_pool.cache_info().currsize:  # else nothing was captured
            driver = cuda.driver()
            with driver.relaxed_capture(), driver.context(device), cupy_library.load().cuda.Device(device):
                _capture_pool().free_all_blocks()


def _drop_captured() -> None:
    """Gives back the workspaces of captures whose graphs are gone."""
    for number in [number for number, captured in _captured.items() if captured.is_gone()]:
        del _captured[number]


def _notice_of_end(graph: int) -> Callable[[], bool]:
    """Tells whether a graph, which is being captured, is destroyed with all that was instantiated from it.

    The driver posts a semaphore of the C library: it calls from a thread of its own, perhaps after Python has ended,
    when a callback into Python would not be safe.
    """
    libc = ctypes.CDLL(None)
    libc.calloc.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.calloc(1, _SEMAPHORE_BYTES))
    libc.sem_init(semaphore, 0, 0)
    cuda.driver().on_destruction(graph, libc.sem_post, semaphore.value or 0)

    def is_gone() -> bool:
        if libc.sem_trywait(semaphore):
            return False
        libc.free(semaphore)
        return True

    return is_gone
