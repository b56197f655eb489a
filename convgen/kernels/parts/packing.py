"""The option of kernels that multiply neighboring groups as one."""

from __future__ import annotations

from typing import Annotated

from convgen.kernels.config import Field

GROUP_PACK = Annotated[
    int, Field("neighboring groups multiplied as one, with zeros between their filters", low=1, high=4096)
]
