"""im2col's sources compile without warnings, spills or leftovers; formulas stand as the seed writes them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import matrix_problems, meets_input, unused_names

from convgen.ir.problem import Op, Padding
from convgen.kernels import strategies
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["im2col"]

TARGET = TARGETS["sm_90a"]


def source_of(problem, **options) -> str:
    assert not STRATEGY.obstacles(problem, TARGET, options)
    return STRATEGY.render(STRATEGY.plan(problem, TARGET, options))


@pytest.mark.parametrize("op", Op)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_compiles(op: Op, data: st.DataObject) -> None:
    problem = data.draw(matrix_problems(op))
    assume(meets_input(problem))
    methods = ("gather", "scatter") if op in (Op.DGRAD, Op.COL2IM) else ("gather",)
    options = {"method": data.draw(st.sampled_from(methods))}
    source = source_of(problem, **options)
    compiled = compile_source(source, TARGET)
    assert "warning" not in compiled.log, compiled.log
    assert all(r.spill_stores == 0 for r in compiled.resources.values())
    assert not unused_names(source), source


def test_places_along_three_axes_do_not_spill() -> None:
    """Fifteen places and eight taps: unrolled, their conditions did not fit in registers."""
    problem = make(
        "col2im", 1, 2, 1, (2, 2, 2), (2, 2, 2), stride=(1, 1, 2), dilation=(1, 1, 2), pad=((0, 1), (0, 2), (0, 3)),
        padding=Padding.REPLICATE, lowered="n*t*r*s*c,o*p*q",
    )  # fmt: skip
    compiled = compile_source(source_of(problem, method="gather"), TARGET)
    assert all(r.spill_stores == 0 for r in compiled.resources.values())


@pytest.mark.parametrize(
    ("op", "method"),
    [(Op.FPROP, "gather"), (Op.DGRAD, "gather"), (Op.DGRAD, "scatter"), (Op.WGRAD, "gather")],
)
def test_sliced_kernels_compile(op: Op, method: str) -> None:
    problem = make(op, 8, 64, 64, (56, 56), (3, 3), pad=1, groups=2)
    source = source_of(problem, method=method, workspace_mb=16)
    assert "slices of up to" in source
    compile_source(source, TARGET)
    assert not unused_names(source), source


def test_a_plan_of_one_gemm_has_a_source_that_compiles() -> None:
    source = source_of(make("fprop", 2, 8, 16, (6, 6), (1, 1)))
    assert "__global__" not in source and "cuBLAS GEMM" in source
    compile_source(source, TARGET)


@pytest.mark.parametrize("form", ["n*p*q,c*r*s", "c*r*s,n*p*q"])
@pytest.mark.parametrize("pad", [0, 1])
def test_predicates_stand_where_padding_is(form: str, pad: int) -> None:
    source = source_of(make("im2col", 2, 8, 1, (9, 9), (3, 3), stride=2, pad=pad, lowered=form))
    assert ("inside" in source.partition("extern")[2]) == (pad > 0)
    compile_source(source, TARGET)


def test_the_seed_s_chain_of_divisions() -> None:
    """u = (p / F) % F, v = p % F, d0 = (p / F) / F, i1 = q / W1, j1 = q % W1 (seed 001, eq. 13 to 17)."""
    source = source_of(make("im2col", 1, 4, 1, (10, 12), (3, 3), lowered="c*r*s,p*q"), form="loop_free")
    for line in (
        "const int s = row % S;",
        "const int r = (row / S) % R;",
        "const int c = row / (R * S);",
        "const int q = column % Q;",
        "const int p = column / Q;",
        "const int in_h = p + r;",
        "const int in_w = q + s;",
    ):
        assert f"  {line}\n" in source


def test_2_to_the_31_elements_count_in_64_bits() -> None:
    problem = make("im2col", 65537, 32, 1, (32, 32), (3, 3), pad=1, lowered="n*p*q,r*s*c", dtype="s8")
    source = source_of(problem, form="loop_free")
    assert "const long long index = " in source and "const int" not in source
    compile_source(source, TARGET)
