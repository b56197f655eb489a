"""The contents of a model: modules and tensors, also those in lists or plain objects, of which torch does not know."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

Module: Any = torch.nn.Module
Tensor = Any
#: Containers besides dicts, and what goes through one, whatever a class that is derived from it does.
_CONTAINERS: dict[type, Callable[[Any], Iterator[Any]]] = {
    kind: kind.__iter__
    for kind in (list, tuple, set, frozenset, deque)  # type: ignore[attr-defined]
}
#: What has attributes, and is no plain object.
_NOT_PLAIN = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.Tensor, Module)
#: What holds nothing; there may be millions of them.
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})
#: Objects within objects that are looked into: of what programs hold, there would be no end.
_DEPTH = 3
_HEAP_TYPE = 1 << 9  # a flag of classes of Python code


def leaves_of(value: Any, atoms: bool = True) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The contents of containers and plain objects, the nearest first, each with its path: the path to what holds it,
    and its key there.  Without `atoms`, no numbers, texts and None."""
    known: set[int] = set()
    pending: deque[tuple[tuple[Any, ...], Any, int]] = deque([((), value, _DEPTH)])
    while pending:
        path, holder, depth = pending.popleft()
        plain = _is_plain(type(holder))
        items = None if plain and not depth else _items(holder, plain)
        if items is None:
            yield path, holder
        elif id(holder) not in known:
            known.add(id(holder))
            for key, each in items:
                if type(each) not in _ATOMS:
                    pending.append(((path, key), each, depth - plain))
                elif atoms:
                    yield (path, key), each


def modules_of(model: Any) -> dict[str, Any]:
    """The modules by their names, each once: the model's own come first.  What is prepared of them does not count."""
    found: dict[str, Any] = {}
    known: set[Any] = set()
    pending = [("", model)]
    for prefix, outer in pending:
        for name, module in outer.named_modules(known, prefix):
            found[name] = module
            if _owner(type(module)) == "convgen":
                continue
            inner = leaves_of(vars(module), atoms=False)
            pending += [(dotted(name, _text(path)), leaf) for path, leaf in inner if isinstance(leaf, Module)]
    return found


def tensors_of(model: Any) -> Iterator[Tensor]:
    for module in modules_of(model).values():
        yield from (leaf for _, leaf in leaves_of(vars(module), atoms=False) if isinstance(leaf, torch.Tensor))


def dotted(*names: str) -> str:
    """A dotted name made of names, some of which may be empty."""
    return ".".join(filter(None, names))


def _text(path: tuple[Any, ...]) -> str:
    keys = []
    while path:
        path, key = path
        keys.append(str(key) if type(key) in _ATOMS else type(key).__name__)
    return dotted(*reversed(keys))


def _items(value: Any, plain: bool) -> list[tuple[Any, Any]] | None:
    """Its contents, by keys; None if it is neither a container nor a plain object with attributes."""
    kind = type(value)
    if plain:
        return _attributes(value, kind) or None
    if issubclass(kind, dict):
        return [*dict.items(value), *_attributes(value, kind)]
    for container, iterate in _CONTAINERS.items():
        if issubclass(kind, container):
            return [*enumerate(iterate(value))]
    return None


def _attributes(value: Any, kind: type) -> list[tuple[str, Any]]:
    """Attributes that an object holds itself; its own `__getattr__` and properties are not asked."""
    found = {}
    for base in kind.__mro__ if kind.__flags__ & _HEAP_TYPE else ():
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            with suppress(AttributeError):
                found[name] = object.__getattribute__(value, f"_{base.__name__.lstrip('_')}{name}" if private else name)
    with suppress(AttributeError):
        found |= object.__getattribute__(value, "__dict__")
    return [(name, each) for name, each in found.items() if name not in ("__dict__", "__weakref__")]


def _is_plain(kind: type) -> bool:
    """Whether objects of a class have attributes, and it is neither torch's nor convgen's, and no container."""
    if not (kind.__dictoffset__ or kind.__flags__ & _HEAP_TYPE) or issubclass(kind, (*_NOT_PLAIN, *_CONTAINERS, dict)):
        return False
    return _owner(kind) not in ("torch", "convgen")


def _owner(kind: type) -> str:
    """The package that a class is of."""
    return str(kind.__module__).partition(".")[0]
