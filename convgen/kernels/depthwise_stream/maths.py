"""The two ways to multiply: on the ordinary cores, or on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacles
from convgen.kernels.depthwise_stream import fma, mma
from convgen.kernels.depthwise_stream.config import Config
from convgen.kernels.depthwise_stream.layout import Layout
from convgen.kernels.parts.assignment import Assignment
from convgen.targets import Target


class Maths(Protocol):
    """A way to multiply: a module with these."""

    @property
    def Layout(self) -> type[Layout]: ...

    @property
    def THREADS(self) -> tuple[int, ...]:
        """Numbers of threads worth considering."""
        ...

    @property
    def BLOCKS(self) -> tuple[int, ...]:
        """A multiprocessor."""
        ...

    def obstacles(self, assigned: Assignment, /) -> Obstacles: ...

    def malformed(self, problem: ConvProblem, config: Config, /) -> Obstacles:
        """Reasons why a configuration is meaningless here."""
        ...

    def most_channels(self, problem: ConvProblem, /) -> int:
        """The most channels in a vector."""
        ...

    def vectors(self, problem: ConvProblem, /) -> list[int]: ...

    def slices(self, problem: ConvProblem, divisors: list[int], /) -> set[int]:
        """The divisors that are worth considering as slices of the channels."""
        ...

    def tiles(self, assigned: Assignment, vector: int, /) -> list[tuple[int, int]]:
        """Rows and columns of a thread, or of a warp."""
        ...


MATHS: Mapping[str, Maths] = {"fma": fma, "mma": mma}


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    """The layout, as the configuration's way to multiply has it."""
    return MATHS[config.math].Layout(problem, target, config)
