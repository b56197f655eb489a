"""How consumers lay filters out in shared memory, with zeros between packed groups, folded rows or phases."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir import integer
from convgen.ir.index_map import Access, decompose
from convgen.ir.integer import floordiv, mod, symbol
from convgen.kernels.parts import copies, lowering, swizzle
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.tma_halo.halo import phased, windows
from convgen.kernels.tma_halo.layout import Layout
from convgen.kernels.tma_halo.maps import filter_vector


@dataclass(frozen=True)
class Filters:
    """How consumers lay a block's filters out in shared memory, as C: `vectors` of `vector` elements each, neighbors
    along `along` (c or k), of which number `at` is at `coordinates` and at `offset` in w.  It goes to the packed
    group's `channel` and, for each i below `copies`, to the channels of the output row or phase `folded`, in tap `tap`
    of the window.  `mask`: the swizzle's bits;
    `threads`: those of all consumers."""

    vector: int
    along: str
    type: str
    vectors: int
    in_flight: int
    coordinates: tuple[tuple[str, str], ...]
    offset: str
    channel: str
    copies: int
    folded: str
    tap: tuple[str, str]
    mask: int
    threads: int
    constants: tuple[Definition, ...]  # definitions of those that these mention

    @property
    def at_once(self) -> int:
        """Vectors that all consumers load before they store them."""
        return self.in_flight * self.threads

    @property
    def words(self) -> int:
        """Words of two elements in a vector."""
        return self.vector // 2

    @property
    def barrier(self) -> int:
        """The barrier of all consumers, numbered after those of each."""
        return self.threads // 128 + 1


def filters(layout: Layout) -> Filters:
    given, problem, config = layout.assigned.problem, layout.read, layout.config
    w, vector, taps = given.w, filter_vector(given.w), problem.spatial.filter
    along = "k" if w.innermost in ("k", "k_in_group") else "c"
    vector = math.gcd(vector, config.own_channels if along == "k" else w.extent("c"))
    if along == "k" and config.group_pack > 1:  # a vector's channels are of one group
        vector = math.gcd(vector, given.k_per_group)
    extents = {"k": config.own_channels, "c": w.extent("c"), **{d: problem.extent(d) for d in taps}}
    extents[along] //= vector
    vectors = math.prod(extents.values())
    if along == "c":  # neighboring threads read neighbors
        order = [*(d for d in w.dims if d in extents), *(d for d in extents if d not in w.dims)]
    else:  # or write neighbors
        order = [*taps, "k", "c"]
    at = symbol("at")
    last = given.k - 1 if layout.uneven else max(given.k - config.own_channels, 0)
    ranges = {at: (0, vectors - 1), symbol("k0"): (0, last)}
    coordinates = decompose(at, order, lambda d: Integer(extents[d]))
    own = "own_channels" if config.fold > 1 else "tile_channels"
    constants = Constants(file={own: config.own_channels})
    names = {"k": own, "c": "Cg" if given.groups > 1 else "C"} | ({along: "channel_vectors"} if vector > 1 else {})
    of_at = constants.of_index(order, extents.__getitem__, lambda d: names.get(d, f"filter_{d}"))
    coordinates[along] *= vector
    coordinates["k"] = symbol("k0") + coordinates["k"]
    known = {symbol("k"): (0, given.k - 1), symbol("c"): (0, w.extent("c") - 1)}
    known |= {symbol(d): (0, problem.extent(d) - 1) for d in taps} | {symbol("k0"): ranges[symbol("k0")]}
    group, in_group = floordiv(symbol("k"), given.k_per_group), mod(symbol("k"), given.k_per_group)
    lies = {**{d: symbol(d) for d in w.dims}, "g": group, "k_in_group": in_group}
    if layout.assigned.mirrored:
        lies |= {d: problem.extent(d) - 1 - symbol(d) for d in taps}
    place = integer.simplify(Access(w, {d: lies[d] for d in w.dims}).offset, known)
    channel = symbol("c") + mod(group, config.group_pack) * given.c_per_group
    known[symbol("i")] = (0, config.fold - 1)
    of_group = constants.of_group(given.c_per_group, given.k_per_group, config.group_pack)
    first_row, *tap = (
        c_expr(integer.simplify(e, known), known)
        for e in (_phase_place(layout) if layout.strided else _folded_place(layout))
    )
    return Filters(
        vector, along, lowering.ACCESS[2 * vector], vectors,
        min(-(-vectors // (128 * config.consumers)), copies.IN_FLIGHT),
        tuple((d, c_expr(integer.simplify(e, ranges), ranges, names=of_at)) for d, e in coordinates.items()),
        c_expr(place, known, names=constants.strides(w, index=of_group)),
        c_expr(integer.simplify(channel, known), known, names=of_group),
        1 if layout.strided else config.fold,
        "" if first_row == "0" else f"({first_row})" if " " in first_row else first_row, (tap[0], tap[1]),
        swizzle.mask(config.tile_k * w.element.bytes), 128 * config.consumers,
        constants.all,
    )  # fmt: skip


def _folded_place(layout: Layout) -> tuple[Expr, Expr, Expr]:
    """Where row i of a fold has tap (r, s): the row, and the window's tap along h and w."""
    h, _ = windows(layout.read)
    step, dilation = layout.windows[1].step, h.offsets[1] if len(h.offsets) > 1 else 0
    i, r = symbol("i"), symbol("r") if layout.read.rank > 1 else Integer(0)
    return i if layout.config.fold > 1 else Integer(0), i * (h.stride // step) + r * (dilation // step), symbol("s")


def _phase_place(layout: Layout) -> tuple[Expr, Expr, Expr]:
    """The phase that tap (r, s) is of, and its place in the window that all phases share (see halo.Phased)."""
    given = layout.problem
    phase, found = Integer(0), [Integer(0)] * (2 - given.rank)
    for axis, d, pad, dilation in zip(phased(given), given.spatial.filter, given.pad_lo, given.dilation, strict=True):
        whole = -(-pad // axis.stride)
        reached = dilation * symbol(d) + whole * axis.stride - pad
        phase = phase * axis.stride + mod(reached, axis.stride)
        first = whole - axis.window.lower - floordiv(reached, axis.stride)
        found.append(floordiv(first, Integer(axis.window.step)))
    return phase, found[0], found[1]
