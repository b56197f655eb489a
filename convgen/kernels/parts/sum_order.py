"""The option of kernels for wgrad by which slices of the pixels are summed: in a fixed order, or as they come."""

from __future__ import annotations

from typing import Annotated

from convgen.kernels.config import Field

ORDERED, ATOMIC = "ordered", "atomic"
#: Atomic sums are taken where a spec asks for them, and nowhere else: no space, candidate or tuned choice has them.
SUMS = Annotated[
    str,
    Field(
        "how slices are added: ordered by a second kernel, the same in every run; atomic by the blocks as they end, so "
        "that last bits vary from run to run, and only where it is asked for",
        (ORDERED, ATOMIC),
    ),
]
