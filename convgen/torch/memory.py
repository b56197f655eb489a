"""Errors that say that memory is short: something that needs less is tried, and nothing else is concluded from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, CuPy, the CUDA driver or a library raised it because memory is short.

    torch's allocator has an error of its own; other calls of CUDA (a stream, a graph, a module) raise RuntimeErrors.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error)


def where_memory_suffices(action: Callable[[], Result]) -> Result | None:
    """The function's result; None if memory is short."""
    try:
        return action()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
