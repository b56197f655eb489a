"""The option of kernels that multiply neighboring groups as one."""

from __future__ import annotations

from typing import Annotated

from convgen.kernels.config import Field

#: A forward kernel's filters have zeros between groups; a wgrad kernel drops what it has summed between them.
GROUP_PACK = Annotated[
    int, Field("neighboring groups multiplied as one; products between groups are zero or dropped", low=1, high=4096)
]
