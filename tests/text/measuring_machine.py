"""A stand-in for the process that measures for quick tuning, with a clock of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from convgen.bench.build import Job
from convgen.planner import database
from convgen.tune import quick
from convgen.tune.worker import CandidateFailed


class Machine:
    """A fake of the measuring process and of the compiler.

    The candidate that is measured i-th takes `times[i]` microseconds, or fails as the text says, or is wrong where the
    time is negative; timing one takes `seconds`.
    """

    def __init__(self, times: list[float | str], seconds: float = 0.01) -> None:
        self.times, self.seconds, self.now = times, seconds, 0.0
        self.timed: list[str] = []  # configurations
        self.methods: list[str] = []
        self.on_time: Callable[[], object] = lambda: None
        self.left = 0.0  # seconds that the comparison was given

    def start(self) -> None: ...

    def stop(self) -> None:
        self.methods.append("stop")

    def call(self, method: str, *arguments: Any) -> Any:
        self.methods.append(method)
        if method == "time":
            self.on_time()
            self.now += self.seconds
            self.timed.append(arguments[1].manifest.config)
            us = self.us(arguments[1])
            if isinstance(us, str):
                raise CandidateFailed(us)
            return abs(us)
        if method == "check":
            return self.us(arguments[1]) > 0, "checked"
        if method == "compare":
            _, artifacts, self.left = arguments
            return [abs(self.us(each)) for each in artifacts]
        return None

    def us(self, artifact: Any) -> Any:
        place = self.timed.index(artifact.manifest.config)
        return self.times[place] if place < len(self.times) else 1000.0 + place

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def build_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            config = f"{job.strategy} {database.canonical(job.options)}"
            yield job, SimpleNamespace(manifest=SimpleNamespace(config=config))


def install(
    monkeypatch: pytest.MonkeyPatch, times: list[float | str], seconds: float = 0.01, compiles: bool = False
) -> Machine:
    """Puts a machine in the place of the measuring process, and, unless it `compiles`, of the compiler."""
    machine = Machine(times, seconds)
    for library in ("cupy", "torch"):  # whose streams the fake driver does not know
        monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.setattr(quick._PROCESS, "_worker", machine)
    if not compiles:
        monkeypatch.setattr(quick, "Builder", lambda threads: machine)
    original = quick.Stopwatch.__init__
    clock = lambda self, measurer, budget: original(self, measurer, budget, lambda: machine.now)  # noqa: E731
    monkeypatch.setattr(quick.Stopwatch, "__init__", clock)
    return machine
