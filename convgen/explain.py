"""What convgen knows about a convolution, as text: `convgen explain`.

The problem and its roofline, the index formulas as derived and as they are with this problem's numbers,
the tensor map's fields, which strategies serve it and why the others do not, and the plan.  Everything is
a table (`tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen.gpus import Gpu, Rate
from convgen.ir import integer
from convgen.ir.estimates import SizeClass, takers
from convgen.ir.index_map import (
    FORWARD,
    Access,
    Bound,
    IndexMap,
    TmaAxis,
    matrix_dims,
    matrix_view,
    symbolic_geometry,
    tma_axes,
)
from convgen.ir.integer import Ranges, count_operations
from convgen.ir.plan import Plan, TensorMap
from convgen.ir.problem import OPS, PLACES, ConvProblem, Op, Padding
from convgen.tables import Explanation, Table
from convgen.targets import DEFAULT_TARGET, TARGETS, Target
from convgen.units import duration, si

if TYPE_CHECKING:
    from convgen.frontend.request import Request
    from convgen.kernels.base import Options
    from convgen.kernels.strategies import Strategy

# --- facts ------------------------------------------------------------------------------------------

#: A tensor map's strides are multiples of this many bytes (CUDA driver API, cuTensorMapEncodeIm2col).
_STRIDE_BYTES = 16
#: Of a filter's taps along an axis; of more, these and the last.
_MOST_OFFSETS = 16

# --- records ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """One formula of an index map: with symbols for the geometry, and simplified with its numbers."""

    name: str
    before: str
    after: str
    operations_before: int
    operations_after: int


# --- explaining -------------------------------------------------------------------------------------


def explain(
    subject: ConvProblem | Request,
    plan: Plan | None = None,
    strategies: Mapping[str, Strategy] | None = None,
    target: Target | None = None,
    gpu: Gpu | None = None,
) -> Explanation:
    """Explain a problem, or a request with its strategy's options.

    `strategies` by name are asked whether they serve it, each with its defaults but for the request's own,
    on the plan's target, else `target`, else the request's, else the default.  The roofline is that of `gpu`, else of
    the part that stands for the target.
    """
    options: Mapping[str, Options] = {}
    if isinstance(subject, ConvProblem):
        problem = subject
    else:
        problem, options = subject.problem, {subject.strategy: subject.options}
        target = target or TARGETS[subject.target or DEFAULT_TARGET]
    where = plan.target if plan else target or TARGETS[DEFAULT_TARGET]
    tables = [
        _summary(problem),
        _roofline(problem, gpu or where.gpu, plan),
        _view(problem),
        _formulas(problem),
        _tensor_map(problem),
    ]
    if strategies is not None:
        tables.append(_strategies(problem, where, strategies, options))
    if plan:
        tables += _plan(plan)
    return Explanation(tuple(t for t in tables if t))


def classes(plans: Mapping[int, tuple[SizeClass, str]], images: Iterable[int]) -> Table:
    """Which numbers of images use which plan, for a kernel with several plans: of each, by the number that it was made
    for, what is known of it and its configuration."""
    taken = takers({n: known for n, (known, _) in plans.items()}, images)
    rows = tuple((taken[n], f"n={n}", configuration) for n, (_, configuration) in plans.items())
    return Table("Classes of sizes", ("images", "planned for", "configuration"), rows)


def _summary(problem: ConvProblem) -> Table:
    def axes(values: tuple) -> str:
        return " ".join(f"{d}={v}" for d, v in zip(problem.spatial.input, values, strict=True))

    pads = tuple(f"({lo},{hi})" for lo, hi in zip(problem.pad_lo, problem.pad_hi, strict=True))
    fill = "" if problem.padding is Padding.ZERO else f" {problem.padding}"
    tensors = [("reads", t) for t in problem.arguments] + [("writes", t) for t in problem.results]
    rows = [
        *((what, f"{t}, {si(t.bytes, 'B')}") for what, t in tensors),
        ("window", f"stride {axes(problem.stride)}, pad {axes(pads)}{fill}, dilation {axes(problem.dilation)}"),
        ("groups", str(problem.groups)),
        ("accumulates in", problem.accumulate),
    ]
    if problem.dynamic:
        dims = " ".join(problem.dynamic)
        rows.append(("dynamic", f"{dims}: a call decides these sizes; the plan is made for those above"))
    if problem.prologue:
        rows += [("prologue", str(a)) for a in problem.prologue.body]
    if problem.epilogue:
        rows += [("epilogue", str(a)) for a in problem.epilogue.body]
    return Table(f"{problem.name}: {problem.op}", ("", ""), tuple(rows))


@dataclass(frozen=True)
class Roofline:
    """A problem's work, and the rates at which a part moves its tensors and multiplies its factors."""

    flops: int
    traffic: int  # bytes, each tensor once
    memory: Rate
    products: Rate

    @property
    def moving(self) -> float:
        """Seconds."""
        return self.traffic / self.memory.per_second

    @property
    def computing(self) -> float:
        return self.flops / self.products.per_second

    @property
    def least(self) -> float:
        return max(self.moving, self.computing)


def roofline(problem: ConvProblem, gpu: Gpu, plan: Plan | None) -> Roofline:
    """The roofline of a part, in the plan's arithmetic."""
    products = gpu.multiply(problem.reads[0].dtype, plan and plan.options.get("math"))
    return Roofline(2 * problem.macs, problem.min_bytes, gpu.memory, products)


def _roofline(problem: ConvProblem, gpu: Gpu, plan: Plan | None) -> Table:
    """The least time that a part can take, and how near the plan's estimate comes, where it is of that part."""
    r = roofline(problem, gpu, plan)
    rows = [_roofline_row("move each tensor once", r.traffic, "B", r.memory, r.moving)]
    note = f"At least {duration(r.moving)} on {gpu.name}: all memory, no arithmetic."
    if r.flops:
        rows.append(_roofline_row("multiply and add", r.flops, "FLOP", r.products, r.computing))
        bound = "arithmetic" if r.computing >= r.moving else "memory"
        note = f"At least {duration(r.least)}, bound by {bound} on {gpu.name}: {r.flops / r.traffic:.0f} FLOP per byte."
    if plan and plan.us:
        of_another = gpu != plan.target.gpu
        share = f" on {plan.target.gpu.name}" if of_another else f", {r.least * 1e6 / plan.us:.0%} of the roofline"
        note += f" The plan is estimated at {duration(plan.us * 1e-6)}{share}."
    return _roofline_table(rows, note)


def _roofline_row(what: str, amount: int, unit: str, rate: Rate, seconds: float) -> tuple[str, ...]:
    return what, si(amount, unit), si(rate.per_second, f"{unit}/s"), duration(seconds), rate.source


def _roofline_table(rows: Sequence[tuple[str, ...]], note: str) -> Table:
    return Table("Roofline", ("", "amount", "rate", "time", "source"), tuple(rows), note, ("amount", "rate", "time"))


def _view(problem: ConvProblem) -> Table:
    extents = {v.name: v.extent for v in matrix_view(problem).variables}
    rows = tuple(
        (name, " * ".join(dims) or "1", str(extents[name])) for name, dims in matrix_dims(problem).items()
    )  # fmt: skip
    return Table("Matrix view", ("index", "runs over", "extent"), rows, right=("extent",))


# --- formulas ---------------------------------------------------------------------------------------


def formulas(problem: ConvProblem) -> tuple[Formula, ...]:
    """The coordinates, conditions and offsets of `matrix_view`, before and after."""
    symbolic = matrix_view(problem, symbolic_geometry(problem))
    literal = matrix_view(problem)
    simple = literal.simplified()
    roles = (*OPS[problem.op].reads, OPS[problem.op].writes, *(t.name for t in (*problem.operands, *problem.further)))
    return (
        *_coordinates(problem, roles, symbolic, simple),
        *(f for role in roles for f in _conditions(symbolic, literal, simple, role)),
        *(
            _formula(f"offset of {problem.tensor(role).name}", symbolic.accesses[role].offset, literal.offset(role))
            for role in roles
        ),
    )


def _formula(name: str, before: integer.Expr, after: integer.Expr) -> Formula:
    return Formula(name, str(before), str(after), count_operations(before), count_operations(after))


def _coordinates(problem: ConvProblem, roles: Sequence[str], symbolic: IndexMap, simple: IndexMap) -> Iterator[Formula]:
    """Each coordinate that a tensor uses, once: the view's, then the windows'."""
    used = {name for role in roles for name in _names(problem, simple.accesses[role])}
    order = [d for run in matrix_dims(problem).values() for d in run]
    for name in (*order, *(d for d in simple.loop if d not in order)):
        if name in used and symbolic.loop[name].free_symbols:
            yield _formula(name, symbolic.loop[name], simple.loop[name])


def _names(problem: ConvProblem, access: Access) -> Iterator[str]:
    """The loop's names of a tensor's coordinates: a filter's c is the channel within the group."""
    for dim in access.tensor.dims:
        yield "c_in_group" if problem.groups > 1 and access.tensor.role == "w" and dim == "c" else dim


def _conditions(symbolic: IndexMap, literal: IndexMap, simple: IndexMap, role: str) -> Iterator[Formula]:
    """The conditions of an access: comparisons of coordinates, as separate formulas."""
    left = {b.dim: b for b in simple.accesses[role].bounds}
    for b in symbolic.accesses[role].bounds:
        sides = _sides(left[b.dim], literal.ranges) if b.dim in left else []
        shown = str(b.value) if b.dim in PLACES.values() else b.dim
        yield Formula(
            f"{role} has {b.dim}", f"{b.low} <= {shown} < {b.high}", " and ".join(sides) or "always", 2, len(sides)
        )
    divisors = zip(symbolic.accesses[role].divisible, literal.accesses[role].divisible, strict=True)
    for general, number in divisors:
        before = integer.mod(general.value, general.divisor)
        after = integer.simplify(integer.mod(number.value, number.divisor), literal.ranges)
        holds = after == 0
        yield Formula(
            f"{number.dim} is whole",
            f"{before} == 0",
            "always" if holds else f"{after} == 0",
            count_operations(before) + 1,
            0 if holds else count_operations(after) + 1,
        )


def _sides(b: Bound, ranges: Ranges) -> list[str]:
    """The comparisons of a bound that can fail."""
    low, high = integer.bounds(b.value, ranges)
    shown = str(b.value) if b.dim in PLACES.values() else b.dim
    return [f"{shown} >= {b.low}"] * (low < b.low) + [f"{shown} < {b.high}"] * (high >= int(b.high))


def _formulas(problem: ConvProblem) -> Table:
    found = formulas(problem)
    rows: list[tuple[str, ...]] = []
    for f in found:
        rows.append((f.name, "before", str(f.operations_before), f.before))
        rows.append(("", "after", str(f.operations_after), f.after))
    rows.append(("total", "before", str(sum(f.operations_before for f in found)), ""))
    rows.append(("", "after", str(sum(f.operations_after for f in found)), ""))
    note = "/ is floor division, % its remainder. What formulas share is counted in each of them."
    return Table("Index formulas", ("", "", "operations", "formula"), tuple(rows), note, ("operations",))


# --- tensor maps ------------------------------------------------------------------------------------


def _tensor_map(problem: ConvProblem) -> Table | None:
    """TMA im2col's fields where the problem has one box over a channels-last tensor."""
    if problem.op not in (Op.FPROP, Op.WGRAD, Op.DGRAD) or (problem.op is Op.DGRAD and set(problem.stride) != {1}):
        return None
    if problem.padding is not Padding.ZERO:
        return None
    sp = problem.spatial
    role, spatial, channel = ("x", sp.input, "c") if problem.op in FORWARD else ("y", sp.output, "k")
    tensor = problem.tensor(role)
    order = tuple(d for d in ("n", *spatial, channel) if d in tensor.dims)
    row_bytes = tensor.extent(channel) * tensor.element.bytes
    if tensor.dims != order or tensor.element.tma is None or row_bytes % _STRIDE_BYTES:
        return None
    rows = tuple(
        (a.dim, str(a.lower), str(a.upper), str(a.element_stride), _offsets(a, taps))
        for a, taps in zip(tma_axes(problem), problem.filter, strict=True)
    )
    header = ("axis", "lower corner", "upper corner", "element stride", "offsets of the taps")
    return Table(f"TMA im2col over {tensor.name}", header, rows, right=header[1:4])


def _offsets(axis: TmaAxis, taps: int) -> str:
    shown = " ".join(map(str, axis.offsets(min(taps, _MOST_OFFSETS))))
    return shown if taps <= _MOST_OFFSETS else f"{shown} ... {axis.offset(taps - 1)}"


# --- strategies and plan ----------------------------------------------------------------------------


def _strategies(
    problem: ConvProblem, target: Target, strategies: Mapping[str, Strategy], options: Mapping[str, Options]
) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, strategy in strategies.items():
        obstacles = strategy.obstacles(problem, target, options.get(name, {}))
        if not obstacles:
            found = strategy.plan(problem, target, options.get(name, {}))
            time = duration(found.us * 1e-6) if found.us else "-"
            rows.append((name, "yes", time, si(sum(w.bytes for w in found.workspaces), "B"), strategy.summary))
        for i, o in enumerate(obstacles):
            reason = f"{o.message} ({o.hint})" if o.hint else o.message
            rows.append(("" if i else name, "" if i else "no", "", "", reason))
    header = ("strategy", "serves", "estimate", "workspace", "why")
    note = "Estimates are the cost models', of what each strategy takes for best; the plan may be a measured one. "
    note += "A workspace is memory beyond the tensors."
    return Table(f"Strategies on {target}", header, tuple(rows), note, header[2:4])


def _plan(plan: Plan) -> list[Table]:
    rows = [*plan.rows, *(("workspace", f"{w.name}, {si(w.bytes, 'B')}") for w in plan.workspaces)]
    tables = [Table(f"Plan for {plan.target}", ("", ""), tuple(rows))]
    maps = [(p.name, p.map) for launch in plan.launches for p in launch.params if p.map]
    if maps:
        header = ("map", "of", "mode", "extents", "strides in bytes", "element strides", "box", "swizzle")
        tables.append(Table("Tensor maps, innermost dim first", header, tuple((n, *_map(m)) for n, m in maps)))
    return tables


def _map(m: TensorMap) -> tuple[str, ...]:
    def row(values: tuple[int, ...]) -> str:
        return " ".join(map(str, values))

    box = row(m.box)
    if m.mode == "im2col":
        box = f"{m.channels} channels x {m.pixels} pixels, corners {row(m.lower)} to {row(m.upper)}"
    return m.buffer, m.mode, row(m.dims), row(m.strides), row(m.element_strides), box, str(m.swizzle)
