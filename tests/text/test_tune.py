"""Tuning: what is tried, what is kept, budgets, interrupts, candidates that hang or crash."""

from __future__ import annotations

import argparse
import math
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_driver
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from served import Refusing, Served

from convgen import cli, driver
from convgen.bench.build import Builder, Failure, Job
from convgen.cli import tune as cli_tune
from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.kernels import registry, strategies
from convgen.kernels.base import Obstacle
from convgen.planner import database, shipping
from convgen.planner.database import Database, Measurement, Status
from convgen.runtime.cuda import Gpu
from convgen.spec import Spec
from convgen.targets import TARGETS
from convgen.tune import machine
from convgen.tune.candidates import candidates, stated
from convgen.tune.search import Task, prepare
from convgen.tune.spread import Machines, Member, Spread
from convgen.tune.worker import CandidateFailed, Worker

GPU = "NVIDIA H200"
H200 = Gpu(GPU, (9, 0))
#: Seconds after which what should have happened at once counts as missing, however busy the machine is.
PATIENCE = 300.0
SM_90A = TARGETS["sm_90a"]


def problem(n: int = 1) -> ConvProblem:
    return make("fprop", n, 16, 16, (4, 4), (1, 1))


# ---- candidates ------------------------------------------------------------------------------------


@dataclass
class FakeStrategy:
    offers: list[dict[str, Any]] = field(default_factory=list)
    illegal: list[dict[str, Any]] = field(default_factory=list)

    def obstacles(self, problem, target, options):
        return [Obstacle("no")] if options in self.illegal else []

    def candidates(self, problem, target):
        return self.offers

    def stated(self, problem, target, options):
        return options

    def estimate(self, problem, target, options):
        return math.inf


class Modeled(FakeStrategy):
    """With a cost model: the option m in microseconds, 5 by default."""

    def estimate(self, problem, target, options):
        return options["m"]

    def stated(self, problem, target, options):
        return {"m": 5, **options}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    known: dict[str, Any] = {}
    monkeypatch.setattr(strategies, "STRATEGIES", known)
    return known


def test_defaults_come_first_then_what_the_models_promise(fakes):
    fakes["a"] = Modeled([{"m": 4}, {"m": 9}])
    fakes["b"] = FakeStrategy()  # a strategy that offers nothing but itself, and has no model
    fakes["c"] = Modeled([{"m": 3}, {"m": 8}, {"m": 5}])
    found = candidates(problem(), SM_90A, ["b", "a", "c"])
    assert [f"{name}{options.get('m', '')}" for name, options in found] == ["a5", "c5", "b", "c3", "a4", "c8", "a9"]


def test_illegal_and_repeated_candidates_drop_out(fakes):
    fakes["a"] = FakeStrategy([{"m": 1, "n": 2}, {"n": 2, "m": 1}, {"m": 9}], illegal=[{}, {"m": 9}])
    assert candidates(problem(), SM_90A, ["a"]) == [("a", {"m": 1, "n": 2})]


def test_options_that_a_spec_states_hold_for_every_candidate(fakes):
    fakes["a"] = FakeStrategy([{"m": 1, "n": 2}, {"m": 3, "n": 2}, {"n": 4}])
    assert candidates(problem(), SM_90A, ["a"], {"m": 1}) == [
        ("a", {"m": 1}),
        ("a", {"m": 1, "n": 2}),
        ("a", {"m": 1, "n": 4}),
    ]


def test_every_strategy_of_convgen_offers_what_it_can_plan():
    offered = candidates(problem(), SM_90A, tuple(strategies.NAMES))
    assert "direct" in {name for name, _ in offered}
    for name, options in offered[:: max(1, len(offered) // 20)]:
        assert strategies.STRATEGIES[name].plan(problem(), SM_90A, options).steps


def test_each_way_to_compute_a_convolution_that_specs_state_is_tuned(tmp_path: Path):
    """A layer whose strategy is stated leaves no other layer without a search."""
    sizes = "input x: f16[n=1, h=4, w=4, c=16] filter w: f16[k=16, r=1, s=1, c=16] output y: f16[n, p, q, k]"
    layers = ("a", "strategy direct"), ("b", ""), ("c", "")
    spec = Spec("".join(f"conv {name} {{ {sizes} {strategy} }}\n" for name, strategy in layers))
    parser = argparse.ArgumentParser()
    cli_tune.configure(parser)
    with Database(tmp_path / "own.sqlite") as db:
        each = lambda function, work: [function(item) for item in work]  # noqa: E731
        sources = [(found.request.problem.name, found) for found in driver.load(spec)]
        tasks = cli_tune._tasks(sources, parser.parse_args([]), db, H200, each)
    names = {layer: {name for name, _ in task.candidates} for layer, task in tasks.items()}
    assert names["a"] == {"direct"} and len(names["b"]) > 2 and len(names) == 2


def test_what_was_measured_of_other_choices_ends_no_search(tmp_path: Path):
    """Neither strategies that are named alone nor options that a spec does not state: they may be faster."""
    key = database.key(problem())
    with Database(tmp_path / "own.sqlite") as db:
        db.record(Measurement(key, GPU, "winograd", {"tile": 4}, Status.RIGHT, 1.0))
        db.record(Measurement(key, GPU, "direct", {"tile": 2}, Status.RIGHT, 2.0))
        offered = [("implicit_gemm", {}), ("direct", {"tile": 1})]
        assert {m.strategy for m in prepare(problem(), SM_90A, offered, db, GPU).known.values()} == {"direct"}
        assert not prepare(problem(), SM_90A, offered[1:], db, GPU, fixed={"tile": 1}).known


def test_a_compiler_that_is_killed_takes_one_kernel_with_it():
    jobs = [Job(problem(n), SM_90A, "direct", {}) for n in range(1, 5)]
    with Builder(1) as builder:
        builder._ask(os._exit, 1)  # as the system kills a process
        found = [built for _, built in builder.build_all(jobs)]
        assert not any(isinstance(built, Failure) for built in found), found
        builder._ask(os._exit, 1)
        assert list(builder.each(abs, [-1, -2])) == [1, 2]


# ---- the search --------------------------------------------------------------------------------------


class World:
    """A fake GPU and compiler.  A candidate's option `i` says which row of `rows` it is: (us, outcome)."""

    def __init__(self, rows: list[tuple[float, str]], interrupt_after: float = math.inf, seconds: float = 1.0) -> None:
        self.rows, self.seconds = rows, seconds
        self.now, self.timed, self.built = 0.0, [], 0
        self.compared: list[list[int]] = []
        self.drift: dict[int, float] = {}  # what a candidate takes when it is timed again
        self.starting = 0.0  # seconds until the first is timed
        self._calls_left = interrupt_after

    def clock(self) -> float:
        return self.now

    def build(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            self.built += 1
            i = job.options["i"]
            if self.rows[i][1] == "refused":
                yield job, Failure("refused")
            else:
                yield job, SimpleNamespace(i=i, manifest=SimpleNamespace(config=f"config {i}"))

    def call(self, method: str, problem: ConvProblem, artifact: Any, *rest: Any) -> Any:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise KeyboardInterrupt
        if method == "compare":
            self.compared.append([each.i for each in artifact])
            return [self.rows[each.i][0] * self.drift.get(each.i, 1.0) for each in artifact]
        us, outcome = self.rows[artifact.i]
        if method == "check":
            return outcome == "right", f"report on {artifact.i}"
        self.now += self.seconds if self.timed else self.starting + self.seconds
        self.timed.append((problem.n, artifact.i))
        if outcome == "crashes":
            raise CandidateFailed("its process died")
        return us

    def task(self, db: Database, n: int = 1, forget: Collection[Status] = ()) -> Task:
        offered = [("direct", {"i": i}) for i in range(len(self.rows))]
        return prepare(problem(n), SM_90A, offered, db, GPU, forget)

    def search(self, db: Database, tasks: list[Task], budget: float = math.inf) -> list[float]:
        """Runs a search; the estimates of the time left."""
        estimates: list[float] = []
        self.finished: list[int] = []
        observer = SimpleNamespace(
            measured=lambda task, m, left: estimates.append(left),
            finished=lambda task: self.finished.append(task.problem.n),
        )
        machines = Machines([Member(H200, self)], self.build)
        Spread(tasks, machines, db.path, observer, budget, self.clock).run()
        return estimates


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")
    with Database(tmp_path / "tuning.sqlite") as opened:
        yield opened


def test_the_search_keeps_what_it_learns_of_every_candidate(db: Database):
    world = World([(9.0, "right"), (2.0, "wrong"), (5.0, "right"), (0.0, "refused"), (7.0, "right"), (1.0, "crashes")])
    world.search(db, [world.task(db)])
    found = {m.options["i"]: (m.status, m.us, m.detail) for m in db.measurements()}
    assert found == {
        0: (Status.RIGHT, 9.0, "config 0"),
        1: (Status.WRONG, 2.0, "report on 1"),
        2: (Status.RIGHT, 5.0, "config 2"),
        3: (Status.FAILED, None, "refused"),
        4: (Status.TIMED, 7.0, "config 4"),
        5: (Status.FAILED, None, "its process died"),
    }
    tuned = database.lookup(problem(), SM_90A)
    assert tuned is not None and (tuned.options, tuned.us) == ({"i": 2}, 5.0)


def test_the_best_few_are_timed_again_in_turn(db: Database):
    """A lucky time does not win; what turns out best is verified, and what is wrong gives way to the next."""
    world = World([(10.0, "right"), (10.3, "wrong"), (10.2, "right"), (20.0, "right"), (10.1, "crashes")])
    world.drift = {0: 1.2, 1: 0.8, 2: 0.99}
    task = world.task(db)
    world.search(db, [task])
    assert world.compared == [[0, 2, 1]]
    found = {m.options["i"]: (m.status, m.us and round(m.us, 2)) for m in db.measurements()}
    assert found[1] == (Status.WRONG, 8.24) and found[2] == (Status.RIGHT, 10.1) and found[0] == (Status.RIGHT, 12.0)
    assert found[3] == (Status.TIMED, 20.0) and found[4][0] is Status.FAILED
    assert task.best is not None and task.best.options == {"i": 2}
    tuned = database.lookup(problem(), SM_90A)
    assert tuned is not None and tuned.options == {"i": 2}


def test_behind_a_strategy_that_does_not_fuse_the_best_that_does_is_verified_too(db: Database):
    """An epilogue is left to it."""
    world = World([(2.0, "right"), (3.5, "right"), (2.01, "right"), (4.0, "right")])
    offered = [(strategy, {"i": i}) for i, strategy in enumerate(("im2col", "direct", "direct", "direct"))]
    world.search(db, [prepare(problem(1), SM_90A, offered, db, GPU)])
    found = {m.options["i"]: m.status for m in db.measurements()}
    assert found == {0: Status.RIGHT, 1: Status.RIGHT, 2: Status.RIGHT, 3: Status.TIMED}


outcomes = st.sampled_from(["right", "right", "right", "wrong", "refused", "crashes"])
worlds = st.lists(st.tuples(st.floats(1, 100), outcomes), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows=worlds, interrupts=st.lists(st.integers(0, 8), max_size=4))
def test_interrupts_change_neither_the_choice_nor_what_is_known(tmp_path_factory, rows, interrupts):
    with Database(tmp_path_factory.mktemp("db") / "tuning.sqlite") as db:
        timed = []
        for calls in [*interrupts, math.inf]:
            world = World(rows, calls)
            with suppress(KeyboardInterrupt):
                world.search(db, [world.task(db)])
            timed += world.timed
        known = db.measurements(database.key(problem()), GPU)
        best = min((m.us for m in known if m.status is Status.RIGHT), default=None)
        assert best == min((us for us, outcome in rows if outcome == "right"), default=None)
        assert len(known) == len(rows)
        # a candidate is measured again only where an interrupt came between its time and its verdict
        assert len(timed) <= sum(outcome != "refused" for _, outcome in rows) + len(interrupts)


def test_again_measures_anew(db: Database):
    world = World([(9.0, "right"), (5.0, "right")])
    world.search(db, [world.task(db)])
    slower = World([(8.0, "right"), (9.0, "right")])
    slower.search(db, [slower.task(db)])
    assert slower.timed == []
    slower.search(db, [slower.task(db, forget=Status)])
    assert [m.us for m in db.measurements()] == [8.0, 9.0]


def test_what_failed_is_tried_again_where_asked(db: Database):
    broken = World([(9.0, "right"), (5.0, "crashes"), (4.0, "wrong")])
    broken.search(db, [broken.task(db)])
    mended = World([(9.0, "right"), (5.0, "right"), (4.0, "right")])
    mended.search(db, [mended.task(db)])
    assert mended.timed == []
    mended.search(db, [mended.task(db, forget=(Status.FAILED, Status.WRONG))])
    assert mended.timed == [(1, 1), (1, 2)]
    assert {m.status for m in db.measurements()} == {Status.RIGHT}


def test_a_strategy_far_behind_is_given_up(db: Database):
    rows = [(10.0 + i, "right") for i in range(20)]
    world = World(rows)
    offered = [(name, {"i": i}) for i in range(20) for name in ("direct", "im2col", "tma_im2col")]
    slow = {"direct": 1.5, "im2col": 1.2, "tma_im2col": 1.0}
    call = world.call
    strategy_of: list[str] = []
    world.build = lambda jobs: (  # type: ignore[method-assign]
        (job, SimpleNamespace(i=job.options["i"], strategy=job.strategy, manifest=SimpleNamespace(config="")))
        for job in jobs
    )

    def timed(method: str, problem: ConvProblem, artifact: Any, *rest: Any) -> Any:
        found = call(method, problem, artifact, *rest)
        strategy_of.append(artifact.strategy) if method == "time" else None
        return found * slow[artifact.strategy] if method == "time" else found

    world.call = timed  # type: ignore[method-assign]
    task = prepare(problem(), SM_90A, offered, db, GPU)
    world.search(db, [task])
    assert [strategy_of.count(name) for name in slow] == [8, 20, 20]
    assert task.untried == [] and task.given_up == {"direct"}
    assert prepare(problem(), SM_90A, offered, db, GPU).untried == []  # nor is it taken up by the next search


def test_a_budget_is_shared_by_the_problems(db: Database):
    world = World([(50.0 - i, "right") for i in range(10)])
    tasks = [world.task(db, n) for n in (1, 2, 3)]
    estimates = world.search(db, tasks, budget=15)
    assert world.now <= 16
    assert [task.tried for task in tasks] == [6, 5, 4]  # the first task's share begins when one candidate is measured
    assert world.finished == [1, 2, 3]
    assert world.built < 25  # nor was everything compiled
    assert max(estimates) <= 15
    again = World(world.rows)
    again.search(db, [again.task(db, n) for n in (1, 2, 3)])
    assert sorted(world.timed + again.timed) == [(n, i) for n in (1, 2, 3) for i in range(10)]


def test_the_first_problem_does_not_pay_for_what_all_wait_for(db: Database):
    """Compilers and measuring processes take some seconds to start, after which its share would be over."""
    world = World([(float(9 - i), "right") for i in range(4)])
    world.starting = 20.0
    world.search(db, [world.task(db, n) for n in (1, 2, 3, 4, 5, 6)], budget=40)
    assert [n for n, _ in world.timed].count(1) == 4


def test_of_a_small_budget_the_first_problems_have_enough(db: Database):
    world = World([(50.0 - i, "right") for i in range(10)])
    tasks = [world.task(db, n) for n in range(1, 9)]
    world.search(db, tasks, budget=12)
    assert [task.tried for task in tasks] == [6, 5, 1, 0, 0, 0, 0, 0]


def test_time_that_one_problem_leaves_goes_to_the_others(db: Database):
    short, long = World([(3.0, "right")]), World([(50.0 - i, "right") for i in range(10)])
    tasks = [short.task(db, 1), long.task(db, 2)]
    long.rows[0] = (3.0, "right")
    long.search(db, tasks, budget=10)
    assert [task.tried for task in tasks] == [1, 9]


def test_the_estimate_is_the_pace_times_what_is_left(db: Database):
    world = World([(5.0, "right")] * 4, seconds=2.0)
    assert world.search(db, [world.task(db)]) == [6.0, 4.0, 2.0, 0.0]


def test_a_killed_search_goes_on_where_it_stopped(db: Database):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_tune as t\n"
        "class Asking(t.World):\n"
        "  def call(self, method, problem, artifact, *rest):\n"
        "    if method == 'time': print(artifact.i, flush=True); sys.stdin.read(1)\n"
        "    return super().call(method, problem, artifact, *rest)\n"
        "with t.Database(t.Path(sys.argv[2])) as db:\n"
        "  world = Asking([(300.0 - i, 'right') for i in range(200)]); world.search(db, [world.task(db)])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent), str(db.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("." * 50)  # it waits for leave to measure the 51st, if it gets so far
    process.stdin.flush()
    for _ in range(10):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    begun = 10 + len(process.stdout.read().split())
    process.wait()
    known = len(db.measurements())
    assert begun - 1 <= known <= begun < 200
    world = World([(300.0 - i, "right") for i in range(200)])
    world.search(db, [world.task(db)])
    assert len(world.timed) == 200 - known and len(db.measurements()) == 200


# ---- the measuring process -----------------------------------------------------------------------------


def test_a_worker_outlives_its_candidates():
    with Worker(Served) as worker:
        first = worker.call("pid")
        with pytest.raises(CandidateFailed, match="ValueError: a bad candidate"):
            worker.call("fail", False)
        assert worker.call("pid") == first
        with pytest.raises(CandidateFailed, match="ValueError"):
            worker.call("fail", True)
        second = worker.call("pid")
        assert second != first
        with pytest.raises(CandidateFailed, match=r"died \(exit code -11\)"):
            worker.call("crash")
        third = worker.call("pid")
        assert third not in (first, second)


def children() -> set[str]:
    """The measuring processes of this one."""
    listed = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return {child for child in listed.split() if b"convgen" in Path(f"/proc/{child}/cmdline").read_bytes()}


def test_a_worker_ends_a_candidate_that_hangs():
    with Worker(Served, seconds=0.01) as worker:
        with pytest.raises(CandidateFailed, match="hung"):
            worker.call("hang")
        assert not children(), "it was killed"


def test_a_worker_that_cannot_start_says_why():
    with Worker(Refusing) as worker, pytest.raises(ConvgenError, match="there is no GPU here"):
        worker.call("pid")


def test_a_worker_ends_with_its_parent():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from convgen.tune.worker import Worker; from served import Served\n"
        "print(Worker(Served).call('pid'), flush=True); sys.stdin.read()\n"  # nor is the script run again by the child
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([child], [], [], PATIENCE)
    os.close(child)
    assert ended, "the child goes on"


# ---- the command ---------------------------------------------------------------------------------------

SPEC = """
let n = 2
conv a {{
  input x: f16[n, h=8, w=8, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  {rest}
}}
"""


@pytest.fixture
def spec(tmp_path: Path, db: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec, on a machine whose GPU times a candidate by the length of its options' text."""

    class FakeWorker:
        def __init__(self, device: str) -> None: ...

        def call(self, method: str, *arguments: Any) -> Any:
            if method == "gpu":
                return H200
            if method == "check":
                return True, "right"
            us = [
                100.0 - len(a.manifest.config) / 10 for a in (arguments[1] if method == "compare" else arguments[1:2])
            ]
            return us if method == "compare" else us[0]

        def __enter__(self) -> FakeWorker:
            return self

        def __exit__(self, *_: object) -> None: ...

    class FakeBuilder(FakeWorker):
        def __init__(self, workers: int | None) -> None: ...

        def prepare(self, jobs: Iterable[Job]) -> None: ...

        def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            return map(function, items)

        def build_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
            for job in jobs:
                yield job, SimpleNamespace(manifest=SimpleNamespace(config=f"{job.strategy} {dict(job.options)}"))

    monkeypatch.setattr(machine, "devices", lambda: ["0"])
    monkeypatch.setattr(machine, "Worker", FakeWorker)
    monkeypatch.setattr(machine, "Builder", FakeBuilder)
    path = tmp_path / "a.conv"
    path.write_text(SPEC.format(rest=""))
    return path


def test_without_a_gpu_no_database_is_made(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    from convgen.runtime.errors import NoGpu

    def no_gpu(*_: object) -> None:
        raise NoGpu("no GPU here")

    monkeypatch.setattr(machine.Worker, "call", no_gpu)
    place = tmp_path / "nowhere" / "tuning.sqlite"
    assert cli.main(["tune", str(spec), "--db", str(place)]) == 1
    assert "no GPU here\nhint: `convgen run --device emulate`" in capsys.readouterr().err
    assert not place.parent.exists()


def test_tune_then_auto_takes_the_choice(spec: Path, db: Database, capsys):
    assert cli.main(["tune", str(spec)]) == 0
    out = capsys.readouterr().out
    known = db.measurements(gpu=GPU)
    best = min(known, key=lambda m: m.us)
    assert best.strategy in out and f"{best.us:.2f}" in out
    assert {m.strategy for m in known} >= {"direct"}
    assert cli.main(["compile", str(spec), "--dump-after", "choose", "--target", "sm_90a"]) == 0
    assert f"tuned on {GPU}" in capsys.readouterr().out


def test_dynamic_sizes_are_tuned_at_every_number_of_images(spec: Path, db: Database):
    text = spec.read_text().replace("pad 1", "pad 1  dynamic n")
    spec.write_text(text)
    assert cli.main(["tune", str(spec), "--images", "1,4,64", "--strategies", "direct"]) == 0
    assert {re.search(r" n=(\d+) .* dynamic=n ", m.key)[1] for m in db.measurements(gpu=GPU)} == {"1", "4", "64"}
    spec.write_text(text.replace("dynamic n", ""))
    assert cli.main(["tune", str(spec), "--images", "1,4,64"]) == 2


def test_tune_uses_every_gpu_of_the_machine(spec: Path, db: Database, monkeypatch: pytest.MonkeyPatch, capsys):
    seen: list[str] = []
    monkeypatch.setattr(machine.Worker, "__init__", lambda self, device: seen.append(device))
    monkeypatch.setattr(machine, "devices", lambda: ["0", "GPU-1f"])
    assert cli.main(["tune", str(spec)]) == 0
    assert seen == ["0", "GPU-1f"] and "; 1 of 1 layer, 2 GPUs, about 0.0 min left" in capsys.readouterr().err


def test_what_was_tuned_on_the_gpu_at_hand_is_taken_there(spec: Path, db: Database, tmp_path, monkeypatch):
    from convgen import driver, requests
    from convgen.runtime import launch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = fake_driver.install(tmp_path, monkeypatch)
    (compilation,) = driver.load(asked := driver.Spec(spec.read_text()))
    shipped = Measurement(database.key(compilation.request.problem), GPU, "direct", {}, Status.RIGHT, 0.5)
    shipping.export([shipped], database.PACKAGED)
    assert compilation.choice.reason == f"tuned on {GPU}: 0.5 us"

    at_reference = requests.request_key(asked)
    fake.rename("NVIDIA H100 PCIe")
    launch.gpu_at_hand.cache_clear()
    assert requests.request_key(asked) != at_reference  # what was compiled for another GPU is not recalled
    call = machine.Worker.call
    monkeypatch.setattr(machine.Worker, "call", lambda *a: launch.gpu_at_hand() if a[1] == "gpu" else call(*a))
    assert cli.main(["tune", str(spec)]) == 0
    right = [m for m in db.measurements(gpu="NVIDIA H100 PCIe") if m.status is Status.RIGHT]
    best = min(right, key=lambda m: m.us)
    (compilation,) = driver.load(asked)
    assert compilation.choice.reason == f"tuned on NVIDIA H100 PCIe: {best.us:.1f} us"
    assert database.canonical(compilation.choice.options) == database.canonical(best.options)

    fake.major, fake.minor = 8, 9  # a GPU that the target's code cannot run on has no say
    launch.gpu_at_hand.cache_clear()
    (compilation,) = driver.load(driver.Spec(spec.read_text(), target="sm_90a"))
    assert compilation.choice.reason == f"tuned on {GPU}: 0.5 us"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configurations that are timed, in order."""
    configs: list[str] = []
    call = machine.Worker.call

    def watched(self: Worker, method: str, *arguments: Any) -> Any:
        if method == "time":
            configs.append(arguments[1].manifest.config)
        return call(self, method, *arguments)

    monkeypatch.setattr(machine.Worker, "call", watched)
    return configs


def test_tune_measures_first_what_auto_takes_without_it(spec: Path, db: Database, timed: list[str]):
    from convgen import driver, planner

    (compilation,) = driver.load(driver.Spec(spec.read_text()))
    least = planner.untuned(compilation.request.problem, SM_90A, "auto", {})
    assert cli.main(["tune", str(spec)]) == 0
    name, options = stated(compilation.request.problem, SM_90A, (least.strategy.name, least.options))
    assert timed[0] == f"{name} {options}" and (options or name == "direct")
    assert len(timed) == len(set(timed)) == len(db.measurements())


def test_tune_measures_the_choice_in_use_before_all(spec: Path, db: Database, timed: list[str]):
    """So that a budget that ends early has seen it, and leaves nothing worse."""
    from convgen import driver

    (compilation,) = driver.load(driver.Spec(spec.read_text()))
    shipped = Measurement(database.key(compilation.request.problem), GPU, "direct", {}, Status.RIGHT, 0.5)
    shipping.export([shipped], database.PACKAGED)
    assert cli.main(["tune", str(spec)]) == 0
    name, options = stated(compilation.request.problem, SM_90A, ("direct", {}))
    assert timed[0] == f"{name} {options}"


def test_tune_goes_on_where_a_budget_ended(spec: Path, db: Database, capsys):
    assert cli.main(["tune", str(spec), "--budget", "1e-9"]) == 0
    assert "run the same command again to continue" in capsys.readouterr().err
    assert cli.main(["tune", str(spec)]) == 0
    assert "budget" not in capsys.readouterr().err


def test_a_convolution_without_a_right_kernel_is_a_failure(spec: Path, db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        machine.Worker, "call", lambda self, method, *_: {"gpu": H200, "time": 1.0, "check": (False, "no")}[method]
    )
    assert cli.main(["tune", str(spec)]) == 1
    assert database.lookup(problem(2), SM_90A) is None


def test_tune_honours_what_a_spec_states(spec: Path, db: Database):
    spec.write_text(SPEC.format(rest="strategy tma_im2col { tile m=64 }"))
    assert cli.main(["tune", str(spec)]) == 0
    known = db.measurements()
    assert known and all(m.strategy == "tma_im2col" and m.options["tile.m"] == 64 for m in known)


def test_export_adds_the_choices_to_a_file(spec: Path, db: Database, tmp_path: Path, capsys):
    shipped = tmp_path / "shipped.sqlite"
    assert cli.main(["tune", str(spec), "--export", str(shipped)]) == 0
    first = database.read_all(shipped)
    assert {m.status for m in first} == {Status.RIGHT}
    assert (
        cli.main(["tune", str(spec), "-D", "n=3", "--db", str(tmp_path / "other.sqlite"), "--export", str(shipped)])
        == 0
    )
    both = database.read_all(shipped)
    assert len(both) == 2 * len(first) and set(map(str, first)) <= set(map(str, both))
    assert cli.main(["tune", "--export", str(shipped)]) == 0
    assert database.read_all(shipped) == both


@pytest.mark.parametrize("status", [None, Status.WRONG])
def test_export_of_a_database_without_a_verified_measurement_writes_nothing(
    status, db: Database, tmp_path: Path, capsys
):
    if status:
        db.record(Measurement(database.key(problem()), GPU, "direct", {}, status, None))
    empty, shipped = tmp_path / "empty.sqlite", tmp_path / "shipped.sqlite"
    empty.touch()
    assert cli.main(["tune", "--export", str(shipped), *([] if status else ["--db", str(empty)])]) == 2
    error = capsys.readouterr().err
    assert "holds no verified measurement\nhint: `convgen tune SPEC` measures" in error and not shipped.exists()


def test_export_drops_what_is_not_the_fastest_any_more(spec: Path, db: Database, tmp_path: Path):
    shipped = tmp_path / "shipped.sqlite"
    key = database.key(problem())
    for strategy, us in (("direct", 5.0), ("im2col", 9.0), ("tma_halo", 20.0)):
        db.record(Measurement(key, GPU, strategy, {}, Status.RIGHT, us))
    assert cli.main(["tune", "--export", str(shipped)]) == 0
    with Database(tmp_path / "later.sqlite") as later:
        later.record(Measurement(key, GPU, "im2col", {"workspace_mb": 1}, Status.RIGHT, 8.0))
        later.record(Measurement(key, GPU, "direct", {}, Status.TIMED, 8.5))
    assert cli.main(["tune", "--db", str(tmp_path / "later.sqlite"), "--export", str(shipped)]) == 0
    assert {(m.strategy, m.us) for m in database.read_all(shipped)} == {("im2col", 8.0), ("tma_halo", 20.0)}


def test_export_keeps_a_choice_that_was_not_measured_again(spec: Path, db: Database, tmp_path: Path):
    """A budget may end before the choice's turn, and times of other days are not to be compared."""
    shipped = tmp_path / "shipped.sqlite"
    key = database.key(problem())
    old = [("direct", {}, 5.0), ("im2col", dict(registry.completed("im2col", {"workspace_mb": 2})), 9.0)]
    for strategy, options, us in old:
        db.record(Measurement(key, GPU, strategy, options, Status.RIGHT, us))
    assert cli.main(["tune", "--export", str(shipped)]) == 0
    with Database(tmp_path / "later.sqlite") as later:
        later.record(Measurement(key, GPU, "im2col", {"workspace_mb": 1}, Status.RIGHT, 4.0))
        later.record(Measurement(key, GPU, "im2col", {"workspace_mb": 2}, Status.RIGHT, 4.5))
    assert cli.main(["tune", "--db", str(tmp_path / "later.sqlite"), "--export", str(shipped)]) == 0
    assert [(m.strategy, dict(m.options), m.us) for m in database.read_all(shipped)] == old


@pytest.mark.parametrize("arguments", [["--budget", "soon"], ["--budget", "-1"], ["--strategies", "magic"], []])
def test_mistakes_are_refused_before_any_work(arguments: list[str], db: Database, capsys):
    assert cli.main(["tune", *arguments]) == 2
    assert "hint" in capsys.readouterr().err
