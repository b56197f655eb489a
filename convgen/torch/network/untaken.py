"""A hint for inference without torch.no_grad(): where gradients may be taken, a graph is compiled for training, and
what follows a convolution is not fused into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from convgen.torch.network.report import warn

#: Calls in a row, without a backward pass of any, after which the hint comes.
CALLS = 8
_HINT = (
    f'backend "convgen" compiled for training, as gradients are recorded, but no backward pass followed {CALLS} calls'
    "\nhint: for inference, call the model under torch.no_grad(), where more is fused"
)


def hinting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results have gradients, as one that warns, once, if nobody takes them."""
    left = CALLS

    def taken(gradient: Any) -> None:
        nonlocal left
        left = 0

    def call(*arguments: Any) -> Any:
        nonlocal left
        results = function(*arguments)
        if left > 0:
            tensors = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
            for tensor in tensors:
                tensor.register_hook(taken)
            left -= bool(tensors)
            if left == 0 and tensors:
                warn(_HINT)
        return results

    return call
