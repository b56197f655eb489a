"""Models that `optimize` takes: for inference, with weights of their own that torch.export can trace."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from convgen.runtime.errors import WrongArguments

Module: Any = torch.nn.Module
_WITHOUT_MODE = (torch.fx.GraphModule, torch.nn.ModuleDict, torch.nn.ModuleList)
#: Where classes are from of which torch.export makes modules.
_OF_GRAPHS = (Module.__module__, "torch.export._unlift")


def check_model(model: Any) -> None:
    """Raises WrongArguments for what `optimize` does not take."""
    if not isinstance(model, Module):
        hint = "\nhint: optimize its module()" if isinstance(model, torch.export.ExportedProgram) else ""
        raise WrongArguments(f"the model is of type {type(model).__name__}: expected a torch.nn.Module{hint}")
    if isinstance(model, torch.jit.ScriptModule):
        hint = "hint: optimize the module that it was made of"
        raise WrongArguments(f"the model is a ScriptModule, which torch.export does not take\n{hint}")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise WrongArguments("the model has layers without weights yet\nhint: call it once before optimize")
    for name, module in model.named_modules():  # the model itself has no name
        what = f"module {name!r} of the model" if name else "the model"
        if _trains(module):
            hint = "hint: model.eval() before optimize"
            raise WrongArguments(f"{what} is in training mode, and optimize is for inference\n{hint}")
        if _is_sharded(module):
            hint = "hint: optimize a model that has all of its weights, on each GPU"
            raise WrongArguments(f"{what} is sharded by FSDP, whose hooks torch.export does not take\n{hint}")


def with_modes(model: Any) -> list[Any]:
    """The modules of a model whose behavior depends on training mode."""
    return [module for module in model.modules() if _has_mode(module)]


def _has_mode(module: Any) -> bool:
    """Not of graphs, of what torch.export makes besides, and of containers; those of parametrizations torch always
    makes in training mode."""
    return not isinstance(module, _WITHOUT_MODE) and type(module).__module__ not in _OF_GRAPHS


def _trains(module: Any) -> bool:
    """Whether a module is in training mode."""
    return _has_mode(module) and bool(module.training)


def _is_sharded(module: Any) -> bool:
    """Whether a module gathers its weights at each call: traced, it would keep fake ones."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # else nothing can be sharded
    return fsdp is not None and isinstance(module, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel))
