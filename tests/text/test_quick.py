"""Quick tuning: what is measured when a kernel is first built, what is kept, and when nothing is."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_driver
import numpy as np
import pytest
from measuring_machine import Machine, install

import convgen
from convgen import cli, driver
from convgen import functional as F
from convgen.bench.build import Failure
from convgen.diagnostics import ConvgenError
from convgen.driver import Compilation
from convgen.functional import call
from convgen.planner import database, shipping
from convgen.planner.database import Measurement, Status
from convgen.runtime import arrays
from convgen.spec import Spec, UsageError
from convgen.tune import quick
from convgen.tune.worker import CandidateFailed

GPU = "NVIDIA H200"
SPEC = """
conv a {
  input x: f16[n=2, h=8, w=8, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  OPTIONS
}
"""


def compilation(options: str = "", tune: str | None = "quick") -> Compilation:
    (found,) = driver.load(Spec(SPEC.replace("OPTIONS", options), tune=tune))
    return found


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's database; nothing ships."""
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "data" / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")
    return tmp_path / "data" / "tuning.sqlite"


@pytest.fixture
def gpu(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Puts machines in place of a GPU's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_driver.install(tmp_path, monkeypatch)
    return partial(install, monkeypatch)


def measurements(own: Path) -> list[Measurement]:
    return database.read_all(own) if own.exists() else []


def taken(found: Compilation) -> str:
    return f"{found.choice.strategy.name} {database.canonical(found.choice.options)}"


# ---- measuring -----------------------------------------------------------------------------------------


def test_the_first_build_measures_and_the_next_one_knows(gpu, own: Path):
    machine = gpu([9.0, 7.0, 3.0, 8.0])
    assert taken(compilation()) == machine.timed[2]
    assert 3 <= len(machine.timed) == len(set(machine.timed)) <= quick.MOST
    assert {m.gpu for m in measurements(own)} == {GPU}

    later = gpu([1.0])
    second = compilation()
    assert taken(second) == machine.timed[2] and second.choice.reason == f"tuned on {GPU}: 3.0 us"
    assert taken(compilation(tune=None)) == machine.timed[2]
    assert later.timed == [] and not second.unmeasured


def test_candidates_are_the_cost_models_best(gpu):
    machine = gpu([])
    untuned = compilation(tune=None)
    name, options = untuned.choice.strategy.name, untuned.choice.options
    stated = untuned.choice.strategy.stated(untuned.request.problem, untuned.target, options)
    _ = compilation().choice
    assert machine.timed[0] == f"{name} {database.canonical(stated)}"
    assert "direct" not in {config.split()[0] for config in machine.timed}


def test_what_is_taken_now_is_among_the_candidates(gpu, own: Path):
    """Also where the cost models think little of it: here, what was measured on the reference GPU, which is another."""
    from convgen.runtime import launch

    problem = compilation().request.problem
    shipping.export([Measurement(database.key(problem), GPU, "direct", {}, Status.RIGHT, 0.5)], database.PACKAGED)
    machine = gpu([2.0])
    other = fake_driver.FakeDriver(own.parent.parent / "libcuda.so")
    other.rename("NVIDIA H100 PCIe")
    launch.gpu_at_hand.cache_clear()
    assert compilation().choice.reason == "tuned on NVIDIA H100 PCIe: 2.0 us"
    assert machine.timed[0].startswith("direct")


def test_wrong_and_faulting_candidates_are_passed_over(gpu, own: Path):
    machine = gpu([9.0, -2.0, "its process died", 4.0, "hung: no answer"])
    assert taken(compilation()) == machine.timed[3]
    statuses = {m.detail: m.status for m in measurements(own) if m.status in (Status.WRONG, Status.FAILED)}
    assert statuses == {
        "checked": Status.WRONG,
        "its process died": Status.FAILED,
        "hung: no answer": Status.FAILED,
    }


def test_what_does_not_compile_is_passed_over(gpu, own: Path, monkeypatch: pytest.MonkeyPatch):
    machine = gpu([5.0])
    build = machine.build_all
    monkeypatch.setattr(
        machine, "build_all", lambda jobs: ((j, b if i else Failure("no")) for i, (j, b) in enumerate(build(jobs)))
    )
    assert taken(compilation()) == machine.timed[0]
    assert [m.status for m in measurements(own)].count(Status.FAILED) == 1


@pytest.mark.parametrize(("seconds", "most"), [(0.3, 3), (0.45, 2), (0.6, 1), (9.0, 1)])
def test_no_candidate_is_begun_that_would_take_more_than_a_second_in_all(gpu, seconds: float, most: int):
    machine = gpu([9.0, 8.0, 7.0, 6.0], seconds)
    assert taken(compilation()) == machine.timed[-1]
    assert len(machine.timed) == most and machine.now <= max(quick.BUDGET, seconds)


def test_what_is_compared_gets_the_time_that_is_left(gpu):
    machine = gpu([9.0, 9.0, 9.0, 9.0, 9.0, 9.0], 0.1)
    _ = compilation().choice
    assert machine.methods.count("compare") == 1
    assert machine.left == pytest.approx(quick.BUDGET - machine.now)


def test_making_buffers_anew_behind_a_fault_takes_no_time_from_the_others(gpu):
    machine = gpu(["its process died"] * 2 + [9.0, 8.0], 0.2)
    call, there = machine.call, [False]

    def slow_to_start(method: str, *arguments: Any) -> Any:
        if not there[0]:
            machine.now, there[0] = machine.now + 10, True
        try:
            return call(method, *arguments)
        except CandidateFailed:
            there[0] = False
            raise

    machine.call = slow_to_start
    assert taken(compilation()) == machine.timed[3]


def test_buffers_are_made_before_and_given_back_after(gpu):
    machine = gpu([9.0])
    _ = compilation().choice
    assert machine.methods[0] == "prepare" and machine.methods[-1] == "release"


def test_one_thread_measures_and_the_others_wait(gpu):
    machine = gpu([9.0, 3.0])
    together = threading.Barrier(4)

    def build(_: int) -> str:
        found = compilation()
        together.wait()
        return taken(found)

    with ThreadPoolExecutor(4) as pool:
        choices = list(pool.map(build, range(4)))
    assert set(choices) == {machine.timed[1]}
    assert machine.methods.count("release") == 1


def test_options_that_a_spec_fixes_are_its_own_choice(gpu, own: Path):
    machine = gpu([9.0])
    assert compilation("strategy tma_im2col { tile m=64 }").choice.reason == "named in the spec"
    assert machine.timed == [] and not own.exists()


def test_a_strategy_that_is_named_has_its_own_candidates_measured(gpu):
    machine = gpu([9.0, 2.0])
    assert taken(compilation("strategy implicit_gemm")) == machine.timed[1]
    assert {config.split()[0] for config in machine.timed} == {"implicit_gemm"}


def test_what_ships_for_this_gpu_is_taken_as_it_is(gpu, own: Path):
    machine = gpu([9.0])
    problem = compilation().request.problem
    shipping.export([Measurement(database.key(problem), GPU, "direct", {}, Status.RIGHT, 0.5)], database.PACKAGED)
    assert compilation().choice.reason == f"tuned on {GPU}: 0.5 us"
    assert machine.timed == [] and not own.exists()


# ---- where nothing can be measured -----------------------------------------------------------------------


def untuned_with_warning(match: str) -> None:
    with pytest.warns(quick.NotMeasured, match=match) as warned:
        found = compilation()
        choice = found.choice
    lines = {warning.filename for warning in warned if warning.category is quick.NotMeasured}
    assert lines == {__file__}  # the program's own
    assert choice == compilation(tune=None).choice and found.unmeasured


def test_without_a_gpu_a_warning_says_so(own: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    untuned_with_warning('^a: tune="quick" measures nothing: .*GPU|NVIDIA')
    assert not own.parent.exists()


@pytest.mark.filterwarnings("always::convgen.tune.quick.NotMeasured")
def test_without_a_gpu_every_command_says_so(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "a.conv"
    path.write_text(SPEC.replace("OPTIONS", ""))
    for _ in range(2):
        assert cli.main(["compile", str(path), "--tune", "quick", "--dump-after", "choose"]) == 0
        said = capsys.readouterr()
        assert 'convgen: warning: a: tune="quick" measures nothing' in said.err and "cost model" in said.out


def test_a_target_that_the_gpu_does_not_run_is_not_measured(gpu):
    gpu([1.0])
    (found,) = driver.load(Spec(SPEC.replace("OPTIONS", ""), target="sm_100a", tune="quick"))
    with pytest.warns(quick.NotMeasured, match="this machine's GPU does not run code for sm_100a"):
        assert found.choice.reason.startswith("auto")


def test_nothing_is_measured_during_a_capture(gpu, own: Path, monkeypatch: pytest.MonkeyPatch):
    machine = gpu([9.0])
    monkeypatch.setattr(quick, "capturing", lambda: True)
    untuned_with_warning("a CUDA graph is being captured")
    assert machine.timed == [] and not own.exists()


def test_a_capture_is_seen_in_torch_and_in_cupy(gpu, monkeypatch: pytest.MonkeyPatch):
    gpu([])
    monkeypatch.delitem(arrays.sys.modules, "torch", raising=False)
    monkeypatch.delitem(arrays.sys.modules, "cupy", raising=False)
    assert not arrays.capturing()
    seen: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: bool(seen), is_current_stream_capturing=lambda: True)
    monkeypatch.setitem(arrays.sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert not arrays.capturing()  # nor is CUDA initialized for the question
    seen.append("a kernel")
    assert arrays.capturing()


def test_a_process_that_does_not_start_is_a_warning(gpu, monkeypatch: pytest.MonkeyPatch):
    machine = gpu([9.0])

    def start() -> None:
        raise ConvgenError("CuPy is not installed")

    monkeypatch.setattr(machine, "start", start)
    untuned_with_warning("CuPy is not installed")


def test_a_gpu_without_room_is_a_warning(gpu, monkeypatch: pytest.MonkeyPatch):
    machine = gpu([9.0])

    def call(method: str, *_: object) -> None:
        raise CandidateFailed("OutOfMemoryError: no room")

    monkeypatch.setattr(machine, "call", call)
    untuned_with_warning("no room")


def test_a_database_that_cannot_be_written_is_a_warning(gpu, own: Path):
    gpu([9.0])
    own.parent.write_text("a file in the folder's place")
    untuned_with_warning("cannot be written")


def test_where_every_candidate_fails_auto_chooses_and_nothing_is_tried_again(gpu, own: Path):
    machine = gpu(["died"] * quick.MOST)
    assert compilation().choice == compilation(tune=None).choice
    tried = len(machine.timed)
    _ = compilation().choice
    assert len(machine.timed) == tried and {m.status for m in measurements(own)} == {Status.FAILED}


# ---- faces ---------------------------------------------------------------------------------------------


def test_an_unknown_tuning_is_refused(tmp_path: Path, capsys):
    x, w = np.ones((1, 8, 4, 4), np.float16), np.ones((8, 8, 1, 1), np.float16)
    for ask in (lambda: convgen.compile(SPEC.replace("OPTIONS", ""), tune="quik"), lambda: F.conv2d(x, w, tune="quik")):
        with pytest.raises(UsageError, match="unknown tuning 'quik'\nhint: did you mean `quick`"):
            ask()
    assert cli.main(["compile", "a.conv", "--tune", "fast"]) == 2
    assert "choose from quick" in capsys.readouterr().err


def test_arrays_of_the_host_are_not_measured(own: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call, "EMULATED", 0)  # the reference is quicker
    x, w = np.ones((1, 8, 4, 4), np.float16), np.ones((8, 8, 1, 1), np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", quick.NotMeasured)
        assert (F.conv2d(x, w, tune="quick") == 8).all()


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_progress_is_shown_on_a_terminal_after_a_while(gpu, monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(quick.sys, "stderr", terminal)
    monkeypatch.setattr(quick, "PATIENCE_SECONDS", 0.01)
    machine = gpu([9.0])
    machine.on_time = lambda: terminal.written.wait(600)
    _ = compilation().choice
    text = terminal.getvalue()
    assert "a: 1 of " in text and "candidates measured" in text and text.endswith("\x1b[K")


def test_who_listens_hears_of_every_candidate(gpu):
    machine = gpu([9.0])
    heard: list[str] = []
    driver.choose_all(Spec(SPEC.replace("OPTIONS", ""), tune="quick"), heard.append)
    offered = len(machine.timed)
    assert heard[:2] == ["a", f"a: {offered} candidates to measure"]
    assert heard[2:] == [f"a: {i + 1} of {offered} candidates measured" for i in range(offered)]


def test_who_listens_hears_of_candidates_for_each_number_of_images(gpu):
    machine = gpu([9.0])
    heard: list[str] = []
    spec = Spec(SPEC.replace("OPTIONS", "dynamic n"), tune="quick", images=(8,))
    driver.choose_all(spec, heard.append)
    offered = len(machine.timed)
    assert offered and heard[-1] == f"a: {offered} of {offered} candidates measured"


def test_the_measuring_process_ends_when_it_is_idle(gpu, monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()
    machine = gpu([9.0])
    monkeypatch.setattr(machine, "stop", ended.set)
    monkeypatch.setattr(quick, "IDLE_SECONDS", 0.01)
    _ = compilation().choice
    assert ended.wait(600)
