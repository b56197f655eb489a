"""The configuration of im2col."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from convgen.kernels import config
from convgen.kernels.config import Field

DEFAULT_WORKSPACE_MB = 256


@dataclass(frozen=True)
class Config(config.Config):
    """How im2col copies and col2im sums, and how large the workspace may be."""

    method: Annotated[
        str, Field("how col2im adds up: gather is deterministic, scatter uses atomics", ("gather", "scatter"))
    ]
    workspace_mb: Annotated[
        int,
        Field(
            f"limit of the workspace in MiB (default {DEFAULT_WORKSPACE_MB}); larger problems are split into slices",
            low=1, high=1 << 17,
        ),
    ]  # fmt: skip
    form: Annotated[
        str,
        Field(
            "what an im2col thread copies; loop_free: one element (Zhang, 2017); channels: up to 16 bytes of "
            "neighboring channels; taps: a window of one channel (Caffe); pixel: a window of all channels (netcl)",
            ("loop_free", "channels", "taps", "pixel"),
        ),
    ] = "loop_free"
