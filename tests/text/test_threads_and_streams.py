"""Calls from several threads, on several streams, GPUs and into CUDA graphs: what is enqueued in which order and
context, and which memory it works in.  The driver is a fake that records."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fake_driver import FakeDriver, LaunchRecord, install
from fake_kernels import BIAS, FILTER, IMAGE, LAUNCH, RESULT, STREAM, B, W, X, Y, array, kernel, parameter, right
from several_launches import PLANS
from tma_specs import compilation

from convgen.ir.plan import Fill, Gemm, Launch, Param, Workspace
from convgen.runtime import cublas, cuda, errors, scratch

OTHER_STREAM = STREAM + 0x10
SECOND_GPU = 1 << 32
PARTIAL = Workspace("partial", 1000)
#: Two launches that hand results on in a workspace, and the buffer of each.
FIRST = Launch("first", (1, 1, 1), 32, (Param("y", "pointer", "y"), Param("partial", "pointer", "partial")))
SECOND = Launch("second", (1, 1, 1), 32, (Param("y", "pointer", "y"), Param("partial", "pointer", "partial")))


@pytest.fixture
def driver(tmp_path, monkeypatch) -> FakeDriver:
    return install(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def memory(monkeypatch) -> list[tuple[object, ...]]:
    """Memory that is not there, at an address for each time that some is asked for; what was asked."""
    asked: list[tuple[object, ...]] = []

    def allocate(*request: object) -> SimpleNamespace:
        asked.append(request)
        return SimpleNamespace(ptr=0x9000000 + 0x100000 * len(asked))

    monkeypatch.setattr(scratch, "allocate", allocate)
    monkeypatch.setattr(scratch, "allocate_for_capture", allocate)
    return asked


def two_steps(size: int = PARTIAL.bytes):
    return kernel(FIRST, SECOND, workspaces=(Workspace("partial", size),))


def numbered(number: int, device: int = 0) -> dict:
    """Arguments of which `out` tells the call's number."""
    return right() | {"out": array(RESULT, Y + 0x10000 * number)}


def numbers(launches: list[LaunchRecord]) -> list[tuple[int, str]]:
    """(number of the call, entry point) of each launch, in order."""
    launches = sorted(launches, key=lambda launch: launch.position)
    return [((parameter(s, 0, ctypes.c_uint64).value - Y) // 0x10000, s.entry.decode()) for s in launches]


def worked_in(launch: LaunchRecord) -> int:
    """The address of the workspace that a launch was given."""
    return parameter(launch, 1, ctypes.c_uint64).value


def in_thread(work: Callable[[], object]) -> None:
    """Runs something in a fresh thread, and raises what it raises."""
    raised = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


# ---- one stream, several threads ----------------------------------------------------------------


def call_in_the_middle(driver: FakeDriver, first: Callable, second: Callable, patience: float) -> threading.Thread:
    """Calls `first`, and `second` in another thread while `first` has launched one of its steps."""
    other = threading.Thread(target=second)

    def meanwhile() -> None:
        driver.on_launch(None)
        other.start()
        other.join(patience)

    driver.on_launch(meanwhile)
    first()
    return other


@pytest.mark.parametrize("warm", [False, True])
def test_no_call_comes_between_the_launches_of_another(driver, warm):
    k = two_steps()
    if warm:
        for number in (0, 1):
            k(**numbered(number), stream=STREAM)
        driver.launch_count = 0
    first, second = (lambda n=n: k(**numbered(n), stream=STREAM) for n in (0, 1))
    call_in_the_middle(driver, first, second, 0.2).join()
    assert numbers(driver.launches) == [(0, "first"), (0, "second"), (1, "first"), (1, "second")]


def test_kernels_that_share_a_workspace_wait_for_one_another(driver):
    one, other = two_steps(), two_steps()
    one(**numbered(0), stream=STREAM)
    other(**numbered(0), stream=STREAM)
    assert len({worked_in(launch) for launch in driver.launches}) == 1
    driver.launch_count = 0
    first, second = (lambda k=k, n=n: k(**numbered(n), stream=STREAM) for n, k in enumerate((one, other)))
    call_in_the_middle(driver, first, second, 0.2).join()
    assert [number for number, _ in numbers(driver.launches)] == [0, 0, 1, 1]


def test_calls_on_two_streams_do_not_wait_for_one_another(driver):
    k = two_steps()
    first, second = (lambda n=n, s=s: k(**numbered(n), stream=s) for n, s in enumerate((STREAM, OTHER_STREAM)))
    assert not call_in_the_middle(driver, first, second, 30).is_alive()
    assert [number for number, _ in numbers(driver.launches)] == [0, 1, 1, 0]
    assert worked_in(driver.launches[0]) == worked_in(driver.launches[3]) != worked_in(driver.launches[1])


def test_a_call_of_one_launch_waits_for_nobody(driver):
    k, alone = two_steps(), kernel(FIRST, workspaces=(PARTIAL,))
    first, second = lambda: k(**numbered(0), stream=STREAM), lambda: alone(**numbered(1), stream=STREAM)
    assert not call_in_the_middle(driver, first, second, 30).is_alive()
    assert [number for number, _ in numbers(driver.launches)] == [0, 1, 0]


def test_many_threads_on_one_stream(driver):
    kernels = [two_steps(), two_steps(), kernel(Fill("partial"), FIRST, SECOND, workspaces=(PARTIAL,))]
    driver.on_launch(lambda: time.sleep(0))  # lets another thread come first
    calls = 30

    def work(number: int) -> None:
        arguments = numbered(number)
        for i in range(calls):
            kernels[(number + i) % 3](**arguments, stream=STREAM)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launched = numbers(driver.launches)
    assert len(launched) == 6 * calls * 2
    pairs = list(zip(launched[::2], launched[1::2], strict=True))
    assert all(first == (n, "first") and second == (n, "second") for first, second in pairs for n in [first[0]])
    entries = {launch.position: launch.entry for launch in driver.launches}
    assert len(driver.fills) == 6 * calls // 3
    assert all(entries[fill.position + 1] == b"first" for fill in driver.fills)


def test_a_failed_call_lets_the_next_one_run(driver):
    k = two_steps()
    k(**numbered(0), stream=STREAM)
    driver.launch_status = 719
    with pytest.raises(errors.DriverError):
        k(**numbered(0), stream=STREAM)
    driver.launch_status = 0
    in_thread(lambda: k(**numbered(0), stream=STREAM))
    assert driver.launch_count == 4


# ---- workspaces ---------------------------------------------------------------------------------


def test_a_stream_has_one_workspace(driver, memory):
    k = two_steps()
    for stream in (STREAM, STREAM, OTHER_STREAM, STREAM):
        k(**right(), stream=stream)
    k(right()["image"], right()["weights"], b=right()["b"], out=array(RESULT, Y + 0x10000), stream=STREAM)
    assert memory == [(1024, 0, STREAM), (1024, 0, OTHER_STREAM)]


def test_a_larger_kernel_gets_a_larger_workspace_and_the_next_ones_share_it(driver, memory):
    small, large, last = two_steps(1000), two_steps(5000), two_steps(1000)
    for k in (small, large, small, last):
        k(**right(), stream=STREAM)
    assert [request[0] for request in memory] == [1024, 5120]
    first, second, third, fourth = (worked_in(launch) for launch in driver.launches[::2])
    assert first == third != second == fourth


def test_a_workspace_lasts_as_long_as_its_kernels(driver, memory, own_garbage):
    k = two_steps()
    k(**right(), stream=STREAM)
    (held,) = scratch._of_streams.values()
    assert held.size == 1024
    del k, held
    gc.collect()
    assert not scratch._of_streams


def test_the_per_thread_default_stream_shares_no_workspace(driver, memory):
    """It is one handle for as many streams as there are threads."""
    k = kernel(FIRST, workspaces=(PARTIAL,))
    first, second = (lambda n=n: k(**numbered(n), stream=cuda.PER_THREAD_STREAM) for n in (0, 1))
    call_in_the_middle(driver, first, second, 30).join()
    first()
    assert len({worked_in(launch) for launch in driver.launches}) == len(memory) == 3


# ---- CUDA graphs --------------------------------------------------------------------------------


def capture(driver: FakeDriver, number: int, stream: int = STREAM) -> None:
    driver.capturing, driver.capture_number = stream, number


def workspace_of_call(driver: FakeDriver, k, stream: int = STREAM) -> int:
    k(**right(), stream=stream)
    return worked_in(driver.launches[-1])


@pytest.mark.parametrize("warm", [False, True])
def test_each_capture_has_a_workspace_of_its_own(driver, warm):
    k = two_steps()
    eager = workspace_of_call(driver, k)
    if warm:
        assert workspace_of_call(driver, k) == eager
    capture(driver, 1)
    first = workspace_of_call(driver, k)
    assert workspace_of_call(driver, k) == workspace_of_call(driver, two_steps()) == first
    capture(driver, 1, OTHER_STREAM)  # a branch of the same graph
    branch = workspace_of_call(driver, k, OTHER_STREAM)
    capture(driver, 2)
    second = workspace_of_call(driver, k)
    capture(driver, 0, stream=0)
    assert workspace_of_call(driver, k) == eager
    assert len({eager, first, branch, second}) == 4


def test_a_captured_workspace_lasts_as_long_as_its_graph(driver, own_garbage):
    k = two_steps()
    capture(driver, 1)
    k(**right(), stream=STREAM)
    capture(driver, 2)
    k(**right(), stream=STREAM)
    del k
    gc.collect()
    assert scratch._captured.keys() == {1, 2}
    driver.destroy_graph(1)
    capture(driver, 3)
    two_steps()(**right(), stream=STREAM)
    assert scratch._captured.keys() == {2, 3}
    driver.destroy_graph(2)
    driver.destroy_graph(3)
    capture(driver, 0, stream=0)
    two_steps()(**right(), stream=OTHER_STREAM)
    assert not scratch._captured


def test_a_larger_kernel_in_a_capture_leaves_the_smaller_ones_theirs(driver):
    capture(driver, 1)
    small, large = two_steps(1000), two_steps(5000)
    first, second, third = (workspace_of_call(driver, k) for k in (small, large, small))
    assert first != second == third
    assert [held.size for held in scratch._captured[1].by_stream[STREAM]] == [1024, 5120]


def test_a_given_workspace_is_taken_in_a_capture(driver, memory):
    capture(driver, 1)
    k = two_steps()
    given = array(IMAGE, 0x500000, dtype="u1", shape=(k.workspace_bytes,))
    k(**right(), stream=STREAM, workspace=given)
    assert worked_in(driver.launches[0]) == 0x500000
    assert not memory


# ---- contexts -----------------------------------------------------------------------------------


def current() -> int | None:
    context = ctypes.c_void_p()
    cuda.driver()._library.cuCtxGetCurrent(ctypes.byref(context))
    return context.value


@pytest.mark.parametrize("before", [None, 0x100, 0x101])
@pytest.mark.parametrize(
    "steps", [(LAUNCH,), (FIRST, SECOND), (Fill("partial"), FIRST)], ids=["one launch", "two launches", "fill"]
)
@pytest.mark.parametrize("devices", [1, 2])
def test_any_thread_may_call(driver, before, steps, devices):
    """Whatever context a thread has, none or another GPU's, a call runs in the arguments' GPU's and leaves it."""
    driver.devices = devices
    cold, warm = (kernel(*steps, workspaces=(PARTIAL,)) for _ in range(2))
    for _ in range(2):
        warm(**right(), stream=STREAM)

    def work() -> None:
        cuda.driver()._library.cuCtxSetCurrent(ctypes.c_void_p(before))
        for k in (cold, cold, warm, warm):
            k(**right(), stream=STREAM)
            assert current() == before

    in_thread(work)
    assert len(driver.launches) + len(driver.fills) == 6 * len(steps)
    assert {launch.context for launch in driver.launches} == {0x100}
    assert driver.context_depth == 0


def test_a_fresh_thread_waits_for_another_librarys_stream(driver):
    k = kernel()
    k(**right(), stream=STREAM)
    interface = {"shape": IMAGE.shape, "typestr": "<f2", "data": (X, False), "version": 3, "stream": OTHER_STREAM}
    image = SimpleNamespace(__cuda_array_interface__=interface)
    in_thread(lambda: k(**right() | {"image": image}, stream=STREAM))
    assert driver.wait_count == 1


def test_each_gpu_has_its_own_code_maps_and_workspaces(driver, memory):
    driver.devices = 2
    places = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
    k = kernel(LAUNCH, FIRST, SECOND, workspaces=(PARTIAL,))
    for device in (1, 0, 1):
        arguments = {name: array(*place, device=device) for name, place in places.items()}
        k(**arguments, stream=device * SECOND_GPU + STREAM)
    assert [launch.context for launch in driver.launches] == [0x101] * 3 + [0x100] * 3 + [0x101] * 3
    assert (driver.module_count, driver.map_count) == (2, 2)
    assert memory == [(1024, 1, SECOND_GPU + STREAM), (1024, 0, STREAM)]


def test_a_stream_of_another_gpu_is_refused(driver):
    driver.devices = 2
    with pytest.raises(errors.WrongDevice, match="the stream is one of cuda:1, the arguments are on cuda:0"):
        kernel()(**right(), stream=SECOND_GPU + STREAM)
    assert (driver.launch_count, driver.context_depth) == (0, 0)


@pytest.mark.parametrize("stream", [0, 1, cuda.PER_THREAD_STREAM])
def test_default_streams_are_every_gpus(driver, stream):
    driver.devices = 2
    places = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
    for device in (0, 1):
        kernel()(**{name: array(*place, device=device) for name, place in places.items()}, stream=stream)
    assert [launch.context for launch in driver.launches] == [0x100, 0x101]


# ---- cuBLAS -------------------------------------------------------------------------------------


class FakeCublas:
    """Records what it is asked for, and refuses to make handles while `creates` is false."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.creates = True
        self.handles = 0

    def cublasCreate_v2(self, handle) -> int:
        self.handles += 1
        handle._obj.value = 0x2000 + self.handles
        return 0 if self.creates else 1

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self.calls.append((name, *arguments)) or 0


@pytest.fixture
def fake_cublas(monkeypatch) -> FakeCublas:
    made = FakeCublas()
    monkeypatch.setattr(cublas, "_library", lambda: made)
    monkeypatch.setattr(cublas, "_idle", {})
    return made


def products(count: int = 2):
    gemm = Gemm("x", "w", "y", 16, 16, 8, False, True, 8, 8, 16, "f16", "f16")
    return kernel(FIRST, *[gemm] * count, workspaces=(PARTIAL,))


def test_products_work_in_the_calls_workspace_on_its_stream(driver, memory, fake_cublas):
    k = products()
    assert k.workspace_bytes == 1024 + cublas.WORKSPACE.bytes
    for stream in (STREAM, OTHER_STREAM):
        fake_cublas.calls.clear()
        k(**right(), stream=stream)
        base = worked_in(driver.launches[-1])
        set_up = [("cublasSetStream_v2", 0x2001, stream)]
        set_up += [("cublasSetWorkspace_v2", 0x2001, base + 1024, cublas.WORKSPACE.bytes)]
        seen = [call for call in fake_cublas.calls if call[0] != "cublasSetMathMode"]
        assert [call[:4] for call in seen if call[0] != "cublasGemmEx"] == set_up * 2
        assert [call[0] for call in seen[2::3]] == ["cublasGemmEx"] * 2
    assert fake_cublas.handles == 1
    assert driver.capture_mode == 0


def test_cublas_gets_an_aligned_workspace(driver, fake_cublas):
    k = products(1)
    given = array(IMAGE, 0x500010, dtype="u1", shape=(k.workspace_bytes,))
    k(**right(), stream=STREAM, workspace=given)
    (call,) = [call for call in fake_cublas.calls if call[0] == "cublasSetWorkspace_v2"]
    assert call[2] % 256 == 0
    assert call[2] + call[3] == 0x500010 + k.workspace_bytes


def test_a_capture_on_a_new_stream_makes_no_handle(driver, fake_cublas):
    k = products()
    k(**right(), stream=STREAM)
    fake_cublas.creates = False
    capture(driver, 1, OTHER_STREAM)
    k(**right(), stream=OTHER_STREAM)
    assert fake_cublas.handles == 1


def test_where_no_handle_can_be_made_in_a_capture_the_error_says_what_to_do(driver, fake_cublas):
    fake_cublas.creates = False
    capture(driver, 1)
    with pytest.raises(errors.DriverError, match=r"status 1\nhint: .*call the kernel once before"):
        products()(**right(), stream=STREAM)
    assert (driver.launch_count, driver.capture_mode, driver.context_depth) == (0, 0, 0)


def test_calls_at_once_take_handles_of_their_own(driver, fake_cublas):
    k = products(1)
    for stream in (STREAM, OTHER_STREAM):
        k(**right(), stream=stream)
    inside = threading.Barrier(2, timeout=300)
    used = []

    def product(handle: int, *_: object) -> int:
        used.append(handle)
        inside.wait()
        return 0

    fake_cublas.cublasGemmEx = product
    other = kernel(*products(1).manifest.steps, workspaces=(PARTIAL,))
    threads = [threading.Thread(target=lambda s=s: other(**right(), stream=s)) for s in (STREAM, OTHER_STREAM)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(used)) == 2


@pytest.mark.parametrize("name", PLANS)
def test_plans_that_threads_share_have_several_launches(name):
    body, strategy = PLANS[name]
    plan = compilation(f"conv layer {{ {body} pad 1 strategy {strategy} target sm_90a }}").plan
    assert len(plan.steps) > 1 and plan.workspaces
