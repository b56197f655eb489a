"""The search: every candidate of every problem is measured, and whichever beats the best so far is verified.
At the end of a problem its best few are timed again, in turn: times of different moments differ by more than
good candidates do.

Whatever becomes known goes to the database at once, so that a search may end at any moment (a budget, an
interrupt, a crash) and the next one goes on where it stopped.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from convgen.bench.build import Failure, Job
from convgen.ir.problem import ConvProblem
from convgen.planner import database
from convgen.planner.database import Database, Measurement, Status
from convgen.runtime.artifacts import Artifact
from convgen.targets import Target
from convgen.tune.candidates import Candidate
from convgen.tune.worker import CandidateFailed

#: A candidate this many times slower than the best is timed roughly.
_HOPELESS = 4.0
#: A strategy is given up on a problem when so many of its candidates, which come in the order of their promise,
#: are known, and the best of them is so many times slower than the best of all.
_ENOUGH = 8
_BEHIND = 1.3
#: So many candidates, at most so many times slower than the best, are timed again.
_FINALISTS = 4
_CLOSE = 1.06

Build = Callable[[Iterable[Job]], Iterator[tuple[Job, Artifact | Failure]]]


class Measurer(Protocol):
    """`tune.worker.Worker`, or a fake of it: calls `time`, `compare` and `check` of a `tune.worker.Gpu`."""

    def call(self, method: str, *arguments: Any) -> Any: ...


@dataclass
class Task:
    """One problem's search: what is to be tried, what is known.

    `untuned` is the candidate that `auto` takes without a database (None: the first); `over` when the share of the
    budget is spent.
    """

    problem: ConvProblem
    target: Target
    candidates: Sequence[Candidate]
    known: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    untuned: Candidate | None = None
    tried: int = 0
    over: bool = False
    built: dict[tuple[str, str], Artifact] = field(default_factory=dict)  # of those that may be finalists

    def learn(self, measurement: Measurement, built: Artifact | Failure) -> None:
        self.known[measurement.candidate] = measurement
        self.tried += 1
        if not isinstance(built, Failure) and measurement.us is not None:
            self.built[measurement.candidate] = built
            close = {m.candidate for m in self.finalists}
            self.built = {candidate: artifact for candidate, artifact in self.built.items() if candidate in close}

    @property
    def finalists(self) -> list[Measurement]:
        """Those built candidates that are close to the best, best first."""
        timed = [self.known[candidate] for candidate in self.built]
        found = sorted((m for m in timed if m.status in (Status.TIMED, Status.RIGHT)), key=lambda m: m.us or math.inf)
        return [m for m in found if (m.us or 0.0) <= _CLOSE * (found[0].us or 0.0)][:_FINALISTS]

    @property
    def untried(self) -> list[Candidate]:
        """Candidates that nothing is known of, those of strategies that are given up left out."""
        given_up = self.given_up
        return [c for c in self.candidates if c[0] not in given_up and _identity(c) not in self.known]

    @property
    def given_up(self) -> set[str]:
        """Strategies of which enough is known."""
        times: dict[str, list[float]] = {}
        for m in self.known.values():
            times.setdefault(m.strategy, []).append(m.us or math.inf)
        best = (self.best and self.best.us) or math.inf
        return {name for name, us in times.items() if len(us) >= _ENOUGH and min(us) > _BEHIND * best}

    @property
    def default(self) -> Measurement | None:
        """What is known of the untuned choice."""
        untuned = self.untuned or next(iter(self.candidates), None)
        return self.known.get(_identity(untuned)) if untuned else None

    @property
    def best(self) -> Measurement | None:
        right = [m for m in self.known.values() if m.status is Status.RIGHT]
        return min(right, key=lambda m: m.us or math.inf, default=None)

    def count(self, *statuses: Status) -> int:
        return sum(m.status in statuses for m in self.known.values())


def _identity(candidate: Candidate) -> tuple[str, str]:
    return candidate[0], database.canonical(candidate[1])


class Observer(Protocol):
    """Who is told of a search's progress."""

    def measured(self, task: Task, measurement: Measurement, seconds_left: float) -> None:
        """A candidate is done; `seconds_left` is an estimate for the whole search."""
        ...

    def finished(self, task: Task) -> None:
        """A problem is done, or its share of the budget is spent."""
        ...


def prepare(
    problem: ConvProblem,
    target: Target,
    candidates: Sequence[Candidate],
    db: Database,
    gpu: str,
    forget: Collection[Status] = (),
    untuned: Candidate | None = None,
) -> Task:
    """The search for a problem, with what earlier searches found, but for statuses to `forget`."""
    found = db.measurements(database.key(problem), gpu)
    return Task(problem, target, candidates, {m.candidate: m for m in found if m.status not in forget}, untuned)


class Search:
    """Runs tasks in order, each with an equal share of what is left of the budget."""

    def __init__(
        self,
        tasks: Sequence[Task],
        gpu: str,
        db: Database,
        measurer: Measurer,
        build: Build,
        observer: Observer,
        budget: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`budget` is in seconds, for all tasks together."""
        self._tasks, self._gpu, self._db = list(tasks), gpu, db
        self._measurer, self._build, self._observer = measurer, build, observer
        self._clock, self._begun = clock, clock()
        self._end = self._begun + budget

    def run(self) -> None:
        """Returns when nothing is left to try or the budget is spent."""
        self._left = {id(task): len(task.untried) for task in self._tasks}
        waiting = [task for task in self._tasks if self._left[id(task)]]
        for task in self._tasks:
            if task not in waiting:
                self._observer.finished(task)
        owners: deque[Task] = deque()
        current, deadline = None, self._begun
        for job, built in self._build(self._jobs(list(waiting), owners)):
            task = owners.popleft()
            if task is not current:
                if current:
                    self._finish(current, waiting)
                current, deadline = task, self._clock() + (self._end - self._clock()) / len(waiting)
            if self._clock() >= self._end:
                break
            task.over = task.over or self._clock() >= deadline
            if not task.over and job.strategy not in task.given_up:
                self._try(task, job, built)
        for task in list(waiting):
            self._finish(task, waiting)

    def _finish(self, task: Task, waiting: list[Task]) -> None:
        self._settle(task)
        waiting.remove(task)
        self._left[id(task)] = 0
        self._observer.finished(task)

    def _settle(self, task: Task) -> None:
        """Time the finalists again, in turn, and see that the best of them is right."""
        finalists = task.finalists
        if len(finalists) < 2:
            return
        artifacts = [task.built[m.candidate] for m in finalists]
        try:
            times = self._measurer.call("compare", task.problem, artifacts)
        except CandidateFailed:
            return  # what each took alone stands
        ranked = sorted(zip(times, finalists, artifacts, strict=True), key=lambda row: row[0])
        verified = False
        for us, finalist, built in ranked:
            status, detail = finalist.status, finalist.detail
            if not verified and status is Status.TIMED:
                status, detail = self._check(task, built)
            verified = verified or status is Status.RIGHT
            kept = None if status is Status.FAILED else us
            again = replace(finalist, us=kept, status=status, detail=detail, date=database.now())
            self._db.record(again)
            task.known[again.candidate] = again
        task.built.clear()

    def _jobs(self, tasks: Sequence[Task], owners: deque[Task]) -> Iterator[Job]:
        """What to build, as far as it is asked for; `owners` gets the task of each."""
        for task in tasks:
            for strategy, options in task.untried:
                if task.over:
                    break
                if strategy not in task.given_up:
                    owners.append(task)
                    yield Job(task.problem, task.target, strategy, options)

    def _try(self, task: Task, job: Job, built: Artifact | Failure) -> None:
        status, us, detail = self._measure(task, built)
        found = Measurement(
            database.key(task.problem), self._gpu, job.strategy, job.options, status, us, detail, database.now()
        )
        self._db.record(found)
        task.learn(found, built)
        self._left[id(task)] = len(task.untried)
        now = self._clock()
        pace = (now - self._begun) / sum(task.tried for task in self._tasks)
        self._observer.measured(task, found, min(pace * sum(self._left.values()), self._end - now))

    def _measure(self, task: Task, built: Artifact | Failure) -> tuple[Status, float | None, str]:
        """Status, microseconds, and the configuration or what went wrong."""
        if isinstance(built, Failure):
            return Status.FAILED, None, built.message
        best = task.best.us if task.best and task.best.us else math.inf
        try:
            us = self._measurer.call("time", task.problem, built, _HOPELESS * best)
        except CandidateFailed as e:
            return Status.FAILED, None, str(e)
        if us >= best:
            return Status.TIMED, us, built.manifest.config
        status, detail = self._check(task, built)
        return status, None if status is Status.FAILED else us, detail

    def _check(self, task: Task, built: Artifact) -> tuple[Status, str]:
        """Whether a candidate's result is right; the configuration or what went wrong."""
        try:
            right, message = self._measurer.call("check", task.problem, built)
        except CandidateFailed as e:
            return Status.FAILED, str(e)
        return (Status.RIGHT, built.manifest.config) if right else (Status.WRONG, message)
