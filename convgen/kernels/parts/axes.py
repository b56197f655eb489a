"""The two spatial axes of a halo tile, for kernels that walk rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import ConvProblem


@dataclass(frozen=True)
class Axis:
    """One spatial axis of the halo tile: of 1-D problems the outer one has extent 1."""

    input: int
    filter: int
    output: int
    stride: int
    dilation: int
    pad: int

    def inputs(self, outputs: int) -> int:
        """Input positions under so many outputs."""
        return (outputs - 1) * self.stride + (self.filter - 1) * self.dilation + 1


def axes(problem: ConvProblem) -> tuple[Axis, Axis]:
    """Rows and columns."""
    found = [
        Axis(*row)
        for row in zip(
            problem.input, problem.filter, problem.output, problem.stride, problem.dilation, problem.pad_lo, strict=True
        )
    ]
    rows = found[0] if len(found) > 1 else Axis(1, 1, 1, 1, 1, 0)
    return rows, found[-1]
