"""The option for depthwise kernels whose threads have neighboring channels, and what follows from it."""

from __future__ import annotations

from typing import Annotated

from convgen.ir.problem import ConvProblem
from convgen.kernels.config import Field

VECTOR = Annotated[int, Field("neighboring channels per thread", (1, 2, 4, 8, 16))]


def inputs(problem: ConvProblem, vector: int) -> int:
    """Input channels of so many neighboring output channels."""
    return max(1, vector // problem.k_per_group)


def filter_pitch(channels: int) -> int:
    """Elements of a tap's filters in shared memory: a multiple of 4 but not of 32, to spread over banks."""
    return -(-channels // 4) * 4 + 4
