"""depthwise: a filter of its own for each channel, bound by memory.

Two kernels: `patches` serves any layout and target from global memory; `stream` lets rows of x run through
shared memory by TMA, and multiplies on the ordinary cores or, with banded matrices, on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacle, Obstacles, Option, Options
from convgen.kernels.depthwise import patches, stream
from convgen.kernels.parts import lowering
from convgen.kernels.several import MOST_PIXELS, Kernel, KernelStrategy
from convgen.targets import Target

KERNELS: Mapping[str, Kernel] = {"patches": patches, "stream": stream}

#: Options that patches does not have.
STREAM_OPTIONS = {"math", "slice", "strip", "band", "stages"}

OPTIONS = (
    Option(
        "kernel",
        "patches: from global memory, any layout; stream: rows of x pass through shared memory (TMA)",
        choices=tuple(KERNELS),
    ),
    Option(
        "math",
        "fma: on ordinary cores; mma: on tensor cores, where an infinity or NaN of x spreads to neighbours (stream)",
        choices=tuple(stream.MATHS),
    ),
    Option("tile.p", "output rows a thread (mma: a warp)", 1, 64),
    Option("tile.q", "output columns a thread (mma: a warp)", 1, 64),
    Option("vector", "neighbouring channels a thread", choices=(1, 2, 4, 8, 16)),
    Option("slice", "output channels a block (stream)", 1, 256),
    Option("strip", "output columns a block (stream)", 1, 256),
    Option("band", "output rows that a block makes at once (stream)", 1, 256),
    Option("stages", "chunks of rows in shared memory (stream)", 1, stream.MOST_STAGES),
    Option("threads", "threads a block, at most; of stream, without the producer", 32, 1024),
    Option("blocks", "blocks a multiprocessor", 1, 16),
)


class Depthwise(KernelStrategy):
    name = "depthwise"
    summary = "one filter a channel (groups = c), bound by memory: any multiplier, filter, stride and layout"
    options = OPTIONS
    kernels = KERNELS

    def unserved(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = Obstacles(lowering.type_obstacles(problem, target))
        no = found.no
        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served, fprop alone")
        if problem.groups != problem.c:
            no(f"groups {problem.groups} of {problem.c} channels: each channel must be a group")
        if problem.rank > 2:
            no("three spatial dims are not served")
        if problem.output_pixels >= MOST_PIXELS:
            no(f"{problem.output_pixels} output pixels do not fit 32 bits")
        return found

    def best(self, problem: ConvProblem, target: Target, options: Options) -> Kernel:
        """stream where it serves."""
        if options.keys() & STREAM_OPTIONS or not stream.obstacles(problem, target, options):
            return stream
        return patches

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """stream's, where it serves, before patches'."""
        return [c.options for kernel in (stream, patches) for c in kernel.candidates(problem, target, {})]


STRATEGY = Depthwise()
