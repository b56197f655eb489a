"""What a model's forward leaves behind besides its results: attributes that it sets, and what its hooks do.

torch.export runs forward once.  So a model whose results depend on what the call before left in an attribute, such as
the last frames of a stream, cannot be one graph.
"""

from __future__ import annotations

from typing import Any

import torch

from convgen.torch.network.copies import copy_of
from convgen.torch.network.held import joined, leaves_of, modules_of

Module: Any = torch.nn.Module
pytree = torch.utils._pytree
#: What each module has.
_COMMON = frozenset(vars(torch.nn.Module()))
_PLAIN = (bool, int, float, str)
#: Results that differ by more, relative to their size, differ by more than rounding.
_TOLERANCE = 1e-2


class Watched:
    """Within, the next call of a model tells which attributes it sets: `names`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.names: list[str] = []

    def __enter__(self) -> Watched:
        before = _attributes(self._model)

        def look(model: Any, arguments: Any, result: Any) -> None:
            after = _attributes(model)
            self.names = [name for name, values in after.items() if not _same(values, before.get(name))]

        self._hook = self._model.register_forward_hook(look)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


def remembers(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call changes the results of a later one, of arguments of other values, or nobody can tell.  The model,
    its arguments and the state of random numbers stay as they are."""
    try:
        used, fresh = (copy_of(model, model.parameters()) for _ in range(2))
        _call(used, args, kwargs, 1.0)
        (first, structure), (second, other) = (pytree.tree_flatten(_call(m, args, kwargs, 0.5)) for m in (used, fresh))
    except Exception:  # it cannot be copied, or does not take those values
        return True
    return structure != other or not all(map(_close, first, second))


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


def _attributes(model: Any) -> dict[str, dict[str, Any]]:
    """What they hold, by their names."""
    return {
        joined(prefix, name): leaves_of(value)
        for prefix, module in modules_of(model).items()
        if not type(module).__module__.startswith("torch.nn.")  # whose attributes weight_norm sets, and the like
        for name, value in vars(module).items()
        if name not in _COMMON
    }


def _same(values: dict[str, Any], before: dict[str, Any] | None) -> bool:
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
