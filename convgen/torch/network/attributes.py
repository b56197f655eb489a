"""The side effects of a model's forward: attributes that it sets, and whatever its hooks do.

torch.export runs forward once.  So a model whose results depend on what the call before left in an attribute, such as
the last frames of a stream, cannot be one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
#: Modules of torch whose hooks make weights of others, whether they are called once or twice.
_MAKE_WEIGHTS = ("torch.nn.utils.", "torch.nn.modules.", "torch.distributed.")
_PLAIN = (bool, int, float, str)
#: Calls whose results are looked at, and of models that read what they set: a window of frames may have to fill first.
_LATER_CALLS, _MANY_CALLS = 4, 40
#: Of the largest value that they are given: what is counted may drown in large ones, and a ReLU drops small ones.
_SCALES = (0.5, 8.0)
#: Results that differ by more, relative to their size, differ by more than rounding.
_TOLERANCE = 1e-2


class MakesLayers(RuntimeError):
    """A forward puts layers into its model, where a copy that stands for it would not have them."""


class Watched:
    """Within, the next call of a model tells which attributes it sets, `names`, children of modules among them, which
    parameters and buffers it puts in the place of others, `registered`, and whether it `makes_layers`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.names: list[str] = []
        self.registered: list[str] = []
        self.makes_layers = False

    def __enter__(self) -> Watched:
        before, known = _attributes(self._model), {*modules_of(self._model).values()}
        tensors: dict[str, Any] = {}

        def begin(*_: Any) -> None:  # while a model is exported it has fake ones
            tensors.update(_registered(self._model))

        def look(*_: Any) -> None:  # what is called may be torch.export's proxy of the model, with others of its layers
            after = _attributes(self._model)
            self.names = [name for name, values in after.items() if not _same(values, before.get(name))]
            now = _registered(self._model)
            self.registered = [name for name, value in now.items() if tensors.get(name, now) is not value]
            self.makes_layers = any(module._parameters for module in {*modules_of(self._model).values()} - known)

        self._hooks = (
            self._model.register_forward_pre_hook(begin, prepend=True), self._model.register_forward_hook(look)
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def remembers(model: Any, names: Collection[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether calls, which set attributes of these names, change the results of later ones, of arguments of other
    values, or nobody can tell.  The model, its arguments and the state of random numbers stay as they are."""
    try:
        first = {scale: _call(copy_of(model, ()), args, kwargs, scale) for scale in _SCALES}
        used = copy_of(model, ())
        suspect = _reads_what_it_sets(used, names, lambda: _call(used, args, kwargs, 1.0))
        for _ in range(_MANY_CALLS if suspect else _LATER_CALLS):
            _call(used, args, kwargs, 1.0)
            if not all(_alike(_call(used, args, kwargs, scale), expected) for scale, expected in first.items()):
                return True
    except Exception:  # it cannot be copied, or does not take those values
        return True
    return False


def _alike(results: Any, others: Any) -> bool:
    (found, structure), (expected, other) = pytree.tree_flatten(results), pytree.tree_flatten(others)
    return bool(structure == other and all(map(_close, found, expected)))


def _reads_what_it_sets(model: Any, names: Collection[str], call: Callable[[], Any]) -> bool:
    """Whether a call changes one of these attributes that it has read before: a count, or the frames so far."""
    read: set[str] = set()
    for prefix, module in modules_of(model).items():
        own = {name: dotted(prefix, name) for name in vars(module) if dotted(prefix, name) in names}
        if own and not isinstance(module, torch.jit.ScriptModule):
            module.__class__ = _noting(type(module), own, read)
    before = _attributes(model)
    call()
    return any(not _same(values, before.get(name)) for name, values in _attributes(model).items() if name in read)


def _noting(kind: Any, names: dict[str, str], read: set[str]) -> Any:
    """A kind of module that notes which of these attributes are read before they are set."""
    written: set[str] = set()

    def get(self: Any, name: str) -> Any:
        if name in names and name not in written:
            read.add(names[name])
        return kind.__getattribute__(self, name)

    def put(self: Any, name: str, value: Any) -> None:
        written.add(name)
        kind.__setattr__(self, name, value)

    return type(kind.__name__, (kind,), {"__getattribute__": get, "__setattr__": put})


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
    """The modules with forward hooks other than torch's that make weights, such as those of weight_norm."""
    return [
        name or "the model"
        for name, module in model.named_modules()
        for hook in [*module._forward_hooks.values(), *module._forward_pre_hooks.values()][:1]
        if not _makes_weights(hook)
    ]


def _makes_weights(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith(_MAKE_WEIGHTS)


def forget_hooks(module: Any) -> None:
    """Leaves a module, without those within, the hooks that make weights alone."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key in [key for key, hook in hooks.items() if not _makes_weights(hook)]:
            del hooks[key]


def hooked_by_all() -> bool:
    """Whether there are hooks that every module of the process calls."""
    of_all: Any = torch.nn.modules.module
    return bool(of_all._global_forward_hooks or of_all._global_forward_pre_hooks)


def _registered(model: Any) -> dict[str, Any]:
    """The parameters and buffers, by their names."""
    return {
        dotted(prefix, name): value
        for prefix, module in modules_of(model).items()
        if not isinstance(module, torch.jit.ScriptModule)
        for name, value in (*module._parameters.items(), *module._buffers.items())
    }


def _attributes(model: Any) -> dict[str, dict[Any, Any]]:
    """The attributes of modules, by their names."""
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
