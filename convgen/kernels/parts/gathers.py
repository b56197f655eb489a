"""Copies that rearrange an operand by gathering: each thread makes a vector of the target, element by element."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir import integer
from convgen.ir.index_map import Access, decompose
from convgen.ir.integer import Ranges, symbol
from convgen.ir.padding import pixel_at
from convgen.ir.problem import Padding
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.copies import THREADS, VECTOR, Copy, target_name
from convgen.kernels.parts.lowering import CONVERSIONS, INT_LIMIT


@dataclass(frozen=True)
class Gather:
    """A copy in which each thread makes one vector: C text of the coordinates, of the tests that the source has the
    channel, and of its element's offset.  If the tests `inside` fail, the element is NaN."""

    copy: Copy
    index: str
    coordinates: tuple[tuple[str, str], ...]
    channel: str
    tests: tuple[str, ...]
    inside: tuple[str, ...]
    offset: str
    constants: tuple[Definition, ...]  # definitions of those that these mention

    template = "gather"

    @property
    def nan(self) -> str:
        """Bits of NaN."""
        return CONVERSIONS[self.copy.source.dtype].nan

    @property
    def value(self) -> str:
        """C text of an element."""
        text = f"source[{self.offset}]"
        if self.inside:
            text = f"inside ? {text} : {self.nan}"
        if self.tests:
            return f"{' && '.join(self.tests)} ? {f'({text})' if self.inside else text} : 0"
        return text

    @property
    def vectors(self) -> int:
        return self.copy.target.size // VECTOR

    @property
    def blocks(self) -> int:
        return -(-self.vectors // THREADS)

    @property
    def shared_bytes(self) -> int:
        return 0


def gather(copy: Copy) -> Gather:
    source, target = copy.source, copy.target
    index = "int" if max(source.span, target.size) + THREADS * VECTOR < INT_LIMIT else "long long"
    extents = {d: target.extent(d) for d in target.dims}
    extents["c"] //= VECTOR
    number = symbol("number")
    ranges = {number: (0, target.size // VECTOR - 1)}
    at = decompose(number, target.dims, lambda d: Integer(extents[d]))
    constants = Constants()
    of_number = constants.of_index(
        target.dims, extents.__getitem__, lambda d: "channel_vectors" if d == "c" else target_name(copy, d)
    )
    coordinates = []
    for dim, value in at.items():
        value = value * VECTOR if dim == "c" else value
        name = "first" if dim == "c" else dim
        coordinates.append((name, c_expr(integer.simplify(value, ranges), ranges, index, of_number)))
    known = {symbol(d): (0, target.extent(d) - 1) for d in target.dims}
    low, high = integer.bounds(copy.channel, known)
    tests = ["channel >= 0"] * (low < 0)
    if high >= source.extent("c"):
        name = "Cg" if copy.group[0] > 1 else "channels"
        tests.append(f"channel < {constants.number(name, source.extent('c'))}")
    tests += _of_taps(copy, known, index, constants)
    channel = symbol("channel")
    known[channel] = (0, source.extent("c") - 1)
    own = integer.simplify(copy.channel, known)
    inside, padded = _inside(copy, known, index, constants)
    pixel = {d: pixel_at(copy.padding, copy.position(d), Integer(source.extent(d))) for d in source.dims if d != "c"}
    place = integer.simplify(Access(source, {"c": channel, **pixel}).offset, known)
    used = {str(s) for s in (place.free_symbols | own.free_symbols)} | padded
    coordinates = [(d, text) for d, text in coordinates if d == "first" or d in used]
    of_group = constants.of_group(*copy.group)
    texts = (
        tuple(coordinates[::-1]), c_expr(own, known, index, of_group), tuple(tests), inside,
        c_expr(place, known, index, constants.strides(source, index=of_group, name="source")),
    )  # fmt: skip
    return Gather(copy, index, *texts, constants.within(str(texts)))


def _of_taps(copy: Copy, known: Ranges, index: str, constants: Constants) -> list[str]:
    """C text of the tests that a channel is that of a tap, and its pixel inside of the source."""
    taps, source = copy.taps, copy.source
    if taps is None:
        return []
    channels = taps.count * source.extent("c")
    last = []
    if copy.target.extent("c") > channels:
        last.append(f"c < {constants.number('row_channels', channels)}")
    return last + _within(copy, taps.dim, {**known, symbol("c"): (0, channels - 1)}, index, constants)


def _within(copy: Copy, dim: str, known: Ranges, index: str, constants: Constants) -> list[str]:
    """C text of the tests that can fail of an element's position along a dim of the source."""
    low, high = integer.bounds(copy.position(dim), known)
    text, extent = c_expr(integer.simplify(copy.position(dim), known), known, index), copy.source.extent(dim)
    tests = [f"{text} >= 0"] * (low < 0)
    return [*tests, f"{text} < {constants.extent(dim, extent)}"] if high >= extent else tests


def _inside(copy: Copy, known: Ranges, index: str, constants: Constants) -> tuple[tuple[str, ...], set[str]]:
    """C text of the tests that an element is no padding, where that is NaN, and the dims that they name."""
    tests, dims = [], set()
    for dim, _ in copy.low if copy.padding is Padding.NAN else ():
        found = _within(copy, dim, known, index, constants)
        tests += found
        dims |= {dim} if found else set()
    return tuple(tests), dims
