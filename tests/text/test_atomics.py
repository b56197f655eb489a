"""benchmarks/atomics.py without a GPU: what it measures of each layer, and on a fake one what it makes of the times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from problems import make
from test_bench import FakeBackend, reference_kernel

from convgen.bench import measure
from convgen.bench.build import Failure
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import atomics

H200 = "NVIDIA H200"


def test_layers_are_those_whose_gradients_of_filters_are_known() -> None:
    results = Path(atomics.__file__).parent / "results"
    known = json.loads((results / "wgrad_seven_n64_h200.json").read_text())["rows"]
    named = atomics.gradients(atomics.NETWORKS, 64, [""], "f32")
    first = {"alexnet/conv1", "zfnet/conv1", "vgg16/conv1_1", "resnet50/conv1", "yolov2/conv1"}
    assert [name for name, _ in named] == [row["name"] for row in known if row["name"] not in first]
    assert {p.w.dtype for _, p in named} == {"f32"} and {p.x.dtype for _, p in named} == {"f16"}


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_atomic_variants_are_legal_and_of_the_same_tile(dtype: str) -> None:
    for _, problem in atomics.gradients(["resnet50", "googlenet"], 64, ["3x3", "1x1_b"], dtype):
        fixed = atomics.ordered(problem, H200)
        assert fixed["kernel"] == "tma_wgrad" and fixed["sums"] == "ordered"
        found = atomics.atomic(problem, fixed)
        assert len(found) >= 3 and all(map(strategies.varies, found))
        same = [o for o in found if {**o, "sums": "ordered", "slices": fixed["slices"]} == fixed]
        assert len({o["slices"] for o in same}) >= 2
        if int(fixed["slices"]) > 1:
            assert {**fixed, "sums": "atomic"} in found
        if fixed["row_taps"] or fixed["halo"]:
            assert any(o["row_taps"] == o["halo"] == 0 for o in found)
        for options in found:
            plan = strategies.STRATEGIES["tma_im2col"].plan(problem, atomics.TARGET, options)
            straight = dtype == "f32" and options["row_taps"] == options["halo"] == 0
            assert len(plan.launches) - len(plan.workspaces) == 2, (
                "zeros and the product, and what finishes a workspace"
            )
            assert bool(plan.workspaces) != straight


LAYER = make("wgrad", 3, 16, 24, (6, 5), (1, 1))


def entry(problem: ConvProblem, *built: Any) -> atomics.Entry:
    return atomics.Entry("net/layer", problem, built)


def artifact(us: float, fault: str = "") -> Any:
    return SimpleNamespace(us=us, fault=fault, manifest=SimpleNamespace(arithmetic="", config=f"{us} us", steps=(1, 2)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A machine whose kernels take the time of their artifact, and have its fault."""
    backend = FakeBackend()

    def kernel(artifact: Any) -> Any:
        right = reference_kernel(LAYER, backend, artifact.us)

        def call(*inputs: numpy.ndarray, out: numpy.ndarray) -> None:
            before = out.copy()
            right(*inputs, out=out)
            if artifact.fault == "adds to what is there" and numpy.isfinite(before).all():
                out[...] += before
            if artifact.fault == "wrong":
                out[0] += 1

        return call

    monkeypatch.setattr(atomics, "Kernel", kernel)
    monkeypatch.setattr(measure.time, "sleep", lambda _: None)
    return backend


def test_the_share_is_that_of_the_fastest_right_one(gpu: FakeBackend) -> None:
    built = (artifact(20), artifact(10, "wrong"), artifact(30), artifact(25), artifact(12, "adds to what is there"))
    row = atomics.measure(entry(LAYER, *built, Failure("spills")), gpu)
    assert row["deterministic_us"] == pytest.approx(20, rel=0.03) and row["atomic"] == "25 us"
    assert row["share"] == pytest.approx(1.25, rel=0.03) and len(row["others"]) == 2 and row["launches"] == 2
    assert [note.split(":")[0] for note in row["notes"]] == ["spills", "10 us", "12 us"]
    assert "not added exactly" in row["notes"][2] and atomics.wrong(row)


@pytest.mark.parametrize(
    "built",
    [(artifact(20, "wrong"), artifact(10)), (artifact(20), artifact(10, "wrong")), (Failure("no"),), (artifact(20),)],
    ids=["the fixed order's", "all others", "not built", "no others"],
)
def test_what_is_missing_or_wrong_has_no_share(gpu: FakeBackend, built: tuple[Any, ...]) -> None:
    row = atomics.measure(entry(LAYER, *built), gpu)
    assert "share" not in row and row["notes"] and row["layer"] in atomics.line(row)
    assert atomics.summarize([row]) == {"layers": 0}


@pytest.fixture
def served(gpu: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """The same with three layers, built at once, and records of this machine."""
    names = ("a/x", "a/y", "b/x")

    def entries(named: Any, gpu: str, jobs: int) -> Any:
        yield from (atomics.Entry(name, p, (artifact(20), artifact(10 * (1 + i)))) for i, (name, p) in enumerate(named))

    monkeypatch.setattr(atomics, "gradients", lambda *_: [(name, LAYER) for name in names])
    monkeypatch.setattr(atomics, "entries", entries)
    monkeypatch.setattr(atomics, "need_gpu", lambda *_: None)
    monkeypatch.setattr(atomics, "TorchBackend", lambda: gpu)
    monkeypatch.setattr(atomics.records, "TorchBackend", lambda: gpu)
    return gpu


def test_rows_are_written_as_they_come_and_summed_up(
    served: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    command = ["atomics.py", "--batch", "3", "--budget", "100", "--out", str(out), "--jobs", "1", "--result", "f16"]
    monkeypatch.setattr(sys, "argv", command)
    assert atomics.main() == 0
    found = json.loads(out.read_text())
    assert [row["layer"] for row in found["rows"]] == ["a/x", "a/y", "b/x"] and found["gpu"] == "NVIDIA Fake"
    assert found["summary"]["mean"] == pytest.approx((0.5 * 1 * 1.5) ** (1 / 3), rel=0.03)
    assert found["summary"]["least"] == pytest.approx(0.5, rel=0.03)
    assert found["summary"]["least_layer"] == "a/x n=3 f16"
    said = capsys.readouterr().out
    assert "all layers are measured\n3 layers: geometric mean of the shares 0.9" in said and "(a/x n=3 f16)" in said


def test_a_run_goes_on_where_another_stopped(
    served: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    command = ["atomics.py", "--batch", "3", "--out", str(out), "--result", "f16", "--append"]
    monkeypatch.setattr(sys, "argv", [*command, "--budget", "-1"])
    assert atomics.main() == 0 and not out.exists() and "3 layers are left" in capsys.readouterr().out
    one = atomics.measure(entry(LAYER, artifact(20), artifact(40)), served) | {"layer": "a/y"}
    out.write_text(json.dumps({"rows": [one]}))
    monkeypatch.setattr(sys, "argv", command)
    assert atomics.main() == 0
    assert [row["layer"] for row in json.loads(out.read_text())["rows"]] == ["a/y", "a/x", "b/x"]


def test_kernels_are_built_in_processes_of_their_own() -> None:
    problem = make("wgrad", 8, 64, 64, (14, 14), (1, 1))
    (made,) = atomics.entries([("net/layer", problem)], H200, 1)
    assert made.name == "net/layer" and len(made.built) >= 3
    assert not [one.message for one in made.built if isinstance(one, Failure)]
    assert ["sums atomic" in one.manifest.config for one in made.built][:2] == [False, True]
