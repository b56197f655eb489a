"""`with enabled():` convolutions of unmodified models, and their gradients, go through convgen where it is faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from convgen.diagnostics import ConvgenError
from convgen.ir.problem import Op
from convgen.torch.choices import Asked, Choices, Forward
from convgen.torch.gradients import Gradient, in_order, order_of
from convgen.torch.network.report import Report
from convgen.torch.network.timing import timing

Tensor = Any
_BACKWARD = torch.ops.aten.convolution_backward.default
_DEVICES = ("CPU", "CUDA")
_lock = threading.RLock()
_open: list[Enabled] = []


@contextmanager
def enabled(measure: bool = True) -> Iterator[Enabled]:
    """Every aten::convolution and its gradients, in eager code or compiled, go through convgen where it is faster.

        with convgen.torch.enabled() as serving:
            loss(model(x), target).backward()
        print(serving.report)

    A kind of convolution that is new runs on aten while its kernel is built in the background; the call after that
    times both and takes the faster from then on (without `measure`, convgen's).  The effect is on all threads of the
    process, autograd's among them; a context within another one is the same one.
    """
    with _lock:
        if not _open:
            made = Enabled(measure)
            made.install()
        else:
            made = _open[-1]
        _open.append(made)
    try:
        yield made
    finally:
        with _lock:
            _open.pop()
            if not _open:
                made.remove()


class Enabled:
    """What `enabled` yields: `report` says, of each kind of convolution met so far, what computes it and why."""

    def __init__(self, measure: bool) -> None:
        self._builders = ThreadPoolExecutor(2, thread_name_prefix="convgen-build")
        self._choices = Choices(measure, self._builders)
        self._library: Any = None
        self._backward: dict[str, Any] = {}  # what aten has, by device

    @property
    def report(self) -> Report:
        return self._choices.report

    def wait(self) -> None:
        """Until all kernels are built that were asked for."""
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
        self._builders.shutdown(wait=False, cancel_futures=True)

    def _launched(self, asked: Asked, operands: Sequence[Tensor] = ()) -> Tensor | None:
        """What convgen computes; None where aten has to."""
        launch = None if timing() else self._choices.launch(asked)
        if launch is not None:
            try:
                return launch(*asked.reads, operands)
            except ConvgenError:  # of these very tensors: an address that the kernel's loads cannot have
                pass
        return None

    def _convolution(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    ) -> Tensor:  # fmt: skip
        """aten::convolution."""
        geometry = tuple(stride), tuple(padding), tuple(dilation), groups
        shaped = None if bias is None else bias.view(-1, *(1,) * len(stride))
        made = None
        if transposed and _is_gradient(output_padding, stride):
            size = _transposed_size(input, weight, output_padding, *geometry)
            made = self._launched(Gradient(Op.DGRAD, input, weight, size, *geometry))
            if made is not None and shaped is not None:
                made.add_(shaped)
        elif not transposed:
            operands = [] if shaped is None else [shaped]
            made = self._launched(Forward(input, weight, operands, "add" if operands else "", *geometry), operands)
        if made is not None:
            return made
        backend = torch.backends.cudnn
        return torch.ops.aten._convolution.default(
            input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
            backend.benchmark, backend.deterministic, backend.enabled, backend.allow_tf32,
        )  # fmt: skip

    def _convolution_backward(
        self, keys: Any, grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None,
        stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
        output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
        """aten::convolution_backward."""
        geometry = tuple(stride), tuple(padding), tuple(dilation), groups
        found: list[Tensor | None] = [None, None, None]
        if not timing() and (not transposed or _is_gradient(output_padding, stride)):
            order = order_of(input, weight)
            tangent = in_order(grad, order)  # laid out once for both gradients
            for i, asked in enumerate(_gradients(tangent, input, weight, transposed, *geometry)):
                if wanted[i]:
                    made = self._launched(asked)
                    found[i] = None if made is None else in_order(made, order)
        left = [bool(want and made is None) for want, made in zip(wanted, found, strict=True)]
        if left == [False, False, True]:
            found[2] = grad.sum([i for i in range(grad.dim()) if i != 1])
        elif any(left):
            aten = self._backward["CUDA" if grad.is_cuda else "CPU"]
            others = aten.call_boxed(
                keys, grad, input, weight, bias_sizes,
                stride, padding, dilation, transposed, output_padding, groups, left,
            )  # fmt: skip
            found = [other if mine is None else mine for mine, other in zip(found, others, strict=True)]
        return found[0], found[1], found[2]


def _gradients(grad: Tensor, input: Tensor, weight: Tensor, transposed: bool, *geometry: Any) -> tuple[Asked, Asked]:
    """The gradients of the input and of the filters.  Those of a transposed convolution are a convolution of y's
    gradient, and the gradient of filters that lead from that to the input."""
    if transposed:
        of_input = Forward(grad, weight, [], "", *geometry)
        return of_input, Gradient(Op.WGRAD, grad, input, tuple(weight.shape), *geometry)
    return (
        Gradient(Op.DGRAD, grad, weight, tuple(input.shape), *geometry),
        Gradient(Op.WGRAD, input, grad, tuple(weight.shape), *geometry),
    )


def _is_gradient(output_padding: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a transposed convolution is the gradient of one: of its input, that has no more windows."""
    return all(extra < step for extra, step in zip(output_padding, stride, strict=True))


def _transposed_size(
    input: Tensor, weight: Tensor, output_padding: Sequence[int],
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
) -> tuple[int, ...]:  # fmt: skip
    axes = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    extents = ((e - 1) * s - 2 * p + d * (taps - 1) + extra + 1 for e, taps, s, p, d, extra in axes)
    return (input.shape[0], weight.shape[1] * groups, *extents)
