"""Measuring on a GPU: times that add up, verification against the reference, baselines, the search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import convgen
from convgen import cli, driver
from convgen.bench import baselines
from convgen.bench.backend import CupyBackend, TorchBackend, at_hand
from convgen.bench.measure import buffer_sets, check, time_graph, time_in_turn, time_kernel
from convgen.ir.problem import ConvProblem
from convgen.planner import database

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
    assert 0.5 < timing.us < 1e5 and timing.replays >= 3
    report = check(lambda *inputs, out: kernel(*inputs, out=out).__setitem__((0,) * out.ndim, 30000), problem, gpu)
    assert not report and "in 1 of" in report.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graphs_time_is_that_of_its_launches(backend: str):
    """Of several tries, for others may use the GPU meanwhile: the tests of other processes."""
    gpu = BACKENDS[backend]()
    text = spec()
    kernel, sets = convgen.compile(text), buffer_sets(problem_of(text), gpu)

    def twice(i: int) -> None:
        for _ in range(2):
            kernel(*sets[i].inputs, out=sets[i].out)

    tries = [(time_kernel(kernel, sets, gpu).us, time_graph(twice, len(sets), gpu).us) for _ in range(5)]
    once, both = (min(column) for column in zip(*tries, strict=True))
    assert both == pytest.approx(2 * once, rel=0.35), tries


def test_baselines_are_plausible():
    gpu = torch_backend()
    peaks = baselines.peaks("f16", gpu)
    assert peaks.tflops > 10 and peaks.gb_per_s > 100
    fused = problem_of(spec(rest=BIAS_RELU))
    for op in ("fprop", "dgrad", "wgrad"):
        problem = problem_of(spec(rest=f"op {op}"))
        least = peaks.roofline_us(2 * problem.macs, 0)
        entrants = [baselines.convolution(problem, gpu), baselines.gemm(problem, gpu)]
        assert all(0.8 * least < timing.us < 1000 for timing in time_in_turn(entrants, gpu))
    assert time_in_turn([baselines.convolution_bias_relu(fused, gpu)], gpu)[0].us < 1000


def test_every_thread_makes_cudnn_choose_anew():
    """What `best of three re-tunes` rests on: the first call of a thread tunes, the second does not."""
    import time

    gpu = torch_backend()
    launches = baselines._convolution(problem_of(spec()), gpu)
    seconds: list[float] = []

    def first_and_second() -> None:
        with gpu.stream():
            for _ in range(2):
                begun = time.perf_counter()
                launches.run(0)
                gpu.torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begun)

    from concurrent.futures import ThreadPoolExecutor

    with gpu.torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for _ in range(3):
            with ThreadPoolExecutor(1) as thread:
                thread.submit(first_and_second).result()
    assert min(seconds[2::2]) > 4 * max(seconds[3::2]), seconds


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
    assert row["results"]["auto"]["us"] == pytest.approx(tuned.us, rel=0.3)
    assert row["results"]["auto"]["us"] <= row["results"]["direct"]["us"] * 1.1
