"""What a worker serves in tests: every way in which a candidate can go wrong.  A module of its own, since the
worker's process imports it."""

from __future__ import annotations

import os
import signal
import time

from convgen.diagnostics import ConvgenError


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
