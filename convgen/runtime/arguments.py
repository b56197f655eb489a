"""What a kernel expects of each argument, and the words for an argument that is something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, NoReturn

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.tensor import Tensor
from convgen.runtime.errors import WrongDevice, WrongLayout, WrongShape, WrongType

#: Element types that NumPy lacks; integers of the same size are taken for their bits.
_RAW_BITS = {"bf16": ("uint16", "int16"), "e4m3": ("uint8",), "e5m2": ("uint8",)}


@dataclass(frozen=True)
class Seen:
    """An argument as its library describes it.  `strides` are in elements; `place` is "cuda:0" or "cpu"."""

    shape: tuple[int, ...]
    dtype: object
    strides: Sequence[int]
    place: str
    transpose: str  # what the library calls a permutation of dims


@dataclass(frozen=True)
class Slot:
    """One argument of a kernel: a packed tensor in the spec's order of dims.

    `buffer` is what the plan's steps call it; `alignment` is in bytes; `written` marks the result.
    """

    tensor: Tensor
    buffer: str
    alignment: int
    written: bool = False

    @property
    def name(self) -> str:
        return "out" if self.written else self.tensor.name

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @cached_property
    def numpy_dtypes(self) -> tuple[Any, ...]:
        """The NumPy types taken; the first is what a result has."""
        import numpy

        raw = _RAW_BITS.get(self.tensor.dtype, ())
        return (numpy_dtype(self.tensor.dtype), *map(numpy.dtype, raw))

    @cached_property
    def torch_dtype(self) -> Any:
        """torch's type; its names are ml_dtypes' names."""
        import torch

        return getattr(torch, self.tensor.element.numpy)

    def refuse(self, seen: Seen, place: str) -> NoReturn:
        """Raises for the first thing that is wrong with an argument that should be at `place`."""
        dims = " ".join(self.tensor.dims)
        if seen.place != place:
            raise WrongDevice(f"{self.name} is on {seen.place}, the other arguments are on {place}")
        if not _same_type(seen.dtype, self):
            raise WrongType(
                f"{self.name} has elements of {seen.dtype}, the spec says {self.tensor.dtype}"
                f"\nhint: pass {self.name} as {self.tensor.element.numpy}, or state its type in the spec"
            )
        expected = f"the spec says {self.tensor} in that order, packed"
        hint = self._permutation_hint(seen)
        if tuple(seen.shape) != self.shape:
            raise WrongShape(f"{self.name} has shape {tuple(seen.shape)}, expected {self.shape}: {expected}{hint}")
        hint = hint or f"\nhint: make a packed copy, or state the layout of its memory instead of {dims} in the spec"
        strides = f"strides {tuple(seen.strides)} in elements, expected {packed_strides(self.shape)}"
        raise WrongLayout(f"{self.name} has {strides}: {expected}{hint}")

    def _permutation_hint(self, seen: Seen) -> str:
        """Where the memory is right and the dims' order alone is not: the view that mends it."""
        if len(seen.shape) != len(self.shape):
            return ""
        for order in permutations(range(len(self.shape))):
            shape = tuple(seen.shape[i] for i in order)
            strides = tuple(seen.strides[i] for i in order)
            if shape == self.shape and _is_packed(shape, strides):
                return f"\nhint: {self.name}.{seen.transpose}{order} is the right view of the same memory, at no cost"
        return ""


def _same_type(dtype: object, slot: Slot) -> bool:
    kind = type(dtype).__module__.partition(".")[0]
    return dtype is slot.torch_dtype if kind == "torch" else dtype in slot.numpy_dtypes


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a packed array of that shape."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _is_packed(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements follow one another; the stride of a dim of one element says nothing."""
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, packed_strides(shape), strict=True))
