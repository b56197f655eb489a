"""The number of images, where a call decides it and all other sizes are fixed.

Images are the outermost dim of every tensor, so that no offset depends on their number: it enters as an extent of
tensor maps and in the number of tiles.
"""

from __future__ import annotations

from convgen.ir.plan import Limit
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacles
from convgen.kernels.parts import lowering


def image_obstacles(problem: ConvProblem) -> Obstacles:
    """Why a kernel of this kind needs fixed sizes, whatever its configuration."""
    found = Obstacles()
    if not problem.dynamic:
        return found
    hint = "leave `dynamic` out"
    for t in problem.tensors:
        if "n" in t.dims[1:]:
            found.no(f"{t.name} needs fixed sizes, unless `n` is its outermost dim", hint)
    if lowering.index_type(problem, ()) != "int":
        found.no("tensors of 2^31 elements need fixed sizes", hint)
    return found


def image_limits(problem: ConvProblem) -> tuple[Limit, ...]:
    """Limits on the number of images: an int must be able to count the elements of each tensor."""
    return lowering.index_limits(problem, "int")
