"""Measuring on a GPU: times that add up, verification against the reference, baselines, the search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import convgen
from convgen import cli, driver
from convgen import functional as F
from convgen.bench import baselines
from convgen.bench.backend import CupyBackend, TorchBackend, at_hand
from convgen.bench.measure import buffer_sets, check, time_in_turn, time_kernel
from convgen.ir.problem import ConvProblem
from convgen.planner import database
from convgen.runtime import cuda

SPEC = """
let n = 8
conv {name} {{
  input  x: {dtype}[n, h=28, w=28, c=64]
  filter w: {dtype}[k=64, r=3, s=3, c=64]
  output y: {dtype}[n, p, q, k]
  pad 1
  {rest}
}}
"""
BIAS_RELU = "epilogue { operand b: f16[k]  y = relu(acc + b) }"


def spec(name: str = "layer", dtype: str = "f16", rest: str = "") -> str:
    return SPEC.format(name=name, dtype=dtype, rest=rest)


def problem_of(text: str) -> ConvProblem:
    return driver.load(driver.Spec(text))[0].request.problem


def torch_backend() -> TorchBackend:
    pytest.importorskip("torch")
    found = at_hand()
    if not isinstance(found, TorchBackend):
        pytest.skip("torch is installed without CUDA")
    return found


BACKENDS = {"cupy": CupyBackend, "torch": torch_backend}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("rest", ["", "op dgrad", "op wgrad"])
def test_kernels_are_timed_and_verified(backend: str, dtype: str, rest: str):
    gpu, text = BACKENDS[backend](), spec(dtype=dtype, rest=rest)
    kernel, problem = convgen.compile(text), problem_of(text)
    assert check(kernel, problem, gpu)
    timing = time_kernel(kernel, buffer_sets(problem, gpu), gpu)
    assert timing.us > 0 and timing.replays >= 3
    report = check(lambda *inputs, out: kernel(*inputs, out=out).__setitem__((0,) * out.ndim, 30000), problem, gpu)
    assert not report and "in 1 of" in report.message


def test_every_baseline_is_measured():
    gpu = torch_backend()
    peaks = baselines.peaks("f16", gpu)
    assert peaks.tflops > 0 and peaks.gb_per_s > 0
    fused = problem_of(spec(rest=BIAS_RELU))
    for op in ("fprop", "dgrad", "wgrad"):
        problem = problem_of(spec(rest=f"op {op}"))
        entrants = [baselines.convolution(problem, gpu), baselines.gemm(problem, gpu)]
        assert all(timing.us > 0 for timing in time_in_turn(entrants, gpu))
    assert time_in_turn([baselines.convolution_bias_relu(fused, gpu)], gpu)[0].us > 0


def test_tune_then_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    path = tmp_path / "layer.conv"
    path.write_text(spec())
    assert cli.main(["tune", str(path), "--budget", "20", "--jobs", "4"]) == 0
    gpu = at_hand().environment()["gpu"]
    tuned = database.lookup(problem_of(spec()), driver.target_at_hand(), gpu)
    assert tuned is not None and tuned.gpu == gpu
    assert f"tuned on {gpu}" in convgen.compile(str(path)).manifest.reason
    out = tmp_path / "bench.json"
    assert cli.main(["bench", str(path), "--strategies", "direct", "--out", str(out), "--jobs", "2"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    results = row["results"]
    assert results["auto"]["strategy"] == tuned.strategy and results["auto"]["verified"] and results["auto"]["us"] > 0
    assert results["direct"]["verified"] and results["direct"]["us"] > 0


def test_tune_spreads_layers_over_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    count = cuda.driver().device_count
    if count < 2:
        pytest.skip("one GPU")
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    paths = [tmp_path / f"{dtype}_{stride}.conv" for dtype in ("f16", "bf16") for stride in (1, 2)]
    for path in paths:
        dtype, stride = path.stem.split("_")
        path.write_text(spec(dtype=dtype, rest=f"stride {stride}"))
    assert cli.main(["tune", *map(str, paths), "--strategies", "implicit_gemm", "--jobs", "4"]) == 0
    assert f"4 of 4 layers, {count} GPUs" in capsys.readouterr().err
    assert len({m.key for m in database.read_all(tmp_path / "tuning.sqlite")}) == 4


@pytest.fixture
def untuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a database; nothing ships."""
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")
    return tmp_path / "tuning.sqlite"


def test_quick_tuning_measures_once(untuned: Path):
    gpu = at_hand().environment()["gpu"]
    kernel = convgen.compile(spec(rest=BIAS_RELU), tune="quick")
    known = database.read_all(untuned)
    right = [m for m in known if m.status is database.Status.RIGHT]
    best = min(right, key=lambda m: m.us)
    assert 2 <= len(known) <= 6 and not [m for m in known if m.status is database.Status.WRONG]
    assert kernel.manifest.reason == f"tuned on {gpu}: {best.us:.1f} us"
    assert check(kernel, problem_of(spec(rest=BIAS_RELU)), CupyBackend())
    program = "import sys, convgen; print(convgen.compile(sys.argv[1], tune='quick').manifest.config)"
    later = subprocess.run(
        [sys.executable, "-c", program, spec(rest=BIAS_RELU)], capture_output=True, text=True, check=True
    )
    assert later.stdout.strip() == kernel.manifest.config
    assert database.read_all(untuned) == known


def test_quick_tuning_waits_for_the_end_of_a_capture(untuned: Path):
    cupy = pytest.importorskip("cupy")
    x = cupy.ones((1, 24, 10, 10), "float16")
    w = cupy.ones((40, 24, 1, 1), "float16")
    out = cupy.empty((1, 40, 10, 10), "float16")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        F.conv2d(x, w, out=out, tune="quick")
        graph = stream.end_capture()
        assert not untuned.exists()
        graph.launch(stream)
        stream.synchronize()
        assert (out == 24).all()
        F.conv2d(x, w, out=out, tune="quick")
    assert database.read_all(untuned)
