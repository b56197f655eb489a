"""This machine, to tune on: a process measures on each of its GPUs, others compile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from convgen.bench.build import Builder
from convgen.tune.spread import Machines, Member
from convgen.tune.worker import Worker, devices


@contextmanager
def local(jobs: int | None) -> Iterator[Machines]:
    """All GPUs of this machine, and so many compiling processes.  Raises NoGpu, ConvgenError."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(device=device)) for device in devices()]
        with ThreadPoolExecutor(len(workers)) as pool:
            gpus = list(pool.map(lambda worker: worker.call("gpu"), workers))
        builder = stack.enter_context(Builder(jobs))
        members = [Member(*pair) for pair in zip(gpus, workers, strict=True)]
        yield Machines(members, builder.build_all, builder.prepare, builder.each)
