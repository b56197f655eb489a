"""Inputs that a network writes to, as a first relu in place does: the graph writes to copies, and who runs it copies
those back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convgen.torch.network.trace import faked

Tensor = Any
Function = Callable[..., Sequence[Any]]


def written_inputs(function: Function, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[int]:
    """The indices of the inputs that the function writes to; none where it writes to a weight, too, or where a result
    is a view of what it writes to.  Nothing is computed."""
    before: list[int] = []  # torch 2.14 gives a fake tensor the write count of the tensor that it stands for

    def counted(*given: Tensor) -> Sequence[Any]:
        before.extend(fake._version for fake in given)
        return function(*given)

    fakes, results = faked(counted, [*weights, *inputs])
    changed = [fake._version != count for fake, count in zip(fakes, before, strict=True)]
    indices = [i - len(weights) for i, is_written in enumerate(changed) if is_written]
    memory = {fakes[len(weights) + i].untyped_storage()._cdata for i in indices}
    tensors = [result for result in results if hasattr(result, "untyped_storage")]
    if min(indices, default=0) < 0 or any(t.untyped_storage()._cdata in memory for t in tensors):
        return []
    return indices


def overlap(indices: Sequence[int], weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether one of these inputs shares memory with something else that is given."""
    memory = [given.untyped_storage()._cdata for given in (*inputs, *weights)]
    return any(memory.count(memory[i]) > 1 for i in indices)


def on_copies(function: Function, count: int, indices: Sequence[int]) -> Function:
    """The function with copies of these inputs, which follow `count` weights; the copies are its last results."""

    def made(*given: Tensor) -> Sequence[Any]:
        tensors = list(given)
        for i in indices:
            tensors[count + i] = given[count + i].clone()
        return (*function(*tensors), *(tensors[count + i] for i in indices))

    return made
