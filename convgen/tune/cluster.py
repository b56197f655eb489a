"""A Ray cluster, to tune on: an actor measures on each GPU, the workers of its CPUs compile.

The search and the database stay in the process that asks, so that what was measured is on its disk whatever becomes of
the cluster.  Ray's errors have two meanings here: an actor that dies is `Lost`, and another takes its place; where none
can be started, its GPU is gone.
"""

from __future__ import annotations

import logging
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from convgen import __version__
from convgen.bench.build import Failure, Job, build
from convgen.diagnostics import ConvgenError
from convgen.runtime import cuda
from convgen.runtime.artifacts import Artifact
from convgen.tune.search import Lost
from convgen.tune.spread import Machines, Member
from convgen.tune.worker import CandidateFailed, Gpu, Worker

#: Seconds for a cluster's head to answer.
ANSWER_SECONDS = 5.0
#: Seconds for an actor to be placed and to start.
START_SECONDS = 120.0
#: Once one has started, the others have so many more; a GPU that is not free then is left out.
OTHERS_SECONDS = 60.0


class NoCluster(ConvgenError):
    """No Ray, no cluster, or none of its GPUs can be used."""


@contextmanager
def cluster(
    address: str, jobs: int | None, warn: Callable[[str], None], factory: Callable[[], Any] = Gpu
) -> Iterator[Machines]:
    """The free GPUs of the Ray cluster at an address ("auto" finds the one that this machine belongs to), and as many
    compiling workers as it has CPUs, or `jobs`.  `factory` makes what measures.  Raises NoCluster."""
    ray = _ray()
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, address)
    actors: list[Actor] = []
    try:
        resources = ray.cluster_resources()
        actors += [Actor(ray, factory) for _ in range(int(resources.get("GPU", 0)))]
        members = _started(ray, actors, warn)
        cpus = int(resources.get("CPU", 0))
        if not cpus:
            hint = "start a machine of it with CPUs: kernels are compiled there"
            raise NoCluster(f"the Ray cluster has no CPU\nhint: {hint}")
        compiler = Compiler(ray, max(1, jobs or cpus), len(members))
        yield Machines(members, compiler.build_all, each=compiler.each)
    finally:
        for actor in actors:
            actor.stop()
        if not connected:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise NoCluster("Ray is not installed\nhint: python -m pip install 'convgen[ray]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    answered = False
    try:
        answered = _call(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as e:
        where = "found" if address == "auto" else f"reached at {address}"
        hint = "start one with `ray start --head`, and `ray start --address=HOST:6379` on each further machine"
        if answered:
            hint = "is it the head's port, 6379? A cluster with tokens needs RAY_AUTH_MODE=token"
        raise NoCluster(f"no Ray cluster can be {where}: {_reason(e)}\nhint: {hint}") from None


def _call(address: str) -> bool:
    """Whether an address is HOST:PORT, and somebody answers there.  Raises OSError where nobody does: Ray itself would
    try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return False
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    return True


def _started(ray: Any, actors: list[Actor], warn: Callable[[str], None]) -> list[Member]:
    """The actors that have a GPU; the others are given up."""
    if not actors:
        raise NoCluster("the Ray cluster has no GPU")
    there = [actor.begin() for actor in actors]
    ray.wait(there, num_returns=1, timeout=START_SECONDS)
    ready, _ = ray.wait(there, num_returns=len(there), timeout=OTHERS_SECONDS)
    members, reasons = [], []
    for actor, answer in zip(actors, there, strict=True):
        try:
            if answer not in ready:
                raise NoCluster("others use it")
            members.append(Member(actor.gpu(), actor))
        except NoCluster as e:
            actor.stop()
            reasons.append(str(e))
    if not members:
        raise NoCluster(f"no GPU of the Ray cluster can be used: {reasons[-1]}")
    if reasons:
        warn(f"{len(reasons)} of {len(actors)} GPUs are left out: {reasons[-1]}")
    return members


class Serving:
    """The object that runs in an actor: a candidate that crashes or hangs ends the actor's own worker, and the actor
    lives on."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._worker = Worker(factory)

    def version(self) -> str:
        return __version__

    def call(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether it went well, and the result or why it did not."""
        try:
            return True, self._worker.call(method, *arguments)
        except CandidateFailed as e:
            return False, str(e)


class Actor:
    """A measurer on some GPU of the cluster; `call` starts another actor where the last one was lost."""

    def __init__(self, ray: Any, factory: Callable[[], Any]) -> None:
        self._ray, self._factory = ray, factory
        self._actor: Any = None
        self._version: Any = None  # to come, as is the GPU
        self._found: Any = None
        self._kind: cuda.Gpu | None = None

    def begin(self) -> Any:
        """Ask for an actor and its GPU, without waiting for them; the first answer."""
        serving = self._ray.remote(num_gpus=1, num_cpus=0)(Serving)
        self._actor = serving.remote(self._factory)
        self._version, self._found = self._actor.version.remote(), self._actor.call.remote("gpu", ())
        return self._version

    def gpu(self) -> cuda.Gpu:
        """The kind of GPU that the actor has.  Raises NoCluster."""
        try:
            version = self._get(self._version, START_SECONDS)
            if version != __version__:
                raise NoCluster(f"a machine of the cluster has convgen {version}, and this one {__version__}")
            right, found = self._get(self._found, START_SECONDS)
        except Lost as e:
            raise NoCluster(f"no process could be started: {e}") from None
        if not right:
            raise NoCluster(found)
        self._kind = self._kind or found
        if found != self._kind:
            raise NoCluster(f"its place was taken by a {found.name}")
        return found

    def call(self, method: str, *arguments: Any) -> Any:
        """Like `search.Measurer.call`."""
        if self._actor is None:
            try:
                self.begin()
                self.gpu()
            except BaseException:
                self.stop()
                raise
        try:
            right, value = self._get(self._actor.call.remote(method, arguments))
        except Lost:
            self.stop()
            raise
        if not right:
            raise CandidateFailed(value)
        return value

    def _get(self, asked: Any, seconds: float | None = None) -> Any:
        return _get(self._ray, asked, seconds)

    def stop(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None and self._ray.is_initialized():
            self._ray.kill(actor)


class Compiler:
    """Builds kernels by tasks on the cluster's CPUs, `workers` at a time for all of its `users`."""

    def __init__(self, ray: Any, workers: int, users: int) -> None:
        self._ray = ray
        self._build = self._remote(build)
        self._ahead = max(2, -(-2 * workers // users))

    def build_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Artifact | Failure]]:
        """Like `bench.build.Builder.build_all`.  Raises Lost if the cluster fails, NoCluster."""
        waiting: deque[tuple[Job, Any]] = deque()
        source = iter(jobs)
        try:
            while True:
                while len(waiting) < self._ahead and (job := next(source, None)) is not None:
                    waiting.append((job, self._build.remote(job)))
                if not waiting:
                    return
                job, built = waiting.popleft()
                yield job, _get(self._ray, built)
        finally:
            for _, built in waiting:
                self._ray.cancel(built)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Like `bench.build.Builder.each`.  Raises NoCluster."""
        try:
            for found in list(map(self._remote(function).remote, items)):
                yield _get(self._ray, found)
        except Lost as e:
            raise NoCluster(str(e)) from None

    def _remote(self, function: Callable[..., Any]) -> Any:
        # spread: every machine's CPUs have their part; a task whose worker dies is tried again elsewhere
        return self._ray.remote(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")(function)


def _get(ray: Any, asked: Any, seconds: float | None = None) -> Any:
    """The cluster's answer.  Raises Lost if whoever was asked is gone, NoCluster if the cluster cannot answer."""
    try:
        return ray.get(asked, timeout=seconds)
    except ray.exceptions.RayTaskError as e:  # it does not raise what it foresees: convgen, CuPy or a GPU is missing
        raise NoCluster(_reason(e.cause)) from None
    except (ray.exceptions.RayError, ConnectionError, TimeoutError) as e:
        raise Lost(_reason(e)) from None


def _reason(error: BaseException) -> str:
    """The reason in one of Ray's long messages: the error that a traceback ends in, else the first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if re.match(r"[\w.]+(Error|Exception): ", lines[-1]) else lines[0]
