"""Index maps: from a matrix view of a convolution to coordinates of its tensors.

One derivation for each direction of the window.  `decompose` turns a flat index into the dims that it
runs over, by the chain of divisions of H. Zhang, "A Simple and Efficient Implementation of im2col in
Convolution Neural Networks" (2017), eq. 13 to 19: u = (p / F) % F, v = p % F, d0 = (p / F) / F,
i1 = q / W1, j1 = q % W1.  `derive` then places the window, eq. 18, 19 and 20 with stride, dilation,
(low, high) padding, groups and one to three axes:

    forward   (fprop, wgrad, im2col)  h = p * stride + r * dilation - pad_lo
    backward  (dgrad, col2im)         p = (h + pad_lo - r * dilation) / stride, where stride divides it

Where padding repeats pixels, the forward direction maps a position beyond x to the pixel that stands there; the
backward one counts, by `place_h`, the positions at which a pixel stands.

`matrix_view` gives the maps of a convolution seen as a matrix product, `lowered_view` those of im2col's
matrix; a kernel with loops of its own calls `derive`.  Everything downstream reads these maps: C text,
tensor maps (`tma_axes`), `explain`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer, Symbol

from convgen.ir import integer
from convgen.ir.formula import counted, number
from convgen.ir.integer import Ranges, floordiv, mod, symbol
from convgen.ir.padding import pixel_at, place_of
from convgen.ir.problem import PLACES, ConvProblem, Op
from convgen.ir.tensor import Tensor

#: Gives a geometry value as an expression: ("extent", "h"), ("stride", "h"), ("dilation", "h"),
#: ("pad_lo", "h").  The extents of "c_in_group" and "k_in_group" are a group's channels.  Literal for
#: kernels, symbolic for teaching.
Geometry = Callable[[str, str], Expr]
#: Extents that `ConvProblem.extent` does not know.
_IN_GROUP = {"c_in_group": "c_per_group", "k_in_group": "k_per_group"}


def extent(problem: ConvProblem, dim: str) -> int:
    """Extent of a dim, also of the channels within a group."""
    return getattr(problem, _IN_GROUP[dim]) if dim in _IN_GROUP else problem.extent(dim)


def literal_geometry(problem: ConvProblem) -> Geometry:
    """Every value a number, or the formula of a size that a call decides."""
    axes = problem.spatial.input

    def value(kind: str, dim: str) -> Expr:
        if kind == "extent":
            return number(extent(problem, dim))
        return Integer(getattr(problem, kind)[axes.index(dim)])

    return value


def symbolic_geometry(problem: ConvProblem) -> Geometry:
    """Every value a symbol: extents in capitals (H, R, P), stride_h, dilation_h, pad_h.  A group has Cg
    and Kg channels."""
    in_group = "" if problem.groups == 1 else "g"

    def value(kind: str, dim: str) -> Expr:
        if kind == "extent":
            return symbol(dim[0].upper() + in_group if dim in _IN_GROUP else dim.upper())
        return symbol(f"pad_{dim}" if kind == "pad_lo" else f"{kind}_{dim}")

    return value


@dataclass(frozen=True)
class Variable:
    """An index of the matrix view or of a loop: runs over [0, extent)."""

    symbol: Symbol
    extent: int

    @property
    def name(self) -> str:
        return self.symbol.name


def variable(name: str, extent: int) -> Variable:
    return Variable(symbol(name), extent)


@dataclass(frozen=True)
class Bound:
    """low <= value < high must hold, or the element is outside the tensor and counts as zero.

    `dim` is the coordinate that the value is; of a place, the condition that the pixel stands there."""

    dim: str
    value: Expr
    low: int
    high: Expr


@dataclass(frozen=True)
class Divisible:
    """divisor must divide value, or no window starts there and the element counts as zero."""

    dim: str
    value: Expr
    divisor: Expr


@dataclass(frozen=True)
class Access:
    """How one tensor is addressed: a coordinate for each dim, the conditions, the element's offset.

    `extents` are the tensor's, as expressions, where they are not the literal ones.
    """

    tensor: Tensor
    coords: Mapping[str, Expr]
    bounds: tuple[Bound, ...] = ()
    divisible: tuple[Divisible, ...] = ()
    extents: tuple[Expr, ...] | None = None

    @property
    def offset(self) -> Expr:
        """Offset in elements from the tensor's base, unsimplified."""
        total: Expr = Integer(0)
        sizes = self.extents or tuple(map(number, self.tensor.extents))
        if self.tensor.pitch:
            sizes = (*sizes[:-1], Integer(self.tensor.pitch))
        for dim, size in zip(self.tensor.dims, sizes, strict=True):
            total = total * size + self.coords[dim]
        return total


@dataclass(frozen=True)
class IndexMap:
    """The maps of one matrix view: its variables, the loop coordinates, and an access for each tensor."""

    variables: tuple[Variable, ...]
    loop: Mapping[str, Expr]
    accesses: Mapping[str, Access]

    @property
    def ranges(self) -> Ranges:
        return {v.symbol: counted(v.extent) for v in self.variables}

    def simplified(self) -> IndexMap:
        """The same maps, simplified with the variables' ranges; conditions that always hold are dropped.

        For maps of literal geometry.
        """
        ranges = self.ranges

        def short(e: Expr) -> Expr:
            return integer.simplify(e, ranges)

        def may_fail(b: Bound) -> bool:
            low, high = integer.bounds(b.value, ranges)
            return low < b.low or high >= integer.bounds(b.high, ranges)[0]

        def one(access: Access) -> Access:
            bounds = (replace(b, value=short(b.value)) for b in access.bounds)
            return replace(
                access,
                coords={dim: short(e) for dim, e in access.coords.items()},
                bounds=tuple(b for b in bounds if may_fail(b)),
                divisible=tuple(
                    replace(d, value=short(d.value)) for d in access.divisible if short(mod(d.value, d.divisor)) != 0
                ),
            )

        return IndexMap(
            self.variables,
            {dim: short(e) for dim, e in self.loop.items()},
            {role: one(a) for role, a in self.accesses.items()},
        )

    def offset(self, role: str) -> Expr:
        """Simplified offset, in elements, of a tensor's element."""
        return integer.simplify(self.accesses[role].offset, self.ranges)


def decompose(index: Expr, dims: Sequence[str], extent: Callable[[str], Expr]) -> dict[str, Expr]:
    """Coordinates of a flat index over dims (outermost first): the chain of divisions of eq. 13 to 17.

    The outermost dim takes what is left, without a modulo.
    """
    coords: dict[str, Expr] = {}
    rest = index
    for dim in reversed(dims[1:]):
        coords[dim] = mod(rest, extent(dim))
        rest = floordiv(rest, extent(dim))
    if dims:
        coords[dims[0]] = rest
    return coords


FORWARD = (Op.FPROP, Op.WGRAD, Op.IM2COL)


def derive(
    problem: ConvProblem,
    variables: Sequence[Variable],
    loop: Mapping[str, Expr],
    geometry: Geometry | None = None,
) -> IndexMap:
    """Accesses of x, w, y, lowered and every operand and result of the epilogue from loop coordinates.

    `loop` gives an expression for each of n, the filter's dims, the channels, and the output's dims (the
    window is then placed forward) or the input's dims (backward).  Channels are c and k of all groups, or
    c_in_group, k_in_group and g; what follows from the others may be left out.  Tensors some of whose
    coordinates `loop` does not determine are left out.
    """
    geo = geometry or literal_geometry(problem)
    sp = problem.spatial
    at = _with_channels(problem, loop, geo)
    inside: list[Bound] = []
    starts: list[Bound] = []
    divisible: list[Divisible] = []
    for i, f, o in zip(sp.input, sp.filter, sp.output, strict=True):
        if f in at and o in at:
            position = at[o] * geo("stride", i) + at[f] * geo("dilation", i) - geo("pad_lo", i)
            at[i] = pixel_at(problem.padding, position, geo("extent", i))
            if not problem.padding.repeats:
                inside.append(Bound(i, at[i], 0, geo("extent", i)))
        elif f in at and i in at:
            position = at[i]
            if PLACES[i] in at:
                position, rest = place_of(problem.padding, at[i], at[PLACES[i]], geo("extent", i), geo("pad_lo", i))
                starts.append(Bound(PLACES[i], *rest))
            start = position + geo("pad_lo", i) - at[f] * geo("dilation", i)
            at[o] = floordiv(start, geo("stride", i))
            starts.append(Bound(o, at[o], 0, geo("extent", o)))
            divisible.append(Divisible(o, start, geo("stride", i)))

    def access(tensor: Tensor, c: str, bounds: list[Bound], divisors: list[Divisible]) -> Access | None:
        names = {d: c if d == "c" else d for d in tensor.dims}
        if not all(name in at for name in names.values()):
            return None
        extents = tuple(geo("extent", name) for name in names.values())
        return Access(tensor, {d: at[name] for d, name in names.items()}, tuple(bounds), tuple(divisors), extents)

    # the filter's c is the channel within the group, and so is c of an operand that broadcasts over it
    candidates = {
        "x": access(problem.x, "c", inside, []),
        "w": access(problem.w, "c_in_group", [], []),
        "y": access(problem.y, "c", starts, divisible),
    }
    if problem.lowered:
        candidates["lowered"] = access(problem.lowered, "c", starts, divisible)
    for like_result in (*problem.operands, *problem.further):
        in_group = problem.like(like_result).role == "w"
        candidates[like_result.name] = access(like_result, "c_in_group" if in_group else "c", [], [])
    return IndexMap(tuple(variables), at, {role: a for role, a in candidates.items() if a})


def _with_channels(problem: ConvProblem, loop: Mapping[str, Expr], geo: Geometry) -> dict[str, Expr]:
    """The loop's coordinates, and those of g, c, k, c_in_group and k_in_group that follow from them."""
    at = dict(loop)
    if problem.groups == 1:
        at.setdefault("g", Integer(0))
    for channel, in_group in (("k", "k_in_group"), ("c", "c_in_group")):
        if channel in at and "g" not in at:
            at["g"] = floordiv(at[channel], geo("extent", in_group))
    for channel, in_group in (("k", "k_in_group"), ("c", "c_in_group")):
        if channel in at and in_group not in at:
            at[in_group] = at[channel] if problem.groups == 1 else mod(at[channel], geo("extent", in_group))
        elif in_group in at and "g" in at and channel not in at:
            at[channel] = at["g"] * geo("extent", in_group) + at[in_group]
    return at


# ---- matrix views ------------------------------------------------------------------------------


def matrix_dims(problem: ConvProblem) -> dict[str, tuple[str, ...]]:
    """The dims of each index of the matrix view, outermost first.

    Matrix products have gemm_m, gemm_n and gemm_k, one product a group (g); dims that belong to the filter
    stand in its memory order, so that a filter's offset is gemm_k itself where its layout allows.  im2col's
    matrix has the axes of `lowered`: row and column.
    """
    sp = problem.spatial
    c, k = ("c", "k") if problem.groups == 1 else ("c_in_group", "k_in_group")
    window = {(c if d == "c" else d): None for d in problem.w.dims if d != "k"}
    window |= dict.fromkeys((*sp.filter, c))  # dims that the filter's layout leaves out
    taps = tuple(d for d in window if d in sp.filter)
    places = tuple(problem.places)
    match problem.op:
        case Op.FPROP:
            dims = {"gemm_m": ("n", *sp.output), "gemm_n": (k,), "gemm_k": tuple(window)}
        case Op.DGRAD:
            dims = {"gemm_m": ("n", *sp.input), "gemm_n": (c,), "gemm_k": (*taps, *places, k)}
        case Op.WGRAD:
            dims = {"gemm_m": (k,), "gemm_n": tuple(window), "gemm_k": ("n", *sp.output)}
        case Op.COL2IM:
            return {"gemm_m": ("n", *sp.input), "gemm_n": ("c",), "gemm_k": (*taps, *places)}
        case Op.IM2COL:
            return lowered_dims(problem)
    return dims if problem.groups == 1 else {"g": ("g",), **dims}


def lowered_dims(problem: ConvProblem) -> dict[str, tuple[str, ...]]:
    """The dims of row and column of the lowered matrix, outermost first, after the image if each image has its own
    matrix."""
    matrix = problem.lowered
    if matrix is None or matrix.axes is None:
        raise ValueError(f"{problem.name} has no lowered matrix")
    dims = iter(matrix.dims)
    names = ("image", "row", "column")[-len(matrix.axes) :]
    return {name: tuple(itertools.islice(dims, count)) for name, count in zip(names, matrix.axes, strict=True)}


def matrix_view(problem: ConvProblem, geometry: Geometry | None = None) -> IndexMap:
    """The maps of the operator as a matrix product (see `matrix_dims`), or of im2col's matrix, for written sizes."""
    if problem.op is Op.IM2COL:
        return lowered_view(problem, geometry)
    return _view(problem, matrix_dims(problem), {}, geometry)


def lowered_view(problem: ConvProblem, geometry: Geometry | None = None) -> IndexMap:
    """The maps from row and column of the lowered matrix to x and lowered."""
    sp = problem.spatial
    left_out = dict.fromkeys(("n", *sp.output, *sp.filter, "c"), Integer(0))  # such dims have extent 1
    return _view(problem, lowered_dims(problem), left_out, geometry)


def _view(
    problem: ConvProblem, dims: Mapping[str, tuple[str, ...]], loop: Mapping[str, Expr], geometry: Geometry | None
) -> IndexMap:
    problem = problem.static
    geo = geometry or literal_geometry(problem)
    at = dict(loop)
    variables = []
    for name, run in dims.items():
        index = variable(name, math.prod(extent(problem, d) for d in run))
        variables.append(index)
        at |= decompose(index.symbol, run, lambda d: geo("extent", d))
    return derive(problem, variables, at, geometry)


@dataclass(frozen=True)
class TmaAxis:
    """One spatial axis of a TMA im2col access, read off an index map (PTX ISA, "im2col mode").

    The box of start pixels is [lower, in - 1 + upper], walked in steps of `element_stride`; tap f adds
    `offset_base + f * offset_step` to it; the window of position o starts at o * element_stride + lower.
    """

    dim: str
    lower: int
    upper: int
    element_stride: int
    offset_base: int
    offset_step: int

    def offset(self, tap: int) -> int:
        return self.offset_base + tap * self.offset_step

    def offsets(self, taps: int) -> tuple[int, ...]:
        return tuple(self.offset(f) for f in range(taps))


def tma_axes(problem: ConvProblem) -> tuple[TmaAxis, ...]:
    """The tensor map's corners, element strides and offsets, outermost axis first.

    fprop and wgrad walk x over output positions; dgrad of unit stride walks y over input positions.
    The numbers are coefficients of the index map: position's is the element stride, the tap's the
    offset's step, the constant the corner.
    """
    sp = problem.spatial
    forward = problem.op in FORWARD
    walked, position = (sp.input, sp.output) if forward else (sp.output, sp.input)
    if not forward and any(s != 1 for s in problem.stride):
        raise ValueError("a strided dgrad has no single im2col box; split it by phase")
    loop = {d: symbol(d) for d in (*position, *sp.filter)}
    at = derive(problem, (), loop).loop
    rows = []
    for dim, pos, tap in zip(walked, position, sp.filter, strict=True):
        coefficient = {term: c for c, term in integer.expand_terms(at[dim])}
        scale, step = coefficient[symbol(pos)], coefficient[symbol(tap)]
        lowest = min(0, step * (problem.extent(tap) - 1))
        lower = coefficient.get(Integer(1), 0) + lowest
        last = lower + scale * (problem.extent(pos) - 1)
        rows.append(TmaAxis(dim, lower, last - (problem.extent(dim) - 1), scale, -lowest, step))
    return tuple(rows)
