"""The launch of the kernels that keep lines of x in shared memory, and the rows of partial sums that blocks make."""

from __future__ import annotations

from convgen.ir.plan import Launch, Workspace
from convgen.kernels.parts import partial_sums
from convgen.kernels.parts.elementwise import Pointer, fprop_pointers
from convgen.kernels.parts.lines import Lines
from convgen.kernels.parts.persistent import fixed, persistent, workers


def pointers(layout: Lines) -> list[Pointer]:
    return [*fprop_pointers(layout.problem), *partial_sums.pointers(layout.problem)]


def launch(layout: Lines) -> Launch:
    """Blocks that make rows of partial sums are as many on every GPU, so that all add up the same."""
    found = persistent(
        layout.problem, [p.vector_param for p in pointers(layout)], tiles=layout.tiles,
        slices=layout.n_tiles, threads=layout.threads, shared_bytes=layout.shared_bytes,
        blocks_per_sm=layout.config.blocks,
    )  # fmt: skip
    return fixed(found, _rows(layout) * layout.n_tiles, layout.target) if layout.sums else found


def workspaces(layout: Lines) -> tuple[Workspace, ...]:
    """A row of each sum for every block of a slice of the channels."""
    if not layout.sums:
        return ()
    rows = _rows(layout)
    return partial_sums.workspaces(layout.problem, {t.name: rows * t.bytes for t in layout.problem.sums})


def _rows(layout: Lines) -> int:
    return workers(layout.target, layout.config.blocks, layout.tiles, layout.n_tiles)
