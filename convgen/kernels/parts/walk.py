"""How a tile of x or w is read: rows by gemm_k, without a division in the k loop.

gemm_k is a mixed-radix number: its digits are the taps and the channel, in the order that the option
`order` names.  A tensor's offset is linear in the digits, so a thread keeps the digits of the chunk that it
loads and adds a constant number to them at every step, with carries.  Neighboring digits that the tensor's
layout (and its bounds) allow to run on are one: KRSC filters have a single digit, a 1x1 layer its channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from sympy import Expr, Integer, Symbol

from convgen.ir.formula import number as size_number
from convgen.ir.index_map import Access, IndexMap, Variable, derive, variable
from convgen.ir.integer import Ranges, symbol
from convgen.ir.problem import ConvProblem
from convgen.ir.size import divisor
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.mma import CHUNK_BYTES

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
    """One digit of gemm_k: one unit moves the tensor's offset by `step` elements."""

    name: str
    extent: int
    step: int
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A coordinate must lie in [0, extent), or the element counts as zero.  `row` is its part that comes
    from the row, None where there is none."""

    dim: str
    row: Expr | None
    extent: int


@dataclass(frozen=True)
class Walk:
    """A tensor's elements over rows and gemm_k.  `of_row` is the offset's part that comes from the row: elements that a
    unit of each coordinate takes, and under 1 those that are always there."""

    tensor: Tensor
    digits: tuple[Digit, ...]
    bounds: tuple[Bound, ...]
    of_row: Mapping[Expr, int]
    ranges: Ranges

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
        if inner.step != 1 or inner.moves:
            return 1
        steps = (*(d.step for d in outer), *self.row_steps, inner.extent)
        return _power_of_two(math.gcd(*map(divisor, steps)))

    @property
    def piece(self) -> int:
        """Largest power of two of consecutive k that share their bounds and lie a constant step apart."""
        inner = self.digits[-1]
        return 1 if inner.moves else _power_of_two(inner.extent)


def number(digits: Sequence[Digit], value: int) -> tuple[int, ...]:
    """Digits of a number, outermost first; the outermost takes what is left."""
    found = []
    for digit in reversed(digits[1:]):
        value, rest = divmod(value, digit.extent)
        found.append(rest)
    return (value, *reversed(found))


def _power_of_two(value: int) -> int:
    """Largest power of two that divides value, at most one chunk's bytes."""
    return math.gcd(value, CHUNK_BYTES)


def _coefficients(e: Expr) -> Mapping[Expr, int]:
    """Of a linear expression, by symbol; the constant stands under 1."""
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
    """The coordinates of a convolution's loop nest, each a variable of its own."""
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
def walk(problem: ConvProblem, role: str, order: str, block: int) -> Walk:
    """The walk of x or w.  `block` is the channels of a block in the order taps_inner."""
    maps = loop_map(problem)
    access = maps.accesses[role]
    offset = _offset(access)
    taps = [symbol(f) for f in problem.spatial.filter]
    channel = symbol("c_in_group")
    limits = {b.dim: (_coefficients(b.value), problem.extent(b.dim)) for b in access.bounds}
    if order == "taps_inner" and problem.c_per_group % block:
        limits["c_in_group"] = ({channel: 1}, problem.c_per_group)

    def digit(name: str, source: Symbol, extent: int, scale: int = 1) -> Digit:
        moves = [Move(dim, scale * c[source]) for dim, (c, _) in limits.items() if c.get(source)]
        return Digit(name, extent, scale * offset.get(source, 0), tuple(moves))

    digits: list[Digit] = []
    for part in ORDERS[order]:
        if part == "taps":
            digits += [digit(t.name, t, problem.extent(t.name)) for t in taps]
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
    return Walk(problem.tensor(role), merge(digits), bounds, of_row, maps.ranges)


def merge(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The same number with as few digits as can be: digits of extent 1 go, and two neighbors become one
    where the inner one's end meets the outer one's next unit."""
    kept: list[Digit] = []
    for digit in digits:
        if digit.extent == 1:
            continue
        outer = kept[-1] if kept else None
        if outer and outer.step == digit.step * digit.extent and not outer.moves and not digit.moves:
            kept[-1] = replace(digit, name=outer.name + digit.name, extent=outer.extent * digit.extent)
        else:
            kept.append(digit)
    return tuple(kept) or (Digit("c", 1, 1),)
