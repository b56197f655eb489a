"""A call's arguments: what tells kinds of them apart, and whether a forward writes into lists and dicts among them."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from convgen.torch.network.prepare import kind

Module: Any = torch.nn.Module
pytree = torch.utils._pytree
_LEAVES = (torch.Tensor, int, float, str, enum.Enum, type(None))


class Given(NamedTuple):
    """The arguments of a call, and their leaves: copies that are made of these hold other lists and dicts."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: Sequence[Any]
    structure: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        if not kwargs and all(type(each) is torch.Tensor for each in args):  # torch's own takes 20 us
            return cls(args, kwargs, args, _structure_of_tensors(len(args)))
        return cls(args, kwargs, *pytree.tree_flatten((args, kwargs)))

    def kinds(self) -> tuple[Any, ...]:
        """A preparation's key: for objects that no graph takes, their class; they may hold tensors."""
        return tuple(kind(leaf) if isinstance(leaf, _LEAVES) else type(leaf) for leaf in self.leaves)

    def count_but_for_numbers(self, key: tuple[Any, ...], others: Iterable[tuple[Any, ...]]) -> int:
        """How many of other keys differ from this one, which ends in these kinds, in Python's numbers alone."""
        begin = len(key) - len(self.leaves)
        numbers = {begin + i for i, leaf in enumerate(self.leaves) if type(leaf) in (int, float)}

        def rest(of: tuple[Any, ...]) -> list[Any]:
            return [each for i, each in enumerate(of) if i not in numbers]

        return sum(rest(other) == rest(key) for other in others if len(other) == len(key)) if numbers else 0

    @property
    def has_arrays(self) -> bool:
        """Whether there are NumPy's, which few models take."""
        return any(type(leaf).__module__ == "numpy" for leaf in self.leaves)

    def tensors(self) -> list[Any]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def check(self) -> None:
        """Raises ValueError, as torch.export does, for what no graph takes: a module, too, whose weights may change."""
        for leaf in self.leaves:
            if not isinstance(leaf, _LEAVES):
                raise ValueError(f"Unsupported input type {type(leaf)}")


@cache
def _structure_of_tensors(count: int) -> Any:
    """The structure of a call with so many tensors."""
    return pytree.tree_structure(((None,) * count, {}))


class WatchedContainers:
    """Within, the next call of a model tells whether it writes into lists and the like among its arguments: `written`.

    A graph has none of these; torch.export drops such writes."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.written = False

    def __enter__(self) -> WatchedContainers:
        before: list[Given] = []

        def keep(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            before[:] = [Given.of(args, kwargs)]

        def look(model: Any, *_: Any) -> None:
            (given,) = before
            now = Given.of(given.args, given.kwargs)
            same = now.structure == given.structure and all(map(operator.is_, now.leaves, given.leaves))
            self.written = not same

        self._hooks = (
            self._model.register_forward_pre_hook(keep, prepend=True, with_kwargs=True),
            self._model.register_forward_hook(look),
        )
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
