"""CuPy, the source of streams and memory for calls on a GPU.  Nothing else needs it."""

from __future__ import annotations

from functools import cache
from typing import Any

from convgen.runtime.errors import NoCupy


@cache
def load() -> Any:
    """The module.  Raises NoCupy."""
    try:
        import cupy
    except ImportError as e:
        absent = isinstance(e, ModuleNotFoundError) and e.name == "cupy"
        raise NoCupy(
            f"a call on a GPU needs CuPy, which {'is not installed' if absent else f'cannot be imported: {e}'}\n"
            "hint: pip install 'convgen[cuda13]', or 'convgen[cuda12]' where nvidia-smi shows CUDA 12"
        ) from None
    except OSError as e:  # it makes its cache's folder
        raise NoCupy(
            f"a call on a GPU needs CuPy, which cannot be imported: {e}\n"
            "hint: set CUPY_CACHE_DIR to a folder that can be written"
        ) from None
    return cupy
