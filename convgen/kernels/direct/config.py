"""The configuration of direct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field


@dataclass(frozen=True)
class Config(config.Config):
    """Outputs a thread."""

    tile: Annotated[int, Field("outputs per thread, along the channels", (1, 2, 4, 8))]
