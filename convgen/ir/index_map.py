"""Index maps: from a matrix view of a convolution to coordinates of its tensors.

One derivation for each direction of the window.  `decompose` turns a flat index into the dims that it
runs over, by the chain of divisions of H. Zhang, "A Simple and Efficient Implementation of im2col in
Convolution Neural Networks" (2017), eq. 13 to 19: u = (p / F) % F, v = p % F, d0 = (p / F) / F,
i1 = q / W1, j1 = q % W1.  `derive` then places the window, eq. 18, 19 and 20 with stride, dilation,
(low, high) padding, groups and one to three axes:

    forward   (fprop, wgrad, im2col)  h = p * stride + r * dilation - pad_lo
    backward  (dgrad, col2im)         p = (h + pad_lo - r * dilation) / stride, where stride divides it

Everything downstream reads these maps: C text, the emulator's checks, tensor maps (`tma_axes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer, Symbol

from convgen.ir import integer
from convgen.ir.integer import Ranges, floordiv, mod, symbol
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor

#: Gives a geometry value as an expression: ("extent", "h"), ("stride", "h"), ("dilation", "h"),
#: ("pad_lo", "h"), ("c_per_group", "").  Literal for kernels, symbolic for teaching.
Geometry = Callable[[str, str], Expr]


def literal_geometry(problem: ConvProblem) -> Geometry:
    """Every value a number."""
    axes = problem.spatial.input

    def value(kind: str, dim: str) -> Expr:
        if kind == "extent":
            return Integer(problem.extent(dim))
        if kind in ("c_per_group", "k_per_group"):
            return Integer(getattr(problem, kind))
        return Integer(getattr(problem, kind)[axes.index(dim)])

    return value


def symbolic_geometry(problem: ConvProblem) -> Geometry:
    """Every value a symbol: extents in capitals (H, R, P), stride_h, dilation_h, pad_h."""
    short = {"pad_lo": "pad"}

    def value(kind: str, dim: str) -> Expr:
        if kind == "extent":
            return symbol(dim.upper())
        if kind in ("c_per_group", "k_per_group"):
            return symbol(kind[0].upper()) if problem.groups == 1 else symbol(kind[0].upper() + "g")
        return symbol(f"{short.get(kind, kind)}_{dim}")

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
    """low <= value < high must hold, or the element is outside the tensor and counts as zero."""

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
    """How one tensor is addressed: a coordinate for each dim, the conditions, the element's offset."""

    tensor: Tensor
    coords: Mapping[str, Expr]
    bounds: tuple[Bound, ...] = ()
    divisible: tuple[Divisible, ...] = ()

    @property
    def offset(self) -> Expr:
        """Offset in elements from the tensor's base, unsimplified."""
        total: Expr = Integer(0)
        for dim, stride in zip(self.tensor.dims, self.tensor.strides, strict=True):
            total = total + stride * self.coords[dim]
        return total


@dataclass(frozen=True)
class IndexMap:
    """The maps of one matrix view: its variables, the loop coordinates, and an access for each tensor."""

    variables: tuple[Variable, ...]
    loop: Mapping[str, Expr]
    accesses: Mapping[str, Access]

    @property
    def ranges(self) -> Ranges:
        return {v.symbol: (0, v.extent - 1) for v in self.variables}

    def simplified(self) -> IndexMap:
        """The same maps, simplified with the variables' ranges; bounds that always hold are dropped.

        For maps of literal geometry.
        """
        ranges = self.ranges

        def one(access: Access) -> Access:
            kept = []
            for b in access.bounds:
                value = integer.simplify(b.value, ranges)
                lo, hi = integer.bounds(value, ranges)
                if lo < b.low or hi >= int(b.high):
                    kept.append(replace(b, value=value))
            divisible = [replace(d, value=integer.simplify(d.value, ranges)) for d in access.divisible if d.divisor != 1]
            return replace(
                access,
                coords={dim: integer.simplify(e, ranges) for dim, e in access.coords.items()},
                bounds=tuple(kept),
                divisible=tuple(divisible),
            )

        return IndexMap(
            self.variables,
            {dim: integer.simplify(e, ranges) for dim, e in self.loop.items()},
            {role: one(a) for role, a in self.accesses.items()},
        )

    def offset(self, role: str) -> Expr:
        """Simplified offset, in elements, of a tensor's element."""
        return integer.simplify(self.accesses[role].offset, self.ranges)


def decompose(index: Expr, dims: Sequence[str], extent: Callable[[str], Expr]) -> dict[str, Expr]:
    """Coordinates of a flat index over dims (outermost first): the chain of divisions of seed eq. 13-17.

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
    """Accesses of x, w, y, lowered and every operand of the epilogue from loop coordinates.

    `loop` gives an expression for each of n, the filter's dims, c and k (all groups' channels), and for
    the output's dims (forward) or the input's dims (backward).  With groups, `loop` may give c and k of
    the group (`c_in_group`, `k_in_group`) and g instead.  Tensors some of whose coordinates `loop` does
    not determine are left out.
    """
    geo = geometry or literal_geometry(problem)
    sp = problem.spatial
    at = dict(loop)
    at.setdefault("g", Integer(0)) if problem.groups == 1 else None
    if "c_in_group" in at and "g" in at:
        at["c"] = at["g"] * geo("c_per_group", "") + at["c_in_group"]
    if "k_in_group" in at and "g" in at:
        at["k"] = at["g"] * geo("k_per_group", "") + at["k_in_group"]
    if problem.groups == 1 and "c" in at:
        at["c_in_group"] = at["c"]

    bounds: dict[str, list[Bound]] = {"x": [], "y": []}
    divisible: list[Divisible] = []
    for i, f, o in zip(sp.input, sp.filter, sp.output, strict=True):
        if problem.op in FORWARD and o in at and f in at:
            at[i] = at[o] * geo("stride", i) + at[f] * geo("dilation", i) - geo("pad_lo", i)
            bounds["x"].append(Bound(i, at[i], 0, geo("extent", i)))
        elif problem.op not in FORWARD and i in at and f in at:
            start = at[i] + geo("pad_lo", i) - at[f] * geo("dilation", i)
            at[o] = floordiv(start, geo("stride", i))
            divisible.append(Divisible(o, start, geo("stride", i)))
            bounds["y"].append(Bound(o, at[o], 0, geo("extent", o)))

    tensors: dict[str, Tensor] = {"x": problem.x, "w": problem.w, "y": problem.y}
    if problem.lowered:
        tensors["lowered"] = problem.lowered
    tensors |= {t.name: t for t in problem.operands}
    accesses = {}
    for role, tensor in tensors.items():
        # the filter's c is the channel within the group
        coords = {d: at.get("c_in_group" if role == "w" and d == "c" else d) for d in tensor.dims}
        if any(e is None for e in coords.values()):
            continue
        condition = role if role in bounds else ("y" if role == "lowered" and problem.op is Op.COL2IM else "")
        accesses[role] = Access(
            tensor,
            coords,
            tuple(bounds.get(condition, ())),
            tuple(divisible) if condition == "y" else (),
        )
    return IndexMap(tuple(variables), at, accesses)


@dataclass(frozen=True)
class TmaAxis:
    """One spatial axis of a TMA im2col access, read off an index map (PTX ISA, "im2col mode").

    The box of start pixels is [lower, in - 1 + upper], walked in steps of `element_stride`; tap f adds
    `offset_base + f * offset_step` to it; output position o starts at o * start_scale + lower.
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
        start = integer.simplify(at[dim], {symbol(d): (0, problem.extent(d) - 1) for d in (pos, tap)})
        scale = int(start.coeff(symbol(pos)))
        step = int(start.coeff(symbol(tap)))
        constant = int(start.subs({symbol(pos): 0, symbol(tap): 0}))
        lowest = min(0, step * (problem.extent(tap) - 1))
        lower = constant + lowest
        last = lower + scale * (problem.extent(pos) - 1)
        rows.append(TmaAxis(dim, lower, last - (problem.extent(dim) - 1), scale, -lowest, step))
    return tuple(rows)
