"""What a worker serves in tests: every way in which a candidate can go wrong.  A module of its own, since the
worker's process imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.runtime.artifacts import Artifact
from convgen.runtime.cuda import Gpu


class Served:
    def __init__(self) -> None:
        self.broken = False

    def healthy(self) -> bool:
        return not self.broken

    def pid(self) -> int:
        return os.getpid()

    def fail(self, broken: bool) -> None:
        self.broken = broken
        raise ValueError("a bad candidate")

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self) -> None:
        time.sleep(600)


class Refusing:
    def __init__(self) -> None:
        raise ConvgenError("there is no GPU here")


class Pretended:
    """A GPU whose kernels take a time by their configuration.  In each folder, the layer `fatal` once kills whoever
    serves this, and the layer `faulty` kills this over one of its candidates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def gpu(self) -> Gpu:
        return Gpu("NVIDIA H200", (9, 0))

    def healthy(self) -> bool:
        return True

    def time(self, problem: ConvProblem, artifact: Artifact, hopeless_us: float) -> float:
        asked = f"{problem.name} {artifact.manifest.config}"
        with open(self._folder / "log", "a") as log:
            log.write(f"{os.getppid()} {asked}\n")
        if problem.name == "fatal" and self._is_first("fatal", asked):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)  # the end comes with its parent's
        if problem.name == "faulty" and (self._is_first("faulty", asked) or asked in self._text("faulty")):
            os.kill(os.getpid(), signal.SIGSEGV)
        return float(len(artifact.source))

    def compare(self, problem: ConvProblem, artifacts: list[Artifact], *_: object) -> list[float]:
        return [float(len(artifact.source)) for artifact in artifacts]

    def check(self, problem: ConvProblem, artifact: Artifact) -> tuple[bool, str]:
        return True, "right"

    def _is_first(self, mark: str, text: str) -> bool:
        try:
            with open(self._folder / mark, "x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def _text(self, mark: str) -> str:
        return (self._folder / mark).read_text()
