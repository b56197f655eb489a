"""Which tensor is which operand of the GEMM C = A B, and the forward convolution that has the same product.

    fprop                 A = x,   walked by the filter's window     B = w                     C = y
    dgrad, unit stride    A = dy,  walked by the mirrored window     B = w, taps mirrored      C = dx

dgrad of unit stride is a convolution of y's gradient: tap r of the filter reads the pixel that tap R - 1 - r of the
forward window would, so the padding before is dilation * (R - 1) less the forward one, and w is used from its last
tap to its first.  No flipped or transposed copy of w is made: as it lies, [k, taps, c], its c is the GEMM's n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from convgen.ir.problem import ConvProblem, Op, exchanged_dims
from convgen.ir.tensor import Tensor


@dataclass(frozen=True)
class Assignment:
    """`problem` is the forward convolution, of operands A = x, B = w, C = y; `buffers` says which tensor of the given
    problem each of these is.  Where the taps are `mirrored`, tap t of A's walk goes with the filter's tap
    taps - 1 - t."""

    problem: ConvProblem
    buffers: Mapping[str, str]
    mirrored: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What the generated source has to say about the names of its tensors."""
        if not self.mirrored:
            return ()
        return ("dgrad as a convolution: x stands for y's gradient, y for x's, c for k and k for c; taps are mirrored",)


FORWARD = {"x": "x", "w": "w", "y": "y"}
BACKWARD = {"x": "y", "w": "w", "y": "x"}


def served(problem: ConvProblem) -> bool:
    """Whether the operator is a forward convolution, or has the product of one."""
    return problem.op is Op.FPROP or (problem.op is Op.DGRAD and set(problem.stride) == {1} and problem.groups == 1)


@lru_cache(maxsize=64)
def assignment(problem: ConvProblem) -> Assignment:
    """The assignment of a problem that is `served`."""
    return _backward(problem) if problem.op is Op.DGRAD else Assignment(problem, FORWARD, False)


def _backward(problem: ConvProblem) -> Assignment:
    named = exchanged_dims()

    def turned(tensor: Tensor, role: str) -> Tensor:
        return replace(tensor, role=role, dims=tuple(named.get(d, d) for d in tensor.dims))

    pad_lo = tuple(d * (f - 1) - lo for d, f, lo in zip(problem.dilation, problem.filter, problem.pad_lo, strict=True))
    pad_hi = tuple(
        i - o - lo + d * (f - 1)
        for i, o, lo, d, f in zip(problem.input, problem.output, pad_lo, problem.dilation, problem.filter, strict=True)
    )
    epilogue = problem.epilogue
    if epilogue:
        operands, results = (
            tuple(turned(t, t.role) for t in tensors) for tensors in (epilogue.operands, epilogue.results)
        )
        epilogue = replace(epilogue, operands=operands, results=results)
    forward = replace(
        problem, op=Op.FPROP, c=problem.k, k=problem.c, input=problem.output, output=problem.input, pad_lo=pad_lo,
        pad_hi=pad_hi, x=turned(problem.y, "x"), w=turned(problem.w, "w"), y=turned(problem.x, "y"), epilogue=epilogue,
    )  # fmt: skip
    return Assignment(forward, BACKWARD, True)
