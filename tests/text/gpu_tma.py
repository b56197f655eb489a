"""Runs kernels of tma_im2col and tma_halo on a GPU, on problems of many images."""

from __future__ import annotations

from dataclasses import replace

import gpu_runs
from hypothesis import strategies as st
from tma_specs import PROBLEMS, integers, kernel, rounded

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import decode, references
from convgen.runtime.kernel import Kernel


def check(text: str, seed: int) -> Kernel:
    """Fails unless every element of the results of a spec's kernel is within rounding of the float64 reference."""
    import cupy

    made = kernel(text)
    problem = made.plan.problem  # type: ignore[union-attr]
    arrays = gpu_runs.inputs(problem, seed)
    out = made(*arrays.values(), out=gpu_runs.outputs(problem))
    report = verify.check(problem, arrays, out, cupy, made.manifest.arithmetic)
    assert report, f"{report}\nseed {seed}, {made}\n{text}"
    return made


def exact(text: str, seed: int) -> Kernel:
    """Fails unless a spec's kernel gives the sums of integers exactly."""
    import cupy

    made = kernel(text)
    problem = made.plan.problem  # type: ignore[union-attr]
    arrays = {name: gpu_runs.on_device(a) for name, a in integers(problem, seed).items()}
    out = made(*arrays.values(), out=gpu_runs.outputs(problem))
    outs = out if isinstance(out, tuple) else (out,)
    for t, array, right in zip(problem.results, outs, references(problem, arrays, cupy), strict=True):
        wrong = cupy.asnumpy(decode(array, t.dtype, cupy)) != rounded(cupy.asnumpy(right), t.dtype)
        assert not wrong.any(), f"{t.name}: {wrong.sum()} of {wrong.size} are wrong\nseed {seed}, {made}\n{text}"
    return made


@st.composite
def many_images(draw, strategy: str) -> ConvProblem:
    """A random problem over so many images that each multiprocessor has several tiles."""
    problem = draw(PROBLEMS[strategy])
    return of_images(problem, problem.n * draw(st.sampled_from((1, 40, 90))))


def of_images(problem: ConvProblem, n: int) -> ConvProblem:
    """The problem over so many images, without an epilogue."""
    tensors = {
        t.role: replace(t, extents=tuple(n if d == "n" else e for d, e in zip(t.dims, t.extents, strict=True)))
        for t in (problem.x, problem.y)
    }
    return replace(problem, n=n, epilogue=None, **tensors)  # type: ignore[arg-type]
