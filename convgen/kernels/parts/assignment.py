"""Assigns tensors to the operands of the GEMM C = A B, and finds the forward convolution with the same product.

    fprop                 A = x,   walked by the filter's window     B = w                     C = y
    dgrad, unit stride    A = dy,  walked by the mirrored window     B = w, taps mirrored      C = dx
    dgrad, strided        A = dy,  walked phase by phase             B = w, each phase's taps  C = dx, a phase's pixels

dgrad of unit stride is a convolution of y's gradient: tap r of the filter reads the pixel that tap R - 1 - r of the
forward window would, so the padding before is dilation * (R - 1) less the forward one, and w is used from its last
tap to its first.  No flipped or transposed copy of w is made: as it lies, [k, taps, c], its c is the GEMM's n.
With a stride it is several such convolutions, the phases of `convgen.ir.phases`.  With groups, c and k are
exchanged within each: w's k is seen as two dims, the group g and the channel c of the forward convolution, and its c as
k_in_group.  Where each channel is a group with one filter, c and k count the same channels, and w keeps its dims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from convgen.ir.phases import Phases, phases
from convgen.ir.plan import Launch, Param
from convgen.ir.problem import ConvProblem, Op, exchanged_dims
from convgen.ir.tensor import Tensor

FORWARD = {"x": "x", "w": "w", "y": "y"}
BACKWARD = {"x": "y", "w": "w", "y": "x"}


@dataclass(frozen=True)
class Assignment:
    """`problem` is the forward convolution, of operands A = x, B = w, C = y; `buffers` says which tensor of the given
    problem each of these is.  Of a strided dgrad it has the tensors, and `phases` the windows; else dgrad's taps are
    mirrored: tap t of A's walk goes with the filter's tap taps - 1 - t."""

    problem: ConvProblem
    buffers: Mapping[str, str]
    strided: ConvProblem | None = None  # the dgrad

    @cached_property
    def phases(self) -> Phases | None:
        return phases(self.strided) if self.strided else None

    @property
    def backward(self) -> bool:
        return self.buffers is BACKWARD

    @property
    def mirrored(self) -> bool:
        return self.backward and self.strided is None

    def params(self, params: Iterable[Param]) -> tuple[Param, ...]:
        """Parameters over the given problem's tensors; what is prepared of them stays."""
        return tuple(p.over(self.buffers) for p in params)

    def launches(self, launches: Iterable[Launch]) -> tuple[Launch, ...]:
        """Launches over the given problem's tensors."""
        return tuple(replace(launch, params=self.params(launch.params)) for launch in launches)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the generated source about the names of its tensors."""
        if not self.backward:
            return ()
        names = "dgrad as a convolution: x stands for y's gradient, y for x's, c for k and k for c"
        if self.phases is None:
            return (f"{names}; taps are mirrored",)
        strides = " x ".join(str(axis.stride) for axis in self.phases.axes)
        counts = Counter(self.phases.taps)
        phases = ", ".join(f"{n} of {taps} tap{'s' * (taps != 1)}" for taps, n in counts.items())
        return (names, f"pixels of y that are {strides} apart form a phase, with its own taps: {phases}")


def served(problem: ConvProblem) -> bool:
    """Whether the matrix product is that of a forward convolution, or of several."""
    return problem.op is Op.FPROP or (problem.op is Op.DGRAD and (problem.groups == 1 or _grouped(problem)))


def forward(problem: ConvProblem) -> ConvProblem:
    """The forward convolution with the same product; the problem itself if there is none."""
    return assignment(problem).problem if served(problem) else problem


def _grouped(problem: ConvProblem) -> bool:
    """Whether the filter of a dgrad with groups can be seen with c and k exchanged in each."""
    return not (problem.w.pitch and problem.w.dims[-1] == "k")


@lru_cache(maxsize=64)
def assignment(problem: ConvProblem) -> Assignment:
    """The assignment of a problem that is `served`, or of a depthwise one that `parts.depthwise` serves."""
    return _backward(problem) if problem.op is Op.DGRAD else Assignment(problem, FORWARD)


def _exchanged(problem: ConvProblem) -> Tensor:
    """w of several groups as the forward convolution has it, whose k is not one dim of it."""
    w = problem.w
    if problem.c_per_group == problem.k_per_group == 1:
        return w
    seen = {"k": (("g", problem.groups), ("c", problem.k_per_group)), "c": (("k_in_group", problem.c_per_group),)}
    parts = [part for d, e in zip(w.dims, w.extents, strict=True) for part in seen.get(d, ((d, e),))]
    return replace(w, dims=tuple(d for d, _ in parts), extents=tuple(e for _, e in parts))


def _backward(problem: ConvProblem) -> Assignment:
    named = exchanged_dims()

    def turned(tensor: Tensor, role: str) -> Tensor:
        return replace(tensor.renamed(named), role=role)

    pad_lo = tuple(d * (f - 1) - lo for d, f, lo in zip(problem.dilation, problem.filter, problem.pad_lo, strict=True))
    pad_hi = tuple(
        i - o - lo + d * (f - 1)
        for i, o, lo, d, f in zip(problem.input, problem.output, pad_lo, problem.dilation, problem.filter, strict=True)
    )
    w = turned(problem.w, "w") if problem.groups == 1 else _exchanged(problem)
    forward = replace(
        problem, op=Op.FPROP, c=problem.k, k=problem.c, input=problem.output, output=problem.input,
        stride=(1,) * problem.rank, pad_lo=pad_lo, pad_hi=pad_hi, x=turned(problem.y, "x"), w=w,
        y=turned(problem.x, "y"), epilogue=problem.epilogue and problem.epilogue.renamed(named),
    )  # fmt: skip
    return Assignment(forward, BACKWARD, problem if set(problem.stride) != {1} else None)
