"""Quick tuning, `tune="quick"`: the best few candidates are measured when a kernel is first built, as cuDNN does in its
benchmark mode.

What is measured goes to the user's database, where the next build finds it, in this process or another.  Candidates
are compiled by threads of this process and measured by one of their own (`worker`), which a fault of theirs ends alone.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from convgen import planner
from convgen.bench.build import Builder, Job
from convgen.diagnostics import ConvgenError, warn
from convgen.kernels import strategies
from convgen.planner import database
from convgen.planner.database import Database, Measurement
from convgen.planner.database_file import one_process
from convgen.runtime import cuda
from convgen.runtime.arrays import capturing
from convgen.tune.candidates import Candidate, chosen, promising
from convgen.tune.search import Measurer, Search, Task, prepare
from convgen.tune.worker import CandidateFailed, Gpu, Worker
from convgen.turns import turn

#: Seconds of measuring for a kernel.
BUDGET = 1.0
#: So many candidates are measured, none of which the cost models take for more than so many times as slow as the best.
MOST, WITHIN = 6, 2.0
#: A measuring process that has had nothing to do for so many seconds ends: it holds memory of the GPU.
IDLE_SECONDS = 30.0

Say = Callable[[str], None]


class NotMeasured(UserWarning):
    """Quick tuning was asked for where nothing can be measured: `auto` chooses as it does without."""


class Stopwatch:
    """A measurer whose `clock` counts the seconds of timing alone: neither verifying nor what is done before."""

    def __init__(self, measurer: Measurer, budget: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._measurer, self._budget, self._time = measurer, budget, clock
        self._spent = self._longest = 0.0

    def clock(self) -> float:
        """Seconds spent, with what the next candidate may take, so that none is begun that would take too long."""
        return self._spent + self._longest

    def call(self, method: str, *arguments: Any) -> Any:
        """Like `Worker.call`; comparisons get the seconds that are left."""
        if method == "check":
            return self._measurer.call(method, *arguments)
        self._measurer.call("prepare", arguments[0])  # again, where a candidate has ended the process
        left = (self._budget - self._spent,) if method == "compare" else ()
        begun = self._time()
        try:
            return self._measurer.call(method, *arguments, *left)
        finally:
            seconds = self._time() - begun
            self._spent += seconds
            self._longest = max(self._longest, seconds)


def tune(job: Job, say: Say | None = None) -> bool:
    """Measure the best few candidates for a job that the planner chooses for, unless the database knows better already.

    Afterwards `planner.choose` takes what was found.  Options that the job fixes are its own choice, of which nothing
    is measured.  `say` hears how far it is, by default a terminal after a second.  False, with a warning, where nothing
    can be measured.  Other threads and processes that ask meanwhile wait, and find what was measured.
    """
    if job.options or _known(job):
        return True
    try:
        _check_possible(job)
        # two that measure at the same time disturb each other
        with turn("measuring"), Database(database.user_path()) as db, one_process(db.path, ".measuring"):
            if not _known(job):
                with _shown(say) as say:
                    _measure(job, db, say)
    except ConvgenError as e:
        warn(f'{job.problem.name}: tune="quick" measures nothing: {e}', NotMeasured)
        return False
    return True


def _known(job: Job) -> bool:
    """Whether this very problem was measured on this GPU."""
    strategy = None if job.strategy == "auto" else job.strategy
    found = database.lookup(job.problem, job.target, job.gpu, strategy)
    return found is not None and found.gpu == job.gpu and not found.left_out


def _check_possible(job: Job) -> None:
    """Raises ConvgenError."""
    if job.gpu is None:
        cuda.driver()  # raises NoGpu, with the reason
        raise ConvgenError(f"this machine's GPU does not run code for {job.target}")
    if capturing():
        raise ConvgenError("a CUDA graph is being captured\nhint: build the kernel before, by a call or F.kernel")


def _measure(job: Job, db: Database, say: Say) -> None:
    """Raises ConvgenError where no measuring process can be started, or the GPU has no room."""
    assert job.gpu is not None
    task = prepare(job.problem, job.target, _candidates(job), db, job.gpu)
    if not task.untried:
        return
    say(f"{job.problem.name}: {len(task.candidates)} candidates to measure")
    with _PROCESS.used() as worker:
        try:
            worker.call("prepare", job.problem)
            stopwatch = Stopwatch(worker, BUDGET)
            with Builder(threads=True) as builder:
                told = partial(_tell, task, say)
                Search(task, db, stopwatch, builder.build_all, told, lambda: stopwatch.clock() < BUDGET).run()
            worker.call("release")
        except CandidateFailed as e:
            raise ConvgenError(str(e)) from None


def _candidates(job: Job) -> list[Candidate]:
    """The current choice, the untuned choice, and those that the cost models find promising."""
    asked = job.problem, job.target, job.strategy, job.options
    now = chosen(job.problem, job.target, partial(planner.choose, *asked, job.gpu))
    untuned = chosen(job.problem, job.target, partial(planner.untuned, *asked))
    names = strategies.AUTO if job.strategy == "auto" else (job.strategy,)
    found = [now, untuned, *promising(job.problem, job.target, names, MOST, WITHIN)]
    once = {(c[0], database.canonical(c[1])): c for c in found if c}
    return list(once.values())[:MOST]


def _tell(task: Task, say: Say, _: Measurement) -> None:
    say(f"{task.problem.name}: {task.tried} of {len(task.candidates)} candidates measured")


# ---- the measuring process -------------------------------------------------------------------------


def gpu() -> Gpu:
    """The kinds of GPU that the measuring process serves, by CuPy alone, which loads quickly."""
    from convgen.bench.backend import CupyBackend

    cuda.driver()
    return Gpu(CupyBackend(), ends=True)


class _Process:
    """The measuring process, which one thread uses at a time; it is kept for a while for the next kernel."""

    def __init__(self) -> None:
        self._worker, self._uses = Worker(gpu), 0

    @contextmanager
    def used(self) -> Iterator[Worker]:
        """Raises ConvgenError where it cannot be started."""
        self._uses += 1
        try:
            self._worker.start()
            yield self._worker
        except BaseException:
            self._worker.stop()
            raise
        timer = threading.Timer(IDLE_SECONDS, self._end, [self._uses])
        timer.daemon = True
        timer.start()

    def _end(self, uses: int) -> None:
        with turn("measuring"):
            if uses == self._uses:
                self._worker.stop()


_PROCESS = _Process()

# ---- progress ----------------------------------------------------------------------------------------

#: What takes less time than this is not spoken of.
PATIENCE_SECONDS = 1.0


@contextmanager
def _shown(say: Say | None) -> Iterator[Say]:
    """`say`, or a line on a terminal, which is there from the first second to the end."""
    if say or not (sys.stderr and sys.stderr.isatty()):
        yield say or (lambda _: None)
        return
    line = _Line(sys.stderr)
    later = threading.Timer(PATIENCE_SECONDS, line.show)
    later.daemon = True
    later.start()
    try:
        yield line.say
    finally:
        later.cancel()
        line.end()


class _Line:
    """A line of a terminal, which changes in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._text, self._shown, self._ended = "", False, False

    def say(self, text: str) -> None:
        with self._lock:
            self._text = text
            self._draw()

    def show(self) -> None:
        with self._lock:
            self._shown = not self._ended
            self._draw()

    def end(self) -> None:
        with self._lock:
            self._text, self._ended = "", True
            self._draw()

    def _draw(self) -> None:
        if self._shown:
            print(f"\r\x1b[K{self._text}", end="", file=self._stream, flush=True)
