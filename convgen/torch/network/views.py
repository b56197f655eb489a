"""Results of a graph that are views of what it is given: not traced, but taken of the tensors of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convgen.torch.network.trace import faked

Tensor = Any


@dataclass(frozen=True)
class View:
    """Of the tensor at a place of what is given: its extents and strides, and how many elements further it begins."""

    place: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, given: Sequence[Tensor]) -> Tensor:
        """For tensors of the same strides."""
        source = given[self.place]
        return source.as_strided(self.size, self.stride, source.storage_offset() + self.offset)


def views_of(function: Callable[..., Sequence[Any]], given: Sequence[Tensor]) -> dict[int, View]:
    """The views among the function's results, by their places; nothing is computed."""
    fakes, results = faked(function, given)
    memory = {fake.untyped_storage()._cdata: place for place, fake in enumerate(fakes)}
    found = {}
    for i, result in enumerate(results):
        place = memory.get(result.untyped_storage()._cdata) if isinstance(result, torch.Tensor) else None
        if place is not None and result.dtype == fakes[place].dtype:
            offset = result.storage_offset() - fakes[place].storage_offset()
            found[i] = View(place, tuple(result.shape), tuple(result.stride()), int(offset))
    return found


def joined(views: Mapping[int, View], others: Sequence[Any], given: Sequence[Tensor]) -> tuple[Any, ...]:
    """All results, in order."""
    left = iter(others)
    return tuple(views[i].of(given) if i in views else next(left) for i in range(len(views) + len(others)))
