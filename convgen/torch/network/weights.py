"""Where a model has its weights, and how an exported program gets them there at each call.

A program is made for a model whose modules, weights that are None and weights that are one stay so: `Structure` notices
where they do not, at the cost of a look at each place.
"""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any

import torch

from convgen.torch.network.constants import OtherWeights, asked_anew
from convgen.torch.network.held import joined, modules_of

Module: Any = torch.nn.Module
Tensor = Any


class Structure:
    """The places of a model's parameters, buffers and modules, by their names, and what they held last."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._asked = asked_anew()
        self._modules = modules_of(model)
        holders = [
            (name, held)
            for name, module in self._modules.items()
            for held in (module._parameters, module._buffers, module._modules)
            if isinstance(held, dict)  # a ScriptModule has others
        ]
        self._holders = [held for _, held in holders if held]
        self._empty = [held for _, held in holders if not held]
        self.names = [joined(prefix, name) for prefix, held in holders for name in held]
        self._seen = self._found()
        # None is not one thing in two places, as a tied weight is
        first: dict[int, int] = {}
        ties = [None if each is None else first.setdefault(id(each), i) for i, each in enumerate(self._seen)]
        self._form = self.names, [*map(id, self._modules.values())], ties

    def values(self) -> list[Any]:
        """What the places hold, in the order of their names.  Raises OtherWeights where that is not what it was made
        of: other modules, a weight where there was none or none where there was one, weights that are one no more."""
        now, seen = self._found(), self._seen
        same = len(now) == len(seen) and all(map(operator.is_, now, seen))
        if not same or any(self._empty) or self._asked != asked_anew():
            anew = Structure(self._model)
            if anew._form != self._form:
                raise OtherWeights
            vars(self).update(vars(anew))
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

    def _found(self) -> list[Any]:
        return [*chain.from_iterable(map(dict.values, self._holders))]


class Weights:
    """The parameters, buffers and constants that a program reads, as the model has them at the moment.

    `traced` is the structure of the copy of the model that the program was traced of."""

    def __init__(self, structure: Structure, traced: Structure, program: Any) -> None:
        self._structure = structure
        self.names: list[str] = []
        self._places: list[int] = []
        self._constants: list[Tensor] = []
        places = {name: place for place, name in enumerate(structure.names)}
        # of tied ones, the first counts, which comes last here
        named = zip(reversed(traced.names), reversed(traced.values()), strict=True)
        tensors = [(places[name], each) for name, each in named if isinstance(each, torch.Tensor) and name in places]
        known = {key: place for place, each in tensors for key in (id(each), _memory(each))}
        count = len(structure.names)
        for spec in program.graph_signature.input_specs:
            if spec.kind == torch.export.graph_signature.InputKind.USER_INPUT:
                continue
            weight = program.state_dict.get(spec.target, program.constants.get(spec.target))
            # of weights that torch does not know of, constants are other tensors on the same memory
            place = known.get(id(weight), known.get(_memory(weight), count + len(self._constants)))
            if place >= count:
                self._constants.append(weight)
            self.names.append(structure.names[place] if place < count else spec.target)
            self._places.append(place)

    def now(self) -> list[Tensor]:
        """Raises OtherWeights."""
        values = self._structure.values() + self._constants
        return [values[place] for place in self._places]


def _memory(weight: Any) -> Any:
    """What tells tensors apart, by where they lie if they have memory."""
    if not isinstance(weight, torch.Tensor) or not weight.data_ptr():
        return id(weight)
    return weight.data_ptr(), weight.dtype, weight.shape, weight.stride()
