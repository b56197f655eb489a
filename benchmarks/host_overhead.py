"""Host time of convgen itself: a warm call, and a whole process that finds its kernel in the cache.

    python benchmarks/host_overhead.py                 # on this machine, with or without a GPU
    python benchmarks/host_overhead.py -o FILE.json

On a GPU the calls are real launches, timed in bursts that the GPU's queue takes without waiting, beside the
driver's bare launch of the same kernel and torch's own convolution.  Without a GPU a stand-in for the driver
(compiled from tests/data/fake_libcuda.c) takes the launches, so that what is left is convgen's own time.
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
from datetime import UTC, datetime
from pathlib import Path

import cupy

import convgen
from convgen.bench.results import command, commit
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.tensor import Tensor
from convgen.runtime import cuda, scratch
from convgen.runtime.dynamic import DynamicKernel
from convgen.runtime.kernel import Kernel
from convgen.runtime.launch import gpu_at_hand

FAKE = Path(__file__).parent.parent / "tests" / "data" / "fake_libcuda.c"
BURST, BURSTS = 200, 50
CONV = """\
conv {name} {{
  input  x: f16[n=8, h={size}, w={size}, c={c}]
  filter w: f16[k={c}, r=3, s=3, c={c}]
  output y: f16[n, p, q, k]
  pad 1
  {rest}
}}
"""
FUSED = """epilogue {
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    y = relu(acc + b + z)
  }
  strategy tma_im2col"""
#: By name.  All but the last have tensor maps and are dependent launches.
KERNELS = {
    "tma_im2col": CONV.format(name="im2col", size=14, c=256, rest="strategy tma_im2col"),
    "tma_halo": CONV.format(name="patch", size=28, c=64, rest="strategy tma_halo"),
    "tma_im2col, two operands": CONV.format(name="fused", size=14, c=256, rest=FUSED),
    "tma_im2col, dynamic sizes": CONV.format(name="any", size=14, c=256, rest="dynamic n h w  strategy tma_im2col"),
    "tma_im2col, two launches": CONV.format(name="shared", size=7, c=512, rest="strategy tma_im2col { stream_k 1 }"),
    "direct": CONV.format(name="simple", size=14, c=8, rest="strategy direct"),
}
CACHED = CONV.format(name="cached", size=14, c=64, rest="")


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


def fixed(kernel: Kernel) -> Kernel:
    """The kernel that launches: of dynamic sizes, that of the spec's."""
    return kernel.at() if isinstance(kernel, DynamicKernel) else kernel


def with_gpu(kernel: Kernel) -> dict[str, float]:
    m, wait = fixed(kernel).manifest, cupy.cuda.Device().synchronize
    tensors = (*m.arguments, m.result)
    arrays = [cupy.zeros(t.shape, numpy_dtype(t.dtype)) for t in tensors]
    found = calls(kernel, arrays, wait, "CuPy", cupy.cuda.get_current_stream().ptr)
    try:
        import torch
    except ImportError:
        return found
    arrays = [torch.zeros(t.shape, dtype=getattr(torch, t.element.numpy), device="cuda") for t in tensors]
    found |= calls(kernel, arrays, wait, "torch", torch.cuda.current_stream().cuda_stream)
    x, w = (a.permute(0, 3, 1, 2) for a in arrays[:2])
    with torch.inference_mode():
        conv2d = torch.nn.functional.conv2d
        return found | {"torch's conv2d": microseconds(lambda: conv2d(x, w, padding=1), wait)}


def without_gpu(kernel: Kernel) -> dict[str, float]:
    m = fixed(kernel).manifest

    def array(tensor: Tensor, address: int) -> cupy.ndarray:
        memory = cupy.cuda.UnownedMemory(address << 24, tensor.bytes, None, 0)
        return cupy.ndarray(tensor.shape, numpy_dtype(tensor.dtype), cupy.cuda.MemoryPointer(memory, 0))

    arrays = [array(tensor, i) for i, tensor in enumerate((*m.arguments, m.result), 1)]
    return calls(kernel, arrays, lambda: None, "CuPy", 16, current=False)


def calls(
    kernel: Kernel, arrays: list, wait: Callable[[], object], library: str, stream: int, current: bool = True
) -> dict[str, float]:
    """Microseconds of each way to call a kernel with arrays of one library; `current`: also on its current stream."""
    m = kernel.manifest
    names = {t.name: a for t, a in zip(m.arguments, arrays, strict=False)}
    names |= {"out": arrays[-1], "stream": stream, "kernel": kernel}
    tensors = ", ".join([t.name for t in m.reads] + [f"{t.name}={t.name}" for t in m.operands])
    ways = {f"{library}, out= and stream= given": f"kernel({tensors}, out=out, stream=stream)"}
    if current:
        ways[f"{library}, out= given"] = f"kernel({tensors}, out=out)"
        ways[f"{library}, new result"] = f"kernel({tensors})"
    found = {way: microseconds(eval(f"lambda: {call}", names), wait) for way, call in ways.items()}
    return found | {"the driver's launch alone": microseconds(bare_launch(kernel), wait)}


def bare_launch(kernel: Kernel) -> Callable[[], object]:
    """The prepared launch of a warm kernel, without what stands before it."""
    (program,) = fixed(kernel)._programs.values()
    return next(iter(program.prepared.values()))


def cached_process(folder: str) -> float:
    """Median seconds of a whole process that compiles a spec which is in the cache."""
    environment = os.environ | {"CONVGEN_CACHE_DIR": folder}
    code = f"import convgen; convgen.compile({CACHED!r})"
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
    gpu = gpu_at_hand()
    kernels = {name: convgen.compile(spec, target="sm_90a") for name, spec in KERNELS.items()}
    with tempfile.TemporaryDirectory() as folder:
        if not gpu:
            put_driver_in_place(folder)
        found = {name: (with_gpu if gpu else without_gpu)(kernel) for name, kernel in kernels.items()}
        process = cached_process(folder)
    for name, figures in found.items():
        print(f"{name} ({kernels[name].manifest.config})")
        for way, value in figures.items():
            print(f"{value:8.2f} us  {way}")
    print(f"{process:.3f} s: whole process, kernel from the cache")
    if output:
        facts = {
            "gpu": gpu.name if gpu else "none: stand-in driver",
            "cpu": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "cupy": cupy.__version__,
            "torch": sys.modules["torch"].__version__ if "torch" in sys.modules else None,
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(),
            "method": f"median over {BURSTS} bursts of the mean of {BURST} calls",
        }
        figures = {"call_us": found, "cached_process_s": process}
        output.write_text(json.dumps(facts | figures, indent=2) + "\n")


def put_driver_in_place(folder: str) -> None:
    """A stand-in for the driver, which takes launches and does nothing, and an address for workspaces."""
    library = str(Path(folder) / "libcuda.so")
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", str(FAKE), "-o", library], check=True)
    cuda.LIBRARY = library
    scratch.allocate = lambda size, device, stream: cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(1 << 28, size, None, device), 0
    )


if __name__ == "__main__":
    main()
