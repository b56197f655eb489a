"""The text of a dgrad's phases: a table of constants, the pixels of y in a phase, the pixels that its windows read."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.codegen.c_expr import c_expr
from convgen.ir import integer
from convgen.kernels.mma_gemm.layout import Layout
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.elementwise import window_formulas
from convgen.kernels.parts.lowering import coordinate_name
from convgen.kernels.parts.phase_table import PhaseTable
from convgen.kernels.parts.walk import phase_map


@dataclass(frozen=True)
class PhaseText:
    """Finished text: the type and the names of the table's columns, with what they are, and its rows; the k steps that
    all phases have, or 0; the conditions under which y has pixel gemm_m of a phase."""

    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[str, ...]
    steps: int
    inside: str


def phase_text(layout: Layout) -> PhaseText | None:
    """None where there is one phase alone."""
    problem, found, steps = layout.read, layout.phases, layout.phase_steps
    if found is None or len(steps) == 1:
        return None
    table, maps = PhaseTable(found, problem.spatial), output.product_map(problem, found)
    alike = len(set(steps)) == 1 and steps[0] > 0
    of_k = () if alike else (("int", "steps", f"of {layout.config.tile_k} elements of gemm_k"),)
    index = lowering.index_type(problem, ())  # of offsets, which are made of these
    rows = (numbers if alike else (count, *numbers) for count, numbers in zip(steps, table.rows, strict=True))
    inside = [
        f"{c_expr(integer.simplify(maps.loop[o], maps.ranges), maps.ranges)} < {axis.extent}"
        for o, axis in zip(problem.spatial.output, found.axes, strict=True)
        if not axis.even
    ]
    return PhaseText(
        (*of_k, *((index, *column) for column in table.columns)),
        tuple(", ".join(map(str, row)) for row in rows),
        steps[0] if alike else 0,
        " && ".join(inside),
    )


def windows(layout: Layout) -> list[str]:
    """Formulas for the pixel of x under a tap; for a dgrad, whose taps are walked from the last one, also for the
    tap."""
    problem, sp = layout.read, layout.read.spatial
    if layout.phases is None:
        return window_formulas(problem)
    at = phase_map(problem, layout.phases).loop
    pixels = (f"{coordinate_name(i)} = {c_expr(at[i], {}, symbols='')}" for i in sp.input)
    taps = (c_expr(at[f], {}, symbols="") for f in sp.filter)
    return [f"  {pixel}, under tap {tap} of w" for pixel, tap in zip(pixels, taps, strict=True)]
