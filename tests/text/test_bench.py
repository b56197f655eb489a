"""Measuring without a GPU: a backend of NumPy arrays and made-up time stands in."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convgen import cli, frontend
from convgen.bench import backend as backends
from convgen.bench import baselines, build, measure, plot, runner, suites
from convgen.bench.baselines import GemmShape, NoBaseline, Peaks
from convgen.bench.build import Failure, Job
from convgen.bench.results import METHOD, Result, Row, Run, command, geomean, summarize
from convgen.bench.runner import Bench, Column, Entry, is_bias_relu, with_bias_relu
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.problem import OPS, SPATIAL, ConvProblem, Op
from convgen.ir.reference import reference
from convgen.ir.tensor import Tensor
from convgen.runtime.errors import DriverError, NoGpu
from convgen.spec import UsageError
from convgen.targets import TARGETS
from convgen.tune.worker import Gpu


def make_problem(
    op: Op = Op.FPROP,
    rank: int = 2,
    groups: int = 1,
    n: int = 2,
    dtype: str = "f16",
    y_dtype: str = "",
    name: str = "a",
) -> ConvProblem:
    """Small, with a stride, a dilation and padding that tell the dims apart."""
    sp = SPATIAL[rank]
    c, k = 4, 6
    size, taps = (7, 6, 5)[:rank], (3, 2, 1)[:rank]
    stride, pad, dilation = (2, 1, 1)[:rank], (1, 0, 2)[:rank], (1, 2, 1)[:rank]
    out = tuple(
        (i + 2 * p - d * (r - 1) - 1) // s + 1 for i, r, s, p, d in zip(size, taps, stride, pad, dilation, strict=True)
    )
    return ConvProblem(
        name, op, n, c, k, size, taps, out, stride, dilation, pad, pad, groups,
        Tensor("x", "x", dtype, ("n", *sp.input, "c"), (n, *size, c)),
        Tensor("w", "w", dtype, ("k", *sp.filter, "c"), (k, *taps, c // groups)),
        Tensor("y", "y", y_dtype or dtype, ("n", *sp.output, "k"), (n, *out, k)),
    )  # fmt: skip


class FakeBackend:
    """NumPy arrays; a launch costs what the kernel adds to `spent`, a replay 5 us more."""

    name = "fake"
    xp = numpy
    out_of_memory = (MemoryError,)

    def __init__(self) -> None:
        self.spent = 0.0  # microseconds
        self.graphs: list[float] = []
        self.seed(0)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        yield

    def capture(self, body: Callable[[], None]) -> float:
        before = self.spent
        body()
        self.graphs.append(self.spent - before)
        return self.graphs[-1]

    def replay(self, graph: float, times: int) -> list[float]:
        return [(graph + 5) / 1000 * (1 + 0.01 * (i % 3)) for i in range(times)]

    def seed(self, seed: int) -> None:
        self.rng = numpy.random.default_rng(seed)

    def normal(self, tensor: Tensor) -> numpy.ndarray:
        return self.rng.standard_normal(tensor.shape).astype(numpy_dtype(tensor.dtype))

    def poisoned(self, tensor: Tensor) -> numpy.ndarray:
        return verify.poison(numpy.empty(tensor.shape, numpy_dtype(tensor.dtype)))

    def upload(self, array: numpy.ndarray, tensor: Tensor) -> numpy.ndarray:
        assert array.dtype == numpy_dtype(tensor.dtype)
        return array

    def as_xp(self, array: numpy.ndarray) -> numpy.ndarray:
        return array

    def release(self) -> None: ...

    def environment(self) -> dict[str, str]:
        return {"gpu": "NVIDIA Fake", "driver": "1.2.3"}


def reference_kernel(problem: ConvProblem, backend: FakeBackend | None = None, us: float = 10.0) -> Callable[..., None]:
    """A kernel that is right, and takes `us`."""
    names = [t.buffer for t in problem.arguments]

    def kernel(*inputs: numpy.ndarray, out: numpy.ndarray) -> None:
        value = reference(problem, dict(zip(names, inputs, strict=True)))
        out[...] = verify.round_to(value, problem.result.element).astype(out.dtype)
        if backend:
            backend.spent += us

    return kernel


# ---- timing ------------------------------------------------------------------------------------------


@given(us=st.floats(0.5, 200_000), sets=st.integers(2, 32))
def test_a_launch_is_timed_by_graphs_that_are_long_enough(us: float, sets: int):
    backend = FakeBackend()
    used: list[int] = []

    def run(i: int) -> None:
        used.append(i)
        backend.spent += us

    timing = measure.time_graph(run, sets, backend)
    overhead = 5 / timing.launches * 1.02
    assert us <= timing.us <= us * 1.021 + overhead
    assert timing.replays >= 3 and 0 <= timing.spread < 0.05
    assert timing.launches * us >= 1000 * measure.REPLAY_MS / 2  # so the replay's own cost does not show
    assert timing.launches * us <= max(us, 1000 * measure.LONGEST_MS) * 1.01
    assert set(used) == set(range(sets))
    assert used[-timing.launches :] == [i % sets for i in range(timing.launches)]


@given(us=st.floats(0.5, 20_000), sets=st.integers(2, 32))
def test_replays_are_as_long_as_results_say(us: float, sets: int):
    backend = FakeBackend()
    made = measure.capture(lambda i: setattr(backend, "spent", backend.spent + us), sets, backend)
    (least,) = re.findall(r"replays of ([\d.]+) ms or more", METHOD)
    assert made.ms >= float(least)


def test_the_spread_is_that_of_the_replays_that_count():
    timing = measure.time_graph(lambda i: setattr(backend, "spent", backend.spent + 100), 2, (backend := FakeBackend()))
    assert timing.spread == pytest.approx(0.02, rel=0.05)


def test_what_is_compared_meets_the_same_clocks(monkeypatch: pytest.MonkeyPatch):
    """On a GPU that slows down as it works and recovers in pauses, equal kernels take equal time, whoever is first."""

    class Heating(FakeBackend):
        heat = 0.0

        def replay(self, graph: float, times: int) -> list[float]:
            found = []
            for _ in range(times):
                self.heat += graph / 1e5
                found.append(graph / 1000 * (1 + self.heat))
            return found

    def cool(seconds: float) -> None:
        backend.heat *= 0.5 ** (seconds / 0.02)

    backend = Heating()
    monkeypatch.setattr(measure.time, "sleep", cool)

    def launches(us: float) -> measure.Captured:
        return measure.capture(lambda i: setattr(backend, "spent", backend.spent + us), 2, backend)

    entrants = [[launches(10.0)], [launches(20.0)] * 3, [launches(10.0)]]
    first, _, last = measure.time_in_turn(entrants, backend)
    assert first.us == pytest.approx(last.us, rel=0.02)


class BusyBackend(FakeBackend):
    """Something else has the GPU for a while: of the first so many rounds, replays take several times their time."""

    def __init__(self, rounds: int, slower: Callable[[int], float]) -> None:
        super().__init__()
        self.rounds, self.slower = rounds, slower

    def replay(self, graph: float, times: int) -> list[float]:
        self.rounds -= 1
        return [ms * (self.slower(i) if self.rounds >= 0 else 1.0) for i, ms in enumerate(super().replay(graph, times))]


@pytest.mark.parametrize(
    ("rounds", "slower"),
    [(0, lambda i: 1.0), (1, lambda i: 3.0), (4, lambda i: 1.0 + i % 2), (4, lambda i: float(1 + (i > 2)))],
    ids=["undisturbed", "a round", "every other replay", "from the third replay on"],
)  # fmt: skip
def test_what_is_disturbed_is_timed_until_it_is_not(rounds: int, slower: Callable[[int], float]):
    captured = measure.Captured(10.0 * 150, 150, 1.5, print)
    us, undisturbed = measure.time_undisturbed(captured, BusyBackend(rounds, slower))
    assert undisturbed and us == pytest.approx(10, rel=0.03)


def test_what_stays_disturbed_is_known_to_be():
    captured = measure.Captured(10.0 * 150, 150, 1.5, print)
    us, undisturbed = measure.time_undisturbed(captured, BusyBackend(100, lambda i: 1.0 + (i % 3 > 0)))
    assert not undisturbed and us == pytest.approx(20, rel=0.03)


def test_every_graph_of_an_entrant_has_a_round():
    graphs = [measure.Captured(us * 100, 100, us / 10, print) for us in (30.0, 10.0, 20.0)]
    (timing,) = measure.time_in_turn([graphs], FakeBackend())
    assert timing.us == pytest.approx(10, rel=0.02)


def test_a_hopeless_launch_is_timed_roughly():
    backend = FakeBackend()

    def run(i: int) -> None:
        backend.spent += 1000

    timing = measure.time_graph(run, 4, backend, hopeless_us=500)
    assert timing.us == pytest.approx(1000, rel=0.03) and len(backend.graphs) == 1


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_host_that_is_kept_busy_makes_no_kernel_hopeless(late: int):
    """The host launches one replay of a graph so late that it seems to take 30 times as long."""

    class Late(FakeBackend):
        def replay(self, graph: float, times: int) -> list[float]:
            return [ms * (30 if i == late else 1) for i, ms in enumerate(super().replay(graph, times))]

    backend = Late()
    timing = measure.time_graph(lambda i: setattr(backend, "spent", backend.spent + 30), 4, backend, hopeless_us=60)
    assert timing.us == pytest.approx(30, rel=0.05) and timing.replays > 1


def test_a_graphs_own_launch_makes_no_kernel_hopeless():
    """A graph of one launch of 3 us takes 8, by the clock."""
    backend = FakeBackend()
    timing = measure.time_graph(lambda i: setattr(backend, "spent", backend.spent + 3), 4, backend, hopeless_us=6)
    assert timing.us == pytest.approx(3, rel=0.05) and timing.replays > 1


@pytest.mark.parametrize(("size", "sets"), [(1, 32), (10e6, 15), (149e6, 2), (1e9, 2)])
def test_buffer_sets_take_more_than_the_cache_together(size: float, sets: int):
    assert measure.set_count(int(size)) == sets


def test_buffer_sets_hold_random_inputs_and_poisoned_outputs():
    problem = with_bias_relu(make_problem())
    sets = measure.buffer_sets(problem, FakeBackend(), bytes_together=3 * problem.min_bytes)
    assert len(sets) == 3
    for each in sets:
        assert [a.shape for a in each.inputs] == [problem.x.shape, problem.w.shape, (problem.k,)]
        assert numpy.isnan(each.out).all() and each.out.shape == problem.y.shape
    assert not numpy.array_equal(sets[0].inputs[0], sets[1].inputs[0])


@pytest.mark.parametrize(("share", "rounds"), [(10.0, 4), (0.8, 3), (0.5, 2)])
def test_fewer_rounds_fit_less_time(share: float, rounds: int, monkeypatch: pytest.MonkeyPatch):
    backend, slept = FakeBackend(), list[float]()
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    graph = measure.Captured(10.0, 1, 10.0, lambda i: None)
    measure.time_in_turn([[graph]], backend)
    whole = sum(slept) + (1 + measure.ROUNDS) * (graph.replay_count + 1) * graph.ms / 1000
    slept.clear()
    measure.time_in_turn([[graph]], backend, share * whole)
    assert len(slept) == rounds
    with pytest.raises(measure.TooLong):
        measure.time_in_turn([[graph]], backend, 0.49 * whole)


def test_what_serves_in_the_measuring_process(monkeypatch: pytest.MonkeyPatch):
    problem, backend = make_problem(), FakeBackend()
    kernels = {us: reference_kernel(problem, backend, us) for us in (10.0, 20.0)}
    monkeypatch.setattr("convgen.runtime.kernel.Kernel", lambda artifact: kernels[artifact.key])
    monkeypatch.setattr(measure.time, "sleep", lambda _: None)
    fast, slow = (SimpleNamespace(key=us, manifest=SimpleNamespace(arithmetic="")) for us in kernels)
    served = Gpu(backend)
    served.prepare(problem)
    assert served.healthy()
    assert served.time(problem, fast, math.inf) == pytest.approx(10, rel=0.05)
    assert served.compare(problem, [slow, fast]) == pytest.approx([20, 10], rel=0.05)
    with pytest.raises(measure.TooLong):
        served.compare(problem, [slow, fast], 0.01)
    assert served.check(problem, fast)[0]
    served.release()
    kernels[10.0] = lambda *inputs, out: None
    assert not served.check(problem, fast)[0]


# ---- verifying -----------------------------------------------------------------------------------------

OPERATORS = (Op.FPROP, Op.DGRAD, Op.WGRAD)


@pytest.mark.parametrize("limit", [1 << 25, 100, 1])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_right_kernel_passes_and_one_wrong_element_does_not(op: Op, limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "_ELEMENTS", limit)
    problem = with_bias_relu(make_problem(op, n=5))
    right = reference_kernel(problem)
    check = measure.Checker(problem, FakeBackend())
    assert check(right)
    size = problem.result.size
    for at in {0, size - 1, size // 2}:

        def wrong(*inputs: numpy.ndarray, out: numpy.ndarray, at: int = at) -> None:
            right(*inputs, out=out)
            out.reshape(-1)[at] += 1

        def lazy(*inputs: numpy.ndarray, out: numpy.ndarray, at: int = at) -> None:
            before = out.reshape(-1)[at].copy()
            right(*inputs, out=out)
            out.reshape(-1)[at] = before

        for kernel in (wrong, lazy):
            report = check(kernel)
            assert not report and "seed" in report.message, at


def test_a_kernel_is_held_to_the_arithmetic_of_its_plan():
    """A result as far off as tf32's products may be is wrong for float32."""
    problem = make_problem(dtype="f32")
    right = reference_kernel(problem)

    def rough(*inputs: numpy.ndarray, out: numpy.ndarray) -> None:
        right(*((a.view("u4") & ~numpy.uint32(0x1FFF)).view("f4") for a in inputs), out=out)

    check = measure.Checker(problem, FakeBackend())
    assert check(rough, "tf32") and not check(rough) and not check(rough, "tf32x3")
    assert check(right) and check(right, "tf32")


def test_a_large_result_may_be_checked_at_its_ends(monkeypatch: pytest.MonkeyPatch):
    problem = make_problem(n=5)
    monkeypatch.setattr(measure, "_ELEMENTS", problem.result.size // 5)
    right = reference_kernel(problem)
    wrong_images: list[int] = []

    def kernel(*inputs: numpy.ndarray, out: numpy.ndarray) -> None:
        right(*inputs, out=out)
        out[wrong_images] += 1

    whole, ends = (measure.Checker(problem, FakeBackend(), ends=ends) for ends in (False, True))
    assert whole(kernel) and ends(kernel)
    for image in range(5):
        wrong_images[:] = [image]
        assert not whole(kernel) and bool(ends(kernel)) == (image not in (0, 4))


def test_images_are_counted_in_messages(monkeypatch: pytest.MonkeyPatch):
    problem = make_problem(n=5)
    monkeypatch.setattr(measure, "_ELEMENTS", problem.result.size // 5 * 2)
    assert [(part.n, first) for part, first in measure.image_parts(problem)] == [(2, 0), (2, 2), (1, 4)]

    def kernel(*inputs: numpy.ndarray, out: numpy.ndarray) -> None:
        reference_kernel(problem)(*inputs, out=out)
        out[3] = 7

    report = measure.check(kernel, problem, FakeBackend())
    assert "counted from image 2" in report.message and "n=1" in report.message


def test_inputs_of_a_narrow_result_keep_its_sums_in_range():
    problem = make_problem(dtype="e4m3")
    assert measure.check(reference_kernel(problem), problem, FakeBackend())


# ---- baselines -------------------------------------------------------------------------------------------

CASES = list(itertools.product(OPERATORS, (1, 2, 3), (1, 2)))


@pytest.mark.parametrize(("op", "rank", "groups"), CASES)
def test_the_gemm_has_as_many_products_as_the_convolution(op: Op, rank: int, groups: int):
    problem = make_problem(op, rank, groups)
    assert baselines.gemm_shape(problem).macs == problem.macs


TRANSPOSED = Path(__file__).parents[2] / "specs" / "transposed.conv"


class TorchOnTheCpu:
    """PyTorch's backend as far as launches go, in float32 on the CPU."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        self.made: dict[str, list[Any]] = {}

    def stream(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()

    def normal(self, tensor: Tensor) -> Any:
        self.made.setdefault(tensor.role, []).append(self.torch.randn(tensor.shape))
        return self.made[tensor.role][-1]


@pytest.mark.parametrize(("op", "rank", "groups"), CASES)
def test_the_baseline_computes_the_convolution_channels_last(op: Op, rank: int, groups: int, torch_draws: None):
    backend = TorchOnTheCpu()
    problem = make_problem(op, rank, groups, dtype="f32")
    launches = baselines._convolution(problem, backend)  # type: ignore[arg-type]
    assert launches.sets == 32
    launches.run(5)
    got = launches.results[5]
    arrays = {role: backend.made[role][5].numpy().reshape(problem.tensor(role).shape) for role in OPS[op].reads}
    expected = reference(problem, arrays)
    numpy.testing.assert_allclose(got.movedim(1, -1).numpy().reshape(expected.shape), expected, atol=2e-5)
    assert got.stride(1) == 1 or (op is Op.WGRAD and groups > 1)
    assert launches.results.count(None) == 31


def test_the_baseline_of_a_vocoder_s_upsampling_is_torch_s_transposed_convolution(torch_draws: None):
    """Of 20 taps with stride 10, as in specs/transposed.conv, with fewer channels."""
    text = re.sub(r"(?s)^.*?(conv vocoder_20_10 {.*?\n}).*", r"\1", TRANSPOSED.read_text())
    text = text.replace("512", "8").replace("256", "4").replace("f16", "f32").replace("n, w=", "n=2, w=")
    (problem,) = (request.problem for request in frontend.load(text))
    backend = TorchOnTheCpu()
    launches = baselines._convolution(problem, backend)  # type: ignore[arg-type]
    launches.run(1)
    x, w = (backend.made[role][1][:, 0] for role in ("y", "w"))  # the operator is the gradient of its input
    right = backend.torch.nn.functional.conv_transpose1d(x.mT, w.mT, stride=10, padding=5)
    assert right.shape == (2, 4, 1000)
    backend.torch.testing.assert_close(launches.results[1][:, :, 0], right, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (replace(make_problem(), pad_hi=(2, 1)), "both ends"),
        (make_problem(dtype="s8"), "f16, bf16, f32"),
        (replace(make_problem(), x=Tensor("x", "x", "f32", ("n", "h", "w", "c"), (2, 7, 6, 4))), "one type"),
    ],
)
def test_what_cudnn_does_not_run_says_why(problem: ConvProblem, why: str):
    for baseline in (baselines.convolution, baselines.convolution_bias_relu):
        with pytest.raises(NoBaseline, match=why):
            baseline(problem, SimpleNamespace(torch=None))  # type: ignore[arg-type]


def test_the_roofline_is_the_slower_of_arithmetic_and_traffic():
    peaks = Peaks(tflops=500, gb_per_s=4000)
    assert peaks.roofline_us(flops=1e12, bytes_moved=1e6) == pytest.approx(2000)
    assert peaks.roofline_us(flops=1e6, bytes_moved=4e9) == pytest.approx(1000)


def test_a_large_gemm_is_no_baseline_of_another_type():
    with pytest.raises(NoBaseline):
        baselines.capture_gemm(GemmShape(1, 2, 2, 2, False, True), "e4m3", SimpleNamespace(torch=None))  # type: ignore[arg-type]


# ---- the run ---------------------------------------------------------------------------------------------


def test_the_fused_epilogue_is_recognized_and_others_are_not():
    fused = with_bias_relu(make_problem())
    assert is_bias_relu(fused) and not is_bias_relu(make_problem())
    assert with_bias_relu(make_problem(Op.DGRAD)) == make_problem(Op.DGRAD)
    assert fused.epilogue is not None
    per_pixel = replace(fused.epilogue, operands=(replace(fused.operands[0], dims=("n",), extents=(2,)),))
    assert not is_bias_relu(replace(fused, epilogue=per_pixel))


KERNELS: dict[str, tuple[float, str]] = {"auto": (10.0, "right"), "im2col": (40.0, "right"), "direct": (5.0, "wrong")}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A machine whose kernels behave as KERNELS says."""
    backend = FakeBackend()

    class FakeKernel:
        def __init__(self, artifact: Any) -> None:
            self.problem, (self.us, self.outcome) = artifact.problem.static, KERNELS[artifact.strategy]
            self.us *= 0.7 if artifact.manifest.dependent else 1

        def __call__(self, *inputs: numpy.ndarray, out: numpy.ndarray) -> None:
            if self.outcome == "fails":
                raise DriverError("the launch failed")
            reference_kernel(self.problem, backend, self.us)(*inputs, out=out)
            if self.outcome == "wrong":
                out[...] += 1

    def ordinary(artifact: Any) -> Any:
        """The artifact with ordinary launches."""
        manifest = SimpleNamespace(**{**vars(artifact.manifest), "dependent": False})
        return SimpleNamespace(**{**vars(artifact), "manifest": manifest})

    class FakeBuilder:
        def __init__(self, workers: int | None = None) -> None: ...

        def build_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
            for job in jobs:
                config = f"{job.strategy} config"
                manifest = SimpleNamespace(
                    strategy=job.strategy, config=config, reason="", arithmetic="", dependent=True
                )
                key = f"{job.strategy} {job.problem}"
                built = SimpleNamespace(key=key, manifest=manifest, strategy=job.strategy, problem=job.problem)
                yield job, built if job.strategy in KERNELS else Failure(f"{job.strategy} cannot serve it")

        def __enter__(self) -> FakeBuilder:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(backends, "at_hand", lambda: backend)
    monkeypatch.setattr(build, "Builder", FakeBuilder)
    monkeypatch.setattr(runner, "Kernel", FakeKernel)
    monkeypatch.setattr(runner, "alone", ordinary)
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)
    return backend


def test_every_column_of_a_row_is_measured_or_says_why(gpu: FakeBackend):
    problem = make_problem()
    names = ("auto", "im2col", "direct", "tma_halo")
    columns = {name: Column(Job(problem, TARGETS["sm_90a"], name, {})) for name in names}
    (row,) = Bench(gpu, build.Builder().build_all).rows([Entry("a", columns)])
    assert row.us == pytest.approx(10, rel=0.03) and row.own.verified
    assert row.results["im2col"].us == pytest.approx(40, rel=0.03)
    assert row.results["direct"].us is None and row.results["direct"].verified is False
    assert "wrong in" in row.results["direct"].note
    assert row.results["tma_halo"].note == "tma_halo cannot serve it"
    assert row.tflops == pytest.approx(2 * problem.macs / row.us / 1e6)


def make_row(name: str, us: float | None, cudnn_us: float | None, gemm_us: float | None = None) -> Row:
    own = Result("direct", us=us, cudnn_us=cudnn_us)
    return Row(name, "fprop", 8, "", 10**9, 10**6, {"auto": own}, "conv", gemm_us, 1.0)


def test_a_summary_speaks_of_the_rows_that_have_both_times():
    rows = [make_row("a", 1.0, 4.0, 2.0), make_row("b", 2.0, 1.0), make_row("c", None, 3.0), make_row("d", 1.0, None)]
    summary = summarize(rows)
    assert summary.speedup == pytest.approx(math.sqrt(4 * 0.5)) and summary.speedup_over_gemm == pytest.approx(2)
    assert (summary.layers, summary.compared, summary.faster) == (4, 2, 1)
    assert (summary.worst, summary.worst_speedup, summary.missing) == ("b", 0.5, ("c",))
    assert summarize([]).speedup is None


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.1, 10))
def test_the_geometric_mean_scales_and_lies_between(values: list[float], factor: float):
    mean = geomean(values)
    assert mean is not None and min(values) * 0.999 <= mean <= max(values) * 1.001
    assert geomean([v * factor for v in values]) == pytest.approx(mean * factor)


def test_a_file_has_the_figures_and_where_they_come_from():
    run = Run({"gpu": "NVIDIA Fake", "driver": "1"}, "convgen bench a.conv", {"f16": {"tflops": 1.0, "gb_per_s": 2.0}})
    run.rows += [make_row("a", 1.0, 4.0, 2.0), make_row("b", None, None)]
    data = json.loads(run.to_json())
    assert {"gpu", "driver", "convgen", "commit", "command", "date", "method", "peaks", "summary", "rows"} <= set(data)
    assert data["rows"][0]["speedup"] == 4 and data["rows"][1]["speedup"] is None
    assert data["rows"][0]["results"]["auto"]["strategy"] == "direct"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["benchmarks/unseen.py", "--out", "/home/me/out/unseen.json"], "benchmarks/unseen.py --out unseen.json"),
        (["benchmarks/unseen.py", "--out=/home/me/out/unseen.json"], "benchmarks/unseen.py --out=unseen.json"),
        (["/opt/bin/convgen", "bench", "specs/a.conv", "-D", "n=8"], "convgen bench specs/a.conv -D n=8"),
        (["/opt/lib/convgen/__main__.py", "bench", "/home/me/a.conv"], "convgen bench a.conv"),
        (["convgen", "bench", "/home/me/specs/", "--out=/home/me/out/"], "convgen bench specs/ --out=out/"),
        (["convgen", "bench", "/", "specs/"], "convgen bench / specs/"),
        (["fit.py", "runs/a.json", "../b.sqlite", "two words"], "fit.py a.json ../b.sqlite 'two words'"),
    ],
)
def test_a_command_is_recorded_without_a_machine_s_folders(monkeypatch, argv, said):
    monkeypatch.setattr("sys.argv", argv)
    assert command() == said


# ---- pictures ----------------------------------------------------------------------------------------------

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", plot.FORMATS)
@pytest.mark.parametrize(
    "rows", [[], [make_row("a", 1.0, 4.0, 2.0), make_row("b", None, None), make_row("c", 3.0, 2.0)]]
)
def test_a_picture_is_drawn_of_whatever_was_measured(rows: list[Row], suffix: str):
    pytest.importorskip("matplotlib")
    run = Run({"gpu": "NVIDIA Fake"}, "", {"f16": {"tflops": 700.0, "gb_per_s": 4000.0}} if rows else {}, rows)
    picture = plot.draw(run, Path(f"a{suffix}"))
    assert picture.startswith(SIGNATURES[suffix]) and len(picture) > 5000
    if suffix == ".svg":
        assert ("geometric mean 1.63" in picture.decode()) == bool(rows)


def test_a_picture_of_another_kind_is_refused_before_anything_is_measured(tmp_path: Path, capsys):
    assert cli.main(["bench", "nothing.conv", "--plot", str(tmp_path / "a.bmp")]) == 2
    assert ".png or .svg" in capsys.readouterr().err


def test_a_picture_without_matplotlib_ends_as_what_is_missing(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["bench", "nothing.conv", "--plot", str(tmp_path / "a.svg")]) == 1
    assert "pip install" in capsys.readouterr().err


# ---- the command ---------------------------------------------------------------------------------------------

SPEC = """
let n = 2
conv first { input x: f16[n, h=8, w=8, c=16]  filter w: f16[k=16, r=3, s=3, c=16]  output y: f16[n, p, q, k]  pad 1 }
conv second { input x: f16[n, h=8, w=8, c=16]  filter w: f16[k=16, r=1, s=1, c=16]  output y: f16[n, p, q, k] }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "a.conv"
    path.write_text(SPEC)
    return path


def test_without_a_gpu_it_says_what_can_be_done(spec: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def no_gpu() -> None:
        raise NoGpu("no GPU here")

    monkeypatch.setattr(backends, "at_hand", no_gpu)
    assert cli.main(["bench", str(spec)]) == 1
    assert "no GPU here\nhint: `convgen run --device emulate` runs kernels on the CPU" in capsys.readouterr().err


def test_bench_writes_a_table_a_file_and_a_picture(gpu: FakeBackend, spec: Path, tmp_path: Path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "r.json", tmp_path / "r.svg"
    arguments = ["bench", str(spec), "-D", "n=3", "--strategies", "im2col", "--out", str(out), "--plot", str(picture)]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert re.search(r"first +3 +auto +10\.\d\d .* 40\.\d\d +auto config", captured.out)
    assert "no baselines" in captured.err and "[2/2] second n=3: 10." in captured.err
    rows = json.loads(out.read_text())["rows"]
    assert [(row["name"], row["n"], list(row["results"])) for row in rows] == [
        ("first", 3, ["auto", "im2col"]), ("second", 3, ["auto", "im2col"]),
    ]  # fmt: skip
    assert picture.read_bytes().startswith(b"<?xml")


def test_a_chain_and_a_fused_epilogue_are_columns_beside(gpu: FakeBackend, spec: Path, tmp_path: Path, capsys):
    """Of one kernel: ordinary launches, dependent launches, and with relu(acc + bias)."""
    spec.write_text(SPEC + "conv third { input x: f16[n, h=8, w=8, c=16]  filter w: f16[k=16, r=1, s=1, c=16]"
                    "  output y: f16[n, p, q, k]  op wgrad }")  # fmt: skip
    out = tmp_path / "r.json"
    assert cli.main(["bench", str(spec), "--chain", "--fused", "--out", str(out)]) == 0
    assert "fused: geometric" not in capsys.readouterr().out  # nothing to compare with
    data = json.loads(out.read_text())
    columns = [list(row["results"]) for row in data["rows"]]
    assert columns == [["auto", "chain", "fused"], ["auto", "chain", "fused"], ["auto", "chain"]]
    assert list(data["columns"]) == ["chain", "fused"] and data["columns"]["fused"]["layers"] == 2
    for row in data["rows"]:
        us = {column: result["us"] for column, result in row["results"].items()}
        assert us["auto"] == pytest.approx(10, rel=0.03) and us["chain"] == pytest.approx(7, rel=0.03)
        assert row["cudnn"] == "conv" and "relu" not in row["spec"]
        assert all(result["verified"] for result in row["results"].values())


def test_the_gradients_of_forward_convolutions_are_measured(gpu: FakeBackend, spec: Path, tmp_path: Path, capsys):
    out = tmp_path / "r.json"
    assert cli.main(["bench", str(spec), "-D", "n=3", "--op", "dgrad,wgrad", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["name"], row["op"], row["n"]) for row in rows] == [
        (f"{name}_{op}", op, 3) for name in ("first", "second") for op in ("dgrad", "wgrad")
    ]
    assert cli.main(["bench", str(spec), "--op", "fprop,wgrad", "--out", str(out)]) == 0
    assert [row["op"] for row in json.loads(out.read_text())["rows"]] == 2 * ["fprop", "wgrad"]


def test_gradients_that_a_spec_has_are_not_measured_twice(gpu: FakeBackend, spec: Path, tmp_path: Path, capsys):
    """And those that are not derived are left out, with a warning."""
    bytes_ = SPEC.replace("f16", "s8").replace("output y: s8", "output y: s32").replace("let n = 2", "")
    spec.write_text(
        SPEC.replace("conv second {", "conv second { op fprop, wgrad ") + bytes_.replace("conv ", "conv of_bytes_")
    )
    out = tmp_path / "r.json"
    assert cli.main(["bench", str(spec), "--op", "dgrad,wgrad", "--out", str(out)]) == 0
    assert [(row["name"], row["op"]) for row in json.loads(out.read_text())["rows"]] == [
        ("first_dgrad", "dgrad"), ("first_wgrad", "wgrad"), ("second_fprop_dgrad", "dgrad"), ("second_wgrad", "wgrad"),
    ]  # fmt: skip
    assert "of_bytes_first reads s8" in capsys.readouterr().err


def test_operators_that_a_spec_does_not_have(gpu: FakeBackend, spec: Path, capsys):
    spec.write_text(SPEC.replace("conv second {", "conv second { op wgrad "))
    assert cli.main(["bench", str(spec), "--only", "second", "--op", "dgrad"]) == 2
    assert "no convolution has op dgrad" in capsys.readouterr().err
    assert cli.main(["bench", str(spec), "--op", "wgrad", "--images", "1-8"]) == 2
    assert "leave out --images" in capsys.readouterr().err
    assert cli.main(["bench", str(spec), "--op", "grad"]) == 2
    assert "unknown 'grad'" in capsys.readouterr().err


def test_dynamic_sizes_are_measured_at_those_of_the_spec(gpu: FakeBackend, monkeypatch, tmp_path: Path, capsys):
    asked: list[ConvProblem] = []

    def library(problem: ConvProblem, backend: FakeBackend) -> list[measure.Captured]:
        asked.append(problem)
        return [measure.Captured(1995, 100, 2, print)]

    monkeypatch.setattr(runner, "TorchBackend", FakeBackend)
    monkeypatch.setattr(backends, "TorchBackend", FakeBackend)
    monkeypatch.setattr(baselines, "peaks", lambda dtype, backend: Peaks(1, 1))
    monkeypatch.setattr(runner, "_CUDNN", dict.fromkeys(runner._CUDNN, library))
    monkeypatch.setattr(baselines, "gemm", library)
    spec, out = tmp_path / "a.conv", tmp_path / "r.json"
    text = SPEC.partition("conv second")[0]
    spec.write_text(text.replace("output y: f16[n, p, q, k]", "output y: f16[n, p, q, k]  dynamic n h w"))
    assert cli.main(["bench", str(spec), "--fused", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert "dynamic n h w" in row["spec"] and all(result["verified"] for result in row["results"].values())
    assert asked and not any(p.dynamic for p in asked)
    assert cli.main(["bench", str(spec), "--images", "3"]) == 0
    assert re.search(r"^first\.n3 +3 +auto", capsys.readouterr().out, re.MULTILINE)


def test_a_layers_kernels_and_baselines_are_timed_in_turn(gpu: FakeBackend, monkeypatch: pytest.MonkeyPatch):
    """Each beside cuDNN's time for the same work; a baseline that is missing leaves a note."""

    def library(name: str, us: float) -> Callable[..., list[measure.Captured]]:
        return lambda problem, backend: [measure.Captured(us * 100 - 5, 100, us / 10, print)] * baselines.RETUNES

    def missing(problem: ConvProblem, backend: FakeBackend) -> list[measure.Captured]:
        raise NoBaseline("no such GEMM")

    turns: list[int] = []
    in_turn = runner.time_in_turn
    monkeypatch.setattr(runner, "time_in_turn", lambda e, b: (turns.append(len(e)), in_turn(e, b))[1])
    monkeypatch.setattr(runner, "TorchBackend", FakeBackend)
    monkeypatch.setattr(baselines, "peaks", lambda dtype, backend: Peaks(1, 1))
    monkeypatch.setattr(runner, "_CUDNN", {"conv": library("conv", 20), "conv+bias+relu": library("fused", 30)})
    monkeypatch.setattr(baselines, "gemm", missing)
    problem = make_problem()
    own = Job(problem, TARGETS["sm_90a"], "auto", {})
    fused = replace(own, problem=with_bias_relu(problem))
    columns = {"auto": Column(own), "same": Column(own), "chain": Column(own, True), "fused": Column(fused)}
    (row,) = Bench(gpu, build.Builder().build_all).rows([Entry("a", columns)])
    assert turns == [5], "two columns of the same kernel are one"
    assert {name: round(result.cudnn_us or 0) for name, result in row.results.items()} == {
        "auto": 20, "same": 20, "chain": 20, "fused": 30,
    }  # fmt: skip
    assert row.results["same"] == row.own and row.speedup == pytest.approx(2, rel=0.05)
    assert row.gemm_us is None and row.notes == ("no such GEMM",) and row.roofline_us
    assert summarize([row], "fused").speedup == pytest.approx(3, rel=0.05)


def test_a_wrong_kernel_is_a_failure(gpu: FakeBackend, spec: Path, capsys):
    assert cli.main(["bench", str(spec), "--strategy", "direct"]) == 1
    assert "first, direct: y is wrong in" in capsys.readouterr().err
    assert cli.main(["bench", str(spec), "--strategy", "direct", "--no-verify"]) == 0


def test_a_launch_that_fails_is_a_row_that_says_so(
    gpu: FakeBackend, spec: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(KERNELS, "auto", (1.0, "fails"))
    assert cli.main(["bench", str(spec)]) == 1
    assert "DriverError: the launch failed" in capsys.readouterr().err


def test_what_does_not_fit_is_a_row_that_says_so(gpu: FakeBackend, spec: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    def full(tensor: Tensor) -> numpy.ndarray:
        raise MemoryError

    monkeypatch.setattr(gpu, "poisoned", full)
    assert cli.main(["bench", str(spec)]) == 1
    assert "second, auto: the GPU's memory is too small" in capsys.readouterr().err


def test_an_interrupt_keeps_the_rows_that_are_there(
    gpu: FakeBackend, spec: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    released = iter([KeyboardInterrupt])

    def release() -> None:
        if (what := next(released, None)) is not None:
            raise what

    monkeypatch.setattr(gpu, "release", release)
    assert cli.main(["bench", str(spec), "--out", str(tmp_path / "r.json")]) == 130
    assert [row["name"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]] == ["first"]
    assert "interrupted after 1 of 2" in capsys.readouterr().err


def test_suites_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "net").mkdir()
    for name in ("flat.conv", "net/b.conv", "net/a.conv"):
        (tmp_path / name).write_text(SPEC)
    monkeypatch.setattr(suites, "directory", lambda name: tmp_path)
    assert suites.names() == ["flat", "net"]
    assert suites.find("flat") == [tmp_path / "flat.conv"]
    assert suites.find("net") == [tmp_path / "net" / "a.conv", tmp_path / "net" / "b.conv"]
    assert suites.find("net/b") == [tmp_path / "net" / "b.conv"]
    with pytest.raises(UsageError, match="did you mean `flat`"):
        suites.find("flatt")
    for unknown in ("nut", "..", str(tmp_path), "net/c"):
        assert cli.main(["bench", "--suite", f"flat, {unknown}"]) == 2
        assert f"unknown suite '{unknown}'" in capsys.readouterr().err
    for written in (["flat,"], ["net/b", "--suite", "flat"]):
        assert cli.main(["bench", "--suite", *written, "--only", "none"]) == 2
        assert "unknown convolution 'none'" in capsys.readouterr().err
    assert cli.main(["bench", "--suite", ","]) == 2
    assert "argument --suite: it names nothing" in capsys.readouterr().err
    assert cli.main(["bench"]) == 2
    assert "--suite, of flat, net" in capsys.readouterr().err


def test_rows_of_several_specs_carry_the_specs_name(gpu: FakeBackend, spec: Path, tmp_path: Path):
    other = tmp_path / "b.conv"
    other.write_text(SPEC)
    assert cli.main(["bench", str(spec), str(other), "--only", "second", "--out", str(tmp_path / "r.json")]) == 0
    assert [row["name"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]] == ["a/second", "b/second"]


def test_a_stated_commit_is_recorded_in_place_of_the_checkouts(monkeypatch: pytest.MonkeyPatch):
    """A copy of the tree on another machine may have a checkout that says something else."""
    from convgen.bench import results

    monkeypatch.delenv("CONVGEN_COMMIT", raising=False)
    found = results.commit()
    assert found is None or found.removesuffix("-dirty").isalnum()
    monkeypatch.setenv("CONVGEN_COMMIT", "4ed228c")
    assert results.commit() == "4ed228c"
