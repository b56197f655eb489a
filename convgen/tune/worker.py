"""Measuring in a separate process, which a candidate may crash or hang without harm to the search.

A kernel that faults leaves its process without a working GPU context, and one that waits for a barrier
for ever never returns.  `Worker` then ends the process, says so, and starts another for the next call.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.runtime import cuda
from convgen.runtime.artifacts import Artifact
from convgen.runtime.launch import gpu_at_hand

if TYPE_CHECKING:
    from convgen.bench.backend import Backend

START_SECONDS = 180.0
CALL_SECONDS = 60.0


class CandidateFailed(Exception):
    """A candidate raised, crashed or hung; str() says how."""


class Gpu:
    """The object that runs in the worker: it keeps buffers and the reference as long as the problem stays."""

    def __init__(self, backend: Backend | None = None, ends: bool = False) -> None:
        """`backend` is the one at hand by default; `ends` has large results checked at their ends alone."""
        from convgen.bench.backend import at_hand

        self._backend, self._ends = backend or at_hand(), ends
        self._problem: ConvProblem | None = None
        self._sets: list[Any] = []
        self._checker: Any = None
        self._kernel: tuple[str, Any] = ("", None)

    def gpu(self) -> cuda.Gpu:
        """The kind of GPU."""
        found = gpu_at_hand()
        assert found is not None, "its backend has found one"
        return found

    def prepare(self, problem: ConvProblem) -> None:
        """Make the buffers that a problem's kernels are timed with, which may take longer than timing them."""
        from convgen.bench.measure import buffer_sets

        if problem != self._problem:
            self.release()
            self._problem = problem
        self._sets = self._sets or buffer_sets(problem, self._backend)

    def release(self) -> None:
        """Give the memory back."""
        self._problem, self._sets, self._checker, self._kernel = None, [], None, ("", None)
        self._backend.release()

    def time(self, problem: ConvProblem, artifact: Artifact, hopeless_us: float) -> float:
        """Microseconds a launch."""
        from convgen.bench.measure import time_kernel

        self.prepare(problem)
        return time_kernel(self._load(artifact), self._sets, self._backend, hopeless_us).us

    def compare(self, problem: ConvProblem, artifacts: list[Artifact], seconds: float = math.inf) -> list[float]:
        """Microseconds a launch of each, timed in turn.  Raises TooLong where `seconds` are too few for that."""
        from convgen.bench.measure import capture, launcher, time_in_turn
        from convgen.runtime.kernel import Kernel

        self.prepare(problem)
        runs = [launcher(Kernel(artifact), self._sets) for artifact in artifacts]
        begun = time.monotonic()
        entrants = [[capture(run, len(self._sets), self._backend)] for run in runs]
        seconds -= time.monotonic() - begun
        return [timing.us for timing in time_in_turn(entrants, self._backend, seconds)]

    def check(self, problem: ConvProblem, artifact: Artifact) -> tuple[bool, str]:
        """Whether the result is right, and in what words."""
        from convgen.bench.measure import Checker

        self.prepare(problem)
        self._checker = self._checker or Checker(problem, self._backend, ends=self._ends)
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


class Worker:
    """Calls methods of an object that lives in a child process, made there by `factory`.

    `factory` must be importable, and so must what it needs; the child runs nothing of the caller's script.  The
    object's method `healthy` tells after an exception whether the process can go on.
    """

    def __init__(
        self, factory: Callable[[], Any] = Gpu, seconds: float = CALL_SECONDS, device: str | None = None
    ) -> None:
        """`device` is one of CUDA_VISIBLE_DEVICES, by default all that this process sees."""
        self._factory, self._seconds = factory, seconds
        self._environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None

    def call(self, method: str, *arguments: Any) -> Any:
        """The method's result.  Raises CandidateFailed; ConvgenError where no worker can be started."""
        self.start()
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

    def start(self) -> None:
        """Start the process, where it does not run.  Raises ConvgenError."""
        if self._process is not None:
            return
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
            stdin=subprocess.PIPE,  # says that this process lives: see `serve`
            pass_fds=[theirs.fileno()],
            env=os.environ | self._environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        message = f"the measuring process did not start in {START_SECONDS:.0f} s"
        try:
            self._pipe.send(self._factory)
            if self._pipe.poll(START_SECONDS):
                message = self._pipe.recv()
        except (EOFError, OSError):
            message = f"the measuring process died as it started (exit code {self.stop()})"
        except BaseException:
            self.stop()
            raise
        if message:
            self.stop()
            raise ConvgenError(message)

    def stop(self) -> int | None:
        """End the process; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        code = process.wait()
        process.stdin.close()
        return code

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def devices() -> list[str]:
    """The value of CUDA_VISIBLE_DEVICES that selects each GPU that this process sees.  Raises NoGpu."""
    count = cuda.driver().device_count
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in seen.split(",")] if seen else [str(i) for i in range(count)]
    return names[:count]


def serve(file: int) -> None:
    """The child, which answers by an open file: "" when what the factory makes is ready, then (right, healthy, value)
    until there is nobody who asks.  An interrupt is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe = Connection(file)
    try:
        served = pipe.recv()()
    except ConvgenError as e:
        pipe.send(str(e))
        return
    pipe.send("")
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = True, True, getattr(served, method)(*arguments)
        except Exception as e:
            answer = False, served.healthy(), f"{type(e).__name__}: {e}"
        try:
            pipe.send(answer)
        except OSError:  # who asked has gone
            return


def _end_with_parent() -> None:
    """Standard input is a pipe that ends when the parent does, also while a kernel keeps the main thread."""
    with suppress(OSError):
        os.read(0, 1)
    os._exit(1)
