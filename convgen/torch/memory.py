"""Memory of a GPU that is short: which errors say so, and what is left.  Nothing else is concluded from such errors."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, CuPy, the CUDA driver or a library raised it because memory is short.

    torch's allocator has an error of its own; other calls of CUDA (a stream, a graph, a module) raise RuntimeErrors.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error)


def free_bytes(device: int) -> int:
    """Of a GPU's memory: what no process has, and what torch's allocator keeps for this one."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
