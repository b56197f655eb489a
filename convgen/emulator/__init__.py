"""The emulator: runs generated CUDA source, unchanged, on the host's CPU, with adversarial timing.

The host's C++17 compiler compiles the source with a header that defines CUDA's built-ins and every PTX function
(include/convgen_emulator.h, runtime/).  Threads are fibers; asynchronous copies and MMAs complete as late, and in
as odd an order, as the memory model allows; whatever a kernel must not rely on is an error, with the line of the
source.  docs/emulator.md says what is found and what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from convgen.emulator.errors import EmulationError, Finding, NoHostCompiler

if TYPE_CHECKING:
    import numpy

    from convgen.ir.plan import Step, Workspace

__all__ = ["EmulationError", "Finding", "NoHostCompiler", "emulate"]

_POISON = 0xFF  # NaN in every float type, -1 in every integer


def emulate(
    source: str,
    steps: Sequence[Step],
    buffers: Mapping[str, numpy.ndarray],
    *,
    workspaces: Sequence[Workspace] = (),
    seed: int = 0,
    sms: int = 2,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    checks: bool = True,
) -> None:
    """Run a plan's steps on C-contiguous NumPy arrays, given by buffer name; results are written in place.

    `seed` decides whatever the memory model leaves open; with 0, everything asynchronous happens as late as
    possible.  `sms` is the number of emulated SMs (of blocks, for a persistent kernel), `threads` that of host
    cores to use.  `progress(done, total)` counts a launch's blocks; an exception that it raises ends the
    emulation.  `checks=False` computes without checking.  Raises EmulationError, NoHostCompiler.
    """
    from convgen.emulator import steps as run
    from convgen.emulator.compiler import kernel_library
    from convgen.emulator.native import Buffer
    from convgen.ir.plan import Fill, Launch

    entries = sorted({step.entry for step in steps if isinstance(step, Launch)})
    library = kernel_library(source, entries, checks)
    emulation = run.Emulation(library, source, seed, sms, threads, checks, progress)
    memory: dict[str, Buffer] = {}
    try:
        for name, array in buffers.items():
            memory[name] = Buffer(name, array.nbytes, array.itemsize)
            memory[name].bytes[:] = _as_bytes(name, array)
        for workspace in workspaces:
            memory[workspace.name] = Buffer(workspace.name, workspace.bytes)
            memory[workspace.name].bytes[:] = _POISON
        for step in steps:
            if isinstance(step, Launch):
                emulation.launch(step, memory)
            elif isinstance(step, Fill):
                run.fill(step, memory)
            else:
                run.gemm(step, memory)
        for name, array in buffers.items():
            _write_back(name, array, memory[name].bytes)
    finally:
        for buffer in memory.values():
            buffer.release()


def _as_bytes(name: str, array: numpy.ndarray) -> numpy.ndarray:
    import numpy

    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous")
    return array.reshape(-1).view(numpy.uint8)


def _write_back(name: str, array: numpy.ndarray, data: numpy.ndarray) -> None:
    own = _as_bytes(name, array)
    if (own != data).any():
        own[:] = data
