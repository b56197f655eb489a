"""The search: every candidate of a problem is measured, and whichever beats the best so far is verified.  At the end
its best few are timed again, in turn: times of different moments differ by more than good candidates do.

Whatever becomes known goes to the database at once, so that a search may end at any moment (a budget, an
interrupt, a crash) and the next one goes on where it stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from convgen.bench.build import Failure, Job
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
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
#: A candidate that has lost so many of those who measure is taken for faulty.
_LOSSES = 2

Build = Callable[[Iterable[Job]], Iterator[tuple[Job, Artifact | Failure]]]


class Measurer(Protocol):
    """Calls methods of a `tune.worker.Gpu` somewhere, as `tune.worker.Worker` does."""

    def call(self, method: str, *arguments: Any) -> Any:
        """The method's result.  Raises CandidateFailed, Lost; ConvgenError where nothing can be measured any more."""
        ...


class Lost(Exception):
    """The measurer is gone, and the request may be repeated; str() says why."""


@dataclass
class Task:
    """One problem's search on one kind of GPU: candidates to try, and results so far.

    `untuned` is the candidate that `auto` takes without a database (None: the first).
    """

    problem: ConvProblem
    target: Target
    gpu: str
    candidates: Sequence[Candidate]
    known: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    untuned: Candidate | None = None
    tried: int = 0
    built: dict[tuple[str, str], Artifact] = field(default_factory=dict)  # of those that may be finalists
    losses: Counter[object] = field(default_factory=Counter)  # by what was asked of those who were lost

    def learn(self, measurement: Measurement, built: Artifact | Failure) -> None:
        self.known[measurement.candidate] = measurement
        self.tried += 1
        if not isinstance(built, Failure) and measurement.us is not None:
            self.built[measurement.candidate] = built
            close = {m.candidate for m in self.finalists}
            self.built = {candidate: artifact for candidate, artifact in self.built.items() if candidate in close}

    @property
    def finalists(self) -> list[Measurement]:
        """The built candidates that are close to the best, best first."""
        timed = [self.known[candidate] for candidate in self.built]
        found = sorted((m for m in timed if m.status in (Status.TIMED, Status.RIGHT)), key=lambda m: m.us or math.inf)
        return [m for m in found if (m.us or 0.0) <= _CLOSE * (found[0].us or 0.0)][:_FINALISTS]

    @property
    def untried(self) -> list[Candidate]:
        """Candidates that nothing is known of, those of strategies that are given up left out."""
        given_up = self.given_up
        return [c for c in self.candidates if c[0] not in given_up and _identity(c) not in self.known]

    @property
    def jobs(self) -> list[Job]:
        """The untried candidates, to be built."""
        return [Job(self.problem, self.target, *candidate) for candidate in self.untried]

    @property
    def given_up(self) -> set[str]:
        """Strategies that need no further measurements."""
        times: dict[str, list[float]] = {}
        for m in self.known.values():
            times.setdefault(m.strategy, []).append(m.us or math.inf)
        best = (self.best and self.best.us) or math.inf
        return {name for name, us in times.items() if len(us) >= _ENOUGH and min(us) > _BEHIND * best}

    @property
    def default(self) -> Measurement | None:
        """The measurement of the untuned choice."""
        untuned = self.untuned or next(iter(self.candidates), None)
        return self.known.get(_identity(untuned)) if untuned else None

    @property
    def best(self) -> Measurement | None:
        right = [m for m in self.known.values() if m.status is Status.RIGHT]
        return min(right, key=lambda m: m.us or math.inf, default=None)

    def count(self, *statuses: Status) -> int:
        return sum(m.status in statuses for m in self.known.values())


def _replaces(faster: Measurement, strategy: str) -> bool:
    """Whether a faster choice leaves no use for one of a strategy: not where an epilogue takes the faster one another
    launch, and the other none."""
    return faster.strategy not in strategies.UNFUSED or strategy in strategies.UNFUSED


def _identity(candidate: Candidate) -> tuple[str, str]:
    return candidate[0], database.canonical(candidate[1])


def prepare(
    problem: ConvProblem,
    target: Target,
    candidates: Sequence[Candidate],
    db: Database,
    gpu: str,
    forget: Collection[Status] = (),
    untuned: Candidate | None = None,
    fixed: Options | None = None,
) -> Task:
    """The search for a problem, with what earlier searches found of the candidates' strategies with the options that
    are `fixed`, but for statuses to `forget`: others are no choice here, however fast."""
    names, stated = {name for name, _ in candidates}, (fixed or {}).items()
    known = {
        m.candidate: m
        for m in db.measurements(database.key(problem), gpu)
        if m.strategy in names and m.status not in forget and stated <= m.options.items()
    }
    return Task(problem, target, gpu, candidates, known, untuned)


class Search:
    """Runs a task: `measured` hears of each candidate, `going` says whether there is time for another, and `idle` is
    called when the compiler has been asked for all of them."""

    def __init__(
        self,
        task: Task,
        db: Database,
        measurer: Measurer,
        build: Build,
        measured: Callable[[Measurement], None],
        going: Callable[[], bool] = lambda: True,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._task, self._db = task, db
        self._measurer, self._build = measurer, build
        self._measured, self._going, self._idle = measured, going, idle

    def run(self) -> None:
        """Returns when nothing is left to try or the time is over.  Raises as a measurer's `call` does, but for
        CandidateFailed."""
        for job, built in self._build(self._jobs()):
            if not self._going():
                break
            if job.strategy not in self._task.given_up:
                self._try(job, built)
        self._settle()

    def _jobs(self) -> Iterator[Job]:
        """The kernels to build, as far as requested."""
        for job in self._task.jobs:
            if job.strategy not in self._task.given_up:
                yield job
        self._idle()

    def _settle(self) -> None:
        """Time the finalists again, in turn, and see that the best of them is right."""
        task, finalists = self._task, self._task.finalists
        if len(finalists) < 2:
            return
        artifacts = [task.built[m.candidate] for m in finalists]
        try:
            times = self._call("compare", artifacts)
        except CandidateFailed:
            return  # what each took alone stands
        ranked = sorted(zip(times, finalists, artifacts, strict=True), key=lambda row: row[0])
        right: list[Measurement] = []
        for us, finalist, built in ranked:
            status, detail = finalist.status, finalist.detail
            if status is Status.TIMED and not any(_replaces(m, finalist.strategy) for m in right):
                status, detail = self._check(built)
            if status is Status.RIGHT:
                right.append(finalist)
            kept = None if status is Status.FAILED else us
            again = replace(finalist, us=kept, status=status, detail=detail, date=database.now())
            self._db.record(again)
            task.known[again.candidate] = again
        task.built.clear()

    def _try(self, job: Job, built: Artifact | Failure) -> None:
        status, us, detail = self._measure(job.strategy, built)
        found = Measurement(
            database.key(job.problem), self._task.gpu, job.strategy, job.options, status, us, detail, database.now()
        )
        self._db.record(found)
        self._task.learn(found, built)
        self._measured(found)

    def _measure(self, strategy: str, built: Artifact | Failure) -> tuple[Status, float | None, str]:
        """Status, microseconds, and the configuration or what went wrong."""
        if isinstance(built, Failure):
            return Status.FAILED, None, built.message
        known = self._task.best
        best = known.us if known and known.us else math.inf
        try:
            us = self._call("time", built, _HOPELESS * best)
        except CandidateFailed as e:
            return Status.FAILED, None, str(e)
        right = [m for m in self._task.known.values() if m.status is Status.RIGHT and _replaces(m, strategy)]
        if us >= min((m.us or math.inf for m in right), default=math.inf):
            return Status.TIMED, us, built.manifest.config
        status, detail = self._check(built)
        return status, None if status is Status.FAILED else us, detail

    def _check(self, built: Artifact) -> tuple[Status, str]:
        """Whether a candidate's result is right; the configuration or what went wrong."""
        try:
            right, message = self._call("check", built)
        except CandidateFailed as e:
            return Status.FAILED, str(e)
        return (Status.RIGHT, built.manifest.config) if right else (Status.WRONG, message)

    def _call(self, method: str, what: Artifact | list[Artifact], *arguments: object) -> Any:
        """Who is lost over the same question again and again is taken to be lost by it."""
        try:
            return self._measurer.call(method, self._task.problem, what, *arguments)
        except Lost as e:
            asked = method if isinstance(what, list) else what.key
            self._task.losses[asked] += 1
            if self._task.losses[asked] < _LOSSES:
                raise
            raise CandidateFailed(f"whoever measured it was lost, {_LOSSES} times: {e}") from None
