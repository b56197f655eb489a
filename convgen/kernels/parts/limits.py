"""Limits of a kernel in any configuration.  Imports nothing that is slow to load, since asking whether a kernel serves
a problem needs no formulas."""

from __future__ import annotations

from convgen import plurals
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacle
from convgen.targets import Target

#: Threads of a warp.
WARP = 32
#: Threads of a block where a thread makes an element or a few.
BLOCK = 256
#: Of a launch (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"): threads of a block,
#: registers of a thread, and blocks of a grid along x.
MAX_THREADS = 1024
MAX_REGISTERS = 255
MAX_GRID = 2**31 - 1
FP8 = frozenset({"e4m3", "e5m2"})


def register_obstacles(target: Target, blocks: int, threads: int, registers: int) -> list[Obstacle]:
    """The obstacle that a multiprocessor lacks registers for so many blocks: the compiler would spill."""
    most = target.register_blocks(registers, threads)
    if blocks <= most:
        return []
    hint = f"blocks {most}" if most else "fewer threads, or a smaller tile"
    return [Obstacle(f"an SM has registers for {plurals.counted(most, 'block')} of {threads} threads", hint, "blocks")]


def type_obstacles(problem: ConvProblem, target: Target) -> list[Obstacle]:
    """Element types that the target does not convert; im2col moves elements as they are."""
    if "fp8_convert" in target.features or problem.op is Op.IM2COL:
        return []
    names: dict[str, list[str]] = {}
    for t in problem.tensors:
        if t.dtype in FP8:
            names.setdefault(t.dtype, []).append(t.name)
    return [
        Obstacle(f"target {target} does not convert {dtype} ({', '.join(found)})", "sm_89 and later do")
        for dtype, found in names.items()
    ]
