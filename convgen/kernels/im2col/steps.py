"""The kernels, launches, GEMMs and workspaces of im2col."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from convgen.ir.plan import Fill, Gemm, Step, Workspace
from convgen.ir.problem import OPS, ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels.im2col.gemms import dgrad_gemms, fprop_gemms, wgrad_gemms
from convgen.kernels.im2col.layout import Layout
from convgen.kernels.im2col.matrices import (
    GEMM_TYPES,
    LOWERED,
    SUMS,
    col2im_problem,
    gemm_writes_y,
    im2col_problem,
    scatters_into_x,
)
from convgen.kernels.parts import columns, windows
from convgen.kernels.parts.elementwise import Kernel


def kernels_of(layout: Layout) -> dict[str, Kernel]:
    """The plan's kernels by name, in order."""
    problem, config = layout.problem, layout.config
    entry = f"convgen_{problem.name}"
    scatter = config.method == "scatter"
    if problem.op is Op.IM2COL:
        return {"im2col": _im2col(layout, problem, entry, "lowered")}
    if problem.op is Op.COL2IM and not scatter:
        return {"col2im": columns.col2im_gather(problem, entry)}
    if problem.op in (Op.COL2IM, Op.DGRAD):
        return _backward_kernels(layout, entry)
    v = layout.matrices
    kernels = {}
    if layout.lowered:
        kernels["im2col"] = _im2col(layout, im2col_problem(problem, v.lowered), f"{entry}_im2col", LOWERED)
    accumulate = GEMM_TYPES[problem.x.dtype].accumulate
    if problem.op is Op.FPROP and _finishes(layout):
        dims = ("n", *problem.spatial.output, "k")
        sums = Tensor("sums", "workspace", accumulate, dims, tuple(problem.extent(d) for d in dims))
        unit = "row" if layout.sliced else ""
        kernels["finish"] = columns.finish(problem, f"{entry}_finish", sums, SUMS, unit, len(dims) - 1)
    if problem.op is Op.WGRAD and _finishes(layout):
        sums = replace(problem.w, name="sums", role="workspace", dtype=accumulate)
        kernels["finish"] = columns.finish(problem, f"{entry}_finish", sums, SUMS, parts=layout.parts)
    return kernels


def _im2col(layout: Layout, problem: ConvProblem, entry: str, buffer: str) -> Kernel:
    sliced = layout.is_product and layout.sliced
    if layout.config.form in ("loop_free", "channels"):
        run = columns.channel_run(problem) if layout.config.form == "channels" else 1
        return columns.im2col(problem, entry, buffer, sliced, run)
    return windows.im2col(problem, entry, buffer, sliced, layout.config.form)


def _backward_kernels(layout: Layout, entry: str) -> dict[str, Kernel]:
    """col2im as dgrad's second half, and as a scatter."""
    problem, config = layout.problem, layout.config
    if problem.op is Op.DGRAD:
        col2im, buffer = col2im_problem(problem, layout.matrices.lowered), LOWERED
    else:
        col2im, buffer = problem, "lowered"
    if config.method == "gather":
        return {"col2im": columns.col2im_gather(col2im, f"{entry}_col2im", buffer, layout.sliced)}
    if scatters_into_x(problem):
        return {"col2im": columns.col2im_scatter(col2im, f"{entry}_col2im", buffer, "x", layout.sliced)}
    dims, extents = columns.scatter_sums(problem)
    sums = Tensor("sums", "workspace", "f32", dims, extents)
    return {
        "col2im": columns.col2im_scatter(col2im, f"{entry}_col2im", buffer, SUMS, layout.sliced),
        "finish": columns.finish(problem, f"{entry}_finish", sums, SUMS, "image" if layout.sliced else "", 1),
    }


def steps_of(layout: Layout, units: int | None = None) -> Iterator[Step]:
    """The launches and GEMMs, in order, slice by slice, over all units or the first so many."""
    kernels, op = kernels_of(layout), layout.problem.op
    if op is Op.IM2COL:
        yield kernels["im2col"].launch()
    elif op is Op.COL2IM:
        yield from _col2im_steps(layout, kernels)
    else:
        for step in outline_of(layout, units):
            yield kernels[step.kernel].launch(*step.units) if isinstance(step, Call) else step


def _col2im_steps(layout: Layout, kernels: dict[str, Kernel]) -> tuple[Step, ...]:
    problem, config = layout.problem, layout.config
    launches = tuple(k.launch() for k in kernels.values())
    if config.method == "gather":
        return launches
    return (Fill("x" if scatters_into_x(problem) else SUMS), *launches)


@dataclass(frozen=True)
class Call:
    """A launch of a kernel that need not be written yet: for so many `units`, from the first one on."""

    kernel: str
    units: tuple[int, ...] = ()


def _finishes(layout: Layout) -> bool:
    """Whether a kernel makes the result of a product from sums."""
    problem = layout.problem
    if problem.op is Op.FPROP:
        return not gemm_writes_y(problem, layout.matrices)
    if problem.op is Op.WGRAD:
        return layout.sums_apart
    return layout.config.method == "scatter" and not scatters_into_x(problem)


def outline_of(layout: Layout, units: int | None = None) -> Iterator[Fill | Gemm | Call]:
    """The steps of a product, without its kernels."""
    problem, v = layout.problem, layout.matrices
    units = layout.total if units is None else units
    lowers, finishes = problem.op is not Op.DGRAD and layout.lowered > 0, _finishes(layout)
    lowered = LOWERED if lowers else "x"
    result = SUMS if finishes else OPS[problem.op].writes
    scatter = problem.op is Op.DGRAD and layout.config.method == "scatter"
    if scatter and result == "x":
        yield Fill("x")
    for first in range(0, units, layout.slice):
        count = min(layout.slice, units - first)
        if lowers:
            yield Call("im2col", (first * layout.rows, count * layout.rows))
        if problem.op is Op.FPROP:
            yield from fprop_gemms(problem, v, lowered, result, first, count)
        elif problem.op is Op.WGRAD:
            yield from wgrad_gemms(problem, v, lowered, result, first, count, layout.rows, layout.parts)
        else:
            yield from dgrad_gemms(problem, v, first, count)
            if scatter and result == SUMS:
                yield Fill(SUMS)
            yield Call("col2im", (first, count))
        if finishes and problem.op is not Op.WGRAD:
            yield Call("finish", (first, count))
    if finishes and problem.op is Op.WGRAD:
        yield Call("finish")


def workspaces_of(layout: Layout) -> tuple[Workspace, ...]:
    problem = layout.problem
    if problem.op is Op.COL2IM:
        needed = layout.config.method == "scatter" and not scatters_into_x(problem)
        return (Workspace(SUMS, 4 * problem.x.size),) if needed else ()
    if problem.op is Op.IM2COL:
        return ()
    sizes = ((LOWERED, layout.slice * layout.lowered), (SUMS, layout.slice * layout.sums + layout.all_sums))
    return tuple(Workspace(name, size) for name, size in sizes if size)
