"""The library that makes arrays and CUDA graphs: PyTorch if it is installed, so that baselines and kernels
are measured alike, else CuPy.

A backend owns one side stream.  Inside `with backend.stream():` it is the current stream of PyTorch and
of CuPy, so that everything that runs there is captured and timed, whoever launches it.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.tensor import Tensor
from convgen.ir.verify import poison
from convgen.runtime import cupy_library, scratch
from convgen.runtime.cuda import driver
from convgen.runtime.nvrtc import nvrtc_version

Array = Any


class Backend(Protocol):
    name: str
    xp: Any  # the array library that `as_xp` gives, for references
    out_of_memory: tuple[type[Exception], ...]  # what allocating raises

    def stream(self) -> Any:
        """Context in which the backend's stream is the current one; on leaving, its work is done."""
        ...

    def capture(self, body: Callable[[], None]) -> Any:
        """A CUDA graph of all that `body` launches."""
        ...

    def replay(self, graph: Any, times: int) -> list[float]:
        """Milliseconds of each of `times` replays, enqueued back to back."""
        ...

    def seed(self, seed: int) -> None:
        """Start the random numbers of `normal` anew."""
        ...

    def normal(self, tensor: Tensor) -> Array:
        """N(0, 1) data in the tensor's type and shape; integers in [-8, 8] for integer types."""
        ...

    def poisoned(self, tensor: Tensor) -> Array:
        """NaN in every element; integers are 0xA5 in every byte."""
        ...

    def upload(self, array: numpy.ndarray, tensor: Tensor) -> Array:
        """A host array of the tensor's type on the GPU."""
        ...

    def as_xp(self, array: Array) -> Array:
        """The same memory as an array of `xp`: of values, or of raw bits where `xp` lacks the type."""
        ...

    def release(self) -> None:
        """Give cached memory back to the driver."""
        ...

    def environment(self) -> dict[str, str]:
        """The GPU's name (`gpu`), and versions of the driver and of the libraries in use."""
        ...


def at_hand() -> Backend:
    """PyTorch's backend where it is installed with CUDA, else CuPy's.  Raises NoGpu."""
    driver()
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return TorchBackend()
    return CupyBackend()


def _bits(tensor: Tensor) -> numpy.dtype | None:
    """The unsigned integers that stand for a type that CuPy and DLPack do not carry everywhere."""
    held = tensor.dtype in ("f16", "f32", "f64", "s8", "s32")
    return None if held else numpy.dtype(f"u{tensor.element.bytes}")


class CupyBackend:
    name = "cupy"

    def __init__(self) -> None:
        cupy = cupy_library.load()
        self.cupy = self.xp = cupy
        self.out_of_memory: tuple[type[Exception], ...] = (cupy.cuda.memory.OutOfMemoryError,)
        self._stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def stream(self) -> Iterator[None]:
        self.cupy.cuda.Device().synchronize()
        with self._stream:
            yield
        self._stream.synchronize()

    def capture(self, body: Callable[[], None]) -> Any:
        self._stream.synchronize()
        self._stream.begin_capture()
        try:
            body()
        except BaseException:
            with suppress(self.cupy.cuda.runtime.CUDARuntimeError):
                self._stream.end_capture()
            raise
        return self._stream.end_capture()

    def replay(self, graph: Any, times: int) -> list[float]:
        events = [self.cupy.cuda.Event() for _ in range(times + 1)]
        events[0].record(self._stream)
        for event in events[1:]:
            graph.launch(self._stream)
            event.record(self._stream)
        events[-1].synchronize()
        return [self.cupy.cuda.get_elapsed_time(a, b) for a, b in pairwise(events)]

    def seed(self, seed: int) -> None:
        self.cupy.random.seed(seed)

    def normal(self, tensor: Tensor) -> Array:
        if tensor.pitch:
            return self.normal(tensor.whole)[..., : tensor.row]
        if not tensor.element.is_float:
            return self.cupy.random.randint(-8, 9, tensor.shape).astype(tensor.element.numpy)
        drawn = numpy.float64 if tensor.dtype == "f64" else numpy.float32
        values = self.cupy.random.standard_normal(tensor.shape, dtype=drawn)
        if _bits(tensor) is None:
            return values.astype(tensor.element.numpy)
        return self.upload(values.get().astype(numpy_dtype(tensor.dtype)), tensor)

    def poisoned(self, tensor: Tensor) -> Array:
        if tensor.pitch:
            return self.poisoned(tensor.whole)[..., : tensor.row]
        bits = _bits(tensor)
        return poison(self.cupy.empty(tensor.shape, numpy_dtype(tensor.dtype) if bits is None else bits))

    def upload(self, array: numpy.ndarray, tensor: Tensor) -> Array:
        if tensor.pitch:
            return _uploaded_slice(self, array, tensor)
        bits = _bits(tensor)
        return self.cupy.asarray(array if bits is None else array.view(bits))

    def as_xp(self, array: Array) -> Array:
        return array

    def release(self) -> None:
        scratch.release(self.cupy.cuda.Device().id)
        self.cupy.get_default_memory_pool().free_all_blocks()

    def environment(self) -> dict[str, str]:
        return _environment(self.cupy)


def _uploaded_slice(backend: Backend, array: numpy.ndarray, tensor: Tensor) -> Array:
    """A channel slice with an array's values; the other channels are poison."""
    made = backend.poisoned(tensor)
    made[...] = backend.upload(numpy.ascontiguousarray(array), replace(tensor, pitch=None))
    return made


#: Element type -> PyTorch's name, and the integer type of the same width that CuPy can read.
_TORCH = {
    "f16": ("float16", None),
    "bf16": ("bfloat16", "int16"),
    "f32": ("float32", None),
    "f64": ("float64", None),
    "e4m3": ("float8_e4m3fn", "uint8"),
    "e5m2": ("float8_e5m2", "uint8"),
    "s8": ("int8", None),
    "s32": ("int32", None),
}


class TorchBackend:
    name = "torch"

    def __init__(self) -> None:
        import torch

        cupy = cupy_library.load()
        self.torch, self.cupy, self.xp = torch, cupy, cupy
        self.out_of_memory: tuple[type[Exception], ...] = (
            torch.cuda.OutOfMemoryError,
            cupy.cuda.memory.OutOfMemoryError,
        )
        self._stream = torch.cuda.Stream()

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, _TORCH[name][0])

    def free_bytes(self) -> int:
        """Bytes of the current GPU's memory that this process can use: unallocated, or cached by torch's allocator."""
        cuda = self.torch.cuda
        free: int = cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated()
        return free

    @contextmanager
    def stream(self) -> Iterator[None]:
        self.torch.cuda.synchronize()
        outer = self.cupy.cuda.ExternalStream(self._stream.cuda_stream)
        with self.torch.no_grad(), self.torch.cuda.stream(self._stream), outer:
            yield
        self._stream.synchronize()

    def capture(self, body: Callable[[], None]) -> Any:
        graph = self.torch.cuda.CUDAGraph()
        self._stream.synchronize()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            body()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        return graph

    def replay(self, graph: Any, times: int) -> list[float]:
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(events)]

    def seed(self, seed: int) -> None:
        self.torch.manual_seed(seed)

    def normal(self, tensor: Tensor) -> Array:
        if tensor.pitch:
            return self.normal(tensor.whole)[..., : tensor.row]
        dtype = self.dtype(tensor.dtype)
        if not tensor.element.is_float:
            return self.torch.randint(-8, 9, tensor.shape, device="cuda").to(dtype)
        if tensor.dtype in ("f16", "bf16", "f32", "f64"):
            return self.torch.randn(tensor.shape, device="cuda", dtype=dtype)
        return self.torch.randn(tensor.shape, device="cuda").to(dtype)

    def poisoned(self, tensor: Tensor) -> Array:
        if tensor.pitch:
            return self.poisoned(tensor.whole)[..., : tensor.row]
        made = self.torch.empty(tensor.shape, device="cuda", dtype=self.dtype(tensor.dtype))
        made.view(self.torch.uint8).fill_(0xFF if tensor.element.is_float else 0xA5)
        return made

    def upload(self, array: numpy.ndarray, tensor: Tensor) -> Array:
        if tensor.pitch:
            return _uploaded_slice(self, array, tensor)
        raw = self.torch.from_numpy(array.reshape(-1).view("u1")).cuda()
        return raw.view(self.dtype(tensor.dtype)).view(tensor.shape)

    def as_xp(self, array: Array) -> Array:
        for name, stand_in in _TORCH.values():
            if stand_in and array.dtype == getattr(self.torch, name):
                made = self.cupy.asarray(array.view(getattr(self.torch, stand_in)))
                return made.view(f"u{made.dtype.itemsize}")
        return self.cupy.asarray(array)

    def release(self) -> None:
        scratch.release(self.torch.cuda.current_device())
        self.torch.cuda.empty_cache()
        self.cupy.get_default_memory_pool().free_all_blocks()

    def environment(self) -> dict[str, str]:
        cudnn = self.torch.backends.cudnn.version()
        libraries = {"torch": self.torch.__version__, "torch_cuda": self.torch.version.cuda}
        if cudnn:
            libraries["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
        return _environment(self.cupy) | libraries


def _environment(cupy: Any) -> dict[str, str]:
    from convgen.runtime.launch import gpu_at_hand

    runtime = cupy.cuda.runtime
    cuda = runtime.driverGetVersion()
    gpu = gpu_at_hand()  # who looks for a tuned configuration goes by this name
    return {
        "gpu": gpu.name if gpu else "unknown",
        "driver": _kernel_driver(),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "nvrtc": nvrtc_version(),
        "cupy": cupy.__version__,
    }


def _kernel_driver() -> str:
    """Version of the driver's kernel module, as `nvidia-smi` shows it."""
    with suppress(OSError):
        if found := re.search(r"\s(\d+\.\d+[\d.]*)\s", Path("/proc/driver/nvidia/version").read_text()):
            return found[1]
    return "unknown"
