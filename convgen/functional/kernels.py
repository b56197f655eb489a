"""Kernels of specs, each built once in a process however many threads ask; `convgen.compile` keeps them on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from convgen.diagnostics import ConvgenError

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel

Key = TypeVar("Key")
Value = TypeVar("Value")


class Once(Generic[Key, Value]):
    """Values by key.  The first thread that asks for one makes it, others that ask meanwhile wait for it.

    A ConvgenError is kept as a value is, and raised to everyone who asks again.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._made: dict[Key, Value | ConvgenError] = {}
        self._locks: dict[Key, threading.Lock] = {}

    def __call__(self, key: Key) -> Value:
        found = self._made.get(key)
        if found is None:
            found = self._first(key)
        if isinstance(found, ConvgenError):
            raise found
        return found

    def _first(self, key: Key) -> Value | ConvgenError:
        with self._locks.setdefault(key, threading.Lock()):  # of a dict, which is one step for other threads
            if key not in self._made:
                try:
                    self._made[key] = self._make(key)
                except ConvgenError as error:
                    self._made[key] = error
            return self._made[key]


def _compile(key: tuple[str, str | None]) -> Kernel:
    import convgen

    text, strategy = key
    made: Any = convgen.compile(text, strategy=strategy)
    return made


#: The kernel of (spec of one convolution, strategy or None).  Raises SpecError, UsageError, CompileError.
kernel_of: Once[tuple[str, str | None], Kernel] = Once(_compile)
