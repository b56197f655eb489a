"""Every kernel on a GPU, on random calls: what tests/emulated/test_any_kernel.py has the emulator do."""

from __future__ import annotations

from typing import Any

import gpu_runs
import numpy as np
import pytest
from dynamic_problems import at
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import arrays_of, assert_right, outputs, own_arrays
from kernel_problems import OF_KERNEL, cases
from tma_specs import SEEDS, compilation, spec

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


def on_device(tensor: Tensor, array: np.ndarray) -> Any:
    """A tensor's array on the GPU: a slice, with what lies beside it."""
    if not tensor.pitch or array.base is None:
        return gpu_runs.on_device(array)
    return gpu_runs.on_device(array.base.reshape(tensor.whole.shape))[..., : tensor.row]


def on_host(tensor: Tensor, array: Any) -> np.ndarray:
    return cupy.ascontiguousarray(array).get().view(numpy_dtype(tensor.dtype)).reshape(array.shape)


@pytest.mark.parametrize("kernel", OF_KERNEL)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_call(target: Target, kernel: str, data: st.DataObject, seed: int) -> None:
    if target.name != "sm_90a":
        pytest.skip("random cases are for sm_90a")
    case = data.draw(cases(kernel))
    text = spec(case.problem, case.strategy, case.options)
    made = compilation(text)
    compiled = made.kernel()
    problem = at(made.plan.problem, case.sizes) if case.sizes else made.plan.problem
    own = own_arrays(made.plan.problem.in_place, np.random.default_rng(seed))
    given_arrays, results = arrays_of(problem, seed, case.whole), []
    tensors = problem.arguments
    for _ in range(2):  # the second call is the quick one
        on_gpu = zip(given_arrays, tensors, strict=True)
        arrays = {name: on_device(tensor, given_arrays[name]) for name, tensor in on_gpu}
        made_on_host = outputs(problem, arrays, own)
        outs = [
            out if t.name in own else on_device(t, out) for t, out in zip(problem.results, made_on_host, strict=True)
        ]
        compiled(*arrays.values(), out=tuple(outs) if problem.further else outs[0])
        results.append([on_host(t, out) for t, out in zip(problem.results, outs, strict=True)])
    where = f"seed {seed}, {case.sizes}\n{text}"
    if not strategies.varies(case.options):  # atomic additions come in the order of threads
        first, second = ([array.tobytes() for array in each] for each in results)
        assert first == second, f"two calls differ\n{where}"
    assert_right(case, problem, given_arrays, results[-1], made.plan.arithmetic, where)
