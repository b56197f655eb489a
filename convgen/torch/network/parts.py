"""The parts of a model that cannot be traced as a whole: its modules that have convolutions, each on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from convgen.torch.network.attributes import hooked, hooked_by_all
from convgen.torch.network.constants import OtherWeights

Module: Any = torch.nn.Module
_CONVOLUTION: Any = torch.nn.modules.conv._ConvNd
_FORWARD = torch.nn.Module.forward
#: Attributes that a module and its copy do not share.
_OWN = frozenset({"_modules", "forward"})


def parts_of(model: Any) -> dict[str, Any]:
    """The outermost modules within a model that have convolutions and can be called for what they compute, by name."""
    found: dict[str, Any] = {}
    for name, child in model.named_children():
        if isinstance(child, torch.jit.ScriptModule) or not _convolves(child):
            continue
        if _callable(child):
            found[name] = child
        else:
            found |= {f"{name}.{inner}": part for inner, part in parts_of(child).items()}
    return found


class WithParts:
    """A model as a function that shares everything with it, attributes that calls set, too; but functions compute what
    its modules of these names do.  A call raises OtherWeights where modules have come, gone or changed."""

    def __init__(self, model: Any, replacements: Mapping[str, Callable[..., Any]]) -> None:
        self._copies: list[tuple[Any, Any]] = []
        self._children: list[tuple[Any, dict[str, Any]]] = []
        self._model = self._put_in(model, replacements)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(module._modules != children for module, children in self._children):
            raise OtherWeights
        for module, made in self._copies:
            _update(made, module)
        try:
            return self._model(*args, **kwargs)
        finally:
            for module, made in self._copies:
                _update(module, made)

    def _put_in(self, model: Any, replacements: Mapping[str, Callable[..., Any]]) -> Any:
        made = object.__new__(type(model))
        made.__dict__ |= model.__dict__
        made.__dict__["_modules"] = dict(model._modules)
        for name in {name.partition(".")[0] for name in replacements}:
            inner = {
                rest: f for full, f in replacements.items() for head, _, rest in [full.partition(".")] if head == name
            }
            child = self._put_in(model._modules[name], {rest: f for rest, f in inner.items() if rest})
            if "" in inner:
                child.__dict__["forward"] = _of_module(inner[""], model._modules[name], child)
            made.__dict__["_modules"][name] = child
        self._copies.append((model, made))
        self._children.append((model, dict(model._modules)))
        return made


def _of_module(function: Callable[..., Any], module: Any, made: Any) -> Callable[..., Any]:
    """A function that calls a module, as one that calls its copy."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a branch of torch.cond, which Dynamo always traces
            return module.forward(*args, **kwargs)
        _update(module, made)
        try:
            return function(*args, **kwargs)
        finally:
            _update(made, module)

    return call


def _update(module: Any, like: Any) -> None:
    """Gives a module the attributes of its copy, or this those of the module; writes nothing where they have the same,
    since other threads may call them."""
    mine, other = module.__dict__, like.__dict__
    for name, value in list(other.items()):
        if name not in _OWN and (name not in mine or mine[name] is not value):
            mine[name] = value
    for name in mine.keys() - other.keys() - _OWN:
        mine.pop(name, None)


def _convolves(module: Any) -> bool:
    return any(isinstance(each, _CONVOLUTION) for each in module.modules())


def _callable(module: Any) -> bool:
    """Whether the module computes something, and calling it has no other effect."""
    return type(module).forward is not _FORWARD and not hooked(module) and not hooked_by_all()
