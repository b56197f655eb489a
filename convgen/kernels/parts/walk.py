"""How a tile of x or w is read: rows by gemm_k, without a division in the k loop.

gemm_k is a mixed-radix number: its digits are the taps and the channel, in the order that the option
`order` names.  A tensor's offset is linear in the digits, so a thread keeps the digits of the chunk that it
loads and adds a constant number to them at every step, with carries.  Neighboring digits that the tensor's
layout (and its bounds) allow to run on are one: KRSC filters have a single digit, a 1x1 layer its channel.

A dgrad is walked phase by phase (`convgen.ir.phases`), x (y's gradient) forward and w from a phase's last tap to its
first; one of unit stride is a single phase.  What differs among phases are names in the text, how many taps among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from sympy import Expr, Integer, Symbol

from convgen.ir.formula import number as size_number
from convgen.ir.index_map import Access, IndexMap, Variable, derive, variable
from convgen.ir.index_map import Bound as Limit
from convgen.ir.integer import Ranges, symbol
from convgen.ir.phases import Phases
from convgen.ir.problem import ConvProblem
from convgen.ir.size import divisor
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.mma import CHUNK_BYTES
from convgen.kernels.parts.phase_table import PhaseTable

#: Order of gemm_k's digits, outermost first: "taps" are the filter's dims, "c" the channel of the group,
#: which "c_block" and "c_inner" split in two.
ORDERS: dict[str, tuple[str, ...]] = {
    "channel_first": ("taps", "c"),
    "channel_last": ("c", "taps"),
    "taps_inner": ("c_block", "taps", "c_inner"),
}


@dataclass(frozen=True)
class Move:
    """One unit of a digit moves a bounded coordinate by so much."""

    dim: str
    by: int


@dataclass(frozen=True)
class Digit:
    """One digit of gemm_k: one unit moves the tensor's offset by `step` elements.  Where its extent is a phase's, `end`
    is the name of it, and `extent` the most; `constant` is the name of an extent that the source defines."""

    name: str
    extent: int
    step: int
    moves: tuple[Move, ...] = ()
    end: str = ""
    constant: str = ""

    @property
    def limit(self) -> str:
        """C text of its extent."""
        return self.end or self.constant or str(self.extent)


@dataclass(frozen=True)
class Bound:
    """A coordinate that must lie in [0, extent), or the element counts as zero.  `row` is the part that comes from the
    row, or None."""

    dim: str
    row: Expr | None
    extent: int


@dataclass(frozen=True)
class Walk:
    """A tensor's elements over rows and gemm_k.  `of_row` is the offset's part that comes from the row (and its phase):
    elements that a unit of each coordinate takes, and under 1 those that are always there.  `extents` are those of the
    rows' coordinates."""

    tensor: Tensor
    digits: tuple[Digit, ...]
    bounds: tuple[Bound, ...]
    of_row: Mapping[Expr, int]
    ranges: Ranges
    extents: Mapping[str, int]

    @property
    def depth(self) -> int:
        """gemm_k."""
        return math.prod(d.extent for d in self.digits)

    @property
    def row(self) -> Expr:
        """The row's part of the offset."""
        return sum((size_number(step) * s for s, step in self.of_row.items()), Integer(0))

    @property
    def row_steps(self) -> tuple[int, ...]:
        """Coefficients and constant of the row's part of the offset."""
        return tuple(self.of_row.values())

    @cached_property
    def aligned(self) -> int:
        """Largest power of two that divides every offset at which digit 0 of the innermost begins a run of
        that many contiguous elements within the same bounds."""
        *outer, inner = self.digits
        if inner.step != 1 or inner.moves or inner.end:
            return 1
        steps = (*(d.step for d in outer), *self.row_steps, inner.extent)
        return _power_of_two(math.gcd(*map(divisor, steps)))

    @cached_property
    def rows_aligned(self) -> int:
        """The same of w's rows, output channels: of neighbors in memory, as many as every offset is a multiple of."""
        row = symbol("k_in_group")
        if self.of_row.get(row) != 1:
            return 1
        steps = (*(step for e, step in self.of_row.items() if e != row), *(d.step for d in self.digits))
        return _power_of_two(math.gcd(self.extents["k_in_group"], *map(divisor, steps)))

    @property
    def piece(self) -> int:
        """Largest power of two of consecutive k that share their bounds and lie a constant step apart."""
        inner = self.digits[-1]
        return 1 if inner.moves or inner.end else _power_of_two(inner.extent)


def number(digits: Sequence[Digit], value: int) -> tuple[int, ...]:
    """The digits of a number, outermost first; the outermost, or the first whose extent is a phase's, takes the
    rest."""
    found = []
    for digit in reversed(digits[1:]):
        value, rest = (0, value) if digit.end else divmod(value, digit.extent)
        found.append(rest)
    return (value, *reversed(found))


def _power_of_two(value: int) -> int:
    """Largest power of two that divides value, at most one chunk's bytes."""
    return math.gcd(value, CHUNK_BYTES)


def _coefficients(e: Expr) -> Mapping[Expr, int]:
    """The coefficients of a linear expression, by symbol; the constant is under 1."""
    return {symbol: int(value) for symbol, value in e.expand().as_coefficients_dict().items()}


def _offset(access: Access) -> Mapping[Expr, int]:
    """Elements of a tensor that a unit of each loop coordinate takes; the constant stands under 1."""
    found: dict[Expr, int] = {}
    for dim, e in access.coords.items():
        for s, count in _coefficients(e).items():
            if step := count * access.tensor.stride(dim):
                found[s] = found[s] + step if s in found else step
    return found


def loop_variables(problem: ConvProblem) -> tuple[Variable, ...]:
    """The coordinates of a convolution's loop nest, each a separate variable."""
    names = ("n", *problem.spatial.output, *problem.spatial.filter)
    return (
        *(variable(d, problem.extent(d)) for d in names),
        variable("g", problem.groups),
        variable("c_in_group", problem.c_per_group),
        variable("k_in_group", problem.k_per_group),
    )


@cache
def loop_map(problem: ConvProblem) -> IndexMap:
    """The accesses over `loop_variables`: every offset is linear, every bound that can fail is there."""
    variables = loop_variables(problem)
    return derive(problem, variables, {v.name: v.symbol for v in variables}).simplified()


@cache
def phase_map(problem: ConvProblem, phases: Phases) -> IndexMap:
    """The same of a dgrad's `phases`, where `problem` is its assignment: over the positions and the taps of a phase."""
    table, sp = PhaseTable(phases, problem.spatial), problem.spatial
    counts = {o: axis.positions for o, axis in zip(sp.output, phases.axes, strict=True)}
    counts |= {f: table.most(f"{f}_taps") for f in sp.filter}
    variables = tuple(replace(v, extent=counts.get(v.name, v.extent)) for v in loop_variables(problem))
    at: dict[str, Expr] = {v.name: v.symbol for v in variables}
    limits = []
    for i, f, o, axis in zip(sp.input, sp.filter, sp.output, phases.axes, strict=True):
        at[i] = at[o] + axis.walk.lower + table.value(f"start_{i}") + axis.offset_step * at[f]
        limits.append(Limit(i, at[i], 0, size_number(problem.extent(i))))
        at[f] = table.value(f"last_{f}") - axis.tap_step * at[f]
    of_w = {**at, "c": at["c_in_group"], "k": at["g"] * problem.k_per_group + at["k_in_group"]}
    of_x = {**at, "c": at["g"] * problem.c_per_group + at["c_in_group"]}
    accesses = {
        "x": Access(problem.x, {d: of_x[d] for d in problem.x.dims}, tuple(limits)),
        "w": Access(problem.w, {d: of_w[d] for d in problem.w.dims}),
    }
    return IndexMap((*variables, *table.variables), at, accesses).simplified()


@cache
def walk(problem: ConvProblem, role: str, order: str, block: int, phases: Phases | None = None) -> Walk:
    """The walk of x or w.  `block` is the channels of a block in the order taps_inner; `phases` those of a dgrad, whose
    assignment the problem is."""
    maps = phase_map(problem, phases) if phases else loop_map(problem)
    extents = {v.name: v.extent for v in maps.variables}
    access = maps.accesses[role]
    offset = _offset(access)
    taps = [symbol(f) for f in problem.spatial.filter]
    channel = symbol("c_in_group")
    limits = {b.dim: (_coefficients(b.value), problem.extent(b.dim)) for b in access.bounds}
    if order == "taps_inner" and problem.c_per_group % block:
        limits["c_in_group"] = ({channel: 1}, problem.c_per_group)

    varying = PhaseTable(phases, problem.spatial).names if phases else ()

    def digit(name: str, source: Symbol, extent: int, scale: int = 1) -> Digit:
        moves = [Move(dim, scale * c[source]) for dim, (c, _) in limits.items() if c.get(source)]
        end = f"{name}_taps" if f"{name}_taps" in varying else ""
        return Digit(name, extent, scale * offset.get(source, 0), tuple(moves), end)

    digits: list[Digit] = []
    for part in ORDERS[order]:
        if part == "taps":
            digits += [digit(t.name, t, extents[t.name]) for t in taps]
        elif part == "c":
            digits.append(digit("c", channel, problem.c_per_group))
        elif part == "c_block":
            digits.append(digit("c_block", channel, -(-problem.c_per_group // block), block))
        else:
            digits.append(digit("c_inner", channel, block))
    inner = {*taps, channel}

    def row(coefficients: Mapping[Expr, int]) -> Expr:
        return sum((c * s for s, c in coefficients.items() if s not in inner), Integer(0))

    bounds = tuple(Bound(dim, None if dim == "c_in_group" else row(c), high) for dim, (c, high) in limits.items())
    of_row = {s: step for s, step in offset.items() if s not in inner}
    return Walk(problem.tensor(role), merge(digits), bounds, of_row, maps.ranges, extents)


def merge(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The same number with as few digits as can be: digits of extent 1 go, and two neighbors become one
    where the inner one's end meets the outer one's next unit, in every phase."""
    kept: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        outer = kept[-1] if kept else None
        apart = not outer or outer.end or digit.end or outer.moves or digit.moves
        if outer and not apart and outer.step == digit.step * digit.extent:
            kept[-1] = replace(digit, name=outer.name + digit.name, extent=outer.extent * digit.extent)
        else:
            kept.append(digit)
    return tuple(kept) or (Digit("c", 1, 1),)
