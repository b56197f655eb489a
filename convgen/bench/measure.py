"""The timing core: what one launch takes, and whether its result is right.

Launches are captured in a CUDA graph that is long enough for its own launch not to show, replayed back to
back and timed by events; inputs and outputs rotate over more memory than the L2 holds, so that every
launch meets them as cold as a network's layer would.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from convgen.bench.backend import Array, Backend
from convgen.ir import verify
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor

#: Buffer sets take this many bytes together (an H200's L2 holds 60e6), in at most so many sets.
ROTATED_BYTES = 150e6
MOST_SETS = 32
#: A replay lasts about this long; a kernel so slow that one round of the sets takes `LONGEST_MS` does less.
REPLAY_MS = 1.5
LONGEST_MS = 15.0
#: A graph with fewer launches is taken where so many times as many would be enough: another capture gains little.
NEARLY = 1.3
SHORTEST_MS = REPLAY_MS / NEARLY
#: Replays that count: fewer of a kernel so slow that they would take longer than MOST_MS together.
REPLAYS = 8
MOST_MS = 100.0
#: A replay this long tells whether a kernel is hopeless; a shorter one is mostly the launch of its graph.
ROUGH_MS = 0.3
#: So many replays tell so, the faster of which counts: a host that others keep busy stretches one, even thirtyfold.
ROUGH_REPLAYS = 2
#: What is compared is replayed in so many rounds that count.
ROUNDS = 3
#: A round was disturbed whose median is more than so many times the fastest replay of any round; then there are more
#: rounds, up to so many.
DISTURBED = 1.1
MOST_ROUNDS = 10
#: A GPU at its power limit lowers its clocks, by a quarter if it works without a pause; before replays that
#: count it rests, and what is compared rests this many times as long as it works.
REST_SECONDS = 0.01
REST = 2.0


@dataclass(frozen=True)
class Timing:
    """Median microseconds a launch over `replays` replays of a graph of `launches` launches.

    `spread` is the difference between the slowest and the fastest replay, as a share of the median.
    """

    us: float
    spread: float
    replays: int
    launches: int

    def __str__(self) -> str:
        return f"{self.us:.2f} us"


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of `launches` launches, ready to be replayed; one replay takes about `ms`.

    `run` is what it launched: the graph holds addresses, and `run` keeps the buffers behind them alive.
    """

    graph: Any
    launches: int
    ms: float
    run: Callable[[int], object]

    @property
    def us(self) -> float:
        """Microseconds a launch, roughly."""
        return self.ms * 1000 / self.launches

    @property
    def replay_count(self) -> int:
        """Replays that count."""
        return max(3, min(REPLAYS, round(MOST_MS / max(self.ms, 1e-3))))

    def replays(self, backend: Backend) -> list[float]:
        """Microseconds a launch of each replay that counts, in order; one before them does not."""
        return [ms * 1000 / self.launches for ms in backend.replay(self.graph, self.replay_count + 1)[1:]]


def capture(run: Callable[[int], object], sets: int, backend: Backend, hopeless_us: float = math.inf) -> Captured:
    """Capture launches.  `run(i)` launches on buffer set i on the current stream, and must be capturable after
    its first call.  The graph of a launch slower than `hopeless_us` is shorter than a fair one."""
    with backend.stream():
        for i in range(sets):  # modules load, workspaces are made, libraries choose their algorithms
            run(i)
        launches = 1
        while True:
            graph = backend.capture(lambda n=launches: _cycle(run, n, sets))  # type: ignore[misc]
            made = Captured(graph, launches, min(backend.replay(graph, 1 + ROUGH_REPLAYS)[1:]), run)
            wanted = _launches(made.ms / launches, sets)
            if wanted <= NEARLY * launches or (made.us > hopeless_us and made.ms > ROUGH_MS):
                return made
            launches = min(wanted, 32 * launches)  # the first, short graphs are mostly overhead


def time_graph(run: Callable[[int], object], sets: int, backend: Backend, hopeless_us: float = math.inf) -> Timing:
    """Time a launch, as `capture` takes it.  One slower than `hopeless_us` is timed roughly."""
    made = capture(run, sets, backend, hopeless_us)
    if made.us > hopeless_us:
        return Timing(made.us, 0.0, 1, made.launches)
    time.sleep(REST_SECONDS)
    with backend.stream():
        return _timing(made, made.replays(backend))


def time_undisturbed(captured: Captured, backend: Backend) -> tuple[float, bool]:
    """Microseconds per launch, and whether the GPU did nothing else meanwhile, as far as we can tell.

    The least median of two rounds; of up to `MOST_ROUNDS` while other work on the GPU disturbs them.
    """
    median, fastest = math.inf, math.inf
    for number in range(MOST_ROUNDS):
        time.sleep(REST_SECONDS)
        with backend.stream():
            us = captured.replays(backend)
        median, fastest = min(median, statistics.median_low(us)), min(fastest, *us)
        if number and median <= DISTURBED * fastest:
            return median, True
    return median, False


class TooLong(Exception):
    """Timing would take longer than the time that is left."""


def time_in_turn(entrants: Sequence[Sequence[Captured]], backend: Backend, seconds: float = math.inf) -> list[Timing]:
    """Time entrants side by side: the GPU's clocks depend on what ran before, and must not favor one.

    In each of `ROUNDS` rounds every entrant replays one of its graphs (they take turns where it has several)
    behind a rest in proportion to its work.  The order is reversed from round to round, so that each meets the
    clocks that the others leave, and a round before them does not count: it meets a GPU that has rested for
    long.  Each entrant's best round does.

    There are fewer rounds where so many take more than `seconds`.  Raises TooLong where not one can count.
    """
    each = sum(max(_turn_seconds(graph) for graph in graphs) for graphs in entrants)
    rounds = min(1 + ROUNDS, int(min(seconds / max(each, 1e-9), 1e9)))
    if rounds < 2:
        raise TooLong(f"timing {len(entrants)} in turn takes {2 * each:.2f} s")
    found: list[list[Timing]] = [[] for _ in entrants]
    order = list(range(len(entrants)))
    for number in range(rounds):
        for i in order if number % 2 == 0 else reversed(order):
            graph = entrants[i][number % len(entrants[i])]
            time.sleep(_rest_seconds(graph))
            with backend.stream():
                found[i].append(_timing(graph, graph.replays(backend)))
    return [min(timings[1:], key=lambda t: t.us) for timings in found]


def _rest_seconds(graph: Captured) -> float:
    return max(REST_SECONDS, REST * graph.ms / 1000 * REPLAYS)


def _turn_seconds(graph: Captured) -> float:
    """Seconds of a rest and the replays after it, one of which does not count."""
    return _rest_seconds(graph) + graph.ms / 1000 * (graph.replay_count + 1)


def _timing(captured: Captured, us: Sequence[float]) -> Timing:
    median = statistics.median(us)
    return Timing(median, (max(us) - min(us)) / median, len(us), captured.launches)


def _cycle(run: Callable[[int], object], launches: int, sets: int) -> None:
    for i in range(launches):
        run(i % sets)


def _launches(ms: float, sets: int) -> int:
    """Launches of a replay: enough for REPLAY_MS, in whole rounds of the sets where that is not too long."""
    enough = math.ceil(REPLAY_MS / max(ms, 1e-4))
    rounds = math.ceil(enough / sets) * sets
    return rounds if rounds * ms <= LONGEST_MS else enough


@dataclass(frozen=True)
class Buffers:
    """One set of arrays for a problem: what the operator reads, then the operands; the result, or a tuple of all."""

    inputs: tuple[Array, ...]
    out: Array | tuple[Array, ...]


def set_count(bytes_each: int, bytes_together: float = ROTATED_BYTES) -> int:
    """How many sets rotate: at least two, so that no launch finds its own output in the L2."""
    return max(2, min(MOST_SETS, math.ceil(bytes_together / bytes_each)))


def buffer_sets(problem: ConvProblem, backend: Backend, bytes_together: float = ROTATED_BYTES) -> list[Buffers]:
    """Sets of N(0, 1) inputs and poisoned outputs, `bytes_together` or more unless MOST_SETS are fewer."""
    with backend.stream():
        return [_buffers(problem.static, backend) for _ in range(set_count(problem.min_bytes, bytes_together))]


def _buffers(problem: ConvProblem, backend: Backend) -> Buffers:
    inputs = tuple(backend.normal(t) for t in problem.arguments)
    return Buffers(inputs, _poisoned(problem, backend))


def _poisoned(problem: ConvProblem, backend: Backend) -> Array | tuple[Array, ...]:
    """A poisoned array to pass as `out`."""
    arrays = tuple(map(backend.poisoned, problem.results))
    return arrays if problem.further else arrays[0]


def time_kernel(
    kernel: Callable[..., object], sets: Sequence[Buffers], backend: Backend, hopeless_us: float = math.inf
) -> Timing:
    """Time a compiled kernel, called as `kernel(*inputs, out=...)`, over buffer sets."""
    return time_graph(launcher(kernel, sets), len(sets), backend, hopeless_us)


def launcher(kernel: Callable[..., object], sets: Sequence[Buffers]) -> Callable[[int], object]:
    """Launches a kernel on the buffer set of a number."""
    return lambda i: kernel(*sets[i].inputs, out=sets[i].out)


# ---- verifying ---------------------------------------------------------------------------------

#: Results above this many elements are compared a few images at a time: float64 takes much memory.
_ELEMENTS = 1 << 25


def check(kernel: Callable[..., object], problem: ConvProblem, backend: Backend) -> verify.Report:
    """Launch once on fresh random data and compare every element with the float64 reference."""
    return Checker(problem, backend)(kernel)


class Checker:
    """Random data for a problem and the expected result, computed once for any number of kernels.

    Of a large result that is compared some images at a time, `ends` compares the first and the last of these parts.
    """

    def __init__(self, problem: ConvProblem, backend: Backend, seed: int | None = None, ends: bool = False) -> None:
        problem = problem.static  # a kernel takes its sizes from the arrays
        self._problem, self._backend, self._ends = problem, backend, ends
        self._seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        with backend.stream():
            self._inputs = _check_inputs(problem, backend, self._seed)
            self._arrays = [(t, backend.as_xp(a)) for t, a in zip(problem.arguments, self._inputs, strict=True)]
        self._expected: dict[str, list[tuple[ConvProblem, int, tuple[verify.Expectation, ...]]]] = {}  # by arithmetic

    def _parts(self, arithmetic: str) -> list[tuple[ConvProblem, int, tuple[verify.Expectation, ...]]]:
        """Runs of images: the first image of each, and its expected result."""
        if arithmetic not in self._expected:
            found = self._expected[arithmetic] = []
            parts = image_parts(self._problem)
            for part, first in [parts[0], parts[-1]] if self._ends and len(parts) > 2 else parts:
                cut = {t.buffer: cut_images(t, part.n, first, a) for t, a in self._arrays}
                found.append((part, first, verify.expect_all(part, cut, self._backend.xp, arithmetic)))
        return self._expected[arithmetic]

    def __call__(self, kernel: Callable[..., object], arithmetic: str = "") -> verify.Report:
        """Whether a kernel's results are right, in every element.  `arithmetic` is its plan's."""
        problem, backend = self._problem, self._backend
        with backend.stream():
            out = _poisoned(problem, backend)
            kernel(*self._inputs, out=out)
            actual = [backend.as_xp(a) for a in (out if isinstance(out, tuple) else (out,))]
            for part, first, expected in self._parts(arithmetic):
                results = zip(problem.results, part.results, actual, expected, strict=True)
                report = verify.worst(
                    verify.compare_tensor(of_part, cut_images(whole, part.n, first, array), right, backend.xp)
                    for whole, of_part, array, right in results
                )
                if not report:
                    where = f"; counted from image {first}" if first else ""
                    return replace(report, message=f"{report.message}{where} (seed {self._seed})")
        return report


def _check_inputs(problem: ConvProblem, backend: Backend, seed: int) -> list[Array]:
    """Random inputs: made on the GPU, but on the host where sums must be scaled to a result's narrow range."""
    if not any(t.element.is_float and t.element.bytes == 1 for t in problem.results):
        backend.seed(seed)
        return [backend.normal(t) for t in problem.arguments]
    made = verify.random_inputs(problem, seed)
    return [backend.upload(made[t.buffer], t) for t in problem.arguments]


def image_parts(problem: ConvProblem) -> list[tuple[ConvProblem, int]]:
    """The problem cut into runs of images: (problem of a run, its first image).  Uncut where the result is
    small, or one sums over images."""
    each = problem.result.size // problem.n
    over_images = problem.op is Op.WGRAD or problem.sums or each * problem.n != problem.result.size
    if over_images or problem.result.size <= _ELEMENTS:
        return [(problem, 0)]
    run = max(1, _ELEMENTS // each)
    return [(problem.with_images(min(run, problem.n - i)), i) for i in range(0, problem.n, run)]


def cut_images(tensor: Tensor, n: int, first: int, array: Array) -> Array:
    """The part of a tensor's array that belongs to images [first, first + n), in that part's own shape."""
    if tensor.extent("n") in (1, n):
        return array
    at = tensor.dims.index("n")
    cut = array.reshape(tensor.extents)[(slice(None),) * at + (slice(first, first + n),)]
    extents = tuple(n if d == "n" else e for d, e in zip(tensor.dims, tensor.extents, strict=True))
    return cut.reshape(replace(tensor, extents=extents).shape)
