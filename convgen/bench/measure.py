"""The timing core: what one launch takes, and whether its result is right.

Launches are captured in a CUDA graph that is long enough for its own launch not to show, replayed back to
back and timed by events; inputs and outputs rotate over more memory than the L2 holds, so that every
launch meets them as cold as a network's layer would.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
#: Replays that count: fewer of a kernel so slow that they would take longer than MOST_MS together.
REPLAYS = 8
MOST_MS = 100.0


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


def time_graph(run: Callable[[int], object], sets: int, backend: Backend, hopeless_us: float = math.inf) -> Timing:
    """Time a launch.  `run(i)` launches on buffer set i on the current stream, and must be capturable
    after its first call.  A launch slower than `hopeless_us` is timed roughly."""
    with backend.stream():
        for i in range(sets):  # modules load, workspaces are made, libraries choose their algorithms
            run(i)
        launches = 1
        while True:
            graph = backend.capture(lambda n=launches: _cycle(run, n, sets))  # type: ignore[misc]
            lasted = backend.replay(graph, 2)[-1]
            if lasted * 1000 > hopeless_us * launches:
                return Timing(lasted * 1000 / launches, 0.0, 1, launches)
            wanted = _launches(lasted / launches, sets)
            if wanted <= 1.3 * launches:
                break
            launches = min(wanted, 32 * launches)  # the first, short graphs are mostly overhead
        count = max(3, min(REPLAYS, round(MOST_MS / max(lasted, 1e-3))))
        times = sorted(t * 1000 / launches for t in backend.replay(graph, count + 1)[1:])
    median = statistics.median(times)
    return Timing(median, (times[-1] - times[0]) / median, count, launches)


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
    """One set of arrays for a problem: what the operator reads, then the operands; the result."""

    inputs: tuple[Array, ...]
    out: Array


def set_count(bytes_each: int, bytes_together: float = ROTATED_BYTES) -> int:
    """How many sets rotate: at least two, so that no launch finds its own output in the L2."""
    return max(2, min(MOST_SETS, math.ceil(bytes_together / bytes_each)))


def buffer_sets(problem: ConvProblem, backend: Backend, bytes_together: float = ROTATED_BYTES) -> list[Buffers]:
    """Sets of N(0, 1) inputs and poisoned outputs, `bytes_together` or more unless MOST_SETS are fewer."""
    with backend.stream():
        return [_buffers(problem, backend) for _ in range(set_count(problem.min_bytes, bytes_together))]


def _buffers(problem: ConvProblem, backend: Backend) -> Buffers:
    inputs = tuple(backend.normal(t) for t in (*problem.reads, *problem.operands))
    return Buffers(inputs, backend.poisoned(problem.result))


def time_kernel(
    kernel: Callable[..., object], sets: Sequence[Buffers], backend: Backend, hopeless_us: float = math.inf
) -> Timing:
    """Time a compiled kernel, called as `kernel(*inputs, out=...)`, over buffer sets."""
    return time_graph(lambda i: kernel(*sets[i].inputs, out=sets[i].out), len(sets), backend, hopeless_us)


# ---- verifying ---------------------------------------------------------------------------------

#: Results above this many elements are compared a few images at a time: float64 takes much memory.
_ELEMENTS = 1 << 25


def check(kernel: Callable[..., object], problem: ConvProblem, backend: Backend) -> verify.Report:
    """Launch once on fresh random data and compare every element with the float64 reference."""
    return Checker(problem, backend)(kernel)


class Checker:
    """Random data for a problem and what a right kernel makes of it, computed once for any number of kernels."""

    def __init__(self, problem: ConvProblem, backend: Backend, seed: int | None = None) -> None:
        self._problem, self._backend = problem, backend
        self._seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        with backend.stream():
            self._inputs = _check_inputs(problem, backend, self._seed)
            tensors = (*problem.reads, *problem.operands)
            arrays = [(t, backend.as_xp(a)) for t, a in zip(tensors, self._inputs, strict=True)]
            self._parts = []
            for part, first in image_parts(problem):
                cut = {_array_name(t): cut_images(t, part.n, first, a) for t, a in arrays}
                self._parts.append((part, first, verify.expect(part, cut, backend.xp)))

    def __call__(self, kernel: Callable[..., object]) -> verify.Report:
        """Whether a kernel's result is right, in every element."""
        problem, backend = self._problem, self._backend
        with backend.stream():
            out = backend.poisoned(problem.result)
            kernel(*self._inputs, out=out)
            actual = backend.as_xp(out)
            for part, first, expected in self._parts:
                cut = cut_images(problem.result, part.n, first, actual)
                report = verify.compare(part, cut, expected, backend.xp)
                if not report:
                    where = f"; counted from image {first}" if first else ""
                    return replace(report, message=f"{report.message}{where} (seed {self._seed})")
        return report


def _check_inputs(problem: ConvProblem, backend: Backend, seed: int) -> list[Array]:
    """Random inputs: made on the GPU, but on the host where sums must be scaled to the result's narrow range."""
    tensors = (*problem.reads, *problem.operands)
    if not (problem.result.element.is_float and problem.result.element.bytes == 1):
        backend.seed(seed)
        return [backend.normal(t) for t in tensors]
    made = verify.random_inputs(problem, seed)
    return [backend.upload(made[_array_name(t)], t) for t in tensors]


def _array_name(tensor: Tensor) -> str:
    """What references call a tensor."""
    return tensor.name if tensor.role == "operand" else tensor.role


def image_parts(problem: ConvProblem) -> list[tuple[ConvProblem, int]]:
    """The problem cut into runs of images: (problem of a run, its first image).  Uncut where the result is
    small, or sums over images."""
    each = problem.result.size // problem.n
    if problem.op is Op.WGRAD or problem.result.size <= _ELEMENTS or each * problem.n != problem.result.size:
        return [(problem, 0)]
    run = max(1, _ELEMENTS // each)
    return [(_with_images(problem, min(run, problem.n - i)), i) for i in range(0, problem.n, run)]


def _with_images(problem: ConvProblem, n: int) -> ConvProblem:
    def cut(tensor: Tensor) -> Tensor:
        extents = tuple(n if d == "n" and e != 1 else e for d, e in zip(tensor.dims, tensor.extents, strict=True))
        return replace(tensor, extents=extents)

    epilogue = problem.epilogue
    if epilogue:
        epilogue = replace(epilogue, operands=tuple(map(cut, epilogue.operands)))
    lowered = cut(problem.lowered) if problem.lowered else None
    return replace(problem, n=n, x=cut(problem.x), y=cut(problem.y), lowered=lowered, epilogue=epilogue)


def cut_images(tensor: Tensor, n: int, first: int, array: Array) -> Array:
    """The part of a tensor's array that belongs to images [first, first + n), in that part's own shape."""
    if tensor.extent("n") in (1, n):
        return array
    at = tensor.dims.index("n")
    cut = array.reshape(tensor.extents)[(slice(None),) * at + (slice(first, first + n),)]
    extents = tuple(n if d == "n" else e for d, e in zip(tensor.dims, tensor.extents, strict=True))
    return cut.reshape(replace(tensor, extents=extents).shape)
