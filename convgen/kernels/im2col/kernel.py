"""im2col: the lowered matrix in memory, and a GEMM by cuBLAS.

    fprop   lowered = im2col(x)               y = lowered w^T
    dgrad   lowered = y w                     x = col2im(lowered)
    wgrad   lowered = im2col(x)               w = sum over slices of y^T lowered

The lowered matrix has a row for every output pixel (n, p, q) and a column for every (group, and filter
element in the filter's own order), so that the filter is used as it lies in memory.  A cap on the
workspace makes everything work in slices of rows.  A `finish` kernel applies the epilogue, type and
layout where the GEMM cannot write the result itself.  The operators im2col and col2im are one kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

from convgen.codegen.render import render
from convgen.ir.plan import Fill, Gemm, Launch, Plan, Step
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels import base
from convgen.kernels.base import Obstacle, plan_of
from convgen.kernels.config import Options
from convgen.kernels.im2col.config import DEFAULT_WORKSPACE_MB, Config
from convgen.kernels.im2col.layout import MEBIBYTE, Layout
from convgen.kernels.im2col.matrices import GEMM_TYPES, matrices
from convgen.kernels.im2col.steps import kernels_of, outline_of, steps_of, workspaces_of
from convgen.kernels.parts.columns import channel_run, lowered_of
from convgen.kernels.parts.elementwise import live_dims
from convgen.kernels.parts.limits import type_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.targets import Target

#: Each is a call of the host's: a plan of more takes minutes to make and write, and is no help to anybody.
MOST_STEPS = 10_000


class Im2col(base.Kernel[Config, Layout]):
    name = "im2col"
    paddings = frozenset(Padding)
    config = Config
    further = True
    slice_roles = base.ANY_SLICES - {"w"}  # the filter is a matrix as it lies in memory

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = type_obstacles(problem, target)
        return found if problem.op in (Op.IM2COL, Op.COL2IM) else found + _matrix_obstacles(problem)

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Layout]:
        method, cap = str(fixed.get("method", "gather")), int(fixed.get("workspace_mb", DEFAULT_WORKSPACE_MB))
        layout = Layout(problem, target, Config(method, cap))
        form = str(fixed.get("form", _form(layout) if layout.lowers else layout.config.form))
        return [replace(layout, config=replace(layout.config, form=form))]

    def illegal(self, layout: Layout) -> list[Obstacle]:
        found = _scatter_obstacles(layout.problem) if layout.config.method == "scatter" else []
        if layout.config.form != "loop_free" and not layout.lowers:
            found.append(Obstacle(f"{layout.problem.name} copies no windows of x", "leave form out", "form"))
        elif layout.config.form == "channels" and channel_run(layout.lowering) == 1:
            message = "form channels copies channels that are neighbors in x and in the lowered matrix; these have none"
            found.append(Obstacle(message, "leave form out", "form"))
        return found or (_slice_obstacles(layout) if layout.is_product else [])

    def time(self, layout: Layout) -> float:
        return math.inf  # cuBLAS's part is not ours to tell

    def plan(self, layout: Layout) -> Plan:
        workspaces = workspaces_of(layout)
        notes = (f"workspace {sum(w.bytes for w in workspaces)} bytes",) if workspaces else ()
        return plan_of(layout, steps_of(layout), workspaces, notes=notes)

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        kernels = tuple(kernels_of(layout).values())
        return render("kernels.cu.j2", plan, comment=_comment(plan, layout), kernels=kernels)


def _form(layout: Layout) -> str:
    """The widest of those whose neighboring threads write neighbors (benchmarks/results/forms_h200.json)."""
    problem = layout.lowering
    lowered = live_dims(lowered_of(problem))
    if channel_run(problem) > 1:
        return "channels"
    return "taps" if lowered and lowered[-1] in ("n", *problem.spatial.output) else "loop_free"


def _scatter_obstacles(problem: ConvProblem) -> list[Obstacle]:
    if problem.op not in (Op.DGRAD, Op.COL2IM):
        return [Obstacle(f"op {problem.op} has nothing to scatter", "leave method out", "method")]
    if problem.accumulate != "f32" or any(not t.element.is_float for t in problem.reads):
        return [Obstacle("method scatter adds floats, which do not hold every s32", "method gather", "method")]
    return []


def _matrix_obstacles(problem: ConvProblem) -> list[Obstacle]:
    """Why the problem is not a cuBLAS GEMM over matrices as they lie in memory."""
    found = []
    for t in {t.dtype: t for t in problem.reads}.values():
        if t.dtype not in GEMM_TYPES:
            served = ", ".join(GEMM_TYPES)
            found.append(Obstacle(f"cuBLAS's GEMM does not take {t.dtype} ({t.name}); it takes {served}"))
    v = matrices(problem)
    if not v.filter_k:
        found.append(
            Obstacle(
                f"k lies inside of {problem.w.name}'s layout {' '.join(problem.w.dims)}: not a matrix in memory",
                "make k the first or the last dim",
            )
        )
    if problem.op is not Op.FPROP and not v.y_form:
        sp = " ".join(problem.spatial.output)
        found.append(
            Obstacle(
                f"{problem.y.name}'s layout {' '.join(problem.y.dims)} is not a matrix of pixels and channels",
                f"n {sp} k or n k {sp} is",
            )
        )
    if v.rows >= INT_LIMIT or v.all_columns >= INT_LIMIT:
        found.append(Obstacle(f"a lowered matrix of {v.rows} x {v.all_columns} has more than 2^31 rows or columns"))
    return found


def _slice_obstacles(layout: Layout) -> list[Obstacle]:
    """A cap below one slice; more steps than a plan should list; GEMMs that cuBLAS does not align."""
    problem, config = layout.problem, layout.config
    if layout.slice == 0:
        least = layout.all_sums + (layout.lowered + layout.sums) * layout.multiple
        return [
            Obstacle(
                f"one {layout.unit} takes a workspace of {least} bytes; workspace_mb {config.workspace_mb} is less",
                f"workspace_mb {-(-least // MEBIBYTE)} is enough",
                "workspace_mb",
            )
        ]
    steps = list(islice(outline_of(layout), MOST_STEPS + 1))
    if len(steps) > MOST_STEPS:
        hint = "a larger workspace_mb, or a smaller batch" if layout.sliced else "a smaller batch"
        return [Obstacle(f"the plan has more than {MOST_STEPS} launches and GEMMs", hint, "workspace_mb")]
    found = []
    multiple = GEMM_TYPES[problem.reads[0].dtype].multiple
    if multiple > 1:
        gemms = [s for s in steps if isinstance(s, Gemm)]
        found += [
            Obstacle(
                f"cuBLAS's {problem.reads[0].dtype} GEMM needs {what} to be a multiple of {multiple}; it is {value}",
                "more channels",
            )
            for what, value in sorted({pair for g in gemms for pair in _alignments(g) if pair[1] % multiple})
        ]
    return found


def _alignments(g: Gemm) -> tuple[tuple[str, int], ...]:
    return (
        ("the reduction's length", g.k),
        (f"the row length of {_shown(g.a)}", g.lda),
        (f"the row length of {_shown(g.b)}", g.ldb),
        *((f"an offset into {_shown(g.a)}", x) for x in (g.offset_a, g.stride_a)),
        *((f"an offset into {_shown(g.b)}", x) for x in (g.offset_b, g.stride_b)),
    )


def _shown(buffer: str) -> str:
    return buffer.removeprefix("workspace.")


def _comment(plan: Plan, layout: Layout) -> tuple[str, ...]:
    """Describes the steps; one slice stands for all."""
    if len(plan.steps) == 1 and plan.launches:
        return ()
    title, steps = "The steps, in order:", plan.steps
    if layout.sliced:
        title = f"The steps, in order, for each of {layout.slices} slices of up to {layout.slice} {layout.unit}s:"
        steps = tuple(steps_of(layout, layout.slice))
    accumulates = layout.sliced and plan.problem.op is Op.WGRAD
    texts = [_describe(step, accumulates) for step in steps]
    lines = [f"  {text}{f'  ({texts.count(text)} times)' * (texts.count(text) > 1)}" for text in dict.fromkeys(texts)]
    return (title, *lines)


def _describe(step: Step, accumulates: bool) -> str:
    """A step in words; `accumulates` where slices add up in the GEMM's result, and finish runs once."""
    if isinstance(step, Launch):
        return f"{step.entry}{', once, at the end' if accumulates and step.entry.endswith('_finish') else ''}"
    if isinstance(step, Fill):
        return f"fill {_shown(step.buffer)} with zeros"
    a = f"{_shown(step.a)}{'^T' if step.trans_a else ''}[{step.m} x {step.k}]"
    b = f"{_shown(step.b)}{'^T' if step.trans_b else ''}[{step.k} x {step.n}]"
    equals = "+=" if step.beta or accumulates else "="
    batch = f", a batch of {step.batch}" if step.batch > 1 else ""
    return f"cuBLAS GEMM: {_shown(step.c)}[{step.m} x {step.n}] {equals} {a} {b}{batch}"


KERNEL = Im2col()
