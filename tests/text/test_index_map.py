"""Index maps against plain loops over random geometry, and against the algorithms of the paper that they follow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from effort import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import element, inside, loop_nest, make, operands, problems
from sympy import Integer

from convgen.ir import epilogue as ep
from convgen.ir import index_map, integer
from convgen.ir.index_map import derive, extent, lowered_view, matrix_view, symbolic_geometry, variable
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.problem import OPS, Op, Padding

GEMM_OPS = (Op.FPROP, Op.DGRAD, Op.WGRAD)
LOWERED_OPS = (Op.IM2COL, Op.COL2IM)


# ---- the two sides -----------------------------------------------------------------------------


def roles_of(problem):
    return (*OPS[problem.op].reads, OPS[problem.op].writes, *(t.name for t in problem.operands))


def by_loops(problem):
    """The offsets that each multiply-add touches, by plain loops."""
    touched = Counter()
    for at in loop_nest(problem):
        if problem.op in LOWERED_OPS and at["k"] % problem.k_per_group:
            continue  # no output channels here
        if inside(problem, at):
            touched[tuple(element(problem, role, at) for role in roles_of(problem))] += 1
    return touched


def evaluated(e, values, size):
    return np.broadcast_to(integer.evaluate(e, values), size)


def by_map(problem, maps, geometry_values=None):
    """The same from an index map, at every assignment of its variables.  Checks coordinates on the way."""
    extents = [v.extent for v in maps.variables]
    grid = np.indices(extents).reshape(len(extents), -1)
    values = {v.symbol: column for v, column in zip(maps.variables, grid, strict=True)}
    values |= geometry_values or {}
    size = grid.shape[1]
    holds = np.ones(size, bool)
    for role in roles_of(problem):
        for b in maps.accesses[role].bounds:
            value = evaluated(b.value, values, size)
            holds &= (b.low <= value) & (value < evaluated(b.high, values, size))
        for d in maps.accesses[role].divisible:
            holds &= evaluated(d.value, values, size) % evaluated(d.divisor, values, size) == 0
    columns = []
    for role in roles_of(problem):
        access = maps.accesses[role]
        for dim, coordinate in access.coords.items():
            value = evaluated(coordinate, values, size)[holds]
            assert ((value >= 0) & (value < access.tensor.extent(dim))).all(), (role, dim)
        columns.append(evaluated(access.offset, values, size)[holds])
        if geometry_values is None:
            short = evaluated(maps.offset(role), values, size)[holds]
            np.testing.assert_array_equal(short, columns[-1])
    return Counter(zip(*(c.tolist() for c in columns), strict=True))


def geometry_values(problem):
    """The numbers behind `symbolic_geometry`."""
    geo = symbolic_geometry(problem)
    sp = problem.spatial
    dims = ("n", "c", "k", "g", "c_in_group", "k_in_group", *sp.input, *sp.filter, *sp.output, *problem.places)
    values = {geo("extent", d): extent(problem, d) for d in dims}
    for axis, d in enumerate(sp.input):
        values |= {geo(kind, d): getattr(problem, kind)[axis] for kind in ("stride", "dilation", "pad_lo")}
    return values


@st.composite
def bias(draw, result):
    """An epilogue with an operand, so that operands' maps are tried too."""
    b = draw(operands(result, "b"))
    return ep.Epilogue((b,), (ep.Assignment("out", ep.Binary("+", ep.Acc(), ep.OperandRef("b"))),))


# ---- brute force -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems(work=1500, epilogues=bias, paddings=tuple(Padding)))
def test_matrix_view_is_the_loop_nest(problem):
    """fprop, dgrad, wgrad, im2col, col2im: as derived, simplified, and with symbolic geometry."""
    expected = by_loops(problem)
    maps = matrix_view(problem)
    assert by_map(problem, maps) == expected
    assert by_map(problem, maps.simplified()) == expected
    symbolic = matrix_view(problem, symbolic_geometry(problem))
    assert by_map(problem, symbolic, geometry_values(problem)) == expected


@settings(max_examples=60, deadline=None)
@given(problems(ops=LOWERED_OPS, work=600, epilogues=bias, paddings=tuple(Padding)))
def test_lowered_view_is_the_loop_nest(problem):
    """From row and column of the matrix, which places the window forward for col2im as well."""
    # an operand of col2im belongs to a pixel, which lies outside of x in the padding
    maps = lowered_view(problem)
    assert by_map(problem, maps) == by_map(problem, maps.simplified()) == by_loops(problem)


@pytest.mark.costly
@pytest.mark.parametrize("channels", [("g", "c_in_group", "k_in_group"), ("c", "k_in_group"), ("k", "c_in_group")])
@settings(max_examples=40, deadline=None)
@given(problem=problems(ops=GEMM_OPS, work=600, paddings=tuple(Padding)))
def test_loops_of_a_kernels_own(channels, problem):
    """`derive` from loop counters: all channels or a group's, output positions or input positions."""
    sp = problem.spatial
    expected = by_loops(problem)
    for positions in (sp.output, sp.input):
        places = problem.places if positions is sp.input else ()
        variables = [variable(d, extent(problem, d)) for d in ("n", *positions, *places, *sp.filter, *channels)]
        maps = derive(problem, variables, {v.name: v.symbol for v in variables})
        assert by_map(problem, maps) == expected
        assert by_map(problem, maps.simplified()) == expected


@settings(max_examples=60, deadline=None)
@given(problems(work=600, paddings=tuple(Padding)))
def test_simplified_maps_take_no_more_operations(problem):
    maps = matrix_view(problem)
    short = maps.simplified()
    for role, access in maps.accesses.items():
        for dim, e in access.coords.items():
            assert integer.count_operations(short.accesses[role].coords[dim]) <= integer.count_operations(e)
        assert integer.count_operations(maps.offset(role)) <= integer.count_operations(access.offset)
        assert set(short.accesses[role].bounds) <= {
            index_map.replace(b, value=integer.simplify(b.value, maps.ranges)) for b in access.bounds
        }


def test_what_the_loop_does_not_determine_is_left_out():
    problem = make(c=2, k=3)
    loop = {"n": Integer(0), "p": symbol("p"), "q": symbol("q"), "k": symbol("k")}
    maps = derive(problem, (variable("p", 2), variable("q", 2), variable("k", 3)), loop)
    assert set(maps.accesses) == {"y"}


def test_a_view_of_a_matrix_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="example has no lowered matrix"):
        lowered_view(make())


# ---- known forms -------------------------------------------------------------------------------


def test_pointwise_nhwc_is_a_plain_matrix_product():
    maps = matrix_view(make(n=8, c=64, k=128, input=(14, 14), filter=(1, 1)))
    m, n, k = (v.symbol for v in maps.variables)
    assert maps.offset("x") == 64 * m + k
    assert maps.offset("w") == 64 * n + k
    assert maps.offset("y") == 128 * m + n
    assert all(not a.bounds and not a.divisible for a in maps.simplified().accesses.values())


def test_strided_pointwise_recombines_pixels():
    """Stride 2 over an even extent: rows of all images lie a constant step apart."""
    maps = matrix_view(make(n=8, c=64, k=128, input=(14, 14), filter=(1, 1), stride=2))
    m, _, k = (v.symbol for v in maps.variables)
    assert integer.simplify(maps.offset("x") - (1792 * floordiv(m, 7) + 128 * mod(m, 7) + k), maps.ranges) == 0


def test_filters_of_any_layout_that_runs_on_are_gemm_k():
    """KRSC and KCRS alike: gemm_k follows the filter's memory order."""
    import dataclasses

    problem = make(n=2, c=6, k=4, input=(5, 5))
    kcrs = dataclasses.replace(problem.w, dims=("k", "c", "r", "s"), extents=(4, 6, 3, 3))
    for p in (problem, dataclasses.replace(problem, w=kcrs)):
        maps = matrix_view(p)
        _, n, k = (v.symbol for v in maps.variables)
        assert maps.offset("w") == 54 * n + k


def test_guards_that_hold_always_are_dropped():
    same = matrix_view(make(input=(8, 8), pad=(1, 0), c=2, k=2)).simplified()
    assert [b.dim for b in same.accesses["x"].bounds] == ["h"]
    strided = matrix_view(make("dgrad", input=(8, 8), stride=(2, 1), pad=1, c=2, k=2)).simplified()
    assert [d.dim for d in strided.accesses["y"].divisible] == ["p"]


# ---- H. Zhang, "A Simple and Efficient Implementation of im2col" (2017) --------------------------


def paper_problem(pad):
    """One image, one square filter, stride 1, lowered to D0*F*F x H1*W1."""
    return make("im2col", c=3, input=(7, 6), filter=(3, 3), pad=pad, lowered="c*r*s,p*q")


def renamed(e, problem):
    """Our names to the paper's: p, q index the matrix, F is both extents of the filter."""
    names = {"row": "p", "column": "q", "R": "F", "S": "F", "P": "H1", "Q": "W1", "H": "H0", "W": "W0", "pad_w": "P"}
    names |= {"pad_h": "P", "stride_h": "one", "stride_w": "one", "dilation_h": "one", "dilation_w": "one"}
    # in two steps, since P and p are names on both sides
    there = {symbol(old): symbol(f"the {new}") for old, new in names.items()}
    back = {symbol(f"the {new}"): symbol(new) for new in names.values()} | {symbol("the one"): Integer(1)}
    return e.subs(there).subs(back)


P, Q, F, W1, PAD = (symbol(s) for s in ("p", "q", "F", "W1", "P"))
D0 = floordiv(floordiv(P, F), F)
I0 = floordiv(Q, W1) + mod(floordiv(P, F), F)
J0 = mod(Q, W1) + mod(P, F)


def test_algorithm_1_falls_out():
    """d0 = (p / F) / F, i0 = q / W1 + (p / F) % F, j0 = q % W1 + p % F."""
    problem = paper_problem(pad=0)
    x = lowered_view(problem, symbolic_geometry(problem)).accesses["x"]
    without_padding = {symbol("pad_h"): Integer(0), symbol("pad_w"): Integer(0)}
    d0, i0, j0 = (renamed(x.coords[d].subs(without_padding), problem) for d in "chw")
    assert (d0, i0, j0) == (D0, I0, J0)


def test_algorithm_2_falls_out():
    """The same with i0 - P and j0 - P, if they lie in [0, H0) and [0, W0)."""
    problem = paper_problem(pad=2)
    x = lowered_view(problem, symbolic_geometry(problem)).accesses["x"]
    d0, i0, j0 = (renamed(x.coords[d], problem) for d in "chw")
    assert (d0, i0, j0) == (D0, I0 - PAD, J0 - PAD)
    guards = [(renamed(b.value, problem), b.low, renamed(b.high, problem)) for b in x.bounds]
    assert guards == [(I0 - PAD, 0, symbol("H0")), (J0 - PAD, 0, symbol("W0"))]


@pytest.mark.parametrize("pad", [0, 2])
def test_algorithms_1_and_2_run(pad):
    """The paper's loop over k, word for word, and our literal, simplified map."""
    problem = paper_problem(pad)
    f, (h0, w0), (h1, w1) = 3, problem.input, problem.output
    x = np.arange(1, problem.x.size + 1).reshape(h0, w0, 3)
    maps = lowered_view(problem).simplified()
    access = maps.accesses["x"]
    for k in range(3 * f * f * h1 * w1):
        p, q = k // (h1 * w1), k % (h1 * w1)
        d0, i0, j0 = (p // f) // f, q // w1 + (p // f) % f, q % w1 + p % f
        inside = pad <= i0 < h0 + pad and pad <= j0 < w0 + pad
        value = x[i0 - pad, j0 - pad, d0] if inside else 0
        at = {symbol("row"): p, symbol("column"): q}
        holds = all(0 <= integer.evaluate(b.value, at) < int(b.high) for b in access.bounds)
        ours = x.reshape(-1)[integer.evaluate(maps.offset("x"), at)] if holds else 0
        assert ours == value
        assert integer.evaluate(maps.offset("lowered"), at) == k
    assert bool(access.bounds) == bool(pad)


# ---- time --------------------------------------------------------------------------------------


def test_deriving_and_simplifying_is_quick():
    """Part of every compilation: about 10 ms for three axes and groups."""
    problem = make("dgrad", n=2, c=64, k=128, input=(16, 56, 56), filter=(3, 3, 3), stride=2, pad=1, groups=2)

    def derive_all() -> None:
        maps = matrix_view(problem).simplified()
        for role in maps.accesses:
            maps.offset(role)

    derive_all()  # what SymPy keeps
    assert calls(derive_all) < 100_000
