"""Searches for many problems at a time, spread over whoever measures: a thread each, which takes problem after problem.

A problem whose measurer is lost is given out again, and the search goes on from what is known.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from convgen.bench.build import Job
from convgen.diagnostics import ConvgenError
from convgen.planner.database import Database, Measurement
from convgen.runtime.cuda import Gpu
from convgen.tune.search import Build, Lost, Measurer, Search, Task

#: Seconds that a problem has at least, where the budget lasts: fewer would go into building alone.
_LEAST_SHARE = 5.0
#: Seconds that a thread has, when all must end, for the candidate that it is measuring.
_PATIENCE = 2.0


#: What a function of a module gives for each item, in order, wherever it runs.
Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Member:
    """A GPU, and what measures on it."""

    gpu: Gpu
    measurer: Measurer


@dataclass(frozen=True)
class Machines:
    """The resources for tuning: GPUs to measure on, and a compiler for them all."""

    members: Sequence[Member]
    build: Build
    #: Told of what will be built soon, when the compiler has little else to do.
    prepare: Callable[[Sequence[Job]], None] = lambda jobs: None
    #: By all who compile.
    each: Each = map


class Observer(Protocol):
    """Who is told of progress, one thing at a time."""

    def measured(self, task: Task, measurement: Measurement, seconds_left: float) -> None:
        """A candidate is done; `seconds_left` is an estimate for all that there is to do."""
        ...

    def finished(self, task: Task) -> None:
        """A problem is done, or its share of the budget is spent."""
        ...

    def gone(self, member: Member, reason: str, left: int) -> None:
        """A GPU measures no more; so many others do."""
        ...


class _Stopped(Exception):
    """Another thread has failed, or the user wants no more."""


class Spread:
    """Tasks in order, each by the next GPU of its kind that is free, with its share of what is left of the budget."""

    def __init__(
        self,
        tasks: Sequence[Task],
        machines: Machines,
        db_path: Path,
        observer: Observer,
        budget: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`db_path` is the database's, `budget` in seconds, for all tasks together."""
        self._tasks, self._machines, self._db_path, self._observer = list(tasks), machines, db_path, observer
        self._clock, self._begun = clock, clock()
        self._end = self._begun + budget
        self._left = {id(task): len(task.untried) for task in tasks}
        self._waiting = {member.gpu.name: deque[Task]() for member in machines.members}
        self._running = dict.fromkeys(self._waiting, 0)  # tasks by kind of GPU
        self._members = dict.fromkeys(self._waiting, 0)
        self._working = 0  # threads
        self._changed = threading.Condition()
        self._error: BaseException | None = None  # for which all end
        self._nobody: ConvgenError | None = None  # is left for some tasks

    def run(self) -> None:
        """Returns when nothing is left to try or the budget is spent.

        Raises ConvgenError where no GPU is left for a task, and whatever else a thread raises; what was measured is
        in the database all the same."""
        for task in self._tasks:
            if self._left[id(task)]:
                self._waiting[task.gpu].append(task)
            else:
                self._observer.finished(task)
        for member in self._machines.members:
            self._members[member.gpu.name] += 1
        self._working = len(self._machines.members)
        for member in self._machines.members:
            threading.Thread(target=self._work, args=(member,), daemon=True).start()
        try:
            self._wait()
        except BaseException:
            self._fail(_Stopped())
            self._wait(_PATIENCE)
            raise
        if error := self._error or self._nobody:
            raise error

    def _wait(self, seconds: float | None = None) -> None:
        """Until all threads have ended, but no longer.  Not by join: Python 3.11 takes a thread for ended once an
        interrupt has come while it was joined."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working, seconds)

    def _work(self, member: Member) -> None:
        """A member's thread."""
        try:
            self._measure_all(member)
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _measure_all(self, member: Member) -> None:
        try:
            begun = False  # compilers and measuring processes take some seconds to start, which are no task's
            with Database(self._db_path) as db:
                while taken := self._take(member.gpu.name):
                    self._serve(member, db, *taken, begun)
                    begun = True
        except _Gone as e:
            self._leave(member, str(e))
        except _Stopped:
            pass
        except BaseException as e:
            self._fail(e)

    def _serve(self, member: Member, db: Database, task: Task, share: float, begun: bool) -> None:
        """Raises _Gone where the member can measure no more.  The task's share of the budget, in seconds, counts from
        now on, or where the member has not `begun` to measure from its first measurement on."""
        finished = False
        deadline = self._clock() + share if begun else math.inf

        def going() -> bool:
            self._check()
            return self._clock() < min(deadline, self._end)

        def told(measurement: Measurement) -> None:
            nonlocal deadline
            deadline = min(deadline, self._clock() + share)
            self._measured(task, measurement)

        try:
            with suppress(Lost):
                measurer = _Checked(member.measurer, self._check)
                idle = partial(self._prepare, task.gpu)
                Search(task, db, measurer, self._machines.build, told, going, idle).run()
                finished = True
        except ConvgenError as e:
            raise _Gone(str(e)) from None
        finally:
            self._give_back(task, finished)

    def _take(self, gpu: str) -> tuple[Task, float] | None:
        """The next task and its share of the budget, in seconds.  As long as others run on its kind of GPU, one of them
        may come back."""
        waiting = self._waiting[gpu]
        with self._changed:
            while not waiting:
                if self._error or not self._running[gpu]:
                    return None
                self._changed.wait()
            if self._error:
                return None
            now = self._clock()
            if now >= self._end:
                while waiting:
                    self._observer.finished(waiting.popleft())
                return None
            rounds = math.ceil(len(waiting) / self._members[gpu])
            self._running[gpu] += 1
            return waiting.popleft(), max((self._end - now) / rounds, _LEAST_SHARE)

    def _give_back(self, task: Task, finished: bool) -> None:
        with self._changed:
            self._running[task.gpu] -= 1
            if finished:
                self._left[id(task)] = 0
                self._observer.finished(task)
            else:
                self._waiting[task.gpu].appendleft(task)
            self._changed.notify_all()

    def _check(self) -> None:
        """Raises _Stopped."""
        if self._error:
            raise _Stopped

    def _prepare(self, gpu: str) -> None:
        """Has the next task's first kernels built, so that no GPU waits for them."""
        with self._changed:
            following = next(iter(self._waiting[gpu]), None)
        if following:
            self._machines.prepare(following.jobs)

    def _measured(self, task: Task, measurement: Measurement) -> None:
        with self._changed:
            self._left[id(task)] = len(task.untried)
            now = self._clock()
            pace = (now - self._begun) / sum(each.tried for each in self._tasks)
            self._observer.measured(task, measurement, min(pace * sum(self._left.values()), self._end - now))

    def _leave(self, member: Member, reason: str) -> None:
        gpu = member.gpu.name
        with self._changed:
            self._members[gpu] -= 1
            self._observer.gone(member, reason, sum(self._members.values()))
            if not self._members[gpu] and self._waiting[gpu]:
                self._nobody = ConvgenError(f"no {gpu} is left to measure on: {reason}")
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


class _Gone(Exception):
    """A member can measure no more; str() says why."""


@dataclass(frozen=True)
class _Checked:
    """A measurer whose failures count for nothing once all are to end: they may come of that."""

    measurer: Measurer
    check: Callable[[], None]

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            return self.measurer.call(method, *arguments)
        finally:
            self.check()
