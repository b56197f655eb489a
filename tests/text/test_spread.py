"""Many layers over many GPUs: who measures what, what happens to the layers of those that are lost, what is kept."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_driver
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make

from convgen.bench.build import Job
from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.planner import database
from convgen.planner.database import Database, Status
from convgen.runtime.cuda import Gpu
from convgen.targets import TARGETS
from convgen.tune import cluster
from convgen.tune.search import Lost, Task, prepare
from convgen.tune.spread import Machines, Member, Spread
from convgen.tune.worker import CandidateFailed, devices

H200, H100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA H100 PCIe", (9, 0))
CANDIDATES = 4


def problem(n: int) -> ConvProblem:
    return make("fprop", n, 16, 16, (4, 4), (1, 1))


def build(jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
    for job in jobs:
        i = job.options["i"]
        yield job, SimpleNamespace(i=i, key=f"{job.problem.n}/{i}", manifest=SimpleNamespace(config=f"config {i}"))


class Measuring:
    """Candidate i of any layer takes 10 - i microseconds.  `before` is called with the layer's batch and with i."""

    def __init__(self, before: Callable[[int, int], object] = lambda n, i: None) -> None:
        self.before, self.timed = before, list[tuple[int, int]]()

    def call(self, method: str, problem: ConvProblem, artifact: Any, *rest: Any) -> Any:
        if method == "compare":
            return [10.0 - each.i for each in artifact]
        if method == "check":
            return True, "right"
        self.before(problem.n, artifact.i)
        self.timed.append((problem.n, artifact.i))
        return 10.0 - artifact.i


class Watching:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.finished_: list[int] = []
        self.left: list[float] = []
        self.gone_: list[str] = []

    def measured(self, task: Task, measurement: object, seconds_left: float) -> None:
        self.left.append(seconds_left)

    def finished(self, task: Task) -> None:
        self.finished_.append(task.problem.n)

    def gone(self, member: Member, reason: str, left: int) -> None:
        self.gone_.append(f"{member.gpu.name}: {reason}; {left} left")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite"


def spread(place: Path, members: list[tuple[Gpu, Measuring]], layers: int) -> Watching:
    """Tunes so many layers for each kind of GPU."""
    watching = Watching()
    offered = [("direct", {"i": i}) for i in range(CANDIDATES)]
    with Database(place) as db:
        tasks = [
            prepare(problem(n), TARGETS["sm_90a"], offered, db, gpu.name)
            for gpu in dict.fromkeys(gpu for gpu, _ in members)
            for n in range(1, layers + 1)
        ]
    Spread(tasks, Machines([Member(*member) for member in members], build), place, watching).run()
    return watching


def everything(place: Path, layers: int, *gpus: Gpu) -> bool:
    """Whether all candidates of all layers are known for all kinds of GPU."""
    keys = {database.key(problem(n)) for n in range(1, layers + 1)}
    found = [(m.key, m.gpu, m.options["i"]) for m in database.read_all(place)]
    return sorted(found) == sorted((key, gpu.name, i) for key in keys for gpu in gpus for i in range(CANDIDATES))


def lose(*_: object) -> None:
    raise Lost("the machine is gone")


def test_every_gpu_takes_layers(place: Path):
    together = threading.Barrier(3)
    first = lambda n, i: together.wait(600) if i == 0 and n <= 3 else None  # noqa: E731
    members = [Measuring(first) for _ in range(3)]
    watching = spread(place, [(H200, m) for m in members], layers=7)
    assert everything(place, 7, H200) and sorted(watching.finished_) == list(range(1, 8))
    layers = [{n for n, _ in m.timed} for m in members]
    assert all(layers) and sum(map(len, layers)) == 7, "a layer is one GPU's"
    assert watching.left[-1] == 0.0


def test_rows_are_kept_by_the_kind_of_gpu(place: Path):
    members = [Measuring(), Measuring()]
    spread(place, list(zip((H200, H100), members, strict=True)), layers=2)
    assert everything(place, 2, H200, H100)
    assert all({n for n, _ in m.timed} == {1, 2} for m in members)


@settings(max_examples=20)
@given(lost=st.lists(st.tuples(st.integers(1, 3), st.integers(0, CANDIDATES - 1)), max_size=6, unique=True))
def test_the_layers_of_the_lost_are_given_out_again(tmp_path_factory, lost: list[tuple[int, int]]):
    place = tmp_path_factory.mktemp("db") / "tuning.sqlite"
    once = set(lost)
    lock = threading.Lock()

    def before(n: int, i: int) -> None:
        with lock:
            if (n, i) in once:
                once.remove((n, i))
                lose()

    members = [Measuring(before) for _ in range(2)]
    spread(place, [(H200, m) for m in members], layers=3)
    assert everything(place, 3, H200)
    timed = [each for m in members for each in m.timed]
    assert len(timed) == len(set(timed)), "what is known is not measured again"
    assert {m.status for m in database.read_all(place)} == {Status.RIGHT}


def test_a_candidate_that_loses_whoever_measures_it_is_left_out(place: Path):
    member = Measuring(lambda n, i: lose() if (n, i) == (1, 2) else None)
    spread(place, [(H200, member)], layers=2)
    assert everything(place, 2, H200)
    (failed,) = (m for m in database.read_all(place) if m.status is Status.FAILED)
    assert failed.options == {"i": 2} and "was lost, 2 times: the machine is gone" in failed.detail


def test_a_gpu_that_does_not_come_back_leaves_its_layers_to_the_others(place: Path):
    away = threading.Event()

    def leaves(n: int, i: int) -> None:
        if i == 1:
            away.set()
            raise ConvgenError("no process could be started")

    members = [Measuring(leaves), Measuring(lambda n, i: away.wait(600))]
    watching = spread(place, [(H200, m) for m in members], layers=4)
    assert everything(place, 4, H200)
    assert watching.gone_ == ["NVIDIA H200: no process could be started; 1 left"]


def test_where_all_are_gone_what_was_measured_stays(place: Path):
    def ends(n: int, i: int) -> None:
        if (n, i) == (2, 1):
            raise ConvgenError("the cluster is gone")

    with pytest.raises(ConvgenError, match="no NVIDIA H200 is left to measure on: the cluster is gone"):
        spread(place, [(H200, Measuring(ends)), (H100, Measuring())], layers=3)
    assert len(database.read_all(place)) == CANDIDATES + 1 + 3 * CANDIDATES
    again = Measuring()
    spread(place, [(H200, again)], layers=3)
    assert again.timed == [(n, i) for n in (2, 3) for i in range(CANDIDATES) if (n, i) != (2, 0)]
    assert everything(place, 3, H200, H100)


def test_an_interrupt_ends_all_and_condemns_no_candidate(place: Path):
    """What was asked when the user interrupts may fail for that."""
    interrupted = threading.Event()
    main = threading.main_thread().ident

    def before(n: int, i: int) -> None:
        if i == 2:
            if not interrupted.is_set():
                interrupted.set()
                signal.pthread_kill(main, signal.SIGINT)
            stopping.wait(600)
            raise CandidateFailed("its process died")

    stopping = threading.Event()
    fail = Spread._fail

    def failing(self: Spread, error: BaseException) -> None:
        fail(self, error)
        stopping.set()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Spread, "_fail", failing)
            with pytest.raises(KeyboardInterrupt):
                spread(place, [(H200, Measuring(before)), (H200, Measuring(before))], layers=4)
    finally:
        signal.signal(signal.SIGINT, handler)
    known = database.read_all(place)
    assert {m.status for m in known} == {Status.RIGHT} and {m.options["i"] for m in known} == {0, 1}
    spread(place, [(H200, Measuring())], layers=4)
    assert everything(place, 4, H200)


def test_a_defect_in_a_thread_is_not_lost(place: Path):
    with pytest.raises(ZeroDivisionError):
        spread(place, [(H200, Measuring(lambda n, i: 1 // (n - 1))) for _ in range(2)], layers=3)


def test_the_next_layer_is_prepared_while_the_last_candidates_are_measured(place: Path):
    events: list[str] = []
    member = Measuring(lambda n, i: events.append(f"time {n}/{i}"))
    offered = [("direct", {"i": i}) for i in range(CANDIDATES)]
    with Database(place) as db:
        tasks = [prepare(problem(n), TARGETS["sm_90a"], offered, db, H200.name) for n in (1, 2)]

    def ahead(jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
        yield from list(build(jobs))  # all are asked for before the first is there

    prepared = lambda jobs: events.append(f"prepare {[(j.problem.n, j.options['i']) for j in jobs]}")  # noqa: E731
    Spread(tasks, Machines([Member(H200, member)], ahead, prepared), place, Watching()).run()
    assert events == [
        f"prepare {[(2, i) for i in range(CANDIDATES)]}",
        *(f"time {n}/{i}" for n in (1, 2) for i in range(CANDIDATES)),
    ]


# ---- this machine's GPUs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(None, ["0", "1", "2"]), ("2, GPU-1f", ["2", "GPU-1f"]), ("1,-1,0", ["1"])],
)
def test_each_gpu_has_a_process_that_sees_it_alone(seen, expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_driver.install(tmp_path, monkeypatch).devices = len(expected)
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert devices() == expected


# ---- a cluster that is not there ---------------------------------------------------------------------------


def refusal(address: str = "auto") -> str:
    with pytest.raises(cluster.NoCluster) as error, cluster.cluster(address, None, print):
        pass
    return str(error.value)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal() == "Ray is not installed\nhint: python -m pip install 'convgen[ray]'"


@pytest.mark.parametrize(
    ("address", "where", "hint"),
    [
        ("auto", "found", "start one with `ray start"),
        ("head:8265", "reached at head:8265", "is it the head's port, 6379?"),  # where something answers
    ],
)
def test_without_a_cluster_the_way_to_one_is_named(address, where, hint, monkeypatch: pytest.MonkeyPatch):
    def init(**_: object) -> None:
        raise ConnectionError("no such cluster\nand much more")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setattr(socket, "create_connection", lambda *_: socket.socket())
    assert refusal(address).startswith(f"no Ray cluster can be {where}: no such cluster\nhint: {hint}")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_machine_that_does_not_answer_is_not_waited_for(scheme, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))  # without init
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and does not listen
        address = f"{scheme}127.0.0.1:{unheard.getsockname()[1]}"
        assert refusal(address).startswith(f"no Ray cluster can be reached at {address}: ")


def test_a_cluster_without_cpus_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A head is often started so.  Kernels would wait for a compiler for ever."""
    fake = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"GPU": 1.0}, kill=lambda _: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(cluster.Actor, "__init__", lambda *_: None)
    monkeypatch.setattr(cluster.Actor, "stop", lambda *_: None)
    monkeypatch.setattr("convgen.tune.cluster._started", lambda *_: [])
    assert refusal().startswith("the Ray cluster has no CPU\nhint: ")


def test_a_cluster_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch):
    fake = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 8.0})
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert refusal() == "the Ray cluster has no GPU"
