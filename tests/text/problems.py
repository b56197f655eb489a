"""Random convolution problems, as a hypothesis strategy, and small fixed ones."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy
from hypothesis import strategies as st

from convgen.frontend.types import ACCUMULATOR_OF
from convgen.ir import epilogue as ep
from convgen.ir.problem import OPS, SPATIAL, ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor


def make(
    op: Op | str = Op.FPROP,
    n: int = 1,
    c: int = 1,
    k: int = 1,
    input: tuple[int, ...] = (4, 4),
    filter: tuple[int, ...] = (3, 3),
    stride: int | tuple[int, ...] = 1,
    pad: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    dtype: str = "f16",
    epilogue: ep.Epilogue | None = None,
    lowered: str = "",
    name: str = "example",
    padding: Padding = Padding.ZERO,
) -> ConvProblem:
    """A problem in NHWC, KRSC and NPQK; `lowered` as in a spec: "c*r*s,n*p*q"."""
    rank, sp = len(input), SPATIAL[len(input)]

    def each(value):
        return value if isinstance(value, tuple) else (value,) * rank

    stride, dilation = each(stride), each(dilation)
    pads = [v if isinstance(v, tuple) else (v, v) for v in each(pad)]
    lo, hi = tuple(p[0] for p in pads), tuple(p[1] for p in pads)
    output = tuple(
        (i + a + b - (f - 1) * d - 1) // s + 1
        for i, a, b, f, d, s in zip(input, lo, hi, filter, dilation, stride, strict=True)
    )
    extents = {"n": n, "c": c, "k": k}
    for dims, values in zip((sp.input, sp.filter, sp.output), (input, filter, output), strict=True):
        extents |= dict(zip(dims, values, strict=True))
    matrix = None
    if lowered:
        axes = [axis.split("*") for axis in lowered.split(",")]
        dims = tuple(d for axis in axes for d in axis)
        matrix = Tensor("m", "lowered", dtype, dims, tuple(extents[d] for d in dims), tuple(map(len, axes)))
    return ConvProblem(
        name, Op(op), n, c, k, input, filter, output, stride, dilation, lo, hi, groups,
        Tensor("x", "x", dtype, ("n", *sp.input, "c"), (n, *input, c)),
        Tensor("w", "w", dtype, ("k", *sp.filter, "c"), (k, *filter, c // groups)),
        Tensor("y", "y", dtype, ("n", *sp.output, "k"), (n, *output, k)),
        matrix, ACCUMULATOR_OF.get(dtype, dtype), epilogue, padding,
    )  # fmt: skip


def _fits(padding: Padding, op: Op, geometry) -> bool:
    """Whether padding can be made so: what repeats pixels has them, and integers aside, NaN is read."""
    if not any(lo or hi for *_, lo, hi in geometry):
        return padding is Padding.ZERO
    most = {Padding.REFLECT: -1, Padding.CIRCULAR: 0}.get(padding)
    if padding is Padding.NAN:
        return "x" in OPS[op].reads
    return most is None or all(max(lo, hi) <= extent + most for extent, *_, lo, hi in geometry)


@st.composite
def problems(
    draw, ops=tuple(Op), ranks=(1, 2, 3), dtypes=("f32",), largest=6, work=4000, epilogues=None,
    paddings=(Padding.ZERO,),
):  # fmt: skip
    """Any geometry whose loop nest runs at most `work` times."""
    op = draw(st.sampled_from(ops))
    rank = draw(st.sampled_from(ranks))
    sp = SPATIAL[rank]
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    n = draw(st.integers(1, 3))
    c, k = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    budget = max(1, work // (n * groups * (c // groups) * (k // groups)))
    geometry = []
    for axis in range(rank):
        filter_ = draw(st.integers(1, 3))
        dilation = draw(st.integers(1, 3))
        stride = draw(st.integers(1, 3))
        reach = (filter_ - 1) * dilation
        lo = draw(st.integers(0, reach + 1))
        hi = draw(st.integers(0, reach + 1))
        share = int(budget ** (1 / (rank - axis)))
        longest = max(1, min(largest, share // filter_ + reach))
        extent = draw(st.integers(max(1, reach + 1 - lo - hi), max(1, reach + 1 - lo - hi, longest)))
        output = (extent + lo + hi - reach - 1) // stride + 1
        budget = max(1, budget // (output * filter_))
        geometry.append((extent, filter_, output, stride, dilation, lo, hi))
    padding = draw(st.sampled_from([p for p in paddings if _fits(p, op, geometry)]))
    input_, filters, output, stride, dilation, lo, hi = map(tuple, zip(*geometry, strict=True))
    extents = {"n": n, "c": c, "k": k}
    for dims, values in zip((sp.input, sp.filter, sp.output), (input_, filters, output), strict=True):
        extents |= dict(zip(dims, values, strict=True))
    dtype = draw(st.sampled_from(dtypes))

    def layout(dims):
        """Any order; dims of extent 1 may be left out."""
        order = draw(st.permutations(dims))
        return [d for d in order if extents[d] > 1 or draw(st.booleans())]

    def tensor(role, dims, **other):
        order = layout(dims)
        sizes = tuple(other.get(d, extents[d]) for d in order)
        return Tensor(role, role, dtype, tuple(order), sizes)

    x = tensor("x", ("n", *sp.input, "c"))
    y = tensor("y", ("n", *sp.output, "k"))
    w = tensor("w", ("k", *sp.filter, "c"), c=c // groups)
    lowered = None
    if op in (Op.IM2COL, Op.COL2IM):
        pixels, window = layout(("n", *sp.output)), layout((*sp.filter, "c"))
        halves = [pixels, window] if draw(st.booleans()) else [window, pixels]
        dims = (*halves[0], *halves[1])
        axes = (len(halves[0]), len(halves[1]))
        lowered = Tensor("m", "lowered", dtype, dims, tuple(extents[d] for d in dims), axes)
    result = {"x": x, "w": w, "y": y, "lowered": lowered}[OPS[op].writes]
    epilogue = draw(epilogues(result)) if epilogues else None
    accumulate = "s32" if dtype in ("s8", "s32") else "f32"
    return ConvProblem(
        "random", op, n, c, k, input_, filters, output, stride, dilation, lo, hi, groups,
        x, w, y, lowered, accumulate, epilogue, padding,
    )  # fmt: skip


@st.composite
def operands(draw, result: Tensor, name: str, dtypes=("f32",)):
    """An operand over some of the result's dims, in any order."""
    dims = draw(st.lists(st.sampled_from(result.dims), unique=True)) if result.dims else []
    return Tensor(name, "operand", draw(st.sampled_from(dtypes)), tuple(dims), tuple(result.extent(d) for d in dims))


@st.composite
def operands_like(draw, result: Tensor, name: str, dtypes=("f32",)):
    """An operand that lies as the result does: a residual, a mask."""
    return Tensor(name, "operand", draw(st.sampled_from(dtypes)), result.dims, result.extents)


def loop_nest(problem: ConvProblem):
    """Every multiply-add, by plain loops: n, output position, tap, g, c and k (of all groups), c_in_group,
    and the input position, which may lie outside of the input; not where padding repeats pixels."""
    sp = problem.spatial
    modes = {Padding.REFLECT: "reflect", Padding.REPLICATE: "edge", Padding.CIRCULAR: "wrap"}
    padded = [
        numpy.pad(numpy.arange(extent), pads, mode=modes[problem.padding]) if problem.padding.repeats else None
        for extent, *pads in zip(problem.input, problem.pad_lo, problem.pad_hi, strict=True)
    ]
    names = ("n", *sp.output, *sp.filter, "g", "k", "c")
    extents = (problem.n, *problem.output, *problem.filter, problem.groups, problem.k_per_group, problem.c_per_group)
    index = [0] * len(names)
    for _ in range(math.prod(extents)):
        at = dict(zip(names, index, strict=True))
        for axis, (i, f, o) in enumerate(zip(sp.input, sp.filter, sp.output, strict=True)):
            at[i] = at[o] * problem.stride[axis] + at[f] * problem.dilation[axis] - problem.pad_lo[axis]
            if (pixels := padded[axis]) is not None:
                at[i] = int(pixels[at[i] + problem.pad_lo[axis]])
        at["c_in_group"] = at["c"]
        at["c"] += at["g"] * problem.c_per_group
        at["k"] += at["g"] * problem.k_per_group
        yield at
        for axis in reversed(range(len(names))):
            index[axis] += 1
            if index[axis] < extents[axis]:
                break
            index[axis] = 0


def inside(problem: ConvProblem, at: dict[str, int]) -> bool:
    """Whether the input position lies in the input."""
    return all(0 <= at[dim] < extent for dim, extent in zip(problem.spatial.input, problem.input, strict=True))


def element(problem: ConvProblem, role: str, at: dict[str, int]) -> int:
    """Offset of the element that a multiply-add touches.  An operand's c is that of the result."""
    tensor = problem.tensor(role)
    filters = (tensor if tensor.role != "operand" else problem.result).role == "w"
    names = {"c": "c_in_group"} if filters else {}
    return sum(stride * at[names.get(d, d)] for d, stride in zip(tensor.dims, tensor.strides, strict=True))


#: Roles of tensors that may be channel slices, but for the epilogue's results.
SLICED = frozenset({"x", "w", "y", "operand"})


@st.composite
def sliced(draw, problem: ConvProblem, roles: Collection[str] = SLICED) -> ConvProblem:
    """The same problem, some of whose tensors are channel slices, where channels are innermost."""

    def one(t: Tensor) -> Tensor:
        may = t.role in roles and t.dims[-1:] in (("c",), ("k",))
        more = draw(st.sampled_from((0, 0, 1, 2, 8))) if may else 0
        return replace(t, pitch=t.row + more) if more else t

    prologue, epilogue = problem.prologue, problem.epilogue
    if prologue:
        prologue = replace(prologue, operands=tuple(map(one, prologue.operands)))
    if epilogue:
        operands, results = (tuple(map(one, tensors)) for tensors in (epilogue.operands, epilogue.results))
        epilogue = replace(epilogue, operands=operands, results=results)
    x, w, y = map(one, (problem.x, problem.w, problem.y))
    return replace(problem, x=x, w=w, y=y, prologue=prologue, epilogue=epilogue)
