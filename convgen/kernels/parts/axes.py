"""The two spatial axes of a halo tile, for kernels that walk rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convgen.ir.phases import Phases
from convgen.ir.problem import ConvProblem


@dataclass(frozen=True)
class Axis:
    """One spatial axis of the halo tile: for 1-D problems, the outer one has extent 1.

    Outputs of a strided dgrad come in runs of `phases`, its stride: run i has phase e at output i * phases + e.  Tap r
    adds to phase (r * dilation + lead) % phases of run i what lies at input i - pad + `last` - (r * dilation + lead) /
    phases.  Everywhere else a run is one output, and the windows of neighbors lie `stride` apart.
    """

    input: int
    filter: int
    output: int
    stride: int
    dilation: int
    pad: int
    phases: int = 1
    lead: int = 0

    @property
    def lower(self) -> int:
        """The first input position under output 0."""
        return -self.pad

    @property
    def last(self) -> int:
        """The last input position under a run, from the first one on."""
        return ((self.filter - 1) * self.dilation + self.lead) // self.phases

    @property
    def shared(self) -> int:
        """Input positions that a run shares with the next; negative if some positions are in neither."""
        return self.last + 1 - self.stride

    def step(self, outputs: int) -> int:
        """Input positions that so many outputs, whole runs, are apart."""
        return outputs // self.phases * self.stride

    def inputs(self, outputs: int) -> int:
        """Input positions under so many outputs from the beginning of a run on."""
        return (-(-outputs // self.phases) - 1) * self.stride + self.last + 1

    def whole(self, outputs: int) -> int:
        """So many outputs or a few more: whole runs."""
        return -(-outputs // self.phases) * self.phases


def axes(problem: ConvProblem, phases: Phases | None = None) -> tuple[Axis, Axis]:
    """Rows and columns of a forward convolution, or of the one that a dgrad of these phases is assigned to."""
    found = [
        Axis(*row)
        for row in zip(
            problem.input, problem.filter, problem.output, problem.stride, problem.dilation, problem.pad_lo, strict=True
        )
    ]
    if phases:
        found = [_phased(axis, of_x.stride) for axis, of_x in zip(found, phases.axes, strict=True)]
    rows = found[0] if len(found) > 1 else Axis(1, 1, 1, 1, 1, 0)
    return rows, found[-1]


def _phased(axis: Axis, stride: int) -> Axis:
    """The axis of a dgrad with such a stride; `axis.pad` is the padding for unit stride and mirrored taps."""
    pad = axis.dilation * (axis.filter - 1) - axis.pad  # of the convolution whose gradient this is
    return replace(axis, pad=axis.pad // stride, phases=stride, lead=-pad % stride)
