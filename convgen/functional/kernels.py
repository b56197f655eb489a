"""Kernels of specs, each built once in a process however many threads ask; `convgen.compile` keeps them on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from convgen.diagnostics import ConvgenError, SpecError
from convgen.runtime.errors import CompileError
from convgen.spec import UsageError
from convgen.turns import turn

if TYPE_CHECKING:
    from convgen.runtime.kernel import Kernel

Key = TypeVar("Key")
Value = TypeVar("Value")


class Once(Generic[Key, Value]):
    """Values by key.  The first thread that asks for one makes it, others that ask meanwhile wait for it.

    Errors from a spec or NVRTC are kept like values, and raised to everyone who asks again.  Other errors, such as
    memory that is short, may be gone by then.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._made: dict[Key, Value | ConvgenError] = {}

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
        with turn((self, key)):
            if key not in self._made:
                try:
                    self._made[key] = self._make(key)
                except (SpecError, UsageError, CompileError) as error:
                    self._made[key] = error
            return self._made[key]


#: A spec of one convolution, a strategy or None, a tuning or None.
Asked = tuple[str, str | None, str | None]


def _compile(key: Asked) -> Kernel:
    import convgen

    text, strategy, tune = key
    made: Any = convgen.compile(text, strategy=strategy, tune=tune)
    return made


#: The requested kernel.  Raises SpecError, UsageError, CompileError.
kernel_of: Once[Asked, Kernel] = Once(_compile)
