"""Boxes that a tile does without: those past the last of y's channels, and past the last of the taps and x's channels.

TMA makes rows of zeros of the former, which take it longer than rows of memory (kernels/tma_im2col/ends.py); of the
latter, the last would be loaded again.  What the stage had before is multiplied in their place, and nothing of that is
stored.  Where a block looks for NaNs among its sums, which are all of them, it loads every box.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen.kernels.tma_wgrad.layout import A_SPAN, Layout


@dataclass(frozen=True)
class Boxes:
    """C text of the boxes that a tile loads for each k block, and of the rows of A's that are y's."""

    a: str
    b: str
    rows: str


def boxes(layout: Layout) -> Boxes:
    g = layout.gemm
    last = "(pack + 1) * GEMM_M" if g.packs > 1 else "GEMM_M"
    rows = f"{f'min({last}, K)' if g.last_fewer else last} - first_k"
    a = f"min(tile_m / {A_SPAN}, (rows + {A_SPAN - 1}) / {A_SPAN})"
    if g.last_fewer and layout.m_tiles > 1:  # the last pack has tiles without any
        a = f"max(0, {a})"
    return Boxes(a, "min(tile_boxes, boxes - first_box)" if layout.b_ends else "tile_boxes", rows)
