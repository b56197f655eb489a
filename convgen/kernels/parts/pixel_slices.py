"""How kernels for wgrad share y's pixels among blocks: in slices, whose sums are added in a fixed order, or as they
come."""

from __future__ import annotations

from typing import Annotated

from convgen.ir.problem import ConvProblem
from convgen.kernels import config
from convgen.kernels.config import Field

MOST_SLICES = 4096
SLICES = Annotated[int, Field("slices of the pixels; a second kernel adds their sums in order", high=MOST_SLICES)]

ORDERED, ATOMIC = "ordered", "atomic"
#: Atomic sums are taken where a spec asks for them, and nowhere else: no space, candidate or tuned choice has them.
SUMS = Annotated[
    str,
    Field(
        "how slices are added; ordered: by a second kernel, with the same bits in every run; atomic: by the blocks as "
        "they end, so that the last bits vary from run to run (only if a spec asks for it)",
        (ORDERED, ATOMIC),
    ),
]
#: Bytes of the sums that slices leave, at most: they are to stay in L2.
MOST_SUM_BYTES = 128 << 20


class Sliced(config.Config):
    """The base of configurations with the option `slices`; some have `sums`, too."""

    slices: int
    sums: str = ORDERED

    @property
    def adds(self) -> bool:
        """Whether blocks add their sums to zeros, in any order."""
        return self.sums == ATOMIC


def most_slices(problem: ConvProblem, steps: int) -> int:
    """The most slices of so many steps that are worth considering: at least one."""
    return max(min(steps, MOST_SUM_BYTES // (4 * problem.w.size), MOST_SLICES), 1)
