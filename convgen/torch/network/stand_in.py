"""A module that stands for another one: its attributes, and its weights by its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Module: Any = torch.nn.Module
_WITHIN = "_model."
#: What is the same where it is written alike: 1.0 is not 1, nor 0.0 what -0.0 is.
_PLAIN = (bool, int, float, str, type(None))
#: What torch asks a module for by the names of `named_parameters` and `named_buffers`: the model's, as it changes.
_OF_ITSELF = ("_parameters", "_buffers", "_non_persistent_buffers_set")
#: What `state_dict` has, or has of.
_SAVED = (torch.nn.Parameter, Module)


class StandIn(Module):
    """Has the attributes of `model`, sets and deletes them there, and saves and loads what the model does.

    Names of its own begin with an underscore, or are those of its class and of what it had before `model`.
    """

    _model: Any
    #: Where its parts begin in the names of the module that is loaded.
    _loaded_at = ""

    def __init__(self, model: Any, **own: Any) -> None:
        super().__init__()
        for name, value in own.items():
            setattr(self, name, value)
        self.register_load_state_dict_post_hook(_by_the_names_of_the_model)
        self._model = model
        for name in _OF_ITSELF:
            self.__dict__[name] = model.__dict__[name]

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Modules by the model's names, which `state_dict` uses, so that torch names weights alike; the model itself
        has this object's name."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self._model.named_modules(memo, prefix, remove_duplicate)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._model._apply(*args, **kwargs)
        return self

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        self._model.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        self._model.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        self._model.add_module(*args, **kwargs)

    def _is_the_models(self, name: str, value: Any = None) -> bool:
        if name.startswith("_") or name in self.__dict__ or hasattr(type(self), name):
            return False
        model = self.__dict__.get("_modules", {}).get("_model")
        return hasattr(model, name) or (model is not None and isinstance(value, _SAVED))

    def __getattr__(self, name: str) -> Any:
        """Also the model's attributes, such as `config`: programs ask for them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            # what Python itself asks for, such as __deepcopy__, is asked of this very object
            if name.startswith("__") or "_model" not in self.__dict__.get("_modules", ()):
                raise
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._is_the_models(name, value):
            super().__setattr__(name, value)
            return
        before = getattr(self._model, name, None)
        setattr(self._model, name, value)
        if value is not before and not (isinstance(value, _PLAIN) and repr(value) == repr(before)):
            self._changed()

    def __delattr__(self, name: str) -> None:
        if not self._is_the_models(name):
            super().__delattr__(name)
            return
        delattr(self._model, name)
        self._changed()

    def _changed(self) -> None:
        """An attribute of the model is another one."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's, with the model's own names: either loads what the other saved."""
        found = self._model.state_dict(*args, **kwargs)
        at = kwargs.get("prefix") or (args[1] if len(args) > 1 else "")
        if at:  # within another module, whose loading comes to the model by this one's names
            versions = found._metadata
            for name in [name for name in versions if f"{name}.".startswith(at)]:
                versions[f"{at}{_WITHIN}{name[len(at) :]}".rstrip(".")] = versions[name]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads as the model does."""
        return self._model.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, versions: Any, strict: bool, *more: Any
    ) -> None:
        """Within another module.  The model says what is missing."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[prefix + _WITHIN + name.removeprefix(prefix)] = state_dict.pop(name)
        self._loaded_at = prefix
        super()._load_from_state_dict(state_dict, prefix, versions, False, *more)


def _by_the_names_of_the_model(stand_in: StandIn, keys: Any) -> None:
    """Has torch say which names are missing, and which nobody expected, by those that `state_dict` has."""
    at = stand_in._loaded_at
    for names in (keys.missing_keys, keys.unexpected_keys):
        names[:] = [at + n.removeprefix(at + _WITHIN) if n.startswith(at + _WITHIN) else n for n in names]
