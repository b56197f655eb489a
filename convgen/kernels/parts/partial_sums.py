"""Partial sums of channels, of which a kernel writes rows to a workspace that later launches add up (sums).

A row has the sums of all channels over some pixels.  Sums of each image, too, need rows whose pixels are of one image;
those lie with the first row of every image in front, then every second one:

    row of image i, the j-th of its rows    at j * images + i

so that what is added up is a multiple of the sum's own elements apart, as without images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convgen.ir.plan import Param, Workspace
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import assignment, sums
from convgen.kernels.parts.elementwise import Pointer
from convgen.kernels.parts.lowering import PACK

#: The dims of a sum of each image's channels.
OF_IMAGES = ("n", "k")


@dataclass(frozen=True)
class PartialSum:
    """A sum that the kernel computes in parts: its name; for a sum over each image, the rows of an image's parts, else
    0."""

    name: str
    image_rows: int = 0


def image_pixels(problem: ConvProblem) -> int:
    return problem.output_pixels // problem.n


def summed(problem: ConvProblem, of_images: bool) -> tuple[str, ...]:
    """Names of the sums of channels of the operator's result, of all images and perhaps of each, where channels are
    neighbors in a result of 16-bit elements."""
    if not assignment.served(problem):
        return ()
    forward = assignment.assignment(problem).problem
    if forward.y.innermost != "k" or forward.y.dtype not in PACK:
        return ()
    served = {("k",), OF_IMAGES} if of_images else {("k",)}
    of_result = {t.name for t in problem.sums if problem.like(t) is problem.result}
    return tuple(t.name for t in forward.sums if t.dims in served and t.name in of_result)


def partial_sums(problem: ConvProblem, image_rows: int) -> tuple[PartialSum, ...]:
    """The partial sums of all sums of a problem, with so many rows per image."""
    return tuple(PartialSum(t.name, image_rows if t.dims == OF_IMAGES else 0) for t in problem.sums)


def partial_bytes(problem: ConvProblem, parts: tuple[PartialSum, ...], rows: int) -> dict[str, int]:
    """Bytes of each sum's rows, by its name: `rows` in all images, written by the kernel and read by later launches."""
    return {part.name: (part.image_rows or rows) * t.bytes for part, t in zip(parts, problem.sums, strict=True)}


def pointers(problem: ConvProblem) -> list[Pointer]:
    """The rows, of a kernel that lists its pointers."""
    return [Pointer(f"result_{t.name}", "f32", sums.partial(t), written=True) for t in problem.sums]


def params(problem: ConvProblem) -> list[Param]:
    """The same as parameters."""
    return [pointer.vector_param for pointer in pointers(problem)]


def workspaces(problem: ConvProblem, sizes: Mapping[str, int]) -> tuple[Workspace, ...]:
    """Workspaces for the rows, of so many bytes."""
    return tuple(Workspace(sums.partial(t), sizes[t.name]) for t in problem.sums)
