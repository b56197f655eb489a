"""The launch that transforms the filters: a thread has one row of one filter, from one input channel to one output
channel."""

from __future__ import annotations

from functools import partial

from convgen.ir.winograd import TAPS, transforms
from convgen.kernels.parts import lowering
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import Kernel, Pointer, all_zero
from convgen.kernels.parts.lowering import Scope, all_hold, coordinates, drop_unused, index_type, number, offset
from convgen.kernels.winograd.source import weighted
from convgen.kernels.winograd.threads import channels_name
from convgen.kernels.winograd_fused.layout import POINTS, Layout, M, U

#: Threads of a block.
BLOCK = 128


def filters(layout: Layout) -> Kernel:
    """U[r, point, k, c] = G w[k, r, :, c]: zeros stand in for channels beyond the last."""
    problem, w, u = layout.problem, layout.problem.w, layout.u
    constants = Constants(file={"K": problem.k, "R": layout.filter_rows})
    scope = Scope(index_type(problem, (u.size,)), constants=constants)
    extents = (layout.filter_rows, problem.k, layout.channels)
    threads = extents[0] * extents[1] * extents[2]
    at = all_zero(problem) | coordinates(
        scope,
        scope.declare("index", threads),
        ("r", "k", "c"),
        extents,
        partial(channels_name, problem, layout.channels),
    )
    inside = all_hold(scope.bound_tests(at["c"], 0, number(problem.c), "c"))
    lines = scope.take()
    for tap in range(TAPS):
        value = lowering.load(w.dtype, f"w[{offset(scope, w, at | {'s': number(tap)})}]", "f32")
        lines.append(f"const float tap{tap} = {f'{inside} ? {value} : 0.0f' if inside else value};")
    for point in range(POINTS):
        value = lowering.store(w.dtype, weighted(transforms(M).filters.row(point), "tap{}"), "f32")
        lines.append(f"u[{offset(scope, u, at | {'point': number(point)})}] = {value};")
    comment = (
        "The transformed filters that the kernel above uses: U[r, point, k, c] = G w[k, r, :, c].",
        "A thread transforms one row of the filter from one input channel to one output channel.",
    )
    pointers = (Pointer("w", w.dtype, "w"), Pointer("u", w.dtype, U, written=True))
    text = {"lines": drop_unused(lines, "")}
    entry = f"convgen_{problem.name}_filter"
    return Kernel(
        "winograd_fused/filter.cu.j2", entry, comment, pointers, scope.index, 1, threads, "", text, BLOCK,
        constants=constants,
    )  # fmt: skip
