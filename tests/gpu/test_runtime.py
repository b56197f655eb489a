"""The runtime on a GPU: small kernels of tests/data/tiny.cu, launched through hand-written manifests."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from tiny_kernels import COLUMNS, HALF_SECOND, ROWS, SIZE, B, X, Y, kernel, number, pointer, scale_step

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.plan import Fill, Gemm, Launch, Param, TensorMap, Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime import cuda, errors, nvrtc
from convgen.runtime.kernel import Kernel
from convgen.targets import TARGETS

cupy = pytest.importorskip("cupy")
#: Seconds after which a call that should have returned at once counts as one that waits.
PATIENCE = 60.0


@pytest.fixture
def scale(target) -> Kernel:
    return kernel(target, scale_step(), operands=(B,))


@pytest.fixture
def slow(target) -> Kernel:
    return kernel(target, scale_step(HALF_SECOND), operands=(B,))


@pytest.fixture
def data(rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, b and what scale makes of them."""
    x, b = rng.standard_normal(X.shape, dtype="f4"), rng.standard_normal(B.shape, dtype="f4")
    return x, b, 2 * x + b


def close(a, b) -> bool:
    return np.allclose(a, b, rtol=1e-6, atol=1e-6)


# ---- libraries ----------------------------------------------------------------------------------


def test_cupy_in_cupy_out(scale, data):
    x, b, expected = data
    y = scale(cupy.asarray(x), b=cupy.asarray(b))
    assert isinstance(y, cupy.ndarray)
    assert close(y.get(), expected)
    out = cupy.full(Y.shape, np.nan, "f4")
    assert scale(cupy.asarray(x), cupy.asarray(b), out=out) is out
    assert close(out.get(), expected)


def test_torch_in_torch_out(scale, data):
    torch = pytest.importorskip("torch")
    x, b, expected = data
    y = scale(torch.from_numpy(x).cuda(), b=torch.from_numpy(b).cuda())
    assert isinstance(y, torch.Tensor)
    assert close(y.cpu().numpy(), expected)
    out = torch.full(Y.shape, math.nan, device="cuda")
    mixed = scale(torch.nn.Parameter(torch.from_numpy(x).cuda()), b=cupy.asarray(b), out=out)
    assert mixed is out
    assert close(out.cpu().numpy(), expected)


class OnlyDlpack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyInterface:
    def __init__(self, array):
        self._array = array

    @property
    def __cuda_array_interface__(self):
        return self._array.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [OnlyDlpack, OnlyInterface])
def test_other_libraries_are_not_copied(scale, data, wrap):
    x, b, expected = data
    out = cupy.full(Y.shape, np.nan, "f4")
    wrapped = wrap(out)
    assert scale(wrap(cupy.asarray(x)), b=wrap(cupy.asarray(b)), out=wrapped) is wrapped
    assert close(out.get(), expected)
    y = scale(wrap(cupy.asarray(x)), b=wrap(cupy.asarray(b)))
    assert isinstance(y, cupy.ndarray)
    assert close(y.get(), expected)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "e4m3", "e5m2", "s8", "s32"])
def test_every_element_type(target, rng, dtype):
    x = Tensor("x", "x", dtype, ("n", "c"), (33, 16))
    y = Tensor("y", "y", dtype, ("n", "k"), (33, 16))
    step = Launch("convgen_copy", (2, 1, 1), 64, (pointer("x"), pointer("y"), number(x.bytes)))
    copy = kernel(target, step, reads=(x,), result=y)
    kind = numpy_dtype(dtype)
    values = rng.integers(0, 100, x.shape).astype(kind)
    raw = cupy.asarray(values.view(np.uint8)).view(kind)
    made = copy(raw)
    assert made.dtype == kind
    assert (made.view(np.uint8).get() == values.view(np.uint8)).all()
    if dtype in ("bf16", "e4m3", "e5m2"):
        bits = cupy.asarray(values.view(np.uint8)).view(f"u{kind.itemsize}")
        assert copy(bits).dtype == kind
    try:
        import torch
    except ImportError:
        return
    tensor = torch.from_numpy(values.view(np.uint8)).cuda().view(getattr(torch, kind.name))
    made = copy(tensor)
    assert made.dtype == tensor.dtype
    assert (made.view(torch.uint8).cpu().numpy() == values.view(np.uint8)).all()


def test_arrays_on_the_cpu_are_refused(scale, data):
    x, b, _ = data
    with pytest.raises(errors.WrongDevice):
        scale(x, b=b)
    torch = pytest.importorskip("torch")
    with pytest.raises(errors.WrongDevice):
        scale(torch.from_numpy(x), b=torch.from_numpy(b))


# ---- streams and graphs -------------------------------------------------------------------------


@contextmanager
def held(stream: cupy.cuda.Stream) -> Iterator[None]:
    """The stream does what this block enqueues after the block: a call that waits for it gets stuck for PATIENCE."""
    opened = threading.Event()
    stream.launch_host_func(lambda _: opened.wait(PATIENCE), None)
    try:
        yield
    finally:
        opened.set()


def values(array: cupy.ndarray) -> np.ndarray:
    """What an array holds now, once the default stream is done, whatever other streams will do to it."""
    cupy.cuda.Stream.null.synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        return array.get()


def in_order(kernel, first, second, b, out, **options) -> None:
    """Two calls on one stream, where the second reads what the first one writes."""
    kernel(first, b=b, out=second, **options)
    kernel(second, b=b, out=out, **options)


def test_the_current_stream_without_synchronizing(scale, data):
    x, b, expected = (cupy.asarray(a) for a in data)
    scale(x, b=b)  # load the code
    between, out = cupy.zeros(Y.shape, "f4"), cupy.zeros(Y.shape, "f4")
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with held(stream):
        with stream:
            in_order(scale, x, between, b, out)
        assert not values(out).any()
    stream.synchronize()
    assert close(out.get(), (2 * expected + b).get())


@pytest.mark.parametrize("kind", ["cupy", "handle", "torch"])
def test_a_given_stream(scale, data, kind):
    x, b, expected = (cupy.asarray(a) for a in data)
    scale(x, b=b)  # load the code
    between, out = cupy.zeros(Y.shape, "f4"), cupy.zeros(Y.shape, "f4")
    cupy.cuda.Device().synchronize()
    if kind == "torch":
        given = pytest.importorskip("torch").cuda.Stream()
        stream = cupy.cuda.ExternalStream(given.cuda_stream)
    else:
        stream = cupy.cuda.Stream(non_blocking=True)
        given = stream if kind == "cupy" else stream.ptr
    with held(stream):
        in_order(scale, x, between, b, out, stream=given)
        assert not values(out).any()
    stream.synchronize()
    assert close(out.get(), (2 * expected + b).get())


def test_a_new_result_on_a_given_stream(slow, data):
    x, b, expected = (cupy.asarray(a) for a in data)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    y = slow(slow(x, b=b, stream=stream), b=b, stream=stream)
    stream.synchronize()
    assert close(y.get(), (2 * expected + b).get())


def test_torchs_current_stream(scale, data):
    torch = pytest.importorskip("torch")
    x, b, expected = (torch.from_numpy(a).cuda() for a in data)
    expected = (2 * expected + b).cpu().numpy()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        scale(scale(x + 1, b=b), b=b)  # load the code, and have torch keep the memory that results need
        stream.synchronize()
        with held(cupy.cuda.ExternalStream(stream.cuda_stream)):
            y = scale(scale(x, b=b), b=b)
            assert not close(values(cupy.asarray(y)), expected)
    stream.synchronize()
    assert close(y.cpu().numpy(), expected)


def test_another_librarys_stream_is_waited_for(scale, data):
    x, b, expected = (cupy.asarray(a) for a in data)
    scale(x, b=b)  # load the code
    between, out = cupy.zeros(Y.shape, "f4"), cupy.zeros(Y.shape, "f4")
    cupy.cuda.Device().synchronize()
    producer, consumer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

    class Late(OnlyInterface):
        @property
        def __cuda_array_interface__(self):
            return self._array.__cuda_array_interface__ | {"stream": producer.ptr}

    with held(producer):
        scale(x, b=b, out=between, stream=producer)
        scale(Late(between), b=b, out=out, stream=consumer)
        assert not values(out).any()
    consumer.synchronize()
    assert close(out.get(), (2 * expected + b).get())


def two_steps(target) -> Kernel:
    """Through a workspace that is zeroed, added to and copied: y = 1."""
    steps = (
        Fill("sums"),
        Launch("convgen_add", (4, 1, 1), 128, (pointer("sums"), number(SIZE))),
        Launch("convgen_copy", (4, 1, 1), 128, (pointer("sums"), pointer("y"), number(4 * SIZE))),
    )
    return kernel(target, *steps, workspaces=(Workspace("unused", 100), Workspace("sums", 4 * SIZE)))


@pytest.mark.parametrize("warm", [False, True])
def test_graph_capture(target, scale, data, warm):
    x, b, expected = (cupy.asarray(a) for a in data)
    out, ones = cupy.full(Y.shape, np.nan, "f4"), cupy.full(Y.shape, np.nan, "f4")
    steps = two_steps(target)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        if warm:
            scale(x, b=b, out=out)
            steps(x, out=ones)
            stream.synchronize()
            out.fill(np.nan)
            ones.fill(np.nan)
        stream.begin_capture()
        scale(x, b=b, out=out)
        steps(x, out=ones)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert close(out.get(), expected.get())
        assert (ones.get() == 1).all()
        x *= 3
        expected = 2 * x + b
        graph.launch(stream)
        stream.synchronize()
        assert close(out.get(), expected.get())
        assert (ones.get() == 1).all()


def test_torch_graph_capture(target, scale, data):
    torch = pytest.importorskip("torch")
    x, b, expected = (torch.from_numpy(a).cuda() for a in data)
    out, ones = torch.empty(Y.shape, device="cuda"), torch.empty(Y.shape, device="cuda")
    steps = two_steps(target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(x, b=b, out=out)
        steps(x, out=ones)
        fresh = scale(x, b=b)
    for t in (out, ones, fresh):
        t.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert close(out.cpu().numpy(), expected.cpu().numpy())
    assert close(fresh.cpu().numpy(), expected.cpu().numpy())
    assert (ones == 1).all()


def test_out_means_no_allocation(target, scale, data):
    x, b, _ = (cupy.asarray(a) for a in data)
    out = cupy.empty(Y.shape, "f4")
    steps = two_steps(target)
    steps(x, out=out)
    scale(x, b=b, out=out)

    class Count(cupy.cuda.memory_hook.MemoryHook):
        name = "count"
        seen = 0

        def malloc_preprocess(self, **_):
            self.seen += 1

    with Count() as hook:
        for _ in range(3):
            scale(x, b=b, out=out)
            steps(x, out=out)
        assert hook.seen == 0
        scale(x, b=b)
        assert hook.seen == 1


def test_a_workspace_of_ones_own(target, data):
    x, out = cupy.asarray(data[0]), cupy.full(Y.shape, np.nan, "f4")
    steps = two_steps(target)
    scratch = cupy.empty(steps.workspace_bytes, "u1")
    steps(x, out=out, workspace=scratch)
    assert (out.get() == 1).all()
    assert (scratch[256:].view("f4")[:SIZE].get() == 1).all()
    with pytest.raises(errors.WrongShape, match="workspace"):
        steps(x, out=out, workspace=scratch[:-256])


# ---- warm calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t: t.resize_(COLUMNS, ROWS), errors.WrongShape),
        (lambda t: t.t_(), errors.WrongShape),
        (lambda t: t.as_strided_((ROWS, COLUMNS), (1, ROWS)), errors.WrongLayout),
        (lambda t: setattr(t, "data", t.half()), errors.WrongType),
    ],
)
def test_a_torch_tensor_that_was_changed_in_place_is_refused(scale, data, change, error):
    torch = pytest.importorskip("torch")
    x, b, _ = (torch.from_numpy(a).cuda() for a in data)
    out = torch.empty(Y.shape, device="cuda")
    for _ in range(3):
        scale(x, b=b, out=out)
    change(x)
    with pytest.raises(error):
        scale(x, b=b, out=out)


def test_a_warm_call_reads_where_a_torch_tensor_is_now(scale, data):
    torch = pytest.importorskip("torch")
    x, b, expected = (torch.from_numpy(a).cuda() for a in data)
    out = torch.empty(Y.shape, device="cuda")
    other = x * 3
    for _ in range(3):
        scale(x, b=b, out=out)
    x.set_(other)
    scale(x, b=b, out=out)
    torch.cuda.synchronize()
    assert close(out.cpu().numpy(), (3 * (expected - b) + b).cpu().numpy())


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_memory_that_was_freed_and_taken_again_for_another_shape_is_refused(scale, data, library):
    module = pytest.importorskip(library)
    pool = cupy.cuda.MemoryPool()  # which gives out again what was freed last

    def new(shape):
        if library == "torch":
            return module.ones(shape, device="cuda")
        with cupy.cuda.using_allocator(pool.malloc):
            return cupy.ones(shape, "f4")

    x, b, out = new(X.shape), new(B.shape), new(Y.shape)
    for _ in range(3):
        scale(x, b=b, out=out)
    address = x.data.ptr if library == "cupy" else x.data_ptr()
    del x
    x = new((COLUMNS, ROWS))
    assert address == (x.data.ptr if library == "cupy" else x.data_ptr())
    with pytest.raises(errors.WrongShape):
        scale(x, b=b, out=out)


def test_a_cupy_array_that_was_reshaped_in_place_is_refused(scale, data):
    x, b, _ = (cupy.asarray(a) for a in data)
    out = cupy.empty(Y.shape, "f4")
    for _ in range(3):
        scale(x, b=b, out=out)
    x.shape = COLUMNS, ROWS
    with pytest.raises(errors.WrongShape):
        scale(x, b=b, out=out)


def test_buffers_in_turn(scale, data):
    """As a pipeline with a few sets of buffers does, from two threads on streams of their own."""
    x, b, expected = (cupy.asarray(a) for a in data)
    failures = []

    def work() -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                sets = [(x * i, cupy.full(Y.shape, np.nan, "f4")) for i in range(3)]
                for _ in range(20):
                    for given, out in sets:
                        scale(given, b=b, out=out)
                stream.synchronize()
                for i, (_, out) in enumerate(sets):
                    assert close(out.get(), (i * (expected - b) + b).get())
        except BaseException as error:
            failures.append(error)

    cupy.cuda.Device().synchronize()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- launches -----------------------------------------------------------------------------------


def test_persistent_grid_and_large_shared_memory(target):
    y = Tensor("y", "y", "s32", ("k",), (2,))
    sms = cuda.driver().attribute(0, cuda.MULTIPROCESSOR_COUNT)
    for tiles, per_sm, blocks in ((10**6, 2, 2 * sms), (7, 1, 7)):
        shared = target.shared_bytes_per_block if per_sm == 1 else 1000
        step = Launch(
            "convgen_shape", (tiles, 1, 1), 32, (pointer("y"),),
            shared_bytes=shared, persistent=True, blocks_per_sm=per_sm,
        )  # fmt: skip
        x = cupy.zeros(X.shape, "f4")
        assert kernel(target, step, result=y)(x).get().tolist() == [blocks, shared]


def test_a_thread_without_a_context(scale, data):
    x, b, expected = (cupy.asarray(a) for a in data)
    out = cupy.full(Y.shape, np.nan, "f4")
    cupy.cuda.Device().synchronize()
    failures = []

    def work() -> None:
        try:
            scale(x, b=b, out=out, stream=0)
        except BaseException as error:
            failures.append(error)

    scale(x, b=b)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures
    cupy.cuda.Device().synchronize()
    assert close(out.get(), expected.get())


def test_another_gpu_than_the_current_one(scale, data):
    if cuda.driver().device_count < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        x, b, expected = (cupy.asarray(a) for a in data)
        cupy.cuda.Device().synchronize()
    y = scale(x, b=b)
    assert y.device.id == 1
    with cupy.cuda.Device(1):
        cupy.cuda.Device().synchronize()
        assert close(y.get(), expected.get())
    with pytest.raises(errors.WrongDevice):
        scale(x, b=cupy.zeros(B.shape, "f4"))


def test_a_kernel_for_another_gpu(target, data):
    other = next(t for t in TARGETS.values() if not t.runs_on(target.capability))
    with pytest.raises(errors.WrongGpu, match=f"compiled for {other}"):
        kernel(other, scale_step(), operands=(B,))(cupy.asarray(data[0]), b=cupy.asarray(data[1]))


def test_dependent_launch_sees_what_the_kernel_before_wrote(target, data):
    if "dependent_launch" not in target.features:
        pytest.skip(f"{target} has no programmatic dependent launch")
    steps = (
        scale_step(HALF_SECOND // 10, "between"),
        Launch("convgen_after", (4, 1, 1), 128, (pointer("between"), pointer("y"), number(SIZE)), dependent=True),
    )
    x, b, expected = (cupy.asarray(a) for a in data)
    y = kernel(target, *steps, operands=(B,), workspaces=(Workspace("between", 4 * SIZE),))(x, b=b)
    assert close(y.get(), expected.get())


# ---- tensor maps --------------------------------------------------------------------------------


def needs_tma(target) -> None:
    if "tma" not in target.features:
        pytest.skip(f"{target} has no TMA")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_tiled_map(target, rng, dtype):
    """A box that hangs over two edges of a matrix: zeros there."""
    needs_tma(target)
    x = Tensor("x", "x", dtype, ("n", "c"), (50, 40))
    y = Tensor("y", "y", dtype, ("n", "k"), (16, 32))
    box = TensorMap("x", "tiled", dtype, (40, 50), (80,), (1, 1), box=(32, 16), l2_promotion=128)
    params = (Param("x", "tensor_map", "x", box), pointer("y"), number(24), number(-3), number(y.size))
    step = Launch("convgen_tile", (1, 1, 1), 64, params, shared_bytes=y.bytes)
    values = rng.integers(1, 2**16, x.shape, dtype="u2").view(numpy_dtype(dtype))
    expected = np.zeros(y.shape, "u2")
    expected[3:, :16] = values.view("u2")[:13, 24:]
    made = kernel(target, step, reads=(x,), result=y)(cupy.asarray(values.view("u2")).view(values.dtype))
    assert (made.view("u2").get() == expected).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_im2col_map(target, rng, stride):
    """Pixels of one tap of a 3x3 filter with padding 1, over the end of a row and of an image."""
    needs_tma(target)
    n, h, w, c, pixels = 3, 7, 9, 16, 96
    p, q = (h - 1) // stride + 1, (w - 1) // stride + 1
    x = Tensor("x", "x", "f16", ("n", "h", "w", "c"), (n, h, w, c))
    y = Tensor("y", "y", "f16", ("n", "k"), (pixels, c))
    values = rng.integers(1, 2**16, x.shape, dtype="u2")
    padded = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
    patches = TensorMap(
        "x", "im2col", "f16", (c, w, h, n), (2 * c, 2 * c * w, 2 * c * w * h), (1, stride, stride, 1),
        lower=(-1, -1), upper=(-1, -1), channels=c, pixels=pixels,
    )  # fmt: skip
    for r, s in ((0, 0), (1, 1), (2, 0), (2, 2)):
        at = 5  # the flat output pixel where the run starts
        taps = padded[:, r : r + stride * p : stride, s : s + stride * q : stride][:, :p, :q].reshape(-1, c)
        expected = np.zeros((pixels, c), "u2")
        run = taps[at : at + pixels]
        expected[: len(run)] = run
        start = [at % q * stride - 1, at // q % p * stride - 1, at // (p * q)]
        params = (Param("x", "tensor_map", "x", patches), pointer("y"), *map(number, (*start, s, r, y.size)))
        step = Launch("convgen_pixels", (1, 1, 1), 64, params, shared_bytes=y.bytes)
        made = kernel(target, step, reads=(x,), result=y)(cupy.asarray(values).view("f2"))
        assert (made.view("u2").get() == expected).all(), (r, s)


# ---- cuBLAS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    ("dtype", "c_dtype"), [("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("f32", "f32"), ("s8", "s32")]
)
def test_gemm(target, rng, dtype, c_dtype, transposed, batch):
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except ImportError as error:
        pytest.skip(str(error))
    m, n, k, beta = 20, 12, 36, 1.0
    shapes = {"a": (k, m) if "a" in transposed else (m, k), "b": (n, k) if "b" in transposed else (k, n)}
    a = Tensor("a", "x", dtype, ("g", "n", "c"), (batch, *shapes["a"]))
    b = Tensor("b", "w", dtype, ("g", "k", "c"), (batch, *shapes["b"]))
    c = Tensor("c", "y", c_dtype, ("g", "n", "k"), (batch, m, n))
    step = Gemm(
        "x", "w", "y", m, n, k, "a" in transposed, "b" in transposed, shapes["a"][1], shapes["b"][1], n, dtype, c_dtype,
        stride_a=m * k, stride_b=k * n, stride_c=m * n, batch=batch, beta=beta,
    )  # fmt: skip
    left, right = (rng.integers(-3, 4, t.shape).astype("f8") for t in (a, b))
    before = rng.integers(-3, 4, c.shape).astype("f8")
    product = (left.swapaxes(1, 2) if "a" in transposed else left) @ (
        right.swapaxes(1, 2) if "b" in transposed else right
    )

    def on_gpu(values: np.ndarray, kind: str):
        return cupy.asarray(values.astype(numpy_dtype(kind)).view("u1")).view(numpy_dtype(kind))

    out = on_gpu(before, c_dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    kernel(target, step, reads=(a, b), result=c)(on_gpu(left, dtype), on_gpu(right, dtype), out=out, stream=stream)
    stream.synchronize()
    made = out.view("u1").get().view(numpy_dtype(c_dtype)).astype("f8")
    expected = product + beta * before
    assert np.abs(expected).max() < 2048
    tolerance = 2.0 if c_dtype == "bf16" else 0.0  # integers below 2048 are exact in the others
    assert np.abs(made - expected).max() <= tolerance


# ---- through the whole compiler -----------------------------------------------------------------

SPEC = """
conv layer {
  input  image: f16[n=2, h=9, w=11, c=64]
  filter weights: f16[k=64, r=3, s=3, c=64]
  output result: f16[n, p, q, k]
  pad 1
  epilogue {
    operand b: f32[k]
    result = relu(acc + b)
  }
}
"""


@pytest.mark.parametrize("strategy", ["direct", "auto"])
def test_a_compiled_spec(target, rng, strategy):
    import convgen
    from convgen import driver
    from convgen.ir import verify

    made = convgen.compile(SPEC, target=target.name, strategy=strategy)
    (compilation,) = driver.load(driver.Spec(SPEC, target=target.name, strategy=strategy))
    problem = compilation.request.problem
    inputs = verify.random_inputs(problem, int(rng.integers(2**31)))
    names = {"image": "x", "weights": "w", "b": "b"}
    given = {name: cupy.asarray(inputs[role]) for name, role in names.items()}
    out = cupy.full(problem.result.shape, np.nan, "f2")
    for result in (made(**given), made(**given, out=out)):
        report = verify.check(problem, inputs, result.get())
        assert report.ok, str(report)
    assert result is out
    assert made.plan.steps == made.manifest.steps
    assert "layer" in made.explain()


# ---- copies and files --------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["direct", "auto", "im2col"])
def test_a_copied_or_saved_kernel_gives_the_same_bits(target, rng, strategy, tmp_path):
    import copy
    import pickle

    import convgen

    made = convgen.compile(SPEC, target=target.name, strategy=strategy)
    given = {
        t.name: cupy.asarray(rng.integers(-3, 4, t.shape).astype(numpy_dtype(t.dtype))) for t in made.manifest.arguments
    }
    expected = made(**given)
    made(**given, out=expected)  # warm: its call is written for it
    made.save(tmp_path / "kernel")
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), convgen.load(tmp_path / "kernel")):
        for _ in range(2):
            out = cupy.full_like(expected, -1)
            assert other(**given, out=out) is out
            assert cupy.array_equal(out.view("u2"), expected.view("u2"))


def test_a_saved_kernel_runs_in_another_process(target, rng, tmp_path):
    import subprocess
    import sys

    import convgen

    made = convgen.compile(SPEC, target=target.name)
    given = {t.name: rng.integers(-3, 4, t.shape).astype(numpy_dtype(t.dtype)) for t in made.manifest.arguments}
    made.save(tmp_path / "kernel")
    np.savez(tmp_path / "given.npz", **given)
    code = (
        "import convgen, cupy, numpy as np\n"
        "kernel = convgen.load('kernel')\n"
        "given = {name: cupy.asarray(array) for name, array in np.load('given.npz').items()}\n"
        "np.save('result.npy', kernel(**given).get())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = made(**{name: cupy.asarray(array) for name, array in given.items()}).get()
    assert np.array_equal(np.load(tmp_path / "result.npy").view("u2"), expected.view("u2"))


def test_every_nvrtc_that_is_installed_gives_the_same_bits(target, rng, monkeypatch):
    import ctypes

    import convgen
    from convgen.runtime import nvrtc_library

    monkeypatch.setenv("CONVGEN_CACHE", "0")
    wheels = [path for path in nvrtc_library.wheel_files() if path.name in nvrtc_library._NAMES]
    if len(wheels) < 2:
        pytest.skip("the wheels of NVRTC 12 and 13 are not both installed")
    results = {}
    for path in wheels:
        library = nvrtc_library.Library(ctypes.CDLL(str(path)))
        monkeypatch.setattr(nvrtc_library, "load", lambda library=library: library)
        made = convgen.compile(SPEC, target=target.name)
        assert made.manifest.nvrtc == library.version
        if not results:
            given = {
                t.name: cupy.asarray(rng.integers(-3, 4, t.shape).astype(numpy_dtype(t.dtype)))
                for t in made.manifest.arguments
            }
        results[library.version] = made(**given).view("u2").get()
    first, *others = results.values()
    assert others and all(np.array_equal(first, other) for other in others)


def test_a_source_that_was_compiled_before_reports_its_figures_again(target):
    """The driver keeps what NVRTC compiled, and gives it back without a log."""
    source = 'extern "C" __global__ void again(float* p) { p[threadIdx.x] = 1; }'
    first, second = (nvrtc.compile_source(source, target) for _ in range(2))
    assert first.resources.keys() == {"again"}
    assert second == first
