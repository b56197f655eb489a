"""Host time of convgen itself: a warm call, and a whole process that finds its kernel in the cache.

    python benchmarks/host_overhead.py                 # on this machine, with or without a GPU
    python benchmarks/host_overhead.py -o FILE.json

On a GPU the calls are real launches of a kernel that does nothing, with three tensor maps and two operands;
they are timed in bursts that the GPU keeps up with.  Without a GPU a stand-in for the driver (compiled from
tests/data/fake_libcuda.c) takes the launches, so that what is left is convgen's and CuPy's own time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cupy

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.plan import Launch, Param, TensorMap
from convgen.ir.tensor import Tensor
from convgen.runtime import cuda, nvrtc
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.runtime.launch import device_capability
from convgen.runtime.manifest import Manifest
from convgen.targets import TARGETS

FAKE = Path(__file__).parent.parent / "tests" / "data" / "fake_libcuda.c"
BURST, BURSTS, PAUSE_S = 200, 50, 0.003
SOURCE = """\
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void convgen_nothing(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,
    const __grid_constant__ TensorMap y, const float* b, const unsigned short* z) {}
"""
SPEC = """\
conv overhead {
  input  x: f16[n=8, h=14, w=14, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
}
"""
NHWC, KRSC, NPQK = ("n", "h", "w", "c"), ("k", "r", "s", "c"), ("n", "p", "q", "k")
X = Tensor("x", "x", "f16", NHWC, (8, 14, 14, 256))
W = Tensor("w", "w", "f16", KRSC, (256, 3, 3, 256))
B = Tensor("b", "operand", "f32", ("k",), (256,))
Z = Tensor("z", "operand", "f16", NPQK, (8, 14, 14, 256))
Y = Tensor("y", "y", "f16", NPQK, (8, 14, 14, 256))


def nothing(target: str) -> Kernel:
    """A kernel with the parameters of a fused convolution and an empty body."""

    def map_over(tensor: Tensor) -> Param:
        dims = (tensor.extents[-1], tensor.size // tensor.extents[-1])
        map = TensorMap(tensor.role, "tiled", "f16", dims, (2 * dims[0],), (1, 1), box=(64, 64), swizzle=128)
        return Param(f"{tensor.role}_map", "tensor_map", tensor.role, map)

    operands = [Param(f"operand_{t.name}", "pointer", t.name) for t in (B, Z)]
    launch = Launch("convgen_nothing", (132, 1, 1), 128, (*map(map_over, (X, W, Y)), *operands), persistent=True)
    manifest = Manifest(
        convgen="", name="nothing", op="fprop", strategy="", config="", reason="", notes=(), target=target, digest="",
        spec="", macs=0, min_bytes=0, reads=(X, W), operands=(B, Z), result=Y, steps=(launch,), workspaces=(),
        resources={}, nvrtc="", flags=(),
    )  # fmt: skip
    compiled = nvrtc.compile_source(SOURCE, TARGETS[target])
    return Kernel(Artifact("", manifest, SOURCE, compiled.cubin, compiled.ptx, compiled.log))


def microseconds(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Median over bursts of the mean host time of a call."""
    means = []
    for _ in range(BURSTS):
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        means.append((time.perf_counter() - start) / BURST * 1e6)
        wait()
    return round(statistics.median(means), 2)


def with_gpu(kernel: Kernel) -> dict[str, float]:
    arrays = {t.name: cupy.zeros(t.shape, numpy_dtype(t.dtype)) for t in (X, W, B, Z)}
    out = cupy.empty(Y.shape, numpy_dtype(Y.dtype))
    wait = cupy.cuda.Device().synchronize
    x, w, b, z = arrays.values()
    handle = cupy.cuda.get_current_stream().ptr
    found = {
        "CuPy, out= and stream= given": microseconds(lambda: kernel(x, w, b=b, z=z, out=out, stream=handle), wait),
        "CuPy, out= given": microseconds(lambda: kernel(x, w, b=b, z=z, out=out), wait),
        "CuPy, new result": microseconds(lambda: kernel(x, w, b=b, z=z), wait),
        "the driver's launch alone": microseconds(bare_launch(kernel), wait),
    }
    try:
        import torch
    except ImportError:
        return found
    x, w, b, z, y = (
        torch.zeros(t.shape, dtype=getattr(torch, t.element.numpy), device="cuda") for t in (X, W, B, Z, Y)
    )
    found["torch, out= given"] = microseconds(lambda: kernel(x, w, b=b, z=z, out=y), wait)
    found["torch, new result"] = microseconds(lambda: kernel(x, w, b=b, z=z), wait)
    return found


def without_gpu(kernel: Kernel, folder: str) -> dict[str, float]:
    library = str(Path(folder) / "libcuda.so")
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", str(FAKE), "-o", library], check=True)
    cuda.LIBRARY = library

    def array(tensor: Tensor, address: int) -> cupy.ndarray:
        memory = cupy.cuda.UnownedMemory(address << 24, tensor.bytes, None, 0)
        return cupy.ndarray(tensor.shape, numpy_dtype(tensor.dtype), cupy.cuda.MemoryPointer(memory, 0))

    x, w, b, z, y = (array(tensor, i) for i, tensor in enumerate((X, W, B, Z, Y), 1))
    given = microseconds(lambda: kernel(x, w, b=b, z=z, out=y, stream=16), lambda: None)
    return {
        "CuPy, out= and stream= given": given,
        "the driver's launch alone": microseconds(bare_launch(kernel), lambda: None),
    }


def bare_launch(kernel: Kernel) -> Callable[[], object]:
    """The prepared launch of a warm kernel, without what stands before it."""
    (program,) = kernel._programs.values()
    ((function, arguments),) = next(iter(program.prepared.values()))
    return lambda: function(*arguments)


def cached_process(folder: str) -> float:
    """Median seconds of a whole process that compiles a spec which is in the cache."""
    environment = os.environ | {"CONVGEN_CACHE_DIR": folder}
    code = f"import convgen; convgen.compile({SPEC!r})"
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds[1:]), 3)  # the first one compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON")
    output = parser.parse_args().output
    capability = device_capability()
    with tempfile.TemporaryDirectory() as folder:
        kernel = nothing("sm_90a")
        calls = with_gpu(kernel) if capability else without_gpu(kernel, folder)
        process = cached_process(folder)
    for name, value in calls.items():
        print(f"{value:8.2f} us  {name}")
    print(f"{process:8.3f} s   whole process, kernel from the cache")
    if output:
        gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode() if capability else "none: stand-in driver"
        facts = {"gpu": gpu, "cpu": platform.processor() or platform.machine(), "python": platform.python_version()}
        facts |= {"cupy": cupy.__version__, "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv)}
        output.write_text(json.dumps(facts | {"call_us": calls, "cached_process_s": process}, indent=2) + "\n")


if __name__ == "__main__":
    main()
