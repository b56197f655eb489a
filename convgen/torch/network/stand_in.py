"""A module that stands for another one: its attributes, and its weights by its names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

Module: Any = torch.nn.Module
_WITHIN = "model."
#: What is the same where it is written alike: 1.0 is not 1, nor 0.0 what -0.0 is.
_PLAIN = (bool, int, float, str, type(None))


class StandIn(Module):
    """Has the attributes of `model`, which it sets and deletes there, and saves and loads what that one does.

    Names of its own begin with an underscore, or are those of its class and of what it had before `model`.
    """

    model: Any
    #: Where its parts begin in the names of the module that is loaded.
    _loaded_at = ""

    def __init__(self, model: Any, **own: Any) -> None:
        super().__init__()
        for name, value in own.items():
            setattr(self, name, value)
        self.register_load_state_dict_post_hook(_by_the_names_of_the_model)
        self.model = model

    def _is_the_models(self, name: str) -> bool:
        if name.startswith("_") or name in self.__dict__ or hasattr(type(self), name):
            return False
        model = self.__dict__.get("_modules", {}).get("model")
        return name != "model" and hasattr(model, name)

    def __getattr__(self, name: str) -> Any:
        """Also what the model has, such as `config`: programs ask for it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            # what Python itself asks for, such as __deepcopy__, is asked of this very object
            if name.startswith("__") or "model" not in self.__dict__.get("_modules", ()):
                raise
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._is_the_models(name):
            super().__setattr__(name, value)
            return
        before = getattr(self.model, name)
        setattr(self.model, name, value)
        if value is not before and not (isinstance(value, _PLAIN) and repr(value) == repr(before)):
            self._changed()

    def __delattr__(self, name: str) -> None:
        if not self._is_the_models(name):
            super().__delattr__(name)
            return
        delattr(self.model, name)
        self._changed()

    def _changed(self) -> None:
        """An attribute of the model is another one."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's, with the model's own names: either loads what the other saved."""
        found = self.model.state_dict(*args, **kwargs)
        at = kwargs.get("prefix") or (args[1] if len(args) > 1 else "")
        if at:  # within another module, whose loading comes to the model by this one's names
            versions = found._metadata
            for name in [name for name in versions if f"{name}.".startswith(at)]:
                versions[f"{at}{_WITHIN}{name[len(at) :]}".rstrip(".")] = versions[name]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the model loads it, from its names or from those of `named_parameters`."""
        own = self.model.state_dict().keys()
        named = {n: n.removeprefix(_WITHIN) for n in state_dict if n not in own and n.removeprefix(_WITHIN) in own}
        if named:
            versions = getattr(state_dict, "_metadata", None)
            state_dict = OrderedDict((named.get(name, name), value) for name, value in state_dict.items())
            if versions is not None:
                state_dict._metadata = versions  # type: ignore[attr-defined]
        return self.model.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Within another module."""
        own = self.model.state_dict().keys()
        for name in [name for name in state_dict if name.startswith(prefix)]:
            inner = name.removeprefix(prefix)
            if inner in own or inner.removeprefix(_WITHIN) not in own:  # else named as `named_parameters` does
                state_dict[prefix + _WITHIN + inner] = state_dict.pop(name)
        self._loaded_at = prefix
        super()._load_from_state_dict(state_dict, prefix, *more)


def _by_the_names_of_the_model(stand_in: StandIn, keys: Any) -> None:
    """Has torch say which names are missing, and which nobody expected, by those that `state_dict` has."""
    at = stand_in._loaded_at
    for names in (keys.missing_keys, keys.unexpected_keys):
        names[:] = [at + n.removeprefix(at + _WITHIN) if n.startswith(at + _WITHIN) else n for n in names]
