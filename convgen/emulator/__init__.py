"""The emulator: runs generated CUDA source, unchanged, on the host's CPU, with adversarial timing.

The host's C++17 compiler compiles the source with a header that defines CUDA's built-ins and every PTX function
(include/convgen_emulator.h, runtime/).  Threads are fibers; asynchronous copies and MMAs complete as late, and in
as odd an order, as the memory model allows; whatever a kernel must not rely on is an error, with the line of the
source.  docs/emulator.md says what is found and what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from convgen.emulator.errors import EmulationError, Finding, NoHostCompiler

if TYPE_CHECKING:
    import numpy

    from convgen.emulator.native import Buffer
    from convgen.emulator.steps import Emulation
    from convgen.ir.plan import Step, Workspace

__all__ = ["EmulationError", "Finding", "NoHostCompiler", "emulate"]

_POISON = 0xFF  # NaN in every float type, -1 in every integer


def emulate(
    source: str,
    steps: Sequence[Step],
    buffers: Mapping[str, numpy.ndarray],
    *,
    workspaces: Sequence[Workspace] = (),
    inputs: Collection[str] = (),
    seed: int = 0,
    sms: int = 2,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    checks: bool = True,
) -> None:
    """Run a plan's steps on NumPy arrays, given by buffer name; results are written in place.  Arrays are C-contiguous,
    or slices of the last axis of such: kernels may touch nothing else of what these are slices of.  Buffers of one and
    the same array are one.  Kernels may not write `inputs`, where these are no other buffer's array.

    `seed` decides whatever the memory model leaves open; with 0, everything asynchronous happens as late as
    possible.  `sms` is the number of emulated SMs (of blocks, for a persistent kernel), `threads` that of host
    cores to use.  `progress(done, total)` counts a launch's blocks; an exception that it raises ends the
    emulation.  `checks=False` computes without checking.  Raises EmulationError, NoHostCompiler.
    """
    from convgen.emulator import trace
    from convgen.emulator.compiler import kernel_library
    from convgen.emulator.declared import instruction_findings
    from convgen.emulator.steps import Emulation, Trapped
    from convgen.ir.plan import Launch

    entries = sorted({step.entry for step in steps if isinstance(step, Launch)})
    if checks and (findings := instruction_findings(source)):
        raise EmulationError(", ".join(entries), findings, seed)

    def run(explains: bool) -> None:
        library = kernel_library(source, entries, checks, explains, zeros=seed % 2 == 1)
        _run(Emulation(library, source, seed, sms, threads, checks, progress), steps, buffers, workspaces, inputs)

    recorded = trace.at_hand() is not None  # what happened is told once
    try:
        return run(explains=recorded)
    except Trapped as e:
        if recorded:
            raise
        trapped = e
    run(explains=True)
    raise trapped


def _run(
    emulation: Emulation,
    steps: Sequence[Step],
    buffers: Mapping[str, numpy.ndarray],
    workspaces: Sequence[Workspace],
    inputs: Collection[str],
) -> None:
    """Runs the steps one after another, in separate memory."""
    from convgen.emulator.native import Buffer
    from convgen.emulator.steps import fill, gemm
    from convgen.ir.plan import Fill, Launch

    memory: dict[str, Buffer] = {}
    begins = _begins(steps) if emulation.seed % 2 else {}
    try:
        for name, array in buffers.items():
            same = next((other for other in memory if buffers[other] is array), None)
            memory[name] = memory[same] if same else _buffer(name, array, begins.get(name, 0))
            memory[name].writable |= name not in inputs
            _rows(memory[name], array)[...] = _as_bytes(array)
        for workspace in workspaces:
            memory[workspace.name] = Buffer(workspace.name, workspace.bytes)
            memory[workspace.name].bytes[:] = _POISON
            memory[workspace.name].writable = True
        for step in steps:
            if isinstance(step, Launch):
                emulation.launch(step, memory)
            elif isinstance(step, Fill):
                fill(step, memory)
            else:
                gemm(step, memory)
        for name, array in buffers.items():
            _write_back(array, _rows(memory[name], array))
    finally:
        for buffer in {id(b): b for b in memory.values()}.values():
            buffer.release()


def _begins(steps: Sequence[Step]) -> dict[str, int]:
    """Where buffers begin that are as little aligned as kernels allow."""
    from convgen.ir.plan import Launch

    found: dict[str, int] = {}
    for step in steps:
        for param in step.params if isinstance(step, Launch) else ():
            if param.kind != "int":
                found[param.buffer] = max(param.alignment, found.get(param.buffer, 1))
    return found


def _buffer(name: str, array: numpy.ndarray, begins: int) -> Buffer:
    """Memory like an array's, from its first element to its last, all poison.  Raises ValueError."""
    from convgen.emulator.native import Buffer

    if array.flags.c_contiguous:
        made = Buffer(name, array.nbytes, array.itemsize, begins=begins)
    else:
        row, pitch = array.shape[-1] * array.itemsize, _pitch(name, array)
        made = Buffer(name, (array.size // array.shape[-1] - 1) * pitch + row, array.itemsize, row, pitch, begins)
    made.bytes[:] = _POISON
    return made


def _pitch(name: str, array: numpy.ndarray) -> int:
    """Bytes from one row of a channel slice to the next.  Raises ValueError."""
    outer = list(zip(array.shape[:-1], array.strides[:-1], strict=True))
    pitch = next(stride for extent, stride in reversed(outer) if extent > 1)
    expected = pitch
    for extent, stride in reversed(outer):
        if extent > 1 and stride != expected:
            raise ValueError(f"{name} is neither C-contiguous nor a slice of the last axis of such an array")
        expected *= extent
    return pitch


def _rows(buffer: Buffer, array: numpy.ndarray) -> numpy.ndarray:
    """The bytes of a buffer that are an array's, in the shape of `_as_bytes`."""
    import numpy

    own = _as_bytes(array)
    if not buffer.pitch:
        return buffer.bytes
    return numpy.lib.stride_tricks.as_strided(buffer.bytes, own.shape, own.strides)


def _as_bytes(array: numpy.ndarray) -> numpy.ndarray:
    import numpy

    return (array.reshape(-1) if array.flags.c_contiguous else array).view(numpy.uint8)


def _write_back(array: numpy.ndarray, data: numpy.ndarray) -> None:
    own = _as_bytes(array)
    if (own != data).any():
        own[...] = data
