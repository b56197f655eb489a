"""Random convolutions with the types, layouts, channel counts and epilogues that tensor-core strategies meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st
from problems import make
from strategy_problems import epilogues, with_types

from convgen.ir.problem import ConvProblem

CHANNELS_LAST = {"x": "nhwc", "w": "krsc", "y": "npqk"}
PLANES = {"x": "nchw", "w": "kcrs", "y": "nkpq"}


def laid_out(problem: ConvProblem, orders: Mapping[str, str]) -> ConvProblem:
    """The problem with tensors in other orders of dims, by role; dims that a tensor lacks are skipped."""
    changed = {}
    for role, order in orders.items():
        tensor = problem.tensor(role)
        dims = tuple(d for d in order if d in tensor.dims)
        assert sorted(dims) == sorted(tensor.dims)
        changed[role] = replace(tensor, dims=dims, extents=tuple(tensor.extent(d) for d in dims))
    return replace(problem, **changed)  # type: ignore[arg-type]


def _any_layout(draw, problem: ConvProblem) -> ConvProblem:
    usual = draw(st.sampled_from((CHANNELS_LAST, PLANES, None)))
    if usual and problem.rank == 2:
        return laid_out(problem, usual)
    return laid_out(problem, {role: "".join(draw(st.permutations(problem.tensor(role).dims))) for role in "xwy"})


def _finished(draw, problem: ConvProblem, dtype: str) -> ConvProblem:
    """With a result of any type, and perhaps an epilogue."""
    result = draw(st.sampled_from((dtype, "f16", "bf16", "f32", "s8", "s32")))
    problem = with_types(problem, y=result)
    return replace(problem, epilogue=draw(epilogues(problem.y))) if draw(st.booleans()) else problem


@st.composite
def gemm_problems(draw) -> ConvProblem:
    """Any geometry, layout, types and epilogue; channels of every alignment."""
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))
    filter_ = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    reach = [(f - 1) * d for f, d in zip(filter_, dilation, strict=True)]
    pad = tuple((draw(st.integers(0, r + 1)), draw(st.integers(0, r + 1))) for r in reach)
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    dtype = draw(st.sampled_from(("f16", "f16", "bf16", "f32", "s8", "e4m3", "e5m2")))
    channels = st.sampled_from((1, 2, 3, 4, 5, 8, 12, 16))
    problem = make(
        "fprop",
        draw(st.integers(1, 2)),
        groups * draw(channels),
        groups * draw(channels),
        tuple(r + draw(st.integers(1, 7 if rank < 3 else 3)) for r in reach),
        filter_,
        tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        pad,
        dilation,
        groups,
        dtype,
    )
    return _finished(draw, _any_layout(draw, problem), dtype)


@st.composite
def depthwise_problems(draw, channels=(1, 2, 3, 8, 16)) -> ConvProblem:
    """groups = c, any multiplier, geometry, layout, types and epilogue."""
    rank = draw(st.sampled_from((1, 2, 2)))
    filter_ = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    reach = [(f - 1) * d for f, d in zip(filter_, dilation, strict=True)]
    c = draw(st.sampled_from(channels))
    dtype = draw(st.sampled_from(("f16", "bf16", "f32", "s8", "e4m3")))
    problem = make(
        "fprop",
        draw(st.integers(1, 2)),
        c,
        c * draw(st.integers(1, 3)),
        tuple(r + draw(st.integers(1, 7)) for r in reach),
        filter_,
        tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        tuple((draw(st.integers(0, r)), draw(st.integers(0, r))) for r in reach),
        dilation,
        c,
        dtype,
    )
    return _finished(draw, _any_layout(draw, problem), dtype)
