"""A model exported by torch.export, as a function of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensor = Any
pytree = torch.utils._pytree


class Exported:
    """An exported program as a function of its weights and of its inputs that are tensors; other leaves are fixed."""

    def __init__(self, program: Any, leaves: Sequence[Any]) -> None:
        self._others = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        self._graph_module = program.graph_module
        self._structure = program.call_spec.out_spec
        #: Of each result, (value,) if it is no tensor, or its index if it is a weight or an input itself: as of the
        #: first call's tensors, which lie as they are given.  Of others, what is an input itself may be a copy.
        self._known: list[tuple[Any] | int | None] | None = None
        self.copies_views = False

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) - self._others.count(None)
        tensors = iter(given[count:])
        inputs = [next(tensors) if other is None else other[0] for other in self._others]
        results = self._graph_module(*given[:count], *inputs)
        if self._known is None:
            indices = {id(tensor): i for i, tensor in enumerate(given)}
            self._known = [indices.get(id(r)) if isinstance(r, torch.Tensor) else (r,) for r in results]
        made = [result for result, known in zip(results, self._known, strict=True) if known is None]
        own = tuple(_own(result, given) for result in made)
        self.copies_views |= any(a is not b for a, b in zip(made, own, strict=True))
        return own

    def results(self, computed: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
        """The model's own results: those that were computed of what is given, and the others."""
        left = iter(computed)
        known = self._known or ()
        results = [next(left) if k is None else given[k] if isinstance(k, int) else k[0] for k in known]
        return pytree.tree_unflatten(results, self._structure)


def _own(result: Tensor, given: Sequence[Tensor]) -> Tensor:
    """A result with its own memory, as torch's tracer requires: a copy of a view of a weight or an input."""
    memory = result.untyped_storage()._cdata
    return result.clone() if any(t.untyped_storage()._cdata == memory for t in given) else result
