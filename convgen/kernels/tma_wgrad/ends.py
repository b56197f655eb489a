"""Boxes that a tile does not load: those past y's last channel, and those past the last tap and channel of x.

For boxes past y's last channel, TMA would fill rows with zeros, which takes longer than loading rows from memory
(kernels/tma_im2col/ends.py).  In place of boxes past x's end, the last box would be loaded again.  The tensor cores
multiply whatever the stage held before; those sums are never stored.  A kernel that checks its sums for NaNs checks
all of them, and so loads every box.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen.kernels.tma_wgrad.layout import A_SPAN, Layout


@dataclass(frozen=True)
class ABoxes:
    """C text: how many rows of A a tile has, and how many boxes of them it loads for each k block."""

    rows: str
    loaded: str


def a_boxes(layout: Layout) -> ABoxes:
    g = layout.gemm
    last = "(pack + 1) * GEMM_M" if g.packs > 1 else "GEMM_M"
    rows = f"{f'min({last}, K)' if g.last_fewer else last} - first_k"
    loaded = f"min(tile_m / {A_SPAN}, (rows + {A_SPAN - 1}) / {A_SPAN})"
    if g.last_fewer and layout.m_tiles > 1:  # the last pack has tiles without any
        loaded = f"max(0, {loaded})"
    return ABoxes(rows, loaded)
