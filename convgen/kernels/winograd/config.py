"""The configuration of winograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """The transforms, and the kernel that multiplies their results."""

    tile: Annotated[int, Field("outputs of a tile along an axis: 2 for F(2x2, 3x3), 4 for F(4x4, 3x3)", (2, 4))]
    product: Annotated[
        str, Field("the kernel that multiplies transformed tiles by transformed filters", ("tma_im2col", "mma_gemm"))
    ]
    math: Annotated[str, Field("how f32 is multiplied", ("tf32x3", "tf32"))] = ""
