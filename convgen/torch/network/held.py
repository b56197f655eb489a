"""What a model holds: modules and tensors, also those in lists or plain objects, which torch does not know of."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

Module: Any = torch.nn.Module
Tensor = Any
_CONTAINERS = (list, tuple, set, frozenset, deque)
#: What has attributes, and is no plain object.
_NOT_PLAIN = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.Tensor, Module)
#: Objects within objects that are looked into: of what programs hold, there would be no end.
_DEPTH = 3


def leaves_of(value: Any, depth: int = _DEPTH) -> dict[str, Any]:
    """What is found in containers and plain objects, by its path."""
    return dict(_leaves(value, "", depth, set()))


def modules_of(model: Any) -> dict[str, Any]:
    """The modules by their names, each once: the model's own come first.  What is prepared of them does not count."""
    found: dict[str, Any] = {}
    known: set[Any] = set()
    pending = [("", model)]
    for prefix, outer in pending:
        for name, module in outer.named_modules(known, prefix):
            found[name] = module
            if _owner(module) == "convgen":
                continue
            inner = leaves_of(vars(module)).items()
            pending += [(joined(name, path), leaf) for path, leaf in inner if isinstance(leaf, Module)]
    return found


def tensors_of(model: Any) -> Iterator[Tensor]:
    for module in modules_of(model).values():
        yield from (leaf for leaf in leaves_of(vars(module)).values() if isinstance(leaf, torch.Tensor))


def joined(*names: str) -> str:
    """A name of names, of which some may be empty."""
    return ".".join(filter(None, names))


def _leaves(value: Any, path: str, depth: int, known: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, _CONTAINERS):
        items = list(enumerate(value))
    elif depth and _is_plain(value):
        items, depth = list(vars(value).items()), depth - 1
    else:
        yield path, value
        return
    if id(value) not in known:
        known.add(id(value))
        for name, each in items:
            yield from _leaves(each, joined(path, str(name)), depth, known)


def _is_plain(value: Any) -> bool:
    """Whether it is an object of a class of Python code that is neither torch's nor convgen's."""
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, _NOT_PLAIN)
        and _owner(value) not in ("torch", "convgen")
    )


def _owner(value: Any) -> str:
    """The package that its class is of."""
    return type(value).__module__.partition(".")[0]
