"""The text of a strided dgrad's phases: a table of constants, and where a phase's pixels are in y."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, Symbol

from convgen.codegen.c_expr import Names, c_expr
from convgen.ir import integer
from convgen.ir.index_map import decompose
from convgen.ir.integer import symbol
from convgen.kernels.parts.constants import Constants, walk_name
from convgen.kernels.tma_im2col.layout import Layout


@dataclass(frozen=True)
class PhaseText:
    """Finished text: the names of the table's columns, with what they are, and its rows; the lines that find pixel `m`
    of a phase in y, the conditions `inside` on which y has it, its `place` among y's pixels; whether there is a phase
    without taps; whether all phases take as long, so that those of the same pixels can come together."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[str, ...]
    lines: tuple[str, ...]
    inside: str
    place: str
    empty: bool
    even: bool


def phase_text(layout: Layout, constants: Constants) -> PhaseText | None:
    """None where there is one phase alone."""
    found, sp = layout.gemm.phases, layout.gemm.problem.spatial
    if found is None:
        return None
    steps = [blocks // layout.config.k_blocks for blocks in layout.phase_k_blocks]
    columns = (
        ("steps", "of the k loop"),
        (", ".join(sp.output), "the first pixel"),
        (", ".join(sp.filter), "the first tap that reaches it"),
        (", ".join(f"{t}_taps" for t in sp.filter), "how many taps reach it"),
        (", ".join(f"{t}_offset" for t in sp.filter), "where the first tap's pixels are in the box"),
    )
    rows = []
    for count, row in zip(steps, found.rows, strict=True):
        values = (getattr(axis, name) for name in ("first", "tap", "taps", "offset") for axis in row)
        rows.append(", ".join(map(str, (count, *values))))
    return PhaseText(columns, tuple(rows), *_pixel(layout, constants), empty=0 in steps, even=len(set(steps)) == 1)


def _pixel(layout: Layout, constants: Constants) -> tuple[tuple[str, ...], str, str]:
    """Lines, conditions and place of pixel `m` of the phase `phase`."""
    g = layout.gemm
    assert g.phases
    dims, axes = ("n", *g.problem.spatial.output), g.phases.axes
    (at, of_m), names = walk(layout, symbol("m")), walk_names(layout, constants)
    ranges = dict(of_m)
    lines = [f"const int n = {c_expr(at['n'], ranges, names=names)};"]
    inside = ["m < phase_m"] if g.pixels % layout.cluster_m else []
    place: Expr = symbol("n")
    named = {symbol("n"): (0, g.problem.n - 1)}
    for dim, axis in zip(dims[1:], axes, strict=True):
        first = symbol(f"phase.{dim}")
        ranges[first] = (0, axis.stride - 1)
        lines.append(f"const int {dim} = {c_expr(axis.stride * at[dim] + first, ranges, names=names)};")
        if not axis.even:
            inside.append(f"{dim} < {axis.extent}")
        named[symbol(dim)] = (0, axis.extent - 1)
        place = place * axis.extent + symbol(dim)
    whole = constants.of_place(dims, dict(zip(dims[1:], (axis.extent for axis in axes), strict=True)))
    return tuple(lines), " && ".join(inside), c_expr(integer.simplify(place, named), named, names=whole)


def _extents(layout: Layout) -> dict[str, int]:
    g = layout.gemm
    assert g.phases
    axes = zip(g.problem.spatial.output, g.phases.axes, strict=True)
    return {"n": g.problem.n} | {d: axis.positions for d, axis in axes}


def walk_names(layout: Layout, constants: Constants) -> Names:
    """The names of the divisors of a phase's pixel number."""
    extents = _extents(layout)
    return constants.of_index(tuple(extents), extents.__getitem__, walk_name)


def walk(layout: Layout, m: Symbol) -> tuple[dict[str, Expr], integer.Ranges]:
    """The image and the positions of a phase's walk at its pixel `m`, in y's dims, and the range of `m`."""
    g = layout.gemm
    assert g.phases
    dims, extents = g.problem.spatial.output, _extents(layout)
    ranges = {m: (0, g.pixels - 1)}
    at = decompose(m, ("n", *dims), lambda d: Integer(extents[d]))
    return {d: integer.simplify(e, ranges) for d, e in at.items()}, ranges
