"""Time: what a seed decides, what it replays, and the trap of two consumers over three stages."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from handwritten import kernel_source, launch, run, tiled, whole_source

from convgen import emulator
from convgen.diagnostics import ConvgenError
from convgen.emulator import EmulationError, Finding, NoHostCompiler, compiler

TILES, K_STEPS = 6, 2
X_MAP = tiled("x", "f16", (64, 64 * TILES * K_STEPS), (64, 64), swizzle=128)


def pingpong(seed: int, **defines) -> np.ndarray:
    x = np.arange(64 * 64 * TILES * K_STEPS).astype(np.float16) % 7
    y = np.full(128 * TILES, np.nan, np.float32)
    source = kernel_source("pingpong.cu", defines)
    run(source, "pingpong", (X_MAP, "y"), {"x": x, "y": y}, block=384, shared_bytes=1024 + 3 * 8192 + 64, seed=seed)
    return y


def test_a_parity_cannot_tell_the_phase_before_from_the_phase_after():
    for seed in range(100):
        try:
            pingpong(seed)
        except EmulationError as error:
            kinds = {f.kind for f in error.findings}
            assert kinds & {"in flight", "race", "overwritten while read", "deadlock", "uninitialized"}, error
            return
    pytest.fail("100 seeds have not found the trap")


def test_consumers_in_order_do_not_fall_into_it():
    results = [pingpong(seed, ORDERED=1) for seed in range(12)]
    assert np.isfinite(results[0]).all()
    assert all((y == results[0]).all() for y in results)


def failure(seed: int) -> tuple[Finding, ...]:
    with pytest.raises(EmulationError) as error:
        pingpong(seed)
    assert error.value.seed == seed and f"seed {seed}" in str(error.value)
    return error.value.findings


def test_a_seed_replays():
    """Whatever ran before it in the same process."""
    found = {}
    for seed in range(20):
        try:
            pingpong(seed)
        except EmulationError as error:
            found[seed] = error.findings
    assert found
    for _ in range(3):
        for seed, findings in found.items():
            assert failure(seed) == findings


IDLE = "nothing is stored, copied or multiplied"
REPEATS = "writes to global memory only what has been written before"
#: Loops that do not end, and what is said of them.
ENDLESS = {
    "waits for a flag": ("while (*(volatile u32*)out == 0) {}", IDLE),
    "computes": ("for (u32 i = threadIdx.x; i != 7; i = 2 * i + 2) {}", IDLE),
    "meets": ("for (;;) __syncthreads();", IDLE),
    "stores": ("for (u32 i = 0;; ++i) ((volatile u32*)out)[threadIdx.x] = i;", REPEATS),
    "stores to shared memory": ("for (u32 i = 0;; ++i) st_shared_v4_u32(at, Vec4{i, i, i, i});", REPEATS),
    "copies": ("for (;;) { cp_async_16(at, out, 16); cp_async_commit_group(); cp_async_wait_group<0>(); }", REPEATS),
    "multiplies": ("for (float d[4] = {};;) mma_m16n8k16_f32_f16_f16(d, {at, at, at, at}, {at, at});", REPEATS),
    "adds": ("for (;;) red_global_add_v4_f32(reinterpret_cast<float*>(out), 1, 1, 1, 1);", REPEATS),
}


@pytest.mark.parametrize(("loop", "said"), ENDLESS.values(), ids=ENDLESS)
def test_a_loop_that_does_not_end_is_a_finding(loop: str, said: str):
    memory = (
        "  extern __shared__ u8 shared_memory[];\n  const u32 at = shared_address(shared_memory) + 16 * threadIdx.x;\n"
    )
    source = whole_source(f'extern "C" __global__ void endless(u32* out) {{\n{memory}  {loop}\n}}\n')
    with pytest.raises(EmulationError) as error:
        run(source, "endless", ("out",), {"out": np.zeros(64, np.uint32)}, block=64, shared_bytes=1024)
    finding = error.value.findings[0]
    assert finding.kind == "endless loop" and finding.source_line == loop and said in finding.message


ORDER = """
extern "C" __global__ void order(int* __restrict__ next, int* __restrict__ place) {
  place[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}
"""


def order(seed: int, source: str = ORDER, **options) -> np.ndarray:
    buffers = {"next": np.zeros(1, np.int32), "place": np.full(256, -1, np.int32)}
    run(whole_source(source), "order", ("next", "place"), buffers, grid=4, block=64, seed=seed, **options)
    assert sorted(buffers["place"]) == list(range(256))
    return buffers["place"]


LONG = """
extern "C" __global__ void order(int* __restrict__ next, int* __restrict__ place) {
  for (int i = 0; i < 9000; ++i) {
    if (*(volatile int*)next < 0) return;
    if (i % 16 == 0) bulk_commit_group();
  }
  place[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}
"""


@pytest.mark.parametrize("seed", (0, 1))
def test_what_ran_before_a_kernel_does_not_matter(seed):
    """Long loops let other threads go first now and then: where, the kernel itself decides."""
    places = [order(seed, source=LONG) for _ in range(3)]
    assert all((place == places[0]).all() for place in places)


def test_threads_and_blocks_run_in_an_order_of_the_seed():
    assert (order(5) == order(5)).all()
    assert len({tuple(order(seed)) for seed in range(6)}) == 6


LEAVES_EARLY = """
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(64)
void leaves_early(u32* out) {
  extern __shared__ u8 shared_memory[];
  if (threadIdx.x >= 32) {
    st_shared_u32(shared_address(shared_memory) + 4 * threadIdx.x, 0);  // time may pass
    if (ARRIVES) cluster_arrive();
    return;
  }
  cluster_arrive();
  cluster_wait();
  out[blockIdx.x * 32 + threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize("arrives", [0, 1])
def test_a_clusters_barrier_waits_for_no_thread_that_leaves(arrives: int):
    """Whether it leaves before the others have arrived or after."""
    source = whole_source(LEAVES_EARLY, {"ARRIVES": arrives})
    for seed in range(60):
        out = np.zeros(64, np.uint32)
        run(source, "leaves_early", ("out",), {"out": out}, block=64, grid=2, cluster=2, shared_bytes=1024, seed=seed)
        assert out.all()


def test_without_checks_the_result_is_the_same():
    launches = [launch("order", ("next", "place"), grid=4, block=64)]
    buffers = {"next": np.zeros(1, np.int32), "place": np.full(256, -1, np.int32)}
    emulator.emulate(whole_source(ORDER), launches, buffers, seed=5, checks=False)
    assert (buffers["place"] == order(5)).all()


def test_blocks_may_run_on_several_cores():
    order(3, threads=4)


def test_progress_counts_blocks_and_may_give_up():
    seen: list[tuple[int, int]] = []
    order(0, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def enough(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        order(0, progress=enough)


def test_an_interrupt_that_comes_inside_a_callback_ends_the_emulation():
    """Python raises it at any instruction, also before a callback's own `try`, whence ctypes lets nothing out."""
    came: list[str] = []

    def trace(frame: Any, event: str, _: Any) -> None:
        if frame.f_code.co_name == "report" and not came:
            came.append(event)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sys.settrace(trace)
            order(0)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, before)
    assert came == ["call"]


@pytest.fixture
def fresh_compiler(monkeypatch):
    """No compiler found yet, no library made yet."""
    for cached in (compiler.host_compiler, compiler._folder, compiler._runtime_sources, compiler.runtime_library):
        monkeypatch.setattr(compiler, cached.__name__, cache(cached.__wrapped__))
    monkeypatch.setenv("CONVGEN_CACHE", "0")


def test_a_compiler_that_writes_nothing_is_none(monkeypatch, fresh_compiler):
    monkeypatch.setenv("CONVGEN_CXX", "true")
    with pytest.raises(NoHostCompiler, match="wrote no library"):
        compiler.runtime_library()


@pytest.mark.parametrize("name", ["ls", "gcc"])
def test_a_program_that_compiles_no_cpp_is_not_asked_about_a_kernel(name, monkeypatch, tmp_path, fresh_compiler):
    """gcc compiles C++, and leaves out its library."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name} here")
    (tmp_path / "runtime.cc").write_text("#include <string>\nstd::string* made() { return new std::string; }\n")
    monkeypatch.setattr(compiler, "RUNTIME", tmp_path)  # as C++ as the emulator's own, and sooner compiled
    monkeypatch.setenv("CONVGEN_CXX", name)
    with pytest.raises(NoHostCompiler, match=r"(?s)cannot compile the emulator.*hint: CONVGEN_CXX names"):
        compiler.kernel_library("", ["nothing"], True)


def test_threads_that_want_the_same_kernel_compile_it_once(monkeypatch, tmp_path):
    compiler.runtime_library()
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    runs, own = [], type(compiler.host_compiler()).run
    monkeypatch.setattr(type(compiler.host_compiler()), "run", lambda *given: runs.append(given) or own(*given))
    source = f"// {tmp_path}"  # which no library of this process has yet
    with ThreadPoolExecutor(4) as pool:
        libraries = set(pool.map(lambda _: compiler.kernel_library(source, [], checks=False), range(4)))
    assert len(libraries) == len(runs) == 1


def test_a_temporary_folder_that_takes_nothing_is_named(monkeypatch, tmp_path):
    compiler.runtime_library()
    monkeypatch.setenv("CONVGEN_CACHE", "0")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiler.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    message = f"{tmp_path}: cannot be written: No space left on device\nhint: TMPDIR names another folder"
    with pytest.raises(ConvgenError, match=re.escape(message)):
        compiler.kernel_library("", ["nothing"], True)


def test_a_compiler_that_has_no_room_is_no_wrong_compiler(monkeypatch, tmp_path, fresh_compiler):
    full = tmp_path / "c++"
    full.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "x.s: No space left on device" >&2; exit 1; }\n')
    full.chmod(0o700)
    monkeypatch.setenv("CONVGEN_CXX", str(full))
    monkeypatch.setattr(compiler.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConvgenError, match=re.escape(f"{tmp_path}: cannot be written: No space left on device")):
        compiler.runtime_library()


def test_without_a_host_compiler_the_hint_says_what_to_install(monkeypatch):
    compiler.host_compiler.cache_clear()
    monkeypatch.setenv("PATH", "")
    for name in ("CXX", "CONVGEN_CXX"):
        monkeypatch.delenv(name, raising=False)
    try:
        with pytest.raises(NoHostCompiler) as error:
            emulator.emulate("void f() {}", [], {})
    finally:
        compiler.host_compiler.cache_clear()
    what, hint = str(error.value).splitlines()
    assert "C++17 compiler" in what and hint.startswith("hint: install g++ or clang++")


@pytest.mark.parametrize("variable", ["CONVGEN_CXX", "CXX"])
def test_a_compiler_with_options_is_named_with_its_variable(variable, monkeypatch, fresh_compiler):
    monkeypatch.delenv("CONVGEN_CXX", raising=False)
    monkeypatch.setenv(variable, "c++ -O0")
    with pytest.raises(NoHostCompiler) as error:
        compiler.host_compiler()
    what, hint = str(error.value).splitlines()
    assert what == f"the emulator's compiler 'c++ -O0', which {variable} names, cannot be run"
    assert hint.startswith("hint: set CONVGEN_CXX to the name or the path") and hint.endswith("without options")
    monkeypatch.setenv("CONVGEN_CXX", "c++")
    assert compiler.host_compiler.__wrapped__().path == shutil.which("c++")


def test_source_that_is_no_cpp_is_a_finding_with_its_line():
    source = whole_source('extern "C" __global__ void broken(int* y) {\n  y[0] = nothing_of_the_kind;\n}\n')
    with pytest.raises(EmulationError) as error:
        run(source, "broken", ("y",), {"y": np.zeros(1, np.int32)})
    (finding,) = error.value.findings
    assert finding.kind == "compile" and "nothing_of_the_kind" in finding.message
    assert finding.source_line == "y[0] = nothing_of_the_kind;"


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("__shared__ u32 values[64];", "compile"),
        ("extern __shared__ u8 shared_memory[]; u32* values = reinterpret_cast<u32*>(shared_memory);", "out of bounds"),
    ],
)
def test_shared_memory_is_accessed_by_its_address_alone(declared: str, kind: str):
    """What a thread does to it otherwise, the emulator would not see."""
    body = f"  {declared}\n  values[threadIdx.x] = 1;\n  out[threadIdx.x] = values[threadIdx.x];"
    source = whole_source(f'extern "C" __global__ void shares(u32* out) {{\n{body}\n}}\n')
    with pytest.raises(EmulationError, match="shared") as error:
        run(source, "shares", ("out",), {"out": np.zeros(64, np.uint32)}, block=64, shared_bytes=1024)
    assert error.value.findings[0].kind == kind and "values[" in error.value.findings[0].source_line
    assert kind != "compile" or "add the bytes to the launch's shared_bytes" in str(error.value)


def test_a_launch_that_names_no_buffer_or_an_impossible_map_is_refused():
    source = whole_source(ORDER)
    with pytest.raises(EmulationError, match="needs a buffer 'elsewhere'"):
        run(source, "order", ("next", "elsewhere"), {"next": np.zeros(1, np.int32)})
    wide = tiled("x", "f16", (128, 4), (128, 4), swizzle=128)
    with pytest.raises(EmulationError, match="row of 256 bytes is wider than the swizzle of 128"):
        run(kernel_source("pingpong.cu"), "pingpong", (wide, "x"), {"x": np.zeros((4, 128), np.float16)})
    large = tiled("x", "f16", (64, 5), (64, 4), swizzle=128)
    with pytest.raises(EmulationError, match="reaches 640 bytes into x, which has 512"):
        run(kernel_source("pingpong.cu"), "pingpong", (large, "x"), {"x": np.zeros((4, 64), np.float16)})


@pytest.mark.parametrize(("grid", "cluster"), [(3, 2), (32, 32)])
def test_a_grid_is_of_whole_clusters_of_eight_blocks_at_most(grid: int, cluster: int):
    """The driver refuses others."""
    source = whole_source(ORDER.replace("__global__", f"__global__ __cluster_dims__({cluster}, 1, 1)"))
    with pytest.raises(EmulationError, match="a grid has whole clusters, of 8 blocks at most"):
        buffers = {"next": np.zeros(1, np.int32), "place": np.zeros(4096, np.int32)}
        run(source, "order", ("next", "place"), buffers, grid=grid, cluster=cluster)
