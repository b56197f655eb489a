"""C names that depend on which blocks share a tile, and where a box of B begins."""

from __future__ import annotations

from typing import Any

from convgen.kernels.tma_im2col import ends
from convgen.kernels.tma_im2col.layout import Layout
from convgen.kernels.tma_im2col.phases import PhaseText


def names(layout: Layout, tap_index: str, phases: PhaseText | None) -> dict[str, Any]:
    """Names for blocks that split gemm_k, for blocks of a cluster that load an operand together, and for both."""
    c = layout.config
    split, shared = c.split_k > 1, c.shared != ""
    together = "(split_k * cluster)" if split and shared else "split_k" if split else "cluster" if shared else ""
    divided = f" / {together}" if together else ""
    axis = "m" if c.swap_ab else "n"
    b_first = (
        "0" if c.resident and layout.n_tiles * c.cluster == 1 else "n0 + rank * b_slice" if c.shared == "b" else "n0"
    )
    taps_outside = layout.gemm.taps_outside
    phase_index = "work % phase_count" if phases and phases.even else "work / (m_tiles * n_tiles)"
    return dict(
        both=split and shared,
        together=together,
        first_tile=f"blockIdx.x{divided}",
        tile_stride=f"gridDim.x{divided}",
        columns_axis=axis,
        acc="sum" if split else "acc",
        store_columns=f"{'store' if split else 'tile'}_{axis}",
        tap_index=tap_index,
        b_first=b_first,
        a_end=ends.of_a(layout),
        b_end=ends.of_b(layout),
        b_part="part" if b_first == "0" else f"{b_first} + part",
        b_place=f"{b_first}, {tap_index}" if taps_outside else f"{tap_index}, {b_first}",
        phase_index=phase_index,
        phase_first_row=f"{phase_index} * phase_rows + " if phases else "",
    )
