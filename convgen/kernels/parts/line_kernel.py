"""Shared by kernels that keep lines of x in shared memory (`lines`): the time that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.config import Config, Options
from convgen.kernels.parts import line_cost, lines, partial_sums
from convgen.kernels.parts.cost import on
from convgen.targets import Target

C = TypeVar("C", bound=Config)
L = TypeVar("L", bound=lines.Lines)


class LineKernel(base.Kernel[C, L]):
    """A kernel that keeps lines in shared memory, as the cost model sees it."""

    further = corrected = True
    slice_roles = base.ANY_SLICES
    dynamic = base.IMAGES
    #: Pixels that a worker multiplies at once, at least.
    unit: ClassVar[int]

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """Sums of channels over all images: a block's pixels make a row."""
        return partial_sums.summed(problem, of_images=False)

    @property
    def rates(self) -> line_cost.LineRates:
        """The rates, looked up at each use: a fit replaces them."""
        raise NotImplementedError

    def root(self, problem: ConvProblem, target: Target, fixed: Options) -> L:
        """The part that all layouts with these options share: a tile's channels, and what follows from the problem."""
        raise NotImplementedError

    def products(self, layout: L, pixels: int) -> float:
        """Cycles of the tensor cores for so many pixels."""
        raise NotImplementedError

    def demands(self, layout: L) -> dict[str, Any]:
        """The cost model's input."""
        raise NotImplementedError

    def least(self, problem: ConvProblem, target: Target, fixed: Options) -> float:
        root = self.root(problem, target, fixed)
        demands = root.least_demands(products=self.products(root, self.unit), part=self.unit)
        return line_cost.least(**demands, rates=on(self.rates, target.gpu))

    def time(self, layout: L) -> float:
        return line_cost.lines_time(**self.demands(layout), rates=on(self.rates, layout.target.gpu))

    def traits(self, layout: L) -> Mapping[str, Any] | None:
        return self.demands(layout) if layout.problem.x.stride("c") == 1 else None
