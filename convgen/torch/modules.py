"""Conv1d, Conv2d and Conv3d: torch.nn's modules, computed by convgen where it serves."""

from __future__ import annotations

from typing import Any, Self

import torch

from convgen.functional.pointwise import activation as steps_of_activation
from convgen.torch import functions
from convgen.torch.functions import Activation

Tensor = Any
Module: Any = torch.nn.Module


class _Convolution(Module):
    """What the three add to torch's: an activation, and a way here from torch's own modules."""

    def __init__(self, *args: Any, activation: Activation = None, **kwargs: Any) -> None:
        """As torch's module of the name, with an `activation` as in convgen.torch.conv2d.  Raises WrongArguments."""
        super().__init__(*args, **kwargs)
        steps_of_activation(activation)  # raises
        self.activation = activation

    @classmethod
    def from_module(cls, module: Any, activation: Activation = None) -> Self:
        """A module with the geometry of torch's, and its very parameters.  Raises WrongArguments."""
        made = cls(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, module.dilation,
            module.groups, module.bias is not None, module.padding_mode, device="meta", activation=activation,
        )  # fmt: skip
        made.weight, made.bias = module.weight, module.bias
        return made.train(module.training)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What torch's own forward calls."""
        convolution = getattr(functions, f"conv{len(self.kernel_size)}d")
        geometry = self.stride, self.padding, self.dilation, self.groups
        return convolution(
            input, weight, bias, *geometry, activation=self.activation, padding_mode=self.padding_mode
        )  # fmt: skip

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.activation is None else f"{shown}, activation={self.activation!r}"


class Conv1d(_Convolution, torch.nn.Conv1d):
    """torch.nn.Conv1d by convgen."""


class Conv2d(_Convolution, torch.nn.Conv2d):
    """torch.nn.Conv2d by convgen."""


class Conv3d(_Convolution, torch.nn.Conv3d):
    """torch.nn.Conv3d by convgen."""
