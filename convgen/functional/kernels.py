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

    def __contains__(self, key: Key) -> bool:
        return key in self._made

    def _first(self, key: Key) -> Value | ConvgenError:
        with self._locks.setdefault(key, threading.Lock()):  # of a dict, which is one step for other threads
            if key not in self._made:
                try:
                    self._made[key] = self._make(key)
                except ConvgenError as error:
                    self._made[key] = error
            return self._made[key]


#: A spec of one convolution, a strategy or None, a tuning or None.
Asked = tuple[str, str | None, str | None]


def _compile(key: Asked) -> Kernel:
    import convgen

    text, strategy, tune = key
    made: Any = convgen.compile(text, strategy=strategy, tune=tune)
    return made


#: The kernel that is asked for.  Raises SpecError, UsageError, CompileError.
kernel_of: Once[Asked, Kernel] = Once(_compile)
