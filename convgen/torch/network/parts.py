"""The parts of a model that cannot be traced as a whole: its modules that have convolutions, each on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Module: Any = torch.nn.Module
_CONVOLUTION: Any = torch.nn.modules.conv._ConvNd
_FORWARD = torch.nn.Module.forward


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


def put_in(model: Any, replacements: Mapping[str, Callable[..., Any]]) -> Any:
    """A model that shares everything with this one, but that functions compute what its modules of these names do."""
    made = object.__new__(type(model))
    made.__dict__ |= model.__dict__
    made.__dict__["_modules"] = dict(model._modules)
    for name in {name.partition(".")[0] for name in replacements}:
        inner = {rest: f for full, f in replacements.items() for head, _, rest in [full.partition(".")] if head == name}
        child = put_in(model._modules[name], {rest: f for rest, f in inner.items() if rest})
        if "" in inner:
            child.__dict__["forward"] = inner[""]
        made.__dict__["_modules"][name] = child
    return made


def _convolves(module: Any) -> bool:
    return any(isinstance(each, _CONVOLUTION) for each in module.modules())


def _callable(module: Any) -> bool:
    """Whether the module computes something, and nothing else does when it is called."""
    hooks = module._forward_hooks, module._forward_pre_hooks
    return type(module).forward is not _FORWARD and not any(hooks)
