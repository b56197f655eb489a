"""Calls from several threads, on several streams, GPUs and into CUDA graphs, on a GPU."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from several_launches import CHANNELS_LAST, PLANS
from tiny_kernels import HALF_SECOND, SIZE, B, X, Y, kernel, number, pointer, scale_step

import convgen
from convgen.ir.plan import Launch, Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime import cuda, errors, scratch
from convgen.runtime.kernel import Kernel
from convgen.targets import Target

cupy = pytest.importorskip("cupy")
THREADS, CALLS, ROUNDS = 6, 50, 5
DEFAULT_STREAM = 0


@dataclass(frozen=True)
class Case:
    """A kernel, arguments for each of several callers, and the exact results of each."""

    kernel: Kernel
    arguments: list[list[Any]]
    expected: list[tuple[Any, ...]]


def integers(rng: np.random.Generator, t: Tensor) -> np.ndarray:
    """For an f16 or f32 tensor: f16 holds sums of two thousand products of these exactly, in any order."""
    return rng.integers(-1, 2, t.shape).astype(t.element.numpy)


def case(name: str, target: Target, rng: np.random.Generator, callers: int) -> Case:
    """A plan of several launches.  Skips where the target or the machine cannot run it."""
    body, strategy = PLANS[name]
    if any(word in strategy for word in ("tma", "stem_wgrad", "form fused")) and "wgmma" not in target.features:
        pytest.skip(f"{target} has no wgmma")
    if strategy.startswith("im2col"):
        try:
            from cupy_backends.cuda.libs import cublas  # noqa: F401
        except ImportError as error:
            pytest.skip(str(error))
    made = convgen.compile(f"conv layer {{ {body} pad 1 strategy {strategy} }}", target=target.name)
    direct = convgen.compile(f"conv layer {{ {body} pad 1 strategy direct }}", target=target.name)
    assert len(made.manifest.steps) > 1
    arguments = [[cupy.asarray(integers(rng, t)) for t in made.manifest.reads] for _ in range(callers)]
    expected = [each(direct(*given)) for given in arguments]
    cupy.cuda.Device().synchronize()
    assert not alike(expected[0], expected[-1])
    return Case(made, arguments, expected)


def each(results: Any) -> tuple[Any, ...]:
    """What a call gives, or takes as `out`, as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def as_out(results: tuple[Any, ...]) -> Any:
    return results if len(results) > 1 else results[0]


def poisoned(results: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(cupy.full(array.shape, np.nan, array.dtype) for array in results)


def poison(results: tuple[Any, ...]) -> None:
    for array in results:
        array.fill(np.nan)


def alike(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(found, expected, strict=True))


def in_threads(work: Callable[[int], object], count: int = 1) -> None:
    """Runs something in fresh threads that start together, and raises what the first of them raises."""
    together, raised = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            together.wait()
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in raised:
        raise error


# ---- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_streams", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_many_threads(target, rng, name, own_streams):
    """Each with arguments of its own, all on one stream or each on its own."""
    found = case(name, target, rng, THREADS)
    shared = cupy.cuda.Stream(non_blocking=True)
    streams = [cupy.cuda.Stream(non_blocking=True) if own_streams else shared for _ in range(THREADS)]
    results = [[poisoned(found.expected[0]) for _ in range(CALLS)] for _ in range(THREADS)]
    wrong = 0
    for _ in range(ROUNDS):
        for out in (out for outs in results for out in outs):
            poison(out)
        cupy.cuda.Device().synchronize()

        def work(thread: int) -> None:
            for out in results[thread]:
                found.kernel(*found.arguments[thread], out=as_out(out), stream=streams[thread])

        in_threads(work, THREADS)
        cupy.cuda.Device().synchronize()
        wrong += sum(not alike(out, y) for outs, y in zip(results, found.expected, strict=True) for out in outs)
    assert wrong == 0, f"{wrong} of {ROUNDS * THREADS * CALLS} results"


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("name", [*PLANS, "one launch"])
def test_a_thread_that_has_not_used_cuda_may_call(target, rng, name, library):
    torch = pytest.importorskip("torch") if library == "torch" else None
    if name == "one launch":
        made = convgen.compile(f"conv layer {{ {CHANNELS_LAST} pad 1 }}", target=target.name)
        given = [cupy.asarray(integers(rng, t)) for t in made.manifest.reads]
        found = Case(made, [given], [each(made(*given))])
        made = convgen.compile(f"conv layer {{ {CHANNELS_LAST} pad 1 }}", target=target.name)
    else:
        found = case(name, target, rng, 2)
        made = found.kernel
    arguments, expected = found.arguments[0], found.expected[0]
    results = [poisoned(expected) for _ in range(3)]
    if torch:
        arguments = [torch.from_dlpack(a) for a in arguments]
    outs = [tuple(map(torch.from_dlpack, out)) for out in results] if torch else results
    cupy.cuda.Device().synchronize()

    def work(_: int) -> None:
        for out in outs:  # cold, then warm
            made(*arguments, out=as_out(out))

    in_threads(work)
    in_threads(work)
    cupy.cuda.Device().synchronize()
    assert all(alike(out, expected) for out in results)


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_another_context_is_restored(target, data, steps, default):
    """A thread in a context of its own, as PyCUDA makes them."""
    x, b, expected = (cupy.asarray(a) for a in data)
    made = kernel(target, scale_step(), operands=(B,)) if steps == 1 else through_workspace(target)
    outs = [cupy.full(Y.shape, np.nan, "f4") for _ in range(3)]
    cupy.cuda.Device().synchronize()
    library, made_stream = cuda.driver()._library, cupy.cuda.Stream(non_blocking=True)
    stream = DEFAULT_STREAM if default else made_stream.ptr

    def work(_: int) -> None:
        own, after = ctypes.c_void_p(), ctypes.c_void_p()
        assert library.cuCtxCreate_v2(ctypes.byref(own), ctypes.c_uint(0), ctypes.c_int(0)) == 0
        for out in outs:
            made(x, b=b, out=out, stream=stream)
            library.cuCtxGetCurrent(ctypes.byref(after))
            assert after.value == own.value
        library.cuCtxDestroy_v2(own)

    in_threads(work)
    cupy.cuda.Device().synchronize()
    assert all((out == expected).all() for out in outs)


# ---- CUDA graphs --------------------------------------------------------------------------------


def through_workspace(target: Target, delay: int = 0) -> Kernel:
    """y = 2 x + b by two launches: into the workspace, from there to y.  `delay` is in clocks, before it is written."""
    copy = Launch("convgen_copy", (4, 1, 1), 128, (pointer("sums"), pointer("y"), number(4 * SIZE)))
    steps = scale_step(delay, "sums"), copy
    return kernel(target, *steps, operands=(B,), workspaces=(Workspace("sums", 4 * SIZE),))


@pytest.fixture
def data(rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, b and 2 x + b, which is exact."""
    x, b = (rng.integers(-99, 99, t.shape).astype("f4") for t in (X, B))
    return x, b, 2 * x + b


def captured(stream: Any, call: Callable[[], object]) -> Any:
    with stream:
        stream.begin_capture()
        call()
        return stream.end_capture()


@pytest.mark.parametrize("warm", [False, True])
def test_graphs_of_one_stream_may_run_at_once(target, data, warm):
    """Two graphs that were captured on a stream, and a call on that stream, all under way at a time."""
    made = through_workspace(target, HALF_SECOND)
    x, b, _ = (cupy.asarray(a) for a in data)
    inputs = [x, 3 * x, 5 * x]
    outs = [cupy.full(Y.shape, np.nan, "f4") for _ in inputs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in inputs]
    origin = streams[0]
    cupy.cuda.Device().synchronize()
    for given, out in zip(inputs, outs, strict=True) if warm else ():
        made(given, b=b, out=out, stream=origin)
    origin.synchronize()
    graphs = [captured(origin, lambda i=i: made(inputs[i], b=b, out=outs[i], stream=origin)) for i in (1, 2)]
    for out in outs:
        out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    graphs[0].launch(streams[1])
    graphs[1].launch(streams[2])
    made(inputs[0], b=b, out=outs[0], stream=origin)
    cupy.cuda.Device().synchronize()
    assert all((out == 2 * given + b).all() for given, out in zip(inputs, outs, strict=True))


def test_one_graph_on_two_streams_runs_in_turn(target, data):
    """As CUDA promises of an executable graph."""
    made = through_workspace(target, HALF_SECOND // 10)
    x, b, expected = (cupy.asarray(a) for a in data)
    out = cupy.full(Y.shape, np.nan, "f4")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    graph = captured(streams[0], lambda: made(x, b=b, out=out))
    for _ in range(4):
        for stream in streams:
            graph.launch(stream)
    cupy.cuda.Device().synchronize()
    assert (out == expected).all()


def test_a_graph_outlives_its_kernel(target, data):
    kernels = [through_workspace(target)]
    x, b, expected = (cupy.asarray(a) for a in data)
    out, stream = cupy.full(Y.shape, np.nan, "f4"), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    graph = captured(stream, lambda: kernels[0](x, b=b, out=out))
    kernels.clear()
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    others = [cupy.full(X.shape, np.nan, "f4") for _ in range(64)]  # what was free is in use
    kernels = [through_workspace(target)]
    other = captured(stream, lambda: kernels[0](others[0], b=b, out=others[1]))
    other.launch(stream)
    graph.launch(stream)
    other.launch(stream)
    cupy.cuda.Device().synchronize()
    assert (out == expected).all()


def test_a_captured_workspace_goes_with_its_graph(target, data):
    made = through_workspace(target)
    x, b, expected = (cupy.asarray(a) for a in data)
    out, stream = cupy.full(Y.shape, np.nan, "f4"), cupy.cuda.Stream(non_blocking=True)
    before = set(scratch._captured)
    cupy.cuda.Device().synchronize()
    graph = captured(stream, lambda: made(x, b=b, out=out))
    (number,) = set(scratch._captured) - before
    graph.launch(stream)
    stream.synchronize()
    assert (out == expected).all()
    scratch._drop_captured()
    assert number in scratch._captured
    del graph
    deadline = time.monotonic() + 300  # a thread of the driver's tells of the end
    while number in scratch._captured and time.monotonic() < deadline:
        time.sleep(0.01)
        scratch._drop_captured()
    assert number not in scratch._captured


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_every_plan_in_a_cupy_graph(target, rng, name, warm):
    """On a stream that has not run the kernel before, replayed on another one."""
    found = case(name, target, rng, 2)
    if warm:
        found.kernel(*found.arguments[1])
    outs = [poisoned(y) for y in found.expected]
    origin, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()

    def calls() -> None:
        for given, out in zip(found.arguments, outs, strict=True):
            found.kernel(*given, out=as_out(out))

    graph = captured(origin, calls)
    for _ in range(2):
        for out in outs:
            poison(out)
        cupy.cuda.Device().synchronize()
        graph.launch(other)
        cupy.cuda.Device().synchronize()
        assert all(alike(out, y) for out, y in zip(outs, found.expected, strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_in_a_torch_graph(target, rng, name):
    torch = pytest.importorskip("torch")
    found = case(name, target, rng, 2)
    arguments = [[torch.from_dlpack(a) for a in given] for given in found.arguments]
    expected = [tuple(map(torch.from_dlpack, y)) for y in found.expected]
    outs = [tuple(torch.full_like(array, float("nan")) for array in y) for y in expected]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.kernel(*arguments[0], out=as_out(outs[0]))
        outs[1] = each(found.kernel(*arguments[1]))
    for array in (array for out in outs for array in out):
        array.fill_(float("nan"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.replay()
    torch.cuda.synchronize()
    assert all(alike(out, y) for out, y in zip(outs, expected, strict=True))


FIRST_CALL = """
import cupy, numpy, convgen
kernel = convgen.compile({spec!r})
rng = numpy.random.default_rng({seed})
arguments = [cupy.asarray(rng.integers(-1, 2, t.shape).astype(t.element.numpy)) for t in kernel.manifest.reads]
outs = tuple(cupy.full(t.shape, numpy.nan, t.element.numpy) for t in kernel.manifest.results)
out = outs if len(outs) > 1 else outs[0]
stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
with stream:
    stream.begin_capture()
    kernel(*arguments, out=out)
    graph = stream.end_capture()
    graph.launch()
stream.synchronize()
again = kernel(*arguments)
again = again if len(outs) > 1 else (again,)
assert all((a == b).all() for a, b in zip(outs, again)), "the graph's result is another one"
"""


@pytest.mark.parametrize("name", PLANS)
def test_a_process_may_begin_with_a_capture(target, rng, seed, name):
    """Code is loaded, and cuBLAS's handle made, while the stream is being captured."""
    case(name, target, rng, 2)
    body, strategy = PLANS[name]
    spec = f"conv layer {{ {body} pad 1 strategy {strategy} target {target.name} }}"
    code = FIRST_CALL.format(spec=spec, seed=seed)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert ran.returncode == 0, ran.stderr


# ---- processes and GPUs -------------------------------------------------------------------------


def call_after_fork(made: Kernel, arguments: list[Any], out: Any, told: Any) -> None:
    try:
        made(*arguments, out=out, stream=DEFAULT_STREAM)
        told.put("no error")
    except errors.DriverError as error:
        told.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_error_says_what_to_do(target, data):
    made, (x, b, _) = kernel(target, scale_step(), operands=(B,)), (cupy.asarray(a) for a in data)
    out = cupy.empty(Y.shape, "f4")
    for _ in range(2):
        made(x, b, out=out, stream=DEFAULT_STREAM)
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    child = fork.Process(target=call_after_fork, args=(made, [x, b], out, told), daemon=True)
    child.start()
    message = told.get(timeout=300)
    child.join()
    assert "does not survive a fork: start processes with spawn" in message


@pytest.mark.parametrize("name", [*PLANS, "tiny"])
def test_two_gpus(target, rng, data, name):
    """In turn from one thread, whichever GPU is current, and at once from two."""
    if cuda.driver().device_count < 2:
        pytest.skip("one GPU")
    if name == "tiny":
        made, (x, b, y) = through_workspace(target), data
        given, expected = [x, b], (y,)
    else:
        found = case(name, target, rng, 2)
        made, given = found.kernel, [a.get() for a in found.arguments[0]]
        expected = tuple(a.get() for a in found.expected[0])
    places = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            places.append(([cupy.asarray(a) for a in given], poisoned(expected)))
            cupy.cuda.Device().synchronize()

    def check() -> None:
        for device, (_, out) in enumerate(places):
            with cupy.cuda.Device(device):
                cupy.cuda.Device().synchronize()
                assert alike(tuple(a.get() for a in out), expected)
                poison(out)
                cupy.cuda.Device().synchronize()

    for call in (made, made, made.launch_raw):
        for current in (0, 1):
            with cupy.cuda.Device(current):
                for arguments, out in places:
                    call(*arguments, out=as_out(out))
                assert cupy.cuda.runtime.getDevice() == current
            check()
    in_threads(lambda device: made(*places[device][0], out=as_out(places[device][1])), 2)
    check()
    (x, *rest), out = places[0]
    with pytest.raises(errors.WrongDevice, match="is on cuda:1, the other arguments are on cuda:0"):
        made(x, *rest, out=as_out(places[1][1]))
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(errors.WrongDevice, match="the stream is one of cuda:1, the arguments are on cuda:0"):
        made(x, *rest, out=as_out(out), stream=stream)
