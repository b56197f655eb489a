"""`with enabled():` convolutions of unmodified models go through convgen where it is faster."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from convgen.diagnostics import ConvgenError
from convgen.torch.launch import Served, key_of, served
from convgen.torch.network.report import Report, Row
from convgen.torch.network.timing import Timer

Tensor = Any
_lock = threading.RLock()
_open: list[Enabled] = []


@contextmanager
def enabled(measure: bool = True) -> Iterator[Enabled]:
    """Every aten::convolution, in eager code or compiled, goes through convgen where it is faster.

        with convgen.torch.enabled() as serving:
            y = model(x)
        print(serving.report)

    A kind of convolution that is new runs on aten while its kernel is built in the background; the call after that
    times both and takes the faster from then on (without `measure`, convgen's).  Gradients are aten's.  The effect is
    on all threads of the process; a context within another one is the same one.
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


@dataclass
class _Kind:
    """Convolutions of one kind: what serves them, once that is known, and what the report says."""

    row: Row
    building: Future[Served] | None = None
    launch: Any = None


class Enabled:
    """What `enabled` yields: `report` says, of each kind of convolution met so far, what computes it and why."""

    def __init__(self, measure: bool) -> None:
        self._kinds: dict[Any, _Kind] = {}
        self._timer = Timer() if measure else None
        self._builders = ThreadPoolExecutor(2, thread_name_prefix="convgen-build")
        self._lock = threading.Lock()
        self._library: Any = None
        self._timing = threading.local()

    @property
    def report(self) -> Report:
        return Report([kind.row for kind in list(self._kinds.values())])

    def wait(self) -> None:
        """Until all kernels are built that were asked for."""
        for kind in list(self._kinds.values()):
            if kind.building is not None:
                kind.building.exception()

    def install(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for key in ("CPU", "CUDA"):
            self._library.impl("convolution", self._convolution, key, allow_override=True)

    def remove(self) -> None:
        self._library._destroy()
        self._builders.shutdown(wait=False, cancel_futures=True)

    def _convolution(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
        dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    ) -> Tensor:  # fmt: skip
        """aten::convolution."""
        if not getattr(self._timing, "now", False):
            operands = [] if bias is None else [bias.view(-1, *(1,) * len(stride))]
            epilogue = "" if bias is None else "add"
            arguments = (input, weight, operands, epilogue, stride, padding, dilation, groups)
            launch = self._find(arguments, transposed)
            if launch is not None:
                try:
                    return launch(input, weight, operands)
                except ConvgenError:  # of these very tensors: an address that the kernel's loads cannot have
                    pass
        backend = torch.backends.cudnn
        return torch.ops.aten._convolution.default(
            input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
            backend.benchmark, backend.deterministic, backend.enabled, backend.allow_tf32,
        )  # fmt: skip

    def _find(self, arguments: tuple[Any, ...], transposed: bool) -> Any:
        """What launches a convolution by convgen; None where aten computes it, perhaps for now."""
        key = (transposed, *key_of(*arguments))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds.setdefault(key, self._new(arguments, transposed))
        if kind.building is not None and kind.building.done():
            self._decide(kind, arguments)
        return kind.launch

    def _new(self, arguments: tuple[Any, ...], transposed: bool) -> _Kind:
        input, weight = arguments[:2]
        layer = f"{tuple(input.shape)} by {tuple(weight.shape)}"
        if transposed or not input.is_cuda:
            return _Kind(Row(layer, "aten", why_not="transposed" if transposed else "not on a GPU"))
        return _Kind(Row(layer, "aten", why_not="being built"), self._builders.submit(served, *arguments))

    def _decide(self, kind: _Kind, arguments: tuple[Any, ...]) -> None:
        if torch.cuda.is_current_stream_capturing():  # nothing can be timed
            return
        with self._lock:
            if kind.building is None:  # another thread was faster
                return
            serving, layer = kind.building.result(), kind.row.layer
            if serving.launch is None:
                kind.row = Row(layer, "aten", why_not=serving.why_not)
            elif self._timer is None:
                kind.row, kind.launch = Row(layer, serving.kernel, fused=arguments[3]), serving.launch
            else:
                us, aten_us = self._times(self._timer, arguments)
                if us < aten_us:
                    kind.row, kind.launch = Row(layer, serving.kernel, us, aten_us, arguments[3]), serving.launch
                else:
                    kind.row = Row(layer, "aten", us, aten_us, why_not=f"{serving.kernel} is slower")
            kind.building = None

    def _times(self, timer: Timer, arguments: tuple[Any, ...]) -> tuple[float, float]:
        """convgen's and aten's microseconds; what is timed does not come back here."""
        self._timing.now = True
        try:
            return timer.fused(arguments, None), timer.aten(arguments, 1 if arguments[3] else None)
        finally:
            self._timing.now = False
