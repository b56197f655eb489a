"""The strategies, in the order in which `auto` asks them."""

from __future__ import annotations

from importlib import import_module

from convgen.kernels.base import Strategy

#: Name -> module, in the order in which `auto` prefers them.
MODULES: dict[str, str] = {
    "tma_im2col": "convgen.kernels.tma_im2col",
    "tma_patch": "convgen.kernels.tma_patch",
    "depthwise": "convgen.kernels.depthwise",
    "implicit_gemm": "convgen.kernels.implicit_gemm",
    "im2col": "convgen.kernels.im2col",
    "direct": "convgen.kernels.direct",
}


def load(name: str) -> Strategy:
    """The strategy of a name.  Raises KeyError."""
    return import_module(MODULES[name]).STRATEGY


def load_all() -> dict[str, Strategy]:
    return {name: load(name) for name in MODULES}
