"""Results of a graph that are views of what it is given, or of one another: not traced, but taken of tensors of a call.
So what is written to one of them is read in the others, as of the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from convgen.functional.arrays import order_of, span
from convgen.torch.network.layouts import Layout
from convgen.torch.network.trace import faked

Tensor = Any


@dataclass(frozen=True)
class View:
    """A view of the argument at an index: its extents and strides, and its offset in elements."""

    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, given: Sequence[Tensor]) -> Tensor:
        """The view for tensors with these strides."""
        source = given[self.index]
        return source.as_strided(self.size, self.stride, source.storage_offset() + self.offset)


def views_of(function: Callable[..., Sequence[Any]], given: Sequence[Tensor]) -> dict[int, View]:
    """The views among the function's results, by their indices; nothing is computed."""
    fakes, results = faked(function, given)
    memory = {fake.untyped_storage()._cdata: index for index, fake in enumerate(fakes)}
    found = {}
    for i, result in enumerate(results):
        index = memory.get(result.untyped_storage()._cdata) if isinstance(result, torch.Tensor) else None
        if index is not None and _reads_as(result) == _reads_as(fakes[index]):
            offset = result.storage_offset() - fakes[index].storage_offset()
            found[i] = View(index, tuple(result.shape), tuple(result.stride()), int(offset))
    return found


def take_out_views(
    graph: Any, own: Callable[[], Sequence[Any]], layouts: Mapping[int, Layout]
) -> tuple[dict[int, View], dict[int, Layout]]:
    """Takes out of a graph those results that share memory with others, of which they are views: by their indices,
    with those of the others among what is left.  `own` gives the model's own results, fake ones.

    Then the layouts that those that are left must have: of those given for all results, and of what views are of."""
    (output,) = graph.find_nodes(op="output")
    results = output.args[0]
    if len(results) < 2:
        return {}, dict(layouts)
    made = own()
    found = views_among(made)
    output.args = (tuple(result for i, result in enumerate(results) if i not in found),)
    graph.eliminate_dead_code()
    return placed(found, made, layouts)


def placed(
    found: Mapping[int, View], made: Sequence[Any], layouts: Mapping[int, Layout]
) -> tuple[dict[int, View], dict[int, Layout]]:
    """Views among the results that were made, and layouts of these results, by indices among what are no views."""
    left = [i for i in range(len(made)) if i not in found]
    # strides of a call's tensors are not always those of fake ones
    layouts = {**layouts, **{view.index: Layout.of(made[view.index]) for view in found.values()}}
    views = {i: replace(view, index=left.index(view.index)) for i, view in found.items()}
    return views, {left.index(i): layout for i, layout in layouts.items() if i not in found}


def views_among(results: Sequence[Any]) -> dict[int, View]:
    """The views among results whose elements are contiguous, at their indices among all."""
    tensors = [(i, each) for i, each in enumerate(results) if isinstance(each, torch.Tensor) and each.numel()]
    wholes: dict[Any, tuple[int, Any]] = {}
    for i, each in sorted(tensors, key=lambda pair: -pair[1].numel()):
        if order_of(tuple(each.shape), each.stride()):
            wholes.setdefault((each.untyped_storage()._cdata, _reads_as(each)), (i, each))
    found = {}
    for i, each in tensors:
        index, whole = wholes.get((each.untyped_storage()._cdata, _reads_as(each)), (i, each))
        offset = int(each.storage_offset() - whole.storage_offset())
        if index != i and offset >= 0 and offset + span(each.shape, each.stride()) <= whole.numel():
            found[i] = View(index, tuple(each.shape), tuple(each.stride()), offset)
    return found


def _reads_as(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor reads its memory, besides its shape and strides."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def joined(views: Mapping[int, View], others: Sequence[Any], given: Sequence[Tensor]) -> tuple[Any, ...]:
    """All results, in order."""
    left = iter(others)
    return tuple(views[i].of(given) if i in views else next(left) for i in range(len(views) + len(others)))
