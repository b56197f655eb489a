"""A kernel through CuPy alone: CuPy's NVRTC compiles the source, a `RawModule` loads it, its functions are launched.

For programs that keep their kernels as CuPy does, and as a second opinion on the launches of `launch`: results are the
same bit by bit.  It is slower, since CuPy packs the arguments at every call and has no dependent launch.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from ctypes import c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any

from convgen.ir.plan import Launch, Param
from convgen.runtime import cupy_library, tensor_map
from convgen.runtime.arrays import external_stream
from convgen.runtime.errors import CompileError
from convgen.runtime.launch import Call, Program
from convgen.runtime.nvrtc import FILE, flags
from convgen.targets import Target

#: A tensor map as NumPy has it: a scalar of so many bytes, which CuPy passes by value.
_TENSOR_MAP = f"V{tensor_map.BYTES}"


def module(source: str, target: Target) -> Any:
    """The source as a `cupy.RawModule`, compiled by CuPy's NVRTC.  Needs no GPU.  Raises CompileError.

    `RawModule(code=...)` compiles for what it takes the GPU to be, which is never sm_90a.  So it gets the cubin, in a
    file that it loads on each GPU when it is first used there.
    """
    cupy = cupy_library.load()
    cubin = _compile(source, target)
    path = Path(_folder().name, f"{hashlib.sha256(cubin).hexdigest()}.cubin")
    path.write_bytes(cubin)
    return cupy.RawModule(path=str(path))


class RawProgram(Program):
    """A `RawModule` on one GPU, launched by CuPy.  Fills and cuBLAS's products are as in `Program`."""

    def _load(self, code: Any, launches: Sequence[Launch]) -> dict[str, Any]:
        self._launchers = {}
        for step in launches:
            kernel = code.get_function(step.entry)
            if step.shared_bytes:
                kernel.max_dynamic_shared_size_bytes = step.shared_bytes
            self._launchers[step.entry] = kernel.kernel  # the RawKernel's function on this GPU
        return {entry: c_void_p(launcher.ptr) for entry, launcher in self._launchers.items()}

    def _launch(self, step: Launch, buffers: dict[str, tuple[int, int]], stream: int) -> Call:
        arguments = tuple(self._argument(param, buffers) for param in step.params)
        grid, block = self._grids[step][0], (step.block, 1, 1)
        options = {"shared_mem": step.shared_bytes, "stream": external_stream(stream)}
        return partial(self._launchers[step.entry], grid, block, arguments, **options), ()

    def _argument(self, param: Param, buffers: dict[str, tuple[int, int]]) -> Any:
        import numpy

        if param.map is not None:
            encoded = tensor_map.encode(param.map, buffers[param.buffer][0])
            return numpy.frombuffer(encoded, _TENSOR_MAP).reshape(())
        return numpy.int32(param.value) if param.kind == "int" else numpy.uintp(buffers[param.buffer][0])


def _compile(source: str, target: Target) -> bytes:
    """A cubin by CuPy's low-level calls of NVRTC."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, FILE, [], [])
    try:
        nvrtc.compileProgram(program, list(flags(target)))
        return nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        version = ".".join(map(str, nvrtc.getVersion()))
        raise CompileError(f"CuPy's NVRTC {version} failed for {target}: {error}\n{log}", log) from None
    finally:
        nvrtc.destroyProgram(program)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process, for as long as it runs: CuPy may load a file again at any time, on another GPU."""
    return tempfile.TemporaryDirectory(prefix="convgen-raw-")
