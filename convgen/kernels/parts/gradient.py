"""How a gradient of the filter leaves tensor cores: sums of slices of the pixels, and a second kernel that adds them.

Kernels for wgrad share y's pixels among blocks.  What a block sums up is the result where it has all pixels and nothing
is left to do; else it goes to a workspace, laid out as the filter, and a second kernel adds the slices in order and
runs the epilogue.  Where atomic sums are asked for, blocks add theirs to zeros instead: of the result, or of one slice
in the workspace, which the second kernel then finishes.  The sum of y, a bias's gradient, comes from the same tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir.index_map import decompose, derive, extent, variable
from convgen.ir.plan import Launch, Plan, Workspace
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels import base
from convgen.kernels.base import Obstacle
from convgen.kernels.config import Options
from convgen.kernels.parts import lowering, output, runs, sums
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.elementwise import Pointer, epilogue_formulas, epilogue_pointers
from convgen.kernels.parts.pixel_slices import ATOMIC, ORDERED, Sliced
from convgen.kernels.parts.window_sum import gradient_pointers

#: The bits of 1.0, by type.
_ONE = {"f16": 0x3C00, "bf16": 0x3F80}
_PARTIALS = "workspace.partials"
#: Threads of a block of the second kernel, and the most of them that share a filter element.
SUM_BLOCK, MOST_SHARERS = 256, 16


C = TypeVar("C", bound=Sliced)
L = TypeVar("L", bound=base.Layout)


def left_over(problem: ConvProblem, slices: int, order: str = ORDERED, own_zeros: bool = False) -> int:
    """Slices of sums that the product's kernel leaves to a second one; 0 where it makes the result.

    Atomic additions make one slice of all.  They go to the result where that has their type and no epilogue, and where
    no sum has to be made once more when it is whole, for zeros of the kernel's own (see `window_sum`)."""
    finished = not lowering.has_epilogue(problem)
    if order == ATOMIC:
        return int(not finished or own_zeros or problem.w.dtype != "f32")
    return 0 if finished and slices == 1 else slices


@dataclass(frozen=True)
class GradientLayout(base.Layout[C]):
    """The layout of a kernel whose blocks share the pixels."""

    #: The text of a comment if `own_zeros` turn x's infinities into NaNs.
    nan_cause: ClassVar[str] = ""

    @property
    def own_zeros(self) -> bool:
        """Whether x is multiplied by zeros that are not in y, which turn its infinities into NaNs."""
        return False

    @property
    def left(self) -> int:
        """Slices of sums that a second kernel adds up, and finishes."""
        return left_over(self.problem, self.config.slices, self.config.sums, self.own_zeros)

    @property
    def stores_w(self) -> bool:
        """Whether the product's kernel makes the result."""
        return self.left == 0

    @property
    def sum_passes(self) -> list[int]:
        """Slices of each pass over sums in memory: the second kernel's, and that of zeros and atomic additions, which
        nothing is fitted to, and which is taken for as much."""
        return [self.left] * (self.left > 0) + [self.config.slices] * self.config.adds

    @property
    def result(self) -> Pointer:
        """Where the product's kernel stores its sums."""
        if self.stores_w:
            return Pointer("w", self.problem.w.dtype, "w", written=True)
        return Pointer("partials", "f32", _PARTIALS, written=True)

    @property
    def factors(self) -> tuple[Pointer, ...]:
        """x and y as they were given, where the product's kernel makes sums once more."""
        return gradient_pointers(self.problem) if self.own_zeros and self.stores_w else ()


class GradientKernel(base.Kernel[C, L]):
    """The answers that all kernels for wgrad share."""

    ops = frozenset({Op.WGRAD})
    slice_roles = frozenset("xy")
    further = True

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """The sum of y, where the kernel multiplies y by a column of ones."""
        t = y_sum(problem)
        return (t.name,) if t else ()


def pass_bytes(problem: ConvProblem, slices: int) -> int:
    """Bytes that a pass over so many slices of sums moves: each slice is written and read, and so is the result."""
    return problem.w.size * 4 * (slices + 1) * 2


def atomic_obstacles(slices: int) -> list[Obstacle]:
    """The obstacle to atomic sums that there is only one slice of the pixels."""
    hint = "2 slices or more, or leave sums out"
    return [Obstacle("sums atomic adds up several slices of the pixels; there is one", hint, "sums")] * (slices == 1)


def y_sum(problem: ConvProblem) -> Tensor | None:
    """The sum of y over its pixels, a bias's gradient: computed by a column of ones beside x's."""
    of_y = (t for t in problem.sums if t.dims == ("k",) and problem.like(t).role == "y")
    return next(of_y, None) if problem.op is Op.WGRAD else None


def y_sum_pointer(problem: ConvProblem, parts: int) -> tuple[Pointer, ...]:
    """The pointer to the sums of y over so many parts of the pixels, which later launches add up."""
    t = y_sum(problem)
    return (Pointer("y_sums", "f32", sums.partial(t) if parts > 1 else t.name, written=True),) if t else ()


@dataclass(frozen=True)
class Stored:
    """How neighboring columns are stored: C text of an element's offset in the filter, from k, c and what `tap` names,
    and whether two or four are stored at once; where they are `atomic`, they are added to what is there."""

    index: str
    offset: str
    tap: str  # "tap"; "filter_row" where rows are lowered
    pair: bool
    atomic: bool
    target: str
    type: str
    c_type: str
    one: str
    both: str
    four: bool
    four_type: str
    all_four: str
    constants: tuple[Definition, ...]  # definitions of what `offset` mentions


def stored(layout: GradientLayout[C], lower_rows: bool = False) -> Stored:
    """The columns stored for channels c of x; where rows are lowered, taps of a filter row times these channels."""
    problem, whole = layout.problem, layout.stores_w
    w, sp = problem.w, problem.spatial
    index = lowering.index_type(problem, (w.size * max(layout.left, 1),))
    outer, inner = (sp.filter[:-1], sp.filter[-1:]) if lower_rows else (sp.filter, ())
    channels = math.prod(map(problem.extent, inner)) * problem.c_per_group
    k, c = variable("k", problem.k), variable("c", channels)
    tap = variable("filter_row" if lower_rows else "tap", math.prod(map(problem.extent, outer)))
    at = decompose(tap.symbol, outer, lambda d: Integer(problem.extent(d)))
    at |= decompose(c.symbol, (*inner, "c_in_group"), lambda d: Integer(extent(problem, d)))
    maps = derive(problem, (k, tap, c), at | {"k": k.symbol})
    constants, dtype = Constants(), w.dtype if whole else "f32"
    packed = dtype in lowering.PACK
    run = w.dims[-1 - len(inner) :] == (*inner, "c")
    return Stored(
        index, c_expr(maps.offset("w"), maps.ranges, index, constants.strides(w)), str(tap.symbol),
        run and channels % 2 == 0, layout.config.adds,
        "w" if whole else "partials", w.element.c_type if whole else "float", "u32" if packed else "Vec2",
        lowering.store(dtype, "{0}", "f32"), f"{lowering.PACK[dtype]}({{0}}, {{1}})" if packed else "Vec2{{{0}, {1}}}",
        run and channels % 4 == 0, "u64" if packed else "Vec4",
        "{0}({{0}}, {{1}}) | u64({0}({{2}}, {{3}})) << 32".format(lowering.PACK[dtype]) if packed else
        f"Vec4{{{{{', '.join(f'__float_as_uint({{{i}}})' for i in range(4))}}}}}",
        constants.all,
    )  # fmt: skip


# ---- the second kernel -------------------------------------------------------------------------------


def one(dtype: str) -> str:
    """C text of the bits of 1.0."""
    return f"0x{_ONE[dtype]:x}"


def ones(dtype: str) -> str:
    """C text of two neighbors, each 1.0."""
    return f"0x{_ONE[dtype] << 16 | _ONE[dtype]:x}u"


@dataclass(frozen=True)
class Sum:
    """The kernel that adds the slices' sums, in order, and finishes w's gradient."""

    launch: Launch
    pointers: tuple[Pointer, ...]
    formulas: list[str]
    slices: int
    sharers: int
    size: int
    run: int
    index: str
    load: Sequence[str]
    result: output.Result
    nan_cause: str  # why sums are recomputed; empty if none are


def _pointers(layout: GradientLayout[C]) -> tuple[Pointer, ...]:
    """The second kernel's pointers; it reads the factors if the first kernel multiplies extra zeros."""
    problem = layout.problem
    w = Pointer("w", problem.w.dtype, "w", written=True)
    factors = gradient_pointers(problem) if layout.own_zeros else ()
    return (Pointer("partials", "f32", _PARTIALS), w, *epilogue_pointers(problem), *factors)


def _run(problem: ConvProblem) -> int:
    """Neighboring elements that a thread finishes."""
    return math.gcd(problem.w.size, 4)


def _sharers(layout: GradientLayout[C]) -> int:
    """Threads that share an element's slices: as many as keep the GPU busy."""
    sharers, elements = 1, layout.problem.w.size // 4
    busy = layout.target.sms * 1024
    while sharers < MOST_SHARERS and 4 * sharers <= layout.left and elements * sharers < busy:
        sharers *= 2
    return sharers


def launches(layout: GradientLayout[C], product: Launch) -> tuple[Launch, ...]:
    """The product's launch; before it, zeros if it adds to them; after it, the second kernel if sums are left over."""
    zeros = [_zeros_launch(layout, product.dependent)] if layout.config.adds else []
    last = [] if layout.stores_w else [_sum_launch(layout, product.dependent)]
    return (*zeros, product, *last)


def _sum_launch(layout: GradientLayout[C], dependent: bool) -> Launch:
    problem, sharers = layout.problem, _sharers(layout)
    blocks = -(-problem.w.size // (SUM_BLOCK // sharers * _run(problem)))
    params = tuple(p.vector_param for p in _pointers(layout))
    shared = 16 * SUM_BLOCK + 16 if sharers > 1 else 0
    return Launch(f"convgen_{problem.name}_sum", (blocks, 1, 1), SUM_BLOCK, params, shared, dependent=dependent)


def _zeros_launch(layout: GradientLayout[C], dependent: bool) -> Launch:
    problem, params = layout.problem, (layout.result.vector_param,)
    blocks = -(-problem.w.size // (SUM_BLOCK * _run(problem)))
    return Launch(f"convgen_{problem.name}_zeros", (blocks, 1, 1), SUM_BLOCK, params, dependent=dependent)


def workspaces(layout: GradientLayout[C], parts: int) -> tuple[Workspace, ...]:
    """The sums that are left over, and the sums of y over so many parts of the pixels."""
    t, left = y_sum(layout.problem), layout.left
    of_y = (Workspace(sums.partial(t), t.bytes * parts),) if t and parts > 1 else ()
    return (Workspace(_PARTIALS, 4 * layout.problem.w.size * left), *of_y) if left else of_y


def gradient_sum(plan: Plan, layout: GradientLayout[C]) -> Sum | None:
    """Finished values for templates/parts/gradient_sum.j2.  If the product's kernel multiplies extra zeros, sums that
    are NaN are recomputed."""
    if layout.stores_w:
        return None
    problem, left = layout.problem, layout.left
    w, run = problem.w, _run(problem)
    names = {"c": "c_in_group"}
    absent: dict[str, Expr] = {names.get(d, d): Integer(0) for d in ("k", *problem.spatial.filter, "c")}
    dims = [names.get(d, d) for d in w.dims]
    loop = absent | decompose(output.OFFSET, dims, lambda d: Integer(extent(problem, d)))
    maps = derive(problem, (variable("offset", w.size),), loop)
    along = output.Columns("elements", w.long_dims, w.size)
    return Sum(
        plan.launch("sum"), _pointers(layout), epilogue_formulas(problem), left, _sharers(layout), w.size,
        run, lowering.index_type(problem, (w.size * left + SUM_BLOCK * run,)),
        runs.load_run("f32", "part", "partials + slice * size + offset", run),
        output.result(problem, maps, along, output.OFFSET, run, "f32"),
        layout.nan_cause if layout.own_zeros else "",
    )  # fmt: skip


# ---- zeros before atomic additions ---------------------------------------------------------------------


@dataclass(frozen=True)
class Zeros:
    """The kernel that clears the memory to which blocks then add their sums."""

    launch: Launch
    pointers: tuple[Pointer, ...]
    target: str
    size: int
    run: int
    index: str
    zero: str


def zeros(plan: Plan, layout: GradientLayout[C]) -> Zeros | None:
    """Finished values for templates/parts/gradient_zeros.j2."""
    if not layout.config.adds:
        return None
    problem, target, run = layout.problem, layout.result, _run(layout.problem)
    index = lowering.index_type(problem, (problem.w.size + SUM_BLOCK * run,))
    zero = {1: "0.0f", 2: "Vec2{0.0f, 0.0f}", 4: "Vec4{0, 0, 0, 0}"}[run]
    return Zeros(plan.launch("zeros"), (target,), target.name, problem.w.size, run, index, zero)
