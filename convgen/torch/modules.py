"""Conv1d, Conv2d and Conv3d: torch.nn's modules, computed by convgen if it serves the call."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Self

import torch

from convgen.functional.pointwise import activation as steps_of_activation
from convgen.runtime.errors import WrongArguments
from convgen.spec import known_tuning
from convgen.torch import functions
from convgen.torch.functions import Activation

Tensor = Any
Module: Any = torch.nn.Module
#: Where a module keeps the hooks that are called before and after it.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class _Convolution(Module):
    """The additions to torch's modules: an activation, tuning, and a conversion from torch's own."""

    def __init__(self, *args: Any, activation: Activation = None, tune: str | None = None, **kwargs: Any) -> None:
        """Like torch's module of the same name, with `activation` and `tune` as in convgen.torch.conv2d.  Raises
        WrongArguments, UsageError."""
        super().__init__(*args, **kwargs)
        steps_of_activation(activation)  # raises
        self.activation = activation
        self.tune = tune if tune is None else known_tuning(tune)

    @classmethod
    def from_module(cls, module: Any, activation: Activation = None, tune: str | None = None) -> Self:
        """A module with the geometry of torch's module, whose parameters it shares.  From one of convgen's modules, it
        keeps the activation and tuning unless others are given.

        Raises WrongArguments for modules of another class, with their own forward or hooks, or whose weights are
        computed.
        """
        _check(module, next(base for base in cls.__mro__ if base.__module__.startswith("torch.")))
        if isinstance(module, _Convolution):
            activation, tune = activation or module.activation, tune or module.tune
        made = cls(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, module.dilation,
            module.groups, module.bias is not None, module.padding_mode, device="meta",
            activation=activation, tune=tune,
        )  # fmt: skip
        made.weight, made.bias = module.weight, module.bias
        return made.train(module.training)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The method that torch's own forward calls."""
        convolution = getattr(functions, f"conv{len(self.kernel_size)}d")
        geometry = self.stride, self.padding, self.dilation, self.groups
        return convolution(
            input, weight, bias, *geometry, activation=self.activation, padding_mode=self.padding_mode, tune=self.tune,
        )  # fmt: skip

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        own = [f"{name}={value!r}" for name in ("activation", "tune") if (value := getattr(self, name)) is not None]
        return ", ".join([shown, *own])


def _check(module: Any, base: Any) -> None:
    """Checks that a module computes what torch's class does, from its own parameters.  Raises WrongArguments."""
    kind = type(module)
    if not isinstance(module, base):
        raise WrongArguments(f"the module is of type {kind.__name__}: expected a torch.nn.{base.__name__}")
    if not all(isinstance(p, torch.nn.Parameter) for p in (module.weight, module.bias) if p is not None):
        raise WrongArguments(
            "the module's weight is computed on each access"
            "\nhint: torch.nn.utils.parametrize.remove_parametrizations, or optimize, which computes it ahead"
        )
    if isinstance(module.weight, torch.nn.UninitializedParameter):
        raise WrongArguments("the module has no weights yet\nhint: call it once")
    if any(getattr(module, hooks) for hooks in _HOOKS):
        raise WrongArguments("the module has hooks, which would be lost\nhint: register them on the new module")
    own = kind.forward is not base.forward or kind._conv_forward not in (base._conv_forward, _Convolution._conv_forward)
    if own:
        raise WrongArguments(f"{kind.__name__} overrides forward, which would be lost")


def _init_of(base: Any) -> Callable[..., None]:
    """`__init__` with the parameters of torch's by name: `skip_init` looks for `device` among them."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _Convolution.__init__(self, *args, **kwargs)

    theirs, own = signature(base.__init__), signature(_Convolution.__init__).parameters
    parameters = [*theirs.parameters.values(), own["activation"], own["tune"]]
    vars(__init__)["__signature__"] = theirs.replace(parameters=parameters)
    return __init__


class Conv1d(_Convolution, torch.nn.Conv1d):
    """torch.nn.Conv1d by convgen."""

    __init__ = _init_of(torch.nn.Conv1d)


class Conv2d(_Convolution, torch.nn.Conv2d):
    """torch.nn.Conv2d by convgen."""

    __init__ = _init_of(torch.nn.Conv2d)


class Conv3d(_Convolution, torch.nn.Conv3d):
    """torch.nn.Conv3d by convgen."""

    __init__ = _init_of(torch.nn.Conv3d)
