"""Runs a benchmark: builds all kernels ahead, then measures each convolution beside its baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from convgen.bench import baselines
from convgen.bench.backend import Backend, TorchBackend
from convgen.bench.baselines import NoBaseline, Peaks
from convgen.bench.build import Failure, Job
from convgen.bench.measure import Checker, Timing, buffer_sets, time_kernel
from convgen.bench.results import Result, Row
from convgen.ir import epilogue as ep
from convgen.ir.plan import Launch
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.runtime.artifacts import Artifact
from convgen.runtime.errors import LaunchError
from convgen.runtime.kernel import Kernel

Build = Callable[[Iterable[Job]], Iterator[tuple[Job, Artifact | Failure]]]


@dataclass(frozen=True)
class Entry:
    """A convolution to measure, and what to measure on it, by column."""

    name: str
    problem: ConvProblem
    jobs: dict[str, Job]


@dataclass
class Bench:
    """Measures entries.  `verify` compares every kernel's result with the reference, `compare` times the
    baselines (through PyTorch, where it is installed).  `alone`: no kernel is launched to start behind
    the one before it."""

    backend: Backend
    build: Build
    verify: bool = True
    compare: bool = True
    alone: bool = False
    peaks: dict[str, Peaks] = field(default_factory=dict)

    def rows(self, entries: Sequence[Entry]) -> Iterator[Row]:
        """One row an entry, in order, as it is measured."""
        built = self.build(job for entry in entries for job in entry.jobs.values())
        for entry in entries:
            kernels = {column: next(built)[1] for column in entry.jobs}
            yield self._row(entry, kernels)
            self.backend.release()

    def _row(self, entry: Entry, kernels: dict[str, Artifact | Failure]) -> Row:
        problem = entry.problem
        try:
            results = self._results(entry, kernels)
        except self.backend.out_of_memory:
            results = {c: Result(job.strategy, note="the GPU's memory is too small") for c, job in entry.jobs.items()}
        fused = is_bias_relu(problem)
        row = Row(
            entry.name, str(problem.op), problem.n, str(problem), 2 * problem.macs, problem.min_bytes, results,
            cudnn="conv+bias+relu" if fused else "conv",
        )  # fmt: skip
        self.backend.release()
        if not self.compare or not isinstance(self.backend, TorchBackend):
            return row
        notes: list[str] = []
        cudnn = _attempt(baselines.cudnn_bias_relu if fused else baselines.cudnn, problem, self.backend, notes)
        gemm = _attempt(baselines.gemm, problem, self.backend, notes)
        peaks = self._peaks(problem.reads[0].dtype, self.backend)
        return replace(
            row,
            cudnn_us=cudnn,
            gemm_us=gemm,
            roofline_us=peaks.roofline_us(row.flops, row.min_bytes) if peaks else None,
            notes=tuple(notes),
        )

    def _results(self, entry: Entry, kernels: dict[str, Artifact | Failure]) -> dict[str, Result]:
        sets = buffer_sets(entry.problem, self.backend)
        checker = Checker(entry.problem, self.backend) if self.verify else None
        found: dict[str, Result] = {}
        measured: dict[str, Result] = {}  # columns often ask for the same kernel
        for column, built in kernels.items():
            if isinstance(built, Failure):
                found[column] = Result(entry.jobs[column].strategy, note=built.message)
                continue
            if built.key not in measured:
                measured[built.key] = self._result(built, sets, checker)
            found[column] = measured[built.key]
        return found

    def _result(self, artifact: Artifact, sets, checker: Checker | None) -> Result:
        m = artifact.manifest
        result = Result(m.strategy, m.config, m.reason)
        kernel = Kernel(alone(artifact) if self.alone else artifact)
        try:
            if checker:
                report = checker(kernel)
                result = replace(result, verified=report.ok)
                if not report:
                    return replace(result, note=report.message)
            # as often as the baselines: the GPU's clocks wander, and the best of several tries wanders less
            tries = [time_kernel(kernel, sets, self.backend) for _ in range(baselines.RETUNES)]
            timing = min(tries, key=lambda t: t.us)
        except LaunchError as e:
            return replace(result, note=f"{type(e).__name__}: {e}")
        return replace(result, us=timing.us, spread=timing.spread)

    def _peaks(self, dtype: str, backend: TorchBackend) -> Peaks | None:
        if dtype not in self.peaks:
            try:
                self.peaks[dtype] = baselines.peaks(dtype, backend)
            except NoBaseline:
                return None
        return self.peaks[dtype]


def alone(artifact: Artifact) -> Artifact:
    """The kernel with ordinary launches, that wait for the ones before them."""
    steps = tuple(replace(s, dependent=False) if isinstance(s, Launch) else s for s in artifact.manifest.steps)
    return replace(artifact, manifest=replace(artifact.manifest, steps=steps))


def _attempt(
    measure: Callable[[ConvProblem, TorchBackend], Timing],
    problem: ConvProblem,
    backend: TorchBackend,
    notes: list[str],
) -> float | None:
    """Microseconds; None, and a note, where there is no such baseline."""
    try:
        return measure(problem, backend).us
    except NoBaseline as e:
        notes.append(str(e))
        return None


def with_bias_relu(problem: ConvProblem) -> ConvProblem:
    """fprop with y = relu(acc + b), b one value a channel of x's type, as cuDNN's fused call has it; other
    operators as they are."""
    if problem.op is not Op.FPROP:
        return problem
    bias = Tensor("b", "operand", problem.x.dtype, ("k",), (problem.k,))
    value = ep.Call("relu", (ep.Binary("+", ep.Acc(), ep.OperandRef("b")),))
    return replace(problem, epilogue=ep.Epilogue((bias,), (ep.Assignment(problem.y.name, value),)))


def is_bias_relu(problem: ConvProblem) -> bool:
    """Whether an fprop ends in relu(acc + b) with one b a channel."""
    if problem.op is not Op.FPROP or problem.epilogue is None or len(problem.epilogue.body) != 1:
        return False
    match problem.epilogue.body[0].value:
        case ep.Call(
            "relu", (ep.Binary("+", ep.Acc(), ep.OperandRef(name)) | ep.Binary("+", ep.OperandRef(name), ep.Acc()),)
        ):
            return problem.tensor(name).dims == ("k",)
    return False
