"""What a model's forward leaves behind besides its results: attributes that it sets, and what its hooks do.

torch.export runs forward once.  So a model whose results depend on what the call before left in an attribute, such as
the last frames of a stream, cannot be one graph.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.copies import copy_of
from convgen.torch.network.held import dotted, leaves_of, modules_of

Module: Any = torch.nn.Module
pytree = torch.utils._pytree
#: What each module has.
_COMMON = frozenset(vars(torch.nn.Module()))
#: Where torch.nn.LSTM and the like list their parameters, anew where one is set, as while a model is traced.
_FLAT = frozenset({"_flat_weights", "_flat_weight_refs"})
_PLAIN = (bool, int, float, str)
#: Calls whose results are looked at: a window of frames may have to fill first.
_LATER_CALLS = 4
#: Results that differ by more, relative to their size, differ by more than rounding.
_TOLERANCE = 1e-2


class MakesLayers(RuntimeError):
    """A forward puts layers into its model, where a copy that stands for it would not have them."""


class Watched:
    """Within, the next call of a model tells which attributes it sets, `names`, children of modules among them, and
    whether it `makes_layers`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.names: list[str] = []
        self.makes_layers = False

    def __enter__(self) -> Watched:
        before, known = _attributes(self._model), {*modules_of(self._model).values()}

        def look(*_: Any) -> None:  # what is called may be torch.export's proxy of the model, with others of its layers
            after = _attributes(self._model)
            self.names = [name for name, values in after.items() if not _same(values, before.get(name))]
            self.makes_layers = any(module._parameters for module in {*modules_of(self._model).values()} - known)

        self._hook = self._model.register_forward_hook(look)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def remembers(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether calls change the results of later ones, of arguments of other values, or nobody can tell.  The model, its
    arguments and the state of random numbers stay as they are."""
    try:
        used, fresh = (copy_of(model, model.parameters()) for _ in range(2))
        expected, structure = pytree.tree_flatten(_call(fresh, args, kwargs, 0.5))
        for _ in range(_LATER_CALLS):
            _call(used, args, kwargs, 1.0)
            found, other = pytree.tree_flatten(_call(used, args, kwargs, 0.5))
            if structure != other or not all(map(_close, found, expected)):
                return True
    except Exception:  # it cannot be copied, or does not take those values
        return True
    return False


def _call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], scale: float) -> Any:
    def scaled(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor.clone()
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        if not largest:
            return torch.full_like(tensor, scale)
        return tensor * (scale / min(largest, 1.0))  # small ones would change results by less than rounding does

    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        given, keywords = pytree.tree_map_only(torch.Tensor, scaled, (args, kwargs))
        return model(*given, **keywords)


def hooked(model: Any) -> list[str]:
    """The modules with forward hooks that are not torch's own, such as those of weight_norm are."""
    return [
        name or "the model"
        for name, module in model.named_modules()
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()][:1]
        if not str(getattr(hook, "__module__", "")).startswith("torch.")
    ]


def _attributes(model: Any) -> dict[str, dict[Any, Any]]:
    """What they hold, by their names."""
    found = {}
    for prefix, module in modules_of(model).items():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, value in vars(module).items():
            if name not in _COMMON and not _is_computed(module, name):
                found[dotted(prefix, name)] = dict(leaves_of(value))
        found |= {dotted(prefix, name): {(): child} for name, child in module._modules.items()}
    return found


def _is_computed(module: Any, name: str) -> bool:
    """Whether torch computes an attribute of parameters: by weight_norm, spectral_norm or pruning, or for an LSTM."""
    if isinstance(module, torch.nn.RNNBase) and name in _FLAT:
        return True
    return any(f"{name}_{of}" in module._parameters for of in ("g", "orig"))


def _same(values: dict[Any, Any], before: dict[Any, Any] | None) -> bool:
    if before is None or values.keys() != before.keys():
        return False
    pairs = ((value, before[path]) for path, value in values.items())
    return all(a is b or (isinstance(a, _PLAIN) and a == b) for a, b in pairs)


def _close(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b or (isinstance(a, _PLAIN) and bool(a == b))
    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.float(), b.float()
    return bool(((a - b).norm() <= _TOLERANCE * b.norm()) | torch.isclose(a, b, equal_nan=True).all())
