"""Runs a benchmark: builds all kernels ahead, then measures those of a convolution and its baselines side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from convgen.bench import baselines
from convgen.bench.backend import Backend, TorchBackend
from convgen.bench.baselines import NoBaseline, Peaks
from convgen.bench.build import Failure, Job
from convgen.bench.measure import Buffers, Captured, Checker, buffer_sets, capture, launcher, time_in_turn
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
class Column:
    """A kernel to measure: launched alone, or `chained`, each launch right after the previous one."""

    job: Job
    chained: bool = False


@dataclass(frozen=True)
class Entry:
    """A convolution to measure, and what to measure on it: columns by name, the first is the row's own."""

    name: str
    columns: dict[str, Column]

    @property
    def problem(self) -> ConvProblem:
        return next(iter(self.columns.values())).job.problem


@dataclass
class Bench:
    """Measures entries.  `verify` compares every kernel's result with the reference, `compare` times the
    baselines (through PyTorch, where it is installed)."""

    backend: Backend
    build: Build
    verify: bool = True
    compare: bool = True
    peaks: dict[str, Peaks] = field(default_factory=dict)

    def rows(self, entries: Sequence[Entry]) -> Iterator[Row]:
        """One row an entry, in order, as it is measured."""
        built = self.build(column.job for entry in entries for column in entry.columns.values())
        for entry in entries:
            kernels = {name: next(built)[1] for name in entry.columns}
            yield self._row(entry, kernels)
            self.backend.release()

    def _row(self, entry: Entry, kernels: dict[str, Artifact | Failure]) -> Row:
        """Everything is captured first, then timed in turn."""
        problem = entry.problem
        notes: list[str] = []
        libraries = self._libraries(entry, notes)
        peaks = self.peaks.get(problem.reads[0].dtype)
        try:
            made = self._kernels(entry, kernels)
        except self.backend.out_of_memory:
            made = {c: (Result(column.job.strategy, note=_NO_ROOM), []) for c, column in entry.columns.items()}
        entrants = [graphs for graphs in (*(graphs for _, graphs in made.values()), *libraries.values()) if graphs]
        distinct = {id(graphs): graphs for graphs in entrants}
        timings = dict(zip(distinct, time_in_turn(list(distinct.values()), self.backend), strict=True))
        results = {}
        for name, (result, graphs) in made.items():
            timing = timings.get(id(graphs))
            cudnn = timings.get(id(libraries.get(_work(entry.columns[name].job.problem))))
            result = replace(result, cudnn_us=cudnn.us) if cudnn else result
            results[name] = replace(result, us=timing.us, spread=timing.spread) if timing else result
        gemm = timings.get(id(libraries.get("GEMM")))
        flops = 2 * problem.macs
        return Row(
            entry.name, str(problem.op), problem.n, str(problem), flops, problem.min_bytes, results,
            cudnn=_work(problem),
            gemm_us=gemm.us if gemm else None,
            roofline_us=peaks.roofline_us(flops, problem.min_bytes) if peaks else None,
            notes=tuple(notes),
        )  # fmt: skip

    def _kernels(
        self, entry: Entry, kernels: dict[str, Artifact | Failure]
    ) -> dict[str, tuple[Result, list[Captured]]]:
        """Each column's result, but for its time, and its graph where there is one."""
        found: dict[str, tuple[Result, list[Captured]]] = {}
        known: dict[tuple[str, bool], tuple[Result, list[Captured]]] = {}  # columns often ask for the same kernel
        prepared: dict[ConvProblem, tuple[list[Buffers], Checker | None]] = {}
        for name, built in kernels.items():
            job, chained = entry.columns[name].job, entry.columns[name].chained
            if isinstance(built, Failure):
                found[name] = Result(job.strategy, note=built.message), []
                continue
            if job.problem not in prepared:
                checker = Checker(job.problem, self.backend) if self.verify else None
                prepared[job.problem] = buffer_sets(job.problem, self.backend), checker
            if (built.key, chained) not in known:
                known[built.key, chained] = self._kernel(built if chained else alone(built), *prepared[job.problem])
            found[name] = known[built.key, chained]
        return found

    def _kernel(
        self, artifact: Artifact, sets: list[Buffers], checker: Checker | None
    ) -> tuple[Result, list[Captured]]:
        m = artifact.manifest
        result = Result(m.strategy, m.config, m.reason)
        kernel = Kernel(artifact)
        try:
            if checker:
                report = checker(kernel, m.arithmetic)
                result = replace(result, verified=report.ok)
                if not report:
                    return replace(result, note=report.message), []
            return result, [capture(launcher(kernel, sets), len(sets), self.backend)]
        except LaunchError as e:
            return replace(result, note=f"{type(e).__name__}: {e}"), []

    def _libraries(self, entry: Entry, notes: list[str]) -> dict[str, list[Captured]]:
        """cuDNN's graphs, by what is computed, and a GEMM's; `notes` get why one is not there."""
        if not self.compare or not isinstance(self.backend, TorchBackend):
            return {}
        self._measure_peaks(entry.problem.reads[0].dtype, self.backend)
        asked = {_work(column.job.problem): column.job.problem.static for column in entry.columns.values()}
        found: dict[str, list[Captured]] = {}
        for what, measure, problem in (
            *((work, _CUDNN[work], problem) for work, problem in asked.items()),
            ("GEMM", baselines.gemm, entry.problem.static),
        ):
            try:
                found[what] = measure(problem, self.backend)
            except NoBaseline as e:
                notes.append(str(e))
        return found

    def _measure_peaks(self, dtype: str, backend: TorchBackend) -> None:
        if dtype not in self.peaks:
            with suppress(NoBaseline):
                self.peaks[dtype] = baselines.peaks(dtype, backend)


_NO_ROOM = "the GPU's memory is too small"
#: What a fprop may be compared with.
_CUDNN = {"conv": baselines.convolution, "conv+bias+relu": baselines.convolution_bias_relu}


def _work(problem: ConvProblem) -> str:
    """The work that cuDNN computes for a problem."""
    return "conv+bias+relu" if is_bias_relu(problem) else "conv"


def alone(artifact: Artifact) -> Artifact:
    """The kernel with an ordinary first launch, which waits for everything before it; its plan's further launches stay
    as they are."""
    first, *others = artifact.manifest.steps
    first = replace(first, dependent=False) if isinstance(first, Launch) else first
    return replace(artifact, manifest=replace(artifact.manifest, steps=(first, *others)))


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
