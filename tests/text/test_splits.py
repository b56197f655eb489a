"""Kernels whose blocks share sums: the table of them is served, and a run that differs by a bit is found."""

from __future__ import annotations

import sys

import gpu_runs
import numpy as np
import pytest
from problems import make
from split_specs import MMA_SPLITS, TMA_SPLITS
from tma_specs import compilation, spec


@pytest.mark.parametrize("name", TMA_SPLITS)
def test_tma_im2col_serves(name: str):
    problem, options, epilogue = TMA_SPLITS[name]
    plan = compilation(spec(problem, "tma_im2col", options, epilogue)).plan
    blocks = plan.launches[0].grid[0]
    assert blocks >= 32 and plan.options.items() >= options.items()
    assert len(plan.launches) == 1 + ("stream" in name) + ("sums" in name)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", MMA_SPLITS)
def test_implicit_gemm_serves(name: str, target: str):
    problem, options, epilogue = MMA_SPLITS[name]
    plan = compilation(spec(problem, "implicit_gemm", options, epilogue, target=target)).plan
    assert len(plan.launches) > 1 and plan.options.items() >= options.items()


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_a_run_that_differs_by_a_bit_is_found(wrong: int | None, monkeypatch: pytest.MonkeyPatch, seed: int):
    """In either result, once."""
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setattr(gpu_runs, "RUNS", 20)
    problem = compilation(spec(make("fprop", 1, 8, 8, (4, 4), (1, 1)), "direct", {}, "result t: f32[n, p, q, k]"
                               "  t = acc  y = acc")).plan.problem  # fmt: skip
    runs = []

    def kernel(x: np.ndarray, w: np.ndarray, out: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        assert all(np.isnan(array).all() for array in out)
        for array in out:
            array[...] = 1
        runs.append(x)
        if len(runs) == 9 and wrong is not None:
            out[wrong][0, 1, 2, 3] = np.nextafter(out[wrong][0, 1, 2, 3], 2)
        return out

    if wrong is None:
        gpu_runs.same_to_the_bit(kernel, problem, seed)  # type: ignore[arg-type]
        assert len(runs) == 21
    else:
        with pytest.raises(AssertionError, match="1 of 20 runs differ"):
            gpu_runs.same_to_the_bit(kernel, problem, seed)  # type: ignore[arg-type]
