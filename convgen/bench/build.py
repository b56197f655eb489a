"""Many kernels at once: planned, rendered and compiled in a pool of processes, ahead of the measurements.

Compiled kernels come back as artifacts and stay in the artifact cache, so that the same work is never
done twice.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.artifacts import Artifact
from convgen.targets import Target

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 32
#: Jobs in flight for each worker: enough that none waits, few enough that little is lost by stopping.
_AHEAD = 2


@dataclass(frozen=True)
class Job:
    """A kernel to build: as the planner chooses, for the GPU named, or with these very options."""

    problem: ConvProblem
    target: Target
    strategy: str
    options: Options
    planned: bool = False
    gpu: str | None = None


@dataclass(frozen=True)
class Failure:
    """Why a job gave no kernel."""

    message: str


def build(job: Job) -> Artifact | Failure:
    """Plan, render and compile one kernel."""
    from convgen import planner
    from convgen.kernels import strategies
    from convgen.runtime import artifacts

    try:
        if job.planned:
            choice = planner.choose(job.problem, job.target, job.strategy, job.options, job.gpu)
        else:
            choice = planner.Choice(strategies.STRATEGIES[job.strategy], job.options, "")
        plan = choice.strategy.plan(job.problem, job.target, choice.options)
        plan = replace(plan, reason=choice.reason)
        return artifacts.build(choice.strategy.render(plan), plan)
    except planner.CannotServe as e:
        return Failure(str(e))
    except Exception as e:  # also a defect: one strategy's must not end a run of many
        return Failure(f"{type(e).__name__}: {e}")


@dataclass(frozen=True)
class _Asked(Generic[Result]):
    """A request to a pool."""

    pool: Executor
    future: Future[Result]


class Builder:
    """A pool of processes that build kernels.  As a context manager it stops them at the end.

    Threads of this process (`threads`) suit a few kernels, since NVRTC compiles without Python's lock.  They start at
    once, and a script whose top level is unguarded, which processes would run again, may use them.
    """

    def __init__(self, workers: int | None = None, threads: bool = False) -> None:
        cores = len(os.sched_getaffinity(0))
        self.workers = workers or max(1, min(MOST_WORKERS, cores if threads else cores - 2))  # two to measure
        self._renewing = threading.Lock()
        self._pool: Executor = ThreadPoolExecutor(self.workers) if threads else _processes(self.workers)

    def build_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Artifact | Failure]]:
        """Each job with its kernel, in order.  `jobs` is read far enough ahead to keep the pool busy.  A job whose
        process is killed is tried once more, alone."""
        waiting: deque[tuple[Job, _Asked[Artifact | Failure]]] = deque()
        source = iter(jobs)
        try:
            while True:
                while len(waiting) < _AHEAD * self.workers and (job := next(source, None)) is not None:
                    waiting.append((job, self._ask(build, job)))
                if not waiting:
                    return
                job, asked = waiting.popleft()
                try:
                    built = asked.future.result()
                except BrokenProcessPool:
                    self._renew(asked.pool)
                    waiting = deque((each, self._ask(build, each)) for each, _ in waiting)
                    built = _alone(job)
                yield job, built
        finally:
            for _, asked in waiting:
                asked.future.cancel()

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results of a module's function for each item, in order."""
        for item, asked in [(item, self._ask(function, item)) for item in items]:
            try:
                found = asked.future.result()
            except BrokenProcessPool:
                self._renew(asked.pool)
                found = function(item)
            yield found

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Have the first of these built, one a worker: they will be found in the cache, and their problem's
        configurations in the worker's memory."""
        for job in jobs[: self.workers]:
            self._ask(build, job)

    def _ask(self, function: Callable[[Item], Result], item: Item) -> _Asked[Result]:
        pool = self._pool
        try:
            return _Asked(pool, pool.submit(function, item))
        except BrokenProcessPool:
            pool = self._renew(pool)
            return _Asked(pool, pool.submit(function, item))

    def _renew(self, broken: Executor) -> Executor:
        """The pool that replaces one of whose processes was killed: the same for all threads that used that one."""
        with self._renewing:
            if self._pool is broken:
                broken.shutdown(wait=False)
                self._pool = _processes(self.workers)
            return self._pool

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _alone(job: Job) -> Artifact | Failure:
    """Builds a kernel by a process that has nothing else to do."""
    with _processes(1) as alone:
        try:
            return alone.submit(build, job).result()
        except BrokenProcessPool:
            return Failure("the process that compiled it was killed, twice")


def _processes(workers: int) -> ProcessPoolExecutor:
    # not fork: a forked child would inherit the parent's CUDA context and threads
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=follow_parent)


def follow_parent() -> None:
    """Called in a child: an interrupt is the parent's business, and the child ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
