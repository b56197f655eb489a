"""Copies of models: whoever calls one finds the copy in what its functions see, hooks among them.

copy.deepcopy leaves functions as they are, so that a hook which keeps features in an attribute would write to the model
itself, and a lambda would call the layers of that:

    self.body.register_forward_hook(lambda module, given, result: self.features.append(result))
    self.block = lambda x: self.second(self.first(x))
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from convgen.torch.network.held import modules_of, tensors_of

Module = Any
Tensor = Any


def sharing_tensors(model: Module) -> tuple[Module, dict[int, Any]]:
    """A copy of the model with the same tensors, and what else stands in it for what, by ids: while one is exported,
    its parameters are fake, for all threads.  Of modules that torch does not know of, they are not: those share what no
    forward writes.  The model itself where it cannot be copied."""
    own = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    parameters = [each for module in modules_of(model).values() for each in module.parameters(recurse=False)]
    memo: dict[int, Any] = {}
    try:
        return copy_of(model, (*parameters, *model.buffers(), *own), memo), memo
    except Exception:  # it holds what cannot be copied
        return model, {}


def copy_of(model: Module, shared: Iterable[Tensor], memo: dict[int, Any] | None = None) -> Module:
    """A copy of the model that shares these tensors, and those that autograd records, which cannot be copied.  Raises
    what copy.deepcopy raises.  `memo` maps ids to their counterparts in the copy."""
    memo = {} if memo is None else memo
    memo |= {id(tensor): tensor for tensor in shared}
    memo |= {id(tensor): tensor for tensor in tensors_of(model) if not tensor.is_leaf}
    made = copy.deepcopy(model, memo)
    for module in made.modules():
        for holder in (vars(module), *_containers(list(vars(module).values()))):
            for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                if (bound := _bound(value, memo)) is not value:
                    holder[key] = bound
    return made


def hooks_see(model: Module) -> bool:
    """Whether hooks of the model's modules see modules of it besides what they are given."""
    memo: dict[int, Any] = {id(module): None for module in model.modules()}
    hooks = [
        hook for each in model.modules() for hook in (*each._forward_hooks.values(), *each._forward_pre_hooks.values())
    ]
    return any(_bound(hook, memo) is not hook for hook in hooks)


def _containers(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if isinstance(value, dict | list))


def _bound(value: Any, memo: dict[int, Any]) -> Any:
    """A value's counterpart in a copy: for a function, one that sees the copy's values."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, MethodType):
        owner = _bound(value.__self__, memo)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, CellType):
        return _bound_cell(value, memo)
    if not isinstance(value, FunctionType):
        return value
    memo[id(value)] = value  # of a function that sees itself
    cells = tuple(_bound(cell, memo) for cell in value.__closure__ or ())
    others = {}
    for name in value.__code__.co_names:
        held = value.__globals__.get(name)
        # of all functions that functions see, there would be no end
        if not isinstance(held, FunctionType) and (bound := _bound(held, memo)) is not held:
            others[name] = bound
    if others or any(bound is not cell for bound, cell in zip(cells, value.__closure__ or (), strict=True)):
        names = value.__globals__ | others
        made = FunctionType(value.__code__, names, value.__name__, value.__defaults__, cells or None)
        made.__kwdefaults__, made.__module__ = value.__kwdefaults__, value.__module__
        memo[id(value)] = made
    return memo[id(value)]


def _bound_cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    """A variable that functions close over."""
    try:
        held = cell.cell_contents
    except ValueError:  # nothing yet
        return cell
    bound = _bound(held, memo)
    memo[id(cell)] = cell if bound is held else CellType(bound)
    return memo[id(cell)]
