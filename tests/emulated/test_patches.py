"""Patch embeddings: convolutions whose stride is their filter, as tma_im2col reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import check_emulated, compilation, spec

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import accumulate
from convgen.kernels.parts.patches import folded

EPILOGUE = "operand z: f16[n, p, q, k]  operand e: f32[p]  operand b: f32[k]  y = relu(acc * e + b + z)"
CASES = {
    "16 x 16": (make("fprop", 2, 3, 40, (32, 48), (16, 16), stride=16), 48),
    "rows that TMA cannot load": (make("fprop", 3, 3, 40, (28, 28), (14, 14), stride=14), 48),
    "a row left over": (make("fprop", 3, 4, 40, (25, 20), (4, 4), stride=4), 16),
    "rows that overlap": (make("fprop", 3, 4, 40, (26, 20), (3, 4), stride=(2, 4)), 16),
    "one axis": (make("fprop", 3, 4, 40, (64,), (8,), stride=8), 32),
    "three axes": (make("fprop", 2, 3, 40, (4, 16, 24), (2, 8, 8), stride=(2, 8, 8)), 24),
}


@pytest.mark.parametrize("name", CASES)
def test_patches_are_read_as_they_lie(name: str, seed: int) -> None:
    problem, channels = CASES[name]
    epilogue = EPILOGUE if problem.rank == 2 else ""
    made = check_emulated(spec(problem, "tma_im2col", {}, epilogue), seed, sms=(2,))
    assert made.plan.layout.gemm.problem.c == channels  # type: ignore[attr-defined]


def test_a_vision_transformer_takes_tma() -> None:
    plan = compilation(spec(make("fprop", 8, 3, 768, (224, 224), (16, 16), stride=16), "auto", {})).plan
    assert plan.kernel == "tma_im2col" and not plan.workspaces


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_the_same_memory_is_the_same_convolution(data: st.DataObject, seed: int) -> None:
    rank = data.draw(st.integers(1, 3))

    def sizes(most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(1, most)) for _ in range(rank))

    taps, pixels, left = sizes(4), sizes(4), sizes(2)
    stride = tuple(data.draw(st.sampled_from((t, t, 1))) for t in taps)
    extents = tuple((p - 1) * s + t + e - 1 for p, s, t, e in zip(pixels, stride, taps, left, strict=True))
    n, c, k = (data.draw(st.integers(1, 3)) for _ in range(3))
    problem = make("fprop", n, c, k, extents, taps, stride=stride)
    check_same(problem, folded(problem), seed)


def check_same(problem: ConvProblem, other: ConvProblem, seed: int) -> None:
    arrays = verify.random_inputs(problem, seed)
    given_again = {t.role: arrays[t.role].reshape(t.shape) for t in other.reads}
    expected, found = accumulate(problem, arrays, np), accumulate(other, given_again, np)
    assert np.array_equal(np.asarray(expected).ravel(), np.asarray(found).ravel())
