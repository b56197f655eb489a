"""The strategies, in the order in which `auto` asks them."""

from __future__ import annotations

from importlib import import_module

from convgen.strategies.base import Strategy

#: Name -> module, in the order in which `auto` prefers them.
MODULES: dict[str, str] = {
    "tma_im2col": "convgen.strategies.tma_im2col",
    "tma_patch": "convgen.strategies.tma_patch",
    "depthwise": "convgen.strategies.depthwise",
    "implicit_gemm": "convgen.strategies.implicit_gemm",
    "im2col": "convgen.strategies.im2col",
    "direct": "convgen.strategies.direct",
}


def load(name: str) -> Strategy:
    """The strategy of a name.  Raises KeyError."""
    return import_module(MODULES[name]).STRATEGY


def load_all() -> dict[str, Strategy]:
    return {name: load(name) for name in MODULES}
