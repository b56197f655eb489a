"""What a function writes in place, which may depend on how tensors lie in memory: `reshape` and `contiguous` give views
of some tensors and copies of others, and what is written to a view is read in what it is a view of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from convgen.torch.network.trace import faked

Tensor = Any
#: By the call that made it, and its place among what that gave.
Value = tuple[int, int]


def writes_alike(function: Callable[..., Sequence[Any]], given: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a function writes to the same values if the tensors that it is given lie as others do.

    Nothing is computed.  Raises what the function does."""
    if all(one is other for one, other in zip(given, others, strict=True)):
        return True
    record = _recorded(function, given)
    return not record.written or record.changes() == _recorded(function, others).changes()


def _recorded(function: Callable[..., Sequence[Any]], given: Sequence[Any]) -> _Record:
    record = _Record()

    def recorded(*fakes: Tensor) -> Sequence[Any]:
        record.keep(fakes)
        with record:
            results = function(*fakes)
        record.reads((*fakes, *results), math.inf)
        return results

    faked(recorded, given)
    return record


class _Record(TorchFunctionMode):
    """The values that calls make, and which of these change by later calls before they are read."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._values: dict[int, tuple[Tensor, Value]] = {}  # held: nothing else gets their memory
        self._last_read: dict[int, float] = {}
        self.written: list[tuple[int, set[int]]] = []  # calls, and the memory that they write to

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls += 1
        read = tensors_among((args, kwargs))
        self.reads(read, self._calls)
        before = [tensor._version for tensor in read]
        result = function(*args, **(kwargs or {}))
        written = {
            memory_of(tensor) for tensor, version in zip(read, before, strict=True) if tensor._version != version
        }
        if written:
            self.written.append((self._calls, written))
        elif isinstance(result, torch.Tensor) and self._is_made(result) and not result.requires_grad:
            result = result.view_as(result)  # its readers do not read the tensor that it equals
        self.keep(tensors_among(result))
        return result

    def keep(self, values: Sequence[Tensor]) -> None:
        for i, value in enumerate(values):
            self._values.setdefault(id(value), (value, (self._calls, i)))

    def _is_made(self, value: Tensor) -> bool:
        """Whether an earlier call made this very tensor."""
        _, (call, _) = self._values.get(id(value), (None, (0, 0)))
        return call > 0

    def reads(self, values: Sequence[Any], when: float) -> None:
        self._last_read.update((id(value), when) for value in values)

    def changes(self) -> set[tuple[int, Value]]:
        """Calls that write, each with a value that it changes, which was made before and is read afterwards."""
        sharing: dict[int, list[tuple[float, Value]]] = {}  # by memory
        for value, key in self._values.values() if self.written else ():
            sharing.setdefault(memory_of(value), []).append((self._last_read.get(id(value), 0), key))
        return {
            (call, key)
            for call, written in self.written
            for memory in written
            for read, key in sharing.get(memory, ())
            if key[0] < call < read
        }


def tensors_among(values: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
