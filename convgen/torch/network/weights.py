"""Where a model has its weights, and how an exported program gets them there at each call.

A program is made for a model whose modules, weights that are None and weights that are one stay so: `Structure` notices
where they do not, at the cost of a look at each place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch

from convgen.torch.network.constants import OtherWeights, asked_anew
from convgen.torch.network.held import dotted, modules_of

Module: Any = torch.nn.Module
Tensor = Any
#: How torch.export names tensors that it does not know of: other ones on the same memory.
_LIFTED = "lifted_tensor"


class Structure:
    """The places of a model's parameters, buffers and modules, by their names, and what they held last."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._asked = asked_anew()
        modules = modules_of(model)
        holders = [
            (name, held)
            for name, module in modules.items()
            for held in (module._parameters, module._buffers, module._modules)
            if isinstance(held, dict)  # a ScriptModule has others
        ]
        self._holders = [held for _, held in holders if held]
        self._empty = [held for _, held in holders if not held]
        self.names = [dotted(prefix, name) for prefix, held in holders for name in held]
        self._keys, self._seen = self._found(dict.keys), self._found(dict.values)
        self._form = self.names, [*map(id, modules.values())], _ties(self._seen)

    def values(self) -> list[Any]:
        """The contents of the places, in the order of their names.  Raises OtherWeights if they are not those that it
        was made of: other modules, a weight where there was none or none where there was one, weights that are one no
        more."""
        now, seen = self._found(dict.values), self._seen
        same = len(now) == len(seen) and all(map(operator.is_, now, seen))
        maybe_more = self._asked != asked_anew() or any(self._empty)
        if same and not maybe_more:
            return seen
        if maybe_more or not self._has_other_tensors_alone(now):
            anew = Structure(self._model)
            if anew._form != self._form:
                raise OtherWeights
            vars(self).update(vars(anew))
        elif _ties(now) != self._form[2]:
            raise OtherWeights
        else:
            self._seen = now
        return self._seen

    def holds(self) -> bool:
        try:
            self.values()
        except OtherWeights:
            return False
        return True

    def refresh(self) -> None:
        """Lets the next call look at the whole model."""
        self._asked = -1

    def _has_other_tensors_alone(self, now: list[Any]) -> bool:
        """Whether nothing but tensors was exchanged, so that there are no other modules to look for."""
        if self._found(dict.keys) != self._keys:
            return False
        others = (pair for pair in zip(now, self._seen, strict=True) if pair[0] is not pair[1])
        return not any(isinstance(each, Module) for pair in others for each in pair)

    def _found(self, what: Callable[[Any], Any]) -> list[Any]:
        return [*chain.from_iterable(map(what, self._holders))]


def _ties(values: list[Any]) -> list[int | None]:
    """Which places hold the same object, such as a tied weight; None does not count as one."""
    first: dict[int, int] = {}
    return [None if each is None else first.setdefault(id(each), i) for i, each in enumerate(values)]


class Weights:
    """The parameters, buffers and constants that a program reads, as the model has them at the moment.

    `values` are what the structure's places held before the program was traced of a copy of the model; what tensors
    stood for others in that, `copies` has by the ids of these."""

    def __init__(self, structure: Structure, values: list[Any], copies: Mapping[int, Any], program: Any) -> None:
        self._structure = structure
        self.names: list[str] = []
        self._indices: list[int] = []
        self._constants: list[Tensor] = []
        # of tied ones, the first counts, which comes last here
        tensors = [(index, each) for index, each in reversed([*enumerate(values)]) if isinstance(each, torch.Tensor)]
        traced = [(index, one) for index, each in tensors for one in (each, copies.get(id(each), each))]
        known = {id(each): index for index, each in traced}
        by_memory = {_memory(each): index for index, each in traced}
        for spec in program.graph_signature.input_specs:
            if spec.kind == torch.export.graph_signature.InputKind.USER_INPUT:
                continue
            weight = program.state_dict.get(spec.target, program.constants.get(spec.target))
            index = known.get(id(weight))
            if index is None and spec.target.rpartition(".")[2].startswith(_LIFTED):
                index = by_memory.get(_memory(weight))
            if index is None:
                index = len(values) + len(self._constants)
                self._constants.append(weight)
            self.names.append(structure.names[index] if index < len(values) else spec.target)
            self._indices.append(index)

    def now(self) -> list[Tensor]:
        """Raises OtherWeights."""
        values = self._structure.values() + self._constants
        return [*map(values.__getitem__, self._indices)]


def _memory(weight: Any) -> Any:
    """A key of a tensor: where it lies, if it has memory."""
    if not isinstance(weight, torch.Tensor) or not weight.data_ptr():
        return id(weight)
    return weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
