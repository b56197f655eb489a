"""Chooses the convolutions and gradients that go through convgen: those that it computes faster than aten, as
measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from convgen.torch.asked import Asked
from convgen.torch.launch import Served
from convgen.torch.memory import where_memory_suffices
from convgen.torch.network.report import NO_MEMORY, NOT_ON_GPU, Report, Row
from convgen.torch.network.timing import Timer

Tensor = Any
Launch = Callable[..., Tensor]


@dataclass
class _Kind:
    """Convolutions of one kind: the report's row, and what launches them where convgen does."""

    row: Row
    decided: bool = False
    building: Future[Served] | None = None
    launch: Launch | None = None


class Choices:
    """The choice of what computes each kind of convolution, made once.

    A new kind's kernel is built by the `builders` while aten computes, else at once; then both are timed, and the
    faster one stays (without `measure`, convgen).  While a CUDA graph is captured nothing is built or timed.  Safe for
    threads.
    """

    def __init__(self, measure: bool = True, builders: Executor | None = None) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._timer = Timer()
        self._measure = measure
        self._builders = builders
        self._lock = threading.RLock()
        self._closed = False

    @property
    def report(self) -> Report:
        """A row for each kind seen so far: what computes it, and why."""
        return Report([kind.row for kind in list(self._kinds.values())])

    def wait(self) -> None:
        """Until all kernels are built that were asked for."""
        for kind in list(self._kinds.values()):
            if kind.building is not None:
                with suppress(CancelledError):
                    kind.building.exception()

    def close(self) -> None:
        """Builds nothing more; aten computes what is not built yet."""
        with self._lock:
            self._closed = True
        if self._builders is not None:
            self._builders.shutdown(wait=False, cancel_futures=True)

    def launch(self, asked: Asked) -> Launch | None:
        """The function that computes it by convgen; None if aten does, perhaps for now."""
        return self._kind(asked, self._measure).launch

    def row(self, asked: Asked) -> Row:
        """The report's row for it."""
        return self._kind(asked, self._measure).row

    def is_decided(self, asked: Asked) -> bool:
        """Whether it was met, built and, where it has to be, timed."""
        kind = self._kinds.get(asked.key)
        return kind is not None and kind.decided

    def time_aten(self, asked: Asked) -> None:
        """Times what convgen's kernel will be compared with, which can be done while that is built."""
        if self.is_decided(asked):
            return
        where_memory_suffices(lambda: asked.aten_us(self._timer))

    def measure(self, asked: Asked) -> None:
        """Lets the faster one compute it, by measure now where it was decided without one."""
        kind = self._kind(asked, measure=True)
        with self._lock:
            if kind.launch is not None and kind.row.us is None and not torch.cuda.is_current_stream_capturing():
                kind.row = self._faster(kind.row, asked)
                if kind.row.kernel == "aten":
                    kind.launch = None

    def take(self, asked: Asked) -> None:
        """Lets convgen compute it if it serves it at all, unless that is decided."""
        self._kind(asked, measure=False)

    def _kind(self, asked: Asked, measure: bool) -> _Kind:
        kind = self._kinds.get(asked.key)
        if kind is None:
            kind = self._kinds.setdefault(asked.key, _Kind(Row(asked.layer, "aten", why_not="not built yet")))
        if not kind.decided:
            self._decide(kind, asked, measure)
        return kind

    def _decide(self, kind: _Kind, asked: Asked, measure: bool) -> None:
        layer = kind.row.layer
        if not asked.reads[0].is_cuda:
            kind.row, kind.decided = Row(layer, "aten", why_not=NOT_ON_GPU), True
            return
        if torch.cuda.is_current_stream_capturing():
            return
        with self._lock:
            if kind.decided:  # another thread was faster
                return
            serving = self._built(kind, asked)
            if serving is None:
                return
            if serving.for_now:
                kind.row, kind.building = Row(layer, "aten", why_not=serving.why_not), None
                return
            row = Row(layer, serving.kernel, fused=asked.fused, spec=serving.spec)
            if serving.launch is None:
                row = Row(layer, "aten", why_not=serving.why_not)
            elif measure:
                row = self._faster(row, asked)
            if row.kernel != "aten":
                kind.launch = serving.launch
            kind.row, kind.building, kind.decided = row, None, True

    def _built(self, kind: _Kind, asked: Asked) -> Served | None:
        if self._builders is None:
            return asked.served()
        if self._closed:
            return None
        if kind.building is None:
            kind.building = self._builders.submit(asked.served)
        return kind.building.result() if kind.building.done() else None

    def _faster(self, row: Row, asked: Asked) -> Row:
        """The row of convgen's kernel, or aten's."""
        times = where_memory_suffices(lambda: asked.times(self._timer))
        if times is None:
            return replace(row, kernel="aten", fused="", why_not=NO_MEMORY)
        us, aten_us = times
        row = replace(row, us=us, aten_us=aten_us)
        return row if us < aten_us else replace(row, kernel="aten", fused="", why_not=f"{row.kernel} is slower")
