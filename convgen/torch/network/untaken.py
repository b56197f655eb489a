"""A hint for inference without torch.no_grad(): where gradients may be taken, a graph is compiled for training, and
what follows a convolution is not fused into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from convgen.torch.network.report import warn

#: Calls whose results are gone without a backward pass, after which the hint comes.
CALLS = 8
_HINT = (
    f'backend "convgen" compiled for training, as gradients are recorded, but no backward pass followed {CALLS} calls'
    "\nhint: for inference, call the model under torch.no_grad(), where more is fused"
)


class _Calls:
    def __init__(self) -> None:
        self.dropped = 0
        self.is_open = True


class _Call:
    """A function that autograd calls in the backward pass, and drops with its records."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls

    def __call__(self, gradients: Any) -> None:
        self._calls.is_open = False

    def __del__(self) -> None:
        self._calls.dropped += 1


def hinting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results have gradients, as one that warns, once, if nobody takes them."""
    calls = _Calls()

    def call(*arguments: Any) -> Any:
        results = function(*arguments)
        if calls.is_open:
            # of each result: a pass may begin at any of them, and one that is a view of an argument has no other's
            recorded = {each.grad_fn for each in results if isinstance(each, torch.Tensor) and each.grad_fn}
            if recorded:
                taken = _Call(calls)
                for node in recorded:
                    node.register_prehook(taken)
            if calls.dropped >= CALLS:
                calls.is_open = False
                warn(_HINT)
        return results

    return call
