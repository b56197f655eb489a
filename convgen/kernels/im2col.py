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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from sympy import Integer

from convgen.codegen.render import render
from convgen.ir.index_map import decompose, derive, variable
from convgen.ir.plan import Fill, Gemm, Launch, Plan, Step, Workspace
from convgen.ir.problem import OPS, ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Obstacle, Option, Options
from convgen.kernels.parts import columns
from convgen.kernels.parts.elementwise import Kernel, live_dims
from convgen.kernels.parts.lowering import INT_LIMIT, has_epilogue, type_obstacles
from convgen.targets import Target

# ---- facts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmType:
    """What cublasGemmEx makes of an input type: the type that it accumulates in, the result types that
    it writes, and what reduction lengths, leading dimensions and offsets must be multiples of."""

    accumulate: str
    results: tuple[str, ...]
    multiple: int = 1


#: cuBLAS documentation, "cublasGemmEx()": tables of types; 32-bit integer GEMMs want 4-byte alignment.
GEMM_TYPES: dict[str, GemmType] = {
    "f16": GemmType("f32", ("f16", "f32")),
    "bf16": GemmType("f32", ("bf16", "f32")),
    "f32": GemmType("f32", ("f32",)),
    "s8": GemmType("s32", ("s32",), 4),
}

#: Rows that one 16-bit product of a wgrad reduces over come in multiples of this, the rest in a product of
#: their own: cuBLAS 13.1 on an H200 was seen to leave out the last rows of 4225, 4226 and 50696 (f16 and
#: bf16, 64 x 256 to 384 x 512, the reduction outermost in both factors), and none of multiples of 64.
REDUCTION = 64

#: Names of workspaces; the dot keeps them apart from every name in a spec.
LOWERED, SUMS = "workspace.lowered", "workspace.sums"
MEBIBYTE = 2**20

OPTIONS = (
    Option(
        "method", "how col2im sums: gather is deterministic, scatter adds atomically", choices=("gather", "scatter")
    ),
    Option("workspace_mb", "cap on the workspace in MiB (default 256); larger problems go in slices", 1, 1 << 17),
)
DEFAULT_WORKSPACE_MB = 256
#: Each is a call of the host's: a plan of more takes minutes to make and write, and is no help to anybody.
MOST_STEPS = 10_000


@dataclass(frozen=True)
class Im2colConfig:
    """How col2im sums, the workspace cap in MiB, and the rows (or images) of the lowered matrix in a
    slice, out of how many."""

    method: str
    workspace_mb: int
    unit: str
    slice: int
    total: int

    @property
    def sliced(self) -> bool:
        return self.slice < self.total

    def __str__(self) -> str:
        text = f"method {self.method}, workspace_mb {self.workspace_mb}"
        return f"{text}, slices of {self.slice} {self.unit}s" if self.sliced else text


# ---- the matrix view ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrices:
    """A convolution as a product of matrices: extents, and how w and y lie in memory.

    `filter_k` says where k is in the filter: "first" ([k, columns] a group) or "last" ([columns, k]).
    `y_form` is "rows" where y is the matrix [pixels, k], "images" where it is [k, pixels] an image, and
    empty for any other layout.
    """

    lowered: Tensor
    rows: int
    pixels: int  # output pixels an image
    images: int
    groups: int
    k: int  # output channels a group
    columns: int  # filter elements of an output channel
    filter_k: str
    y_form: str

    @property
    def all_k(self) -> int:
        return self.groups * self.k

    @property
    def all_columns(self) -> int:
        return self.groups * self.columns


def matrices(problem: ConvProblem) -> Matrices:
    """The lowered matrix of a problem, and how w and y lie beside it."""
    sp = problem.spatial
    order = live_dims(problem.w)
    filter_k = "first" if "k" not in order or order[0] == "k" else "last" if order[-1] == "k" else ""
    y_order = live_dims(problem.y)
    pixels = [d for d in ("n", *sp.output) if problem.extent(d) > 1]
    channel = ["k"] if problem.k > 1 else []
    if y_order == pixels + channel:
        y_form = "rows"
    elif y_order == pixels[: problem.n > 1] + channel + pixels[problem.n > 1 :]:
        y_form = "images"
    else:
        y_form = ""
    grouped = problem.groups > 1
    row_dims = ("n", *sp.output)
    column_dims = [d for d in problem.w.dims if d != "k"]
    if grouped:
        column_dims = ["g", *("c_in_group" if d == "c" else d for d in column_dims)]
    extents = [problem.extent(d) for d in row_dims]
    extents += [problem.groups if d == "g" else problem.w.extent("c" if d == "c_in_group" else d) for d in column_dims]
    # dgrad's products are summed by col2im, and keep the accumulator's type until then
    inputs = problem.reads[0].dtype
    accumulate = GEMM_TYPES[inputs].accumulate if inputs in GEMM_TYPES else "f32"
    dtype = accumulate if problem.op is Op.DGRAD else problem.x.dtype
    axes = (len(row_dims), len(column_dims))
    return Matrices(
        Tensor("lowered", "lowered", dtype, (*row_dims, *column_dims), tuple(extents), axes),
        problem.output_pixels,
        math.prod(problem.output),
        problem.n,
        problem.groups,
        problem.k_per_group,
        problem.taps * problem.c_per_group,
        filter_k,
        y_form,
    )


def _im2col_problem(problem: ConvProblem, lowered: Tensor) -> ConvProblem:
    return replace(problem, op=Op.IM2COL, lowered=lowered, epilogue=None)


def _col2im_problem(problem: ConvProblem, lowered: Tensor) -> ConvProblem:
    """The second half of dgrad; it has dgrad's epilogue."""
    return replace(problem, op=Op.COL2IM, lowered=lowered, accumulate=lowered.dtype)


def lowered_is_x(problem: ConvProblem, lowered: Tensor) -> bool:
    """Whether the lowered matrix is x as it lies in memory: 1x1, unit stride, no padding, NHWC, say."""
    if lowered.size != problem.x.size:
        return False
    index = variable("index", lowered.size)
    at = decompose(index.symbol, lowered.dims, lambda d: Integer(lowered.extent(d)))
    channel = "c" if problem.groups == 1 else "c_in_group"
    at = {d: Integer(0) for d in ("n", *problem.spatial.output, *problem.spatial.filter, channel)} | at
    index_map = derive(_im2col_problem(problem, lowered), (index,), at).simplified()
    return not index_map.accesses["x"].bounds and index_map.offset("x") == index.symbol


# ---- GEMMs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """An axis that repeats a GEMM, and the elements from one to the next in a, b and c."""

    count: int
    a: int
    b: int
    c: int


def _batched(gemm: Gemm, *axes: Batch) -> Iterator[Gemm]:
    """The GEMM over all axes: the longest becomes cuBLAS's batch, the others become steps."""
    longest, *others = sorted(axes, key=lambda axis: -axis.count)
    if longest.count > 1:
        gemm = replace(gemm, batch=longest.count, stride_a=longest.a, stride_b=longest.b, stride_c=longest.c)
    gemms = [gemm]
    for axis in others:
        gemms = [
            replace(
                g,
                offset_a=g.offset_a + i * axis.a,
                offset_b=g.offset_b + i * axis.b,
                offset_c=g.offset_c + i * axis.c,
            )
            for g in gemms
            for i in range(axis.count)
        ]
    yield from gemms


def _fprop_gemms(p: ConvProblem, v: Matrices, lowered: str, result: str, first: int, rows: int) -> Iterator[Gemm]:
    """[rows, k] = lowered [rows, columns] x w^T, for each group."""
    k_first = v.filter_k == "first"
    gemm = Gemm(
        lowered, "w", result, m=rows, n=v.k, k=v.columns,
        trans_a=False, trans_b=k_first,
        lda=v.all_columns, ldb=v.columns if k_first else v.all_k, ldc=v.all_k,
        dtype=p.x.dtype, c_dtype=_result_type(p, result),
        offset_a=first * v.all_columns if lowered == "x" else 0,
        offset_c=first * v.all_k if result == "y" else 0,
    )  # fmt: skip
    yield from _batched(gemm, Batch(v.groups, v.columns, v.k * v.columns if k_first else v.k, v.k))


def _dgrad_gemms(p: ConvProblem, v: Matrices, first_image: int, images: int) -> Iterator[Gemm]:
    """lowered [rows, columns] = y [rows, k] x w, for each group; image by image where y is [k, pixels]."""
    k_first = v.filter_k == "first"
    by_rows = v.y_form == "rows"
    gemm = Gemm(
        "y", "w", LOWERED, m=images * v.pixels if by_rows else v.pixels, n=v.columns, k=v.k,
        trans_a=not by_rows, trans_b=not k_first,
        lda=v.all_k if by_rows else v.pixels, ldb=v.columns if k_first else v.all_k, ldc=v.all_columns,
        dtype=p.y.dtype, c_dtype=v.lowered.dtype,
        offset_a=first_image * v.pixels * v.all_k,
    )  # fmt: skip
    group = Batch(
        v.groups,
        v.k if by_rows else v.k * v.pixels,
        v.k * v.columns if k_first else v.k,
        v.columns,
    )
    image = Batch(1 if by_rows else images, v.all_k * v.pixels, 0, v.pixels * v.all_columns)
    yield from _batched(gemm, group, image)


def _wgrad_gemms(p: ConvProblem, v: Matrices, lowered: str, result: str, first: int, rows: int) -> Iterator[Gemm]:
    """w [k, columns] += y^T [k, rows] x lowered [rows, columns], or its transpose, for each group; image
    by image where y is [k, pixels]."""
    k_first = v.filter_k == "first"
    by_rows = v.y_form == "rows"
    runs = [(first, rows)] if by_rows else _within_images(first, rows, v.pixels)
    for start, count in (part for run in runs for part in _even_reductions(*run, p.x.dtype)):
        image, pixel = divmod(start, v.pixels)
        y = Operand(
            "y",
            leading=v.all_k if by_rows else v.pixels,
            offset=start * v.all_k if by_rows else image * v.all_k * v.pixels + pixel,
            group=v.k if by_rows else v.k * v.pixels,
        )
        columns_ = Operand(
            lowered,
            leading=v.all_columns,
            offset=(start if lowered == "x" else start - first) * v.all_columns,
            group=v.columns,
        )
        a, b = (y, columns_) if k_first else (columns_, y)
        gemm = Gemm(
            a.buffer, b.buffer, result,
            m=v.k if k_first else v.columns, n=v.columns if k_first else v.k, k=count,
            trans_a=by_rows or not k_first, trans_b=not (by_rows or k_first),
            lda=a.leading, ldb=b.leading, ldc=v.columns if k_first else v.all_k,
            dtype=p.x.dtype, c_dtype=_result_type(p, result),
            offset_a=a.offset, offset_b=b.offset,
            beta=0.0 if start == 0 else 1.0,
        )  # fmt: skip
        yield from _batched(gemm, Batch(v.groups, a.group, b.group, v.k * v.columns if k_first else v.k))


@dataclass(frozen=True)
class Operand:
    """A factor of a GEMM: where it starts, its leading dimension, the elements from group to group."""

    buffer: str
    leading: int
    offset: int
    group: int


def _even_reductions(first: int, rows: int, dtype: str) -> Iterator[tuple[int, int]]:
    """A run of rows to reduce over, cut after the last multiple of REDUCTION: (first row, rows)."""
    even = rows - rows % REDUCTION if dtype in ("f16", "bf16") else rows
    if even:
        yield first, even
    if rows > even:
        yield first + even, rows - even


def _within_images(first: int, rows: int, pixels: int) -> Iterator[tuple[int, int]]:
    """Rows split where images end: (first row, rows)."""
    end = first + rows
    while first < end:
        count = min(end - first, pixels - first % pixels)
        yield first, count
        first += count


def _result_type(problem: ConvProblem, result: str) -> str:
    return problem.tensor(result).dtype if result != SUMS else GEMM_TYPES[problem.x.dtype].accumulate


# ---- slices ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What goes through a workspace, and how large it is: bytes for every unit (row or image) of a slice,
    and bytes whatever the slice."""

    unit: str
    total: int
    lowered: int  # bytes a unit; 0 where x serves as it is
    sums: int  # bytes a unit; 0 where the GEMM or the scatter writes the result itself
    all_sums: int = 0  # bytes of sums that all slices share


def _layout(problem: ConvProblem, method: str) -> Layout:
    v = matrices(problem)
    row = v.all_columns * v.lowered.element.bytes
    if problem.op is Op.DGRAD:
        floats = 4 * problem.x.size // problem.n if method == "scatter" and not _scatters_into_x(problem) else 0
        return Layout("image", v.images, v.pixels * row, floats)
    lowered = 0 if lowered_is_x(problem, v.lowered) else row
    if problem.op is Op.FPROP:
        return Layout("row", v.rows, lowered, 0 if _gemm_writes_y(problem, v) else 4 * v.all_k)
    return Layout("row", v.rows, lowered, 0, 0 if _gemm_writes_w(problem) else 4 * problem.w.size)


def _gemm_writes_y(problem: ConvProblem, v: Matrices) -> bool:
    results = GEMM_TYPES[problem.x.dtype].results
    return not has_epilogue(problem) and v.y_form == "rows" and problem.y.dtype in results


def _gemm_writes_w(problem: ConvProblem) -> bool:
    """Slices add up in w, which therefore has to have the accumulator's type."""
    return not has_epilogue(problem) and problem.w.dtype == GEMM_TYPES[problem.x.dtype].accumulate


def _scatters_into_x(problem: ConvProblem) -> bool:
    return not has_epilogue(problem) and problem.x.dtype == "f32"


def _slice(layout: Layout, workspace_mb: int, multiple: int) -> int:
    """Units in a slice, evened out; 0 where the cap does not hold one."""
    unit_bytes = layout.lowered + layout.sums
    room = workspace_mb * MEBIBYTE - layout.all_sums
    if room < 0:
        return 0
    fit = layout.total if unit_bytes == 0 else min(room // unit_bytes, layout.total)
    if fit < layout.total:
        fit -= fit % multiple
    if fit == 0:
        return 0
    slices = -(-layout.total // fit)
    even = -(-layout.total // slices)
    return min(even + -even % multiple, fit)


# ---- the strategy ------------------------------------------------------------------------------


class Im2col:
    name = "im2col"
    summary = "loop-free im2col or col2im, and a GEMM by cuBLAS, in slices below a workspace cap"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = type_obstacles(problem, target)
        if options.get("method") == "scatter":
            found += _scatter_obstacles(problem)
        if problem.op in (Op.IM2COL, Op.COL2IM):
            return found
        found += _matrix_obstacles(problem)
        return found or _slice_obstacles(problem, options)

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = _choose(problem, options)
        kernels = _kernels(problem, config)
        if problem.op is Op.IM2COL:
            steps: tuple[Step, ...] = (kernels["im2col"].launch(),)
        elif problem.op is Op.COL2IM:
            steps = _col2im_steps(problem, config, kernels)
        else:
            steps = tuple(_gemm_steps(problem, config, kernels))
        workspaces = _workspaces(problem, config)
        notes = [f"workspace {sum(w.bytes for w in workspaces)} bytes"] if workspaces else []
        return Plan(problem, target, self.name, config, steps, workspaces, notes=tuple(notes))

    def render(self, plan: Plan) -> str:
        assert isinstance(plan.config, Im2colConfig)
        kernels = _kernels(plan.problem, plan.config)
        return render("kernels.cu.j2", plan, comment=_comment(plan), kernels=tuple(kernels.values()))


def _choose(problem: ConvProblem, options: Options) -> Im2colConfig:
    method = str(options.get("method", "gather"))
    cap = int(options.get("workspace_mb", DEFAULT_WORKSPACE_MB))
    if problem.op in (Op.IM2COL, Op.COL2IM):
        return Im2colConfig(method, cap, "image", problem.n, problem.n)
    layout = _layout(problem, method)
    return Im2colConfig(method, cap, layout.unit, _slice(layout, cap, _slice_multiple(problem)), layout.total)


def _slice_multiple(problem: ConvProblem) -> int:
    """What the rows of a slice must be a multiple of: wgrad reduces over them."""
    return GEMM_TYPES[problem.x.dtype].multiple if problem.op is Op.WGRAD else 1


def _scatter_obstacles(problem: ConvProblem) -> list[Obstacle]:
    if problem.op not in (Op.DGRAD, Op.COL2IM):
        return [Obstacle(f"op {problem.op} has nothing to scatter", "leave method out", "method")]
    if problem.accumulate != "f32" or any(not t.element.is_float for t in problem.reads):
        return [Obstacle("method scatter adds floats, which do not hold every s32", "method gather", "method")]
    return []


def _matrix_obstacles(problem: ConvProblem) -> list[Obstacle]:
    """What keeps the problem from being a cuBLAS GEMM over matrices as they lie in memory."""
    found = []
    for t in {t.dtype: t for t in problem.reads}.values():
        if t.dtype not in GEMM_TYPES:
            served = ", ".join(GEMM_TYPES)
            found.append(Obstacle(f"cuBLAS's GEMM does not take {t.dtype} ({t.name}); it takes {served}"))
    v = matrices(problem)
    if not v.filter_k:
        found.append(
            Obstacle(
                f"k lies inside of {problem.w.name}'s layout {' '.join(problem.w.dims)}: no matrix as it stands",
                "make k the first or the last dim",
            )
        )
    if problem.op is not Op.FPROP and not v.y_form:
        sp = " ".join(problem.spatial.output)
        found.append(
            Obstacle(
                f"{problem.y.name}'s layout {' '.join(problem.y.dims)} is no matrix over pixels and channels",
                f"n {sp} k or n k {sp} is",
            )
        )
    if v.rows >= INT_LIMIT or v.all_columns >= INT_LIMIT:
        found.append(Obstacle(f"a lowered matrix of {v.rows} x {v.all_columns} has more than 2^31 rows or columns"))
    return found


def _slice_obstacles(problem: ConvProblem, options: Options) -> list[Obstacle]:
    """A cap below one slice; more steps than a plan should list; GEMMs that cuBLAS does not align."""
    config = _choose(problem, options)
    layout = _layout(problem, config.method)
    if config.slice == 0:
        least = layout.all_sums + (layout.lowered + layout.sums) * _slice_multiple(problem)
        return [
            Obstacle(
                f"one {layout.unit} takes a workspace of {least} bytes; workspace_mb {config.workspace_mb} is less",
                f"workspace_mb {-(-least // MEBIBYTE)} is enough",
                "workspace_mb",
            )
        ]
    steps = list(islice(_gemm_steps(problem, config, _kernels(problem, config)), MOST_STEPS + 1))
    if len(steps) > MOST_STEPS:
        hint = "a larger workspace_mb, or a smaller batch" if config.sliced else "a smaller batch"
        return [Obstacle(f"the plan has more than {MOST_STEPS} launches and GEMMs", hint, "workspace_mb")]
    found = []
    multiple = GEMM_TYPES[problem.reads[0].dtype].multiple
    if multiple > 1:
        gemms = [s for s in steps if isinstance(s, Gemm)]
        found += [
            Obstacle(
                f"cuBLAS's {problem.reads[0].dtype} GEMM wants {what} to be a multiple of {multiple}; it is {value}",
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


# ---- kernels, steps, workspaces ----------------------------------------------------------------


def _kernels(problem: ConvProblem, config: Im2colConfig) -> dict[str, Kernel]:
    """The plan's kernels by name, in order."""
    entry = f"convgen_{problem.name}"
    scatter = config.method == "scatter"
    if problem.op is Op.IM2COL:
        return {"im2col": columns.im2col(problem, entry)}
    if problem.op is Op.COL2IM and not scatter:
        return {"col2im": columns.col2im_gather(problem, entry)}
    if problem.op in (Op.COL2IM, Op.DGRAD):
        return _backward_kernels(problem, config, entry)
    v = matrices(problem)
    kernels = {}
    if not lowered_is_x(problem, v.lowered):
        kernels["im2col"] = columns.im2col(
            _im2col_problem(problem, v.lowered), f"{entry}_im2col", LOWERED, config.sliced
        )
    accumulate = GEMM_TYPES[problem.x.dtype].accumulate
    if problem.op is Op.FPROP and not _gemm_writes_y(problem, v):
        dims = ("n", *problem.spatial.output, "k")
        sums = Tensor("sums", "workspace", accumulate, dims, tuple(problem.extent(d) for d in dims))
        unit = "row" if config.sliced else ""
        kernels["finish"] = columns.finish(problem, f"{entry}_finish", sums, SUMS, unit, len(dims) - 1)
    if problem.op is Op.WGRAD and not _gemm_writes_w(problem):
        sums = replace(problem.w, name="sums", role="workspace", dtype=accumulate)
        kernels["finish"] = columns.finish(problem, f"{entry}_finish", sums, SUMS)
    return kernels


def _backward_kernels(problem: ConvProblem, config: Im2colConfig, entry: str) -> dict[str, Kernel]:
    """col2im as dgrad's second half, and as a scatter."""
    if problem.op is Op.DGRAD:
        col2im, buffer = _col2im_problem(problem, matrices(problem).lowered), LOWERED
    else:
        col2im, buffer = problem, "lowered"
    if config.method == "gather":
        return {"col2im": columns.col2im_gather(col2im, f"{entry}_col2im", buffer, config.sliced)}
    if _scatters_into_x(problem):
        return {"col2im": columns.col2im_scatter(col2im, f"{entry}_col2im", buffer, "x", config.sliced)}
    dims, extents = columns.scatter_sums(problem)
    sums = Tensor("sums", "workspace", "f32", dims, extents)
    return {
        "col2im": columns.col2im_scatter(col2im, f"{entry}_col2im", buffer, SUMS, config.sliced),
        "finish": columns.finish(problem, f"{entry}_finish", sums, SUMS, "image" if config.sliced else "", 1),
    }


def _col2im_steps(problem: ConvProblem, config: Im2colConfig, kernels: dict[str, Kernel]) -> tuple[Step, ...]:
    launches = tuple(k.launch() for k in kernels.values())
    if config.method == "gather":
        return launches
    return (Fill("x" if _scatters_into_x(problem) else SUMS), *launches)


def _gemm_steps(problem: ConvProblem, config: Im2colConfig, kernels: dict[str, Kernel]) -> Iterator[Step]:
    v = matrices(problem)
    lowered = LOWERED if "im2col" in kernels else "x"
    result = SUMS if "finish" in kernels else OPS[problem.op].writes
    scatter = problem.op is Op.DGRAD and config.method == "scatter"
    if scatter and result == "x":
        yield Fill("x")
    for first in range(0, config.total, config.slice):
        count = min(config.slice, config.total - first)
        if "im2col" in kernels:
            yield kernels["im2col"].launch(first, count)
        if problem.op is Op.FPROP:
            yield from _fprop_gemms(problem, v, lowered, result, first, count)
        elif problem.op is Op.WGRAD:
            yield from _wgrad_gemms(problem, v, lowered, result, first, count)
        else:
            yield from _dgrad_gemms(problem, v, first, count)
            if scatter and result == SUMS:
                yield Fill(SUMS)
            yield kernels["col2im"].launch(first, count)
        if "finish" in kernels and problem.op is not Op.WGRAD:
            yield kernels["finish"].launch(first, count)
    if "finish" in kernels and problem.op is Op.WGRAD:
        yield kernels["finish"].launch()


def _workspaces(problem: ConvProblem, config: Im2colConfig) -> tuple[Workspace, ...]:
    if problem.op is Op.COL2IM:
        needed = config.method == "scatter" and not _scatters_into_x(problem)
        return (Workspace(SUMS, 4 * problem.x.size),) if needed else ()
    if problem.op is Op.IM2COL:
        return ()
    layout = _layout(problem, config.method)
    sizes = ((LOWERED, config.slice * layout.lowered), (SUMS, config.slice * layout.sums + layout.all_sums))
    return tuple(Workspace(name, size) for name, size in sizes if size)


# ---- comments ----------------------------------------------------------------------------------


def _comment(plan: Plan) -> tuple[str, ...]:
    """The steps, those of one slice for all, in words."""
    problem, config = plan.problem, plan.config
    assert isinstance(config, Im2colConfig)
    if len(plan.steps) == 1 and plan.launches:
        return ()
    title, steps = "The steps, in order:", plan.steps
    if config.sliced:
        slices = -(-config.total // config.slice)
        title = f"The steps, in order, for each of {slices} slices of up to {config.slice} {config.unit}s:"
        steps = tuple(_gemm_steps(problem, replace(config, total=config.slice), _kernels(problem, config)))
    accumulates = config.sliced and problem.op is Op.WGRAD
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


STRATEGY = Im2col()
