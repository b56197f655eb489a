"""Several results from one kernel, on a GPU: right, in place too, the same by CuPy; sums repeat bit by bit."""

from __future__ import annotations

import gpu_runs
import pytest
from result_specs import CASES, READ_SUMS, SUMMED, SUMS_OF_IMAGES, sums_spec

from convgen import driver
from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.runtime.kernel import Kernel
from convgen.spec import Spec
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


def compiled(text: str, target: Target) -> tuple[ConvProblem, Kernel]:
    if ("tma" in text or "stem_wgmma" in text or "depthwise_stream" in text) and "tma" not in target.features:
        pytest.skip(f"{target} has no TMA")
    if "strategy im2col" in text:
        pytest.importorskip("cupy_backends.cuda.libs.cublas")
    (compilation,) = driver.load(Spec(text, target=target.name))
    return compilation.request.problem, compilation.kernel()


def assert_right(problem: ConvProblem, kernel: Kernel, arrays: dict, outs: tuple) -> None:
    cupy.cuda.Device().synchronize()
    report = verify.check(problem, arrays, outs, cupy, kernel.manifest.arithmetic)
    assert report, report


@pytest.mark.parametrize("name", CASES)
def test_results_and_operands_that_are_their_own_arrays(target: Target, name: str):
    problem, kernel = compiled(CASES[name], target)
    given = gpu_runs.inputs(problem, 1)
    outs = gpu_runs.outputs(problem)
    for _ in range(3):  # the second call is the quick one
        assert kernel(*given.values(), out=outs) is outs
    assert_right(problem, kernel, given, outs)
    for made in (kernel(*given.values()), kernel.launch_raw(*given.values())):
        assert all((a.view("u1") == b.view("u1")).all() for a, b in zip(made, outs, strict=True))
    arrays = {array: value.copy() for array, value in given.items()}
    in_place = (arrays["a"], arrays["z"], cupy.empty_like(outs[2]))
    kernel(*arrays.values(), out=in_place)
    assert_right(problem, kernel, given, in_place)


SUMS = {name: sums_spec(name) for name in SUMMED} | READ_SUMS
SUMS |= {f"each image, {name}": text for name, text in SUMS_OF_IMAGES.items()}


@pytest.mark.parametrize("name", SUMS)
def test_sums(target: Target, name: str):
    problem, kernel = compiled(SUMS[name], target)
    given = gpu_runs.inputs(problem, 1)
    outs = kernel(*given.values())
    assert_right(problem, kernel, given, outs)
    for _ in range(5):
        again = kernel(*given.values())
        assert all((a == b).all() for a, b in zip(outs, again, strict=True))
