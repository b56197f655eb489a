"""How mma_gemm computes dgrad, the gradient of a convolution's input: as a forward convolution for each of its
phases."""

from __future__ import annotations

from convgen.ir.phases import phase_count
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacles
from convgen.kernels.mma_gemm.layout import Layout
from convgen.kernels.parts.assignment import served

#: In a kernel's table of constants.
MOST_PHASES = 1024
#: What ldmatrix transposes of filters; of wider and narrower ones, each element would come by itself.
TYPES = ("f16", "bf16")


def gradient_obstacles(problem: ConvProblem) -> Obstacles:
    """Why a dgrad is not multiplied, whatever the configuration."""
    found = Obstacles()
    if problem.op is not Op.DGRAD:
        return found
    if not served(problem):
        found.no(f"{problem.w.name} is a slice whose innermost channels are output channels of several groups",
                 f"a packed {problem.w.name}")  # fmt: skip
    elif problem.y.dtype not in TYPES:
        found.no(f"op dgrad of {problem.y.dtype} is not served by this kernel: {' and '.join(TYPES)} are")
    elif (count := phase_count(problem)) > MOST_PHASES:
        found.no(f"strides make {count} phases, more than the {MOST_PHASES} of a table")
    return found


def illegal_phases(layout: Layout) -> Obstacles:
    """Why a configuration does not work with several phases."""
    config, found = layout.config, Obstacles()
    if len(layout.phase_taps) == 1:
        return found
    if config.split_k > 1:
        found.no(f"split_k {config.split_k} needs unit strides: phases make enough tiles", "split_k 1", "split_k")
    if config.order == "channel_last":
        found.no("order channel_last has taps innermost, and their number differs from phase to phase",
                 "order channel_first", "order")  # fmt: skip
    return found
