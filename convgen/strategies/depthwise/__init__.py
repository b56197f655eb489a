"""depthwise: a filter of its own for each channel, bound by memory.

Two kernels: `patches` serves any layout and target from global memory; `stream` lets rows of x run through
shared memory by TMA, and multiplies on the ordinary cores or, with banded matrices, on tensor cores.
"""

from __future__ import annotations

from types import ModuleType

from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op
from convgen.strategies import lowering
from convgen.strategies.base import Obstacle, Option, Options
from convgen.strategies.depthwise import patches, stream
from convgen.targets import Target

KERNELS = {"patches": patches, "stream": stream}

#: Options that patches does not have.
STREAM_OPTIONS = {"math", "slice", "strip", "band", "stages"}
#: Patches are counted in 32 bits.
MOST_PIXELS = 2**31 - 512

OPTIONS = (
    Option(
        "kernel",
        "patches: from global memory, any layout; stream: rows of x pass through shared memory (TMA)",
        choices=tuple(KERNELS),
    ),
    Option(
        "math",
        "fma: on the ordinary cores; mma: on tensor cores, where an infinity or NaN of x spreads over columns (stream)",
        choices=stream.MATHS,
    ),
    Option("tile.p", "output rows a thread (mma: a warp)", 1, 64),
    Option("tile.q", "output columns a thread (mma: a warp)", 1, 64),
    Option("vector", "neighbouring channels a thread", choices=(1, 2, 4, 8, 16)),
    Option("slice", "output channels a block (stream)", 1, 256),
    Option("strip", "output columns a block (stream)", 1, 256),
    Option("band", "output rows that a block makes at once (stream)", 1, 256),
    Option("stages", "chunks of rows in shared memory (stream)", 1, 64),
    Option("threads", "threads a block, at most; of stream, without the producer", 32, 1024),
    Option("blocks", "blocks a multiprocessor", 1, 16),
)


class Depthwise:
    name = "depthwise"
    summary = "one filter a channel (groups = c), bound by memory: any multiplier, filter, stride and layout"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = lowering.type_obstacles(problem, target)

        def no(message: str, hint: str = "", option: str = "") -> None:
            found.append(Obstacle(message, hint, option))

        if problem.op is not Op.FPROP:
            no(f"op {problem.op} is not served, fprop alone", "strategy direct or im2col serves it")
        if problem.groups != problem.c:
            no(
                f"groups {problem.groups} of {problem.c} channels: each channel must be a group",
                "strategy implicit_gemm",
            )
        if problem.rank > 2:
            no("three spatial dims are not served", "strategy implicit_gemm or direct")
        if problem.output_pixels >= MOST_PIXELS:
            no(f"{problem.output_pixels} output pixels do not fit 32 bits")
        return found or _kernel(problem, target, options).obstacles(problem, target, options)

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        return _kernel(problem, target, options).plan(problem, target, options, self.name)

    def render(self, plan: Plan) -> str:
        for module in KERNELS.values():
            if isinstance(plan.config, module.CONFIG):
                return module.source(plan)
        raise TypeError(f"not a configuration of {self.name}: {plan.config!r}")

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Options worth measuring, the most promising first: stream's, where it serves, before patches'."""
        return [c.options for module in (stream, patches) for c in module.candidates(problem, target, {})]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the kernels' cost models."""
        kernel = _kernel(problem, target, options)
        return kernel.microseconds(problem, target, kernel.choose(problem, target, options))


def _kernel(problem: ConvProblem, target: Target, options: Options) -> ModuleType:
    """The module of the kernel that serves a problem: the one that is named, or stream where it serves."""
    if "kernel" in options:
        return KERNELS[str(options["kernel"])]
    if options.keys() & STREAM_OPTIONS or not stream.obstacles(problem, target, options):
        return stream
    return patches


STRATEGY = Depthwise()
