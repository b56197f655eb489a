"""Which convolutions and gradients go through convgen: those that it serves faster than aten, by measure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from convgen.torch.gradients import Gradient
from convgen.torch.launch import Served, key_of, served
from convgen.torch.network.report import Report, Row
from convgen.torch.network.timing import Timer

Tensor = Any
Launch = Callable[..., Tensor]


class Asked(Protocol):
    """A convolution or a gradient of these very tensors."""

    @property
    def reads(self) -> tuple[Tensor, Tensor]: ...
    @property
    def key(self) -> Hashable:
        """What those of one kind have in common."""
        ...

    @property
    def layer(self) -> str: ...
    def served(self) -> Served: ...


class Forward(NamedTuple):
    """A convolution: the arguments of convgen::fused_conv."""

    input: Tensor
    weight: Tensor
    operands: list[Tensor]
    epilogue: str
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str = "zeros"

    @property
    def reads(self) -> tuple[Tensor, Tensor]:
        return self.input, self.weight

    @property
    def layer(self) -> str:
        return f"{tuple(self.input.shape)} by {tuple(self.weight.shape)}"

    @property
    def key(self) -> Hashable:
        return key_of(*self)

    def served(self) -> Served:
        return served(*self)


@dataclass
class _Kind:
    """Convolutions of one kind: the report's row, and what launches them where convgen does."""

    row: Row
    decided: bool = False
    building: Future[Served] | None = None
    launch: Launch | None = None


class Choices:
    """What computes each kind of convolution, decided once.

    A new kind's kernel is built by the `builders` while aten computes, else at once; then both are timed, and the
    faster one stays (without `measure`, convgen).  While a CUDA graph is captured nothing is built or timed.  Safe for
    threads.
    """

    def __init__(self, measure: bool = True, builders: Executor | None = None) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._timer = Timer() if measure else None
        self._builders = builders
        self._lock = threading.RLock()

    @property
    def report(self) -> Report:
        """A row for each kind that was met: what computes it, and why."""
        return Report([kind.row for kind in list(self._kinds.values())])

    def wait(self) -> None:
        """Until all kernels are built that were asked for."""
        for kind in list(self._kinds.values()):
            if kind.building is not None:
                kind.building.exception()

    def launch(self, asked: Asked) -> Launch | None:
        """What computes it by convgen; None where aten does, perhaps for now."""
        kind = self._kinds.get(asked.key)
        if kind is None:
            kind = self._kinds.setdefault(asked.key, _Kind(Row(asked.layer, "aten", why_not="not built yet")))
        if not kind.decided:
            self._decide(kind, asked)
        return kind.launch

    def _decide(self, kind: _Kind, asked: Asked) -> None:
        layer = kind.row.layer
        if not asked.reads[0].is_cuda:
            kind.row, kind.decided = Row(layer, "aten", why_not="not on a GPU"), True
            return
        if torch.cuda.is_current_stream_capturing():
            return
        with self._lock:
            if kind.decided:  # another thread was faster
                return
            serving = self._built(kind, asked)
            if serving is None:
                return
            if serving.launch is None:
                kind.row = Row(layer, "aten", why_not=serving.why_not)
            else:
                self._compare(kind, asked, serving)
            kind.building, kind.decided = None, True

    def _built(self, kind: _Kind, asked: Asked) -> Served | None:
        if self._builders is None:
            return asked.served()
        if kind.building is None:
            kind.building = self._builders.submit(asked.served)
        return kind.building.result() if kind.building.done() else None

    def _compare(self, kind: _Kind, asked: Asked, serving: Served) -> None:
        fused = asked.epilogue if isinstance(asked, Forward) else ""
        row = Row(kind.row.layer, serving.kernel, fused=fused, spec=serving.spec)
        if self._timer is None:
            kind.row, kind.launch = row, serving.launch
            return
        try:
            us, aten_us = _times(self._timer, asked)
        except torch.OutOfMemoryError:
            kind.row = Row(row.layer, "aten", why_not="there was no memory to time it", spec=row.spec)
            return
        if us < aten_us:
            kind.row, kind.launch = Row(row.layer, row.kernel, us, aten_us, fused, "", row.spec), serving.launch
        else:
            why_not = f"{row.kernel} is slower"
            kind.row = Row(row.layer, "aten", us, aten_us, "", why_not, row.spec)


def _times(timer: Timer, asked: Asked) -> tuple[float, float]:
    """convgen's and aten's microseconds."""
    if isinstance(asked, Gradient):
        return timer.gradient(asked)
    assert isinstance(asked, Forward)
    return timer.fused(asked, None), timer.aten(asked, 1 if asked.epilogue else None)
