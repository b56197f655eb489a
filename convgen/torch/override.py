"""`with enabled():` convolutions of unmodified models, and their gradients, go through convgen where it is faster."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from typing import Any

import torch

from convgen.runtime.errors import WrongArguments
from convgen.torch.asked import (
    Asked,
    Gradient,
    WithBias,
    bias_gradient,
    in_order,
    of_backward,
    of_convolution,
    order_of,
)
from convgen.torch.choices import Choices
from convgen.torch.launch import launched
from convgen.torch.network.report import Report
from convgen.torch.network.timing import timing
from convgen.torch.switches import allow_tf32, deterministic

Tensor = Any
_BACKWARD = torch.ops.aten.convolution_backward.default
_DEVICES = ("CPU", "CUDA")
_lock = threading.RLock()
_open: list[Enabled] = []


class enabled(ContextDecorator):
    """Within it, every aten::convolution and its gradients, eager or compiled, go through convgen where it is faster.

        with convgen.torch.enabled() as serving:
            loss(model(x), target).backward()
        print(serving.report)

    A new kind of convolution runs on aten while its kernel is built in the background.  The next call after that times
    both, and takes the faster from then on (without `measure`, convgen's).  The context affects all threads of the
    process, including autograd's; one that is opened within another is the same.  It may be entered again, which begins
    anew, and is a decorator of functions, too.
    """

    def __init__(self, measure: bool = True) -> None:
        """Raises WrongArguments."""
        if not isinstance(measure, bool):
            raise WrongArguments(f"measure is of type {type(measure).__name__}: expected True or False")
        self._measure = measure

    def __enter__(self) -> Enabled:
        with _lock:
            if not _open:
                made = Enabled(self._measure)
                made.install()
            else:
                made = _open[-1]
            _open.append(made)
        return made

    def __exit__(self, *_: object) -> None:
        with _lock:
            made = _open.pop()
            if not _open:
                made.remove()


class Enabled:
    """What `enabled` yields: `report` says what computes each kind of convolution met so far, and why."""

    def __init__(self, measure: bool) -> None:
        self._choices = Choices(measure, ThreadPoolExecutor(2, thread_name_prefix="convgen-build"))
        self._library: Any = None
        self._backward: dict[str, Any] = {}  # what aten has, by device

    @property
    def report(self) -> Report:
        return self._choices.report

    def wait(self) -> None:
        """Waits until all requested kernels are built."""
        self._choices.wait()

    def install(self) -> None:
        self._backward = {key: torch.library.get_kernel(_BACKWARD, key) for key in _DEVICES}
        self._library = torch.library.Library("aten", "IMPL")
        for key in _DEVICES:
            self._library.impl("convolution", self._convolution, key, allow_override=True)
            self._library.impl(
                "convolution_backward", self._convolution_backward, key, allow_override=True, with_keyset=True
            )

    def remove(self) -> None:
        self._library._destroy()
        self._choices.close()

    def _launched(self, asked: Asked) -> Any:
        """The result by convgen; None if aten has to compute it."""
        return launched(self._choices.launch(asked), *asked.reads, asked.operands)

    def _convolution(self, input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        """aten::convolution."""
        asked = None if timing() else of_convolution(input, weight, bias, *geometry)
        made = None if asked is None else self._launched(asked)
        if made is None:
            backend = torch.backends.cudnn
            return torch.ops.aten._convolution.default(
                input, weight, bias, *geometry,
                backend.benchmark, deterministic(), backend.enabled, allow_tf32(),
            )  # fmt: skip
        return made

    def _convolution_backward(
        self, keys: Any, grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *others: Any
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """aten::convolution_backward."""
        *geometry, wanted = others
        found: list[Tensor | None] = [None, None, None]
        if not timing():
            order = order_of(input, weight)
            grad = in_order(grad, order)  # once for both gradients
            for i, asked in enumerate(of_backward(grad, input, weight, *geometry)):
                if not wanted[i]:
                    continue
                # the filters' gradient reads y's, but that of a transposed convolution reads it in the place of x
                if i == 1 and wanted[2] and not geometry[3] and isinstance(asked, Gradient):
                    pair = WithBias(asked)
                    both: Any = self._launched(pair)
                    if both is not None:
                        found[1:] = in_order(both[0], order), both[1].to(grad.dtype)
                    if both is not None or not self._choices.is_decided(pair):  # the filters' alone may never be asked
                        continue
                made = self._launched(asked)
                found[i] = None if made is None else in_order(made, order)
        left = [bool(want and made is None) for want, made in zip(wanted, found, strict=True)]
        if left == [False, False, True]:
            found[2] = bias_gradient(grad)
        elif any(left):
            aten = self._backward["CUDA" if grad.is_cuda else "CPU"]
            rest = aten.call_boxed(keys, grad, input, weight, bias_sizes, *geometry, left)
            found = [other if mine is None else mine for mine, other in zip(found, rest, strict=True)]
        return found[0], found[1], found[2]
