"""The baselines, run through PyTorch: cuDNN on channels_last tensors, and cuBLAS's GEMM.

PyTorch keeps cuDNN's tuned choices for each thread, so that a new thread tunes anew.  A convolution is
captured in several threads, and the best counts, as cuDNN's choice moves small layers by up to 40%.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from convgen.bench.backend import Array, TorchBackend
from convgen.bench.measure import ROUNDS, Captured, Timing, capture, set_count, time_graph, time_in_turn
from convgen.ir import dtypes as element_types
from convgen.ir.problem import SPATIAL, ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor

RETUNES = ROUNDS
#: Element types that PyTorch's convolutions and products take.
DTYPES = ("f16", "bf16", "f32", "f64")


class NoBaseline(Exception):
    """The library does not run this problem; str() says why."""


# ---- cuDNN -------------------------------------------------------------------------------------


def cudnn(problem: ConvProblem, backend: TorchBackend) -> Timing:
    """The bare convolution, whatever the epilogue, by itself.  Raises NoBaseline."""
    return time_in_turn([convolution(problem, backend)], backend)[0]


def convolution(problem: ConvProblem, backend: TorchBackend) -> list[Captured]:
    """The bare convolution, whatever the epilogue, a graph for each re-tune.  Raises NoBaseline."""
    return _tuned_anew(lambda: _convolution(problem, backend), backend)


def convolution_in_planes(problem: ConvProblem, backend: TorchBackend) -> list[Captured]:
    """The bare convolution on contiguous NCHW tensors, cuDNN's own transposes included, a graph for each re-tune.
    Raises NoBaseline."""
    return _tuned_anew(lambda: _convolution(problem, backend, planes=True), backend)


def convolution_bias_relu(problem: ConvProblem, backend: TorchBackend) -> list[Captured]:
    """relu(conv + bias[k]) in cuDNN's fused call, a graph for each re-tune.  Raises NoBaseline."""
    return _tuned_anew(lambda: _convolution_bias_relu(problem, backend), backend)


@dataclass(frozen=True)
class Launches:
    """The launches to time: `run(i)` on buffer set i.  Results stay alive for a round, so that they rotate too."""

    call: Callable[[int], Array]
    results: list[Array]

    def run(self, i: int) -> None:
        self.results[i] = self.call(i)

    @property
    def sets(self) -> int:
        return len(self.results)


def _tuned_anew(make: Callable[[], Launches], backend: TorchBackend) -> list[Captured]:
    """Graphs captured in several threads, each of which makes cuDNN choose anew."""
    try:
        launches = make()
        flags = backend.torch.backends.cudnn.flags
        with flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False):
            return [_in_a_thread(lambda: capture(launches.run, launches.sets, backend)) for _ in range(RETUNES)]
    except RuntimeError as e:  # PyTorch's: cuDNN has no engine for it, or memory is short
        raise NoBaseline(str(e).splitlines()[0]) from None


def _in_a_thread(act: Callable[[], Captured]) -> Captured:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()


@dataclass(frozen=True)
class _Geometry:
    """A convolution in PyTorch's terms.  One spatial dim runs as two, of height 1, as PyTorch does it."""

    x: Tensor
    w: Tensor
    y: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def _geometry(problem: ConvProblem) -> _Geometry:
    if problem.op not in (Op.FPROP, Op.DGRAD, Op.WGRAD):
        raise NoBaseline(f"cuDNN has no {problem.op}")
    if problem.padding is not Padding.ZERO:
        raise NoBaseline("cuDNN pads with zeros")
    if problem.pad_lo != problem.pad_hi:
        raise NoBaseline("cuDNN pads both ends of a dim alike")
    dtypes = {t.dtype for t in problem.reads}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise NoBaseline(f"PyTorch's convolutions take one type of {', '.join(DTYPES)}")
    dtype = dtypes.pop()
    flat = problem.rank == 1
    sp = SPATIAL[2 if flat else problem.rank]

    def wide(values: tuple[int, ...], one: int) -> tuple[int, ...]:
        return (one, *values) if flat else values

    def tensor(role: str, outer: tuple[str, int], dims: tuple[str, ...], sizes: tuple[int, ...], c: tuple[str, int]):
        return Tensor(role, role, dtype, (outer[0], *dims, c[0]), (outer[1], *wide(sizes, 1), c[1]))

    return _Geometry(
        tensor("x", ("n", problem.n), sp.input, problem.input, ("c", problem.c)),
        tensor("w", ("k", problem.k), sp.filter, problem.filter, ("c", problem.c_per_group)),
        tensor("y", ("n", problem.n), sp.output, problem.output, ("k", problem.k)),
        wide(problem.stride, 1),
        wide(problem.pad_lo, 0),
        wide(problem.dilation, 1),
    )


def _arrays(tensor: Tensor, backend: TorchBackend, sets: int, planes: bool = False) -> list[Array]:
    """N(0, 1) data as PyTorch sees it, channels in dim 1, with channels innermost in memory, or in planes."""
    with backend.stream():
        made = [backend.normal(tensor).movedim(-1, 1) for _ in range(sets)]
        return [a.contiguous() for a in made] if planes else made


def _convolution(problem: ConvProblem, backend: TorchBackend, planes: bool = False) -> Launches:
    g, torch = _geometry(problem), backend.torch
    sets = set_count(problem.min_bytes)
    # a gradient does not read the tensor that it is for, but PyTorch asks for its shape and layout
    x, w, y = (_arrays(t, backend, 1 if t.role == problem.result.role else sets, planes) for t in (g.x, g.w, g.y))
    rank = len(g.stride)

    def forward(i: int) -> Array:
        return torch.convolution(x[i], w[i], None, g.stride, g.padding, g.dilation, False, (0,) * rank, problem.groups)

    def backward(i: int) -> Array:
        wanted = (problem.op is Op.DGRAD, problem.op is Op.WGRAD, False)
        grads = torch.ops.aten.convolution_backward(
            y[i], x[i % len(x)], w[i % len(w)], None,
            g.stride, g.padding, g.dilation, False, (0,) * rank, problem.groups, wanted,
        )  # fmt: skip
        return grads[0] if problem.op is Op.DGRAD else grads[1]

    return Launches(forward if problem.op is Op.FPROP else backward, [None] * sets)


def _convolution_bias_relu(problem: ConvProblem, backend: TorchBackend) -> Launches:
    g, torch = _geometry(problem), backend.torch
    if problem.op is not Op.FPROP:
        raise NoBaseline(f"cuDNN fuses bias and relu with fprop, not with {problem.op}")
    sets = set_count(problem.min_bytes)
    x, w = (_arrays(t, backend, sets) for t in (g.x, g.w))
    with backend.stream():
        bias = backend.normal(Tensor("bias", "operand", g.x.dtype, ("k",), (problem.k,)))

    def call(i: int) -> Array:
        return torch.cudnn_convolution_relu(x[i], w[i], bias, g.stride, g.padding, g.dilation, problem.groups)

    return Launches(call, [None] * sets)


# ---- cuBLAS and the device -----------------------------------------------------------------------


@dataclass(frozen=True)
class GemmShape:
    """`batch` products of m x k and k x n; an operand is transposed in memory where it says so."""

    batch: int
    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


def gemm_shape(problem: ConvProblem) -> GemmShape:
    """The GEMM of as many multiply-adds as the convolution, one a group, laid out as its tensors are:
    channels innermost.  Raises NoBaseline."""
    pixels, c, k, taps = problem.output_pixels, problem.c_per_group, problem.k_per_group, problem.taps
    match problem.op:
        case Op.FPROP:
            return GemmShape(problem.groups, pixels, k, taps * c, False, True)
        case Op.DGRAD:
            return GemmShape(problem.groups, pixels, c, taps * k, False, False)
        case Op.WGRAD:
            return GemmShape(problem.groups, k, taps * c, pixels, True, False)
    raise NoBaseline(f"{problem.op} multiplies nothing")


def gemm(problem: ConvProblem, backend: TorchBackend) -> list[Captured]:
    """cuBLAS's GEMM of the problem's size, a graph of it.  Raises NoBaseline."""
    return [capture_gemm(gemm_shape(problem), problem.reads[0].dtype, backend)]


def capture_gemm(shape: GemmShape, dtype: str, backend: TorchBackend) -> Captured:
    """Raises NoBaseline."""
    if dtype not in DTYPES:
        raise NoBaseline(f"PyTorch's products take {', '.join(DTYPES)}")
    torch = backend.torch

    def matrices(rows: int, columns: int, transpose: bool) -> list[Array]:
        extents = (shape.batch, columns, rows) if transpose else (shape.batch, rows, columns)
        tensor = Tensor("matrix", "x", dtype, ("n", "h", "w"), extents)
        made = [backend.normal(tensor) for _ in range(sets)]
        made = [m[0] for m in made] if shape.batch == 1 else made
        return [m.transpose(-1, -2) for m in made] if transpose else made

    sets = set_count(shape.elements * element_types.DTYPES[dtype].bytes)
    try:
        with backend.stream():
            a = matrices(shape.m, shape.k, shape.transpose_a)
            b = matrices(shape.k, shape.n, shape.transpose_b)
            c = matrices(shape.m, shape.n, False)
        return capture(lambda i: torch.matmul(a[i], b[i], out=c[i]), sets, backend)
    except torch.cuda.OutOfMemoryError as e:
        raise NoBaseline(str(e).splitlines()[0]) from None


@dataclass(frozen=True)
class Peaks:
    """The GPU's measured peak rates: TFLOP/s of a large GEMM, GB/s of a large copy (read and write)."""

    tflops: float
    gb_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs a byte from which on arithmetic takes longer than memory."""
        return self.tflops * 1e3 / self.gb_per_s

    def tflops_at(self, intensity: float) -> float:
        """The most TFLOP/s with so many FLOPs a byte."""
        return min(intensity * self.gb_per_s / 1e3, self.tflops)

    def roofline_us(self, flops: float, bytes_moved: float) -> float:
        """The least time for that much arithmetic and traffic."""
        return max(flops / self.tflops / 1e6, bytes_moved / self.gb_per_s / 1e3)


def peaks(dtype: str, backend: TorchBackend, side: int = 8192, copied: int = 1 << 30) -> Peaks:
    """Measure the rate of a GEMM of `side` cubed and of a copy of `copied` bytes.  Raises NoBaseline."""
    large = GemmShape(1, side, side, side, False, True)
    gemm = time_in_turn([[capture_gemm(large, dtype, backend)]], backend)[0]
    rate = 2 * large.macs / gemm.us / 1e6
    buffer = Tensor("buffer", "x", "f32", ("n",), (copied // 4,))
    with backend.stream():
        source, target = backend.normal(buffer), backend.poisoned(buffer)
    # by a kernel: in a graph, a plain copy may go to a copy engine, which is slower
    copy = time_graph(lambda _: backend.torch.neg(source, out=target), 1, backend)
    return Peaks(rate, 2 * copied / copy.us / 1e3)
