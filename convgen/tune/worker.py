"""Measuring in a separate process, which a candidate may crash or hang without harm to the search.

A kernel that faults leaves its process without a working GPU context, and one that waits for a barrier
for ever never returns.  `Worker` then ends the process, says so, and starts another for the next call.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from convgen.bench.build import follow_parent
from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.runtime.artifacts import Artifact

START_SECONDS = 180.0
CALL_SECONDS = 60.0


class CandidateFailed(Exception):
    """A candidate raised, crashed or hung; str() says how."""


class Gpu:
    """What runs in the worker: buffers and the reference are kept for as long as the problem stays."""

    def __init__(self) -> None:
        from convgen.bench.backend import at_hand

        self._backend = at_hand()
        self._problem: ConvProblem | None = None
        self._sets: list[Any] = []
        self._checker: Any = None
        self._kernel: tuple[str, Any] = ("", None)

    def name(self) -> str:
        """The GPU's name."""
        return self._backend.environment()["gpu"]

    def time(self, problem: ConvProblem, artifact: Artifact, hopeless_us: float) -> float:
        """Microseconds a launch."""
        from convgen.bench.measure import buffer_sets, time_kernel

        self._turn_to(problem)
        self._sets = self._sets or buffer_sets(problem, self._backend)
        return time_kernel(self._load(artifact), self._sets, self._backend, hopeless_us).us

    def compare(self, problem: ConvProblem, artifacts: list[Artifact]) -> list[float]:
        """Microseconds a launch of each, timed in turn."""
        from convgen.bench.measure import buffer_sets, capture, launcher, time_in_turn
        from convgen.runtime.kernel import Kernel

        self._turn_to(problem)
        self._sets = sets = self._sets or buffer_sets(problem, self._backend)
        runs = [launcher(Kernel(artifact), sets) for artifact in artifacts]
        entrants = [[capture(run, len(sets), self._backend)] for run in runs]
        return [timing.us for timing in time_in_turn(entrants, self._backend)]

    def check(self, problem: ConvProblem, artifact: Artifact) -> tuple[bool, str]:
        """Whether the result is right, and in what words."""
        from convgen.bench.measure import Checker

        self._turn_to(problem)
        self._checker = self._checker or Checker(problem, self._backend)
        report = self._checker(self._load(artifact), artifact.manifest.arithmetic)
        return report.ok, report.message

    def healthy(self) -> bool:
        """Whether the GPU still answers this process."""
        try:
            with self._backend.stream():
                return True
        except Exception:
            return False

    def _load(self, artifact: Artifact) -> Any:
        from convgen.runtime.kernel import Kernel

        if self._kernel[0] != artifact.key:
            self._kernel = artifact.key, Kernel(artifact)
        return self._kernel[1]

    def _turn_to(self, problem: ConvProblem) -> None:
        if problem != self._problem:
            self._problem, self._sets, self._checker = problem, [], None
            self._backend.release()


class Worker:
    """Calls methods of an object that lives in a child process, made there by `factory`.

    `factory` must be importable.  The object's method `healthy` tells after an exception whether the
    process can go on.
    """

    def __init__(self, factory: Callable[[], Any] = Gpu, seconds: float = CALL_SECONDS) -> None:
        self._factory, self._seconds = factory, seconds
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None

    def call(self, method: str, *arguments: Any) -> Any:
        """The method's result.  Raises CandidateFailed; ConvgenError where no worker can be started."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(self._seconds):
                raise CandidateFailed(f"hung: no answer in {self._seconds:.0f} s")
            right, healthy, value = self._pipe.recv()
        except (EOFError, OSError):
            code = self.stop()
            raise CandidateFailed(f"its process died (exit code {code})") from None
        except BaseException:  # also an interrupt: the answer would come to another question
            self.stop()
            raise
        if not healthy:
            self.stop()
        if not right:
            raise CandidateFailed(value)
        return value

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(self._factory, theirs), daemon=True)
        self._process.start()
        theirs.close()
        message = f"the measuring process did not start in {START_SECONDS:.0f} s"
        try:
            if self._pipe.poll(START_SECONDS):
                message = self._pipe.recv()
        except EOFError:
            message = f"the measuring process died as it started (exit code {self.stop()})"
        if message:
            self.stop()
            raise ConvgenError(message)

    def stop(self) -> int | None:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._pipe.close()
        process.join(0.2)
        if process.is_alive():
            process.kill()
        process.join()
        return process.exitcode

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _serve(factory: Callable[[], Any], pipe: Any) -> None:
    """The child: says "" when it is ready, then answers (right, healthy, value) until the pipe closes."""
    follow_parent()
    try:
        served = factory()
    except ConvgenError as e:
        pipe.send(str(e))
        return
    pipe.send("")
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, True, getattr(served, method)(*arguments)))
        except Exception as e:
            pipe.send((False, served.healthy(), f"{type(e).__name__}: {e}"))
