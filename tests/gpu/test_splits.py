"""Kernels whose blocks share sums, on a GPU: right, and the same to the bit in every run."""

from __future__ import annotations

import gpu_runs
import pytest
from gpu_tma import check
from split_specs import MMA_SPLITS, TMA_SPLITS
from tma_specs import TARGET, spec

from convgen.targets import Target

pytest.importorskip("cupy")


def check_every_run(text: str, seed: int) -> None:
    made = check(text, seed)
    gpu_runs.same_to_the_bit(made, made.plan.problem, seed)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", TMA_SPLITS)
def test_tma_im2col(name: str, seed: int, target: Target) -> None:
    if target != TARGET:
        pytest.skip(f"this kernel is for {TARGET}, this GPU is for {target}")
    problem, options, epilogue = TMA_SPLITS[name]
    check_every_run(spec(problem, "tma_im2col", options, epilogue), seed)


@pytest.mark.parametrize("name", MMA_SPLITS)
def test_implicit_gemm(name: str, seed: int, target: Target) -> None:
    problem, options, epilogue = MMA_SPLITS[name]
    check_every_run(spec(problem, "implicit_gemm", options, epilogue, target=target.name), seed)
