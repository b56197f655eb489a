"""Partial sums of channels over pixels that are neighbors in gemm_m: rows of a workspace that launches behind add up.

A row has the sums of all channels over some pixels, in the order of the pixels.  Sums of each image, too, need rows
whose pixels are of one image; those lie with the first row of every image in front, then every second one:

    row of image i, the j-th of its rows    at j * images + i

so that what is added up is a multiple of the sum's own elements apart, as without images.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor

#: Pixels that a warp adds up at once where they are rows of its fragments.
PIXELS = 16
#: The dims of a sum of each image's channels.
OF_IMAGES = ("n", "k")


@dataclass(frozen=True)
class PartialSum:
    """A sum of which the kernel makes parts: its name; where it is of each image, rows of an image's parts, else 0."""

    name: str
    image_rows: int = 0


def image_pixels(problem: ConvProblem) -> int:
    return problem.output_pixels // problem.n


def of_images(problem: ConvProblem) -> bool:
    """Whether some configuration has rows whose pixels are of one image: images end where 16 pixels do."""
    return not problem.dynamic and image_pixels(problem) % PIXELS == 0


def partial_sum(problem: ConvProblem, t: Tensor, pixels: int) -> PartialSum:
    """Of rows of so many pixels."""
    return PartialSum(t.name, image_pixels(problem) // pixels if t.dims == OF_IMAGES else 0)
