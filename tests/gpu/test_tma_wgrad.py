"""tma_wgrad on a GPU: exact on integers over many images, at layers' sizes, and the same to the bit in every run."""

from __future__ import annotations

import gpu_runs
import pytest
from gpu_tma import check, exact, many_images, of_images
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, TARGET, kernel, laid_out, serves, some_options, spec, typed
from wgrad_specs import ATOMIC, ATOMIC_GEOMETRIES, GEOMETRIES, PLAIN, ROWS, bias

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.kernel import Kernel
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def _needs_wgmma(target: Target) -> None:
    if target != TARGET:
        pytest.skip(f"these kernels are for {TARGET}, this GPU is for {target}")


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", [*GEOMETRIES, *ATOMIC_GEOMETRIES])
def test_geometry(name: str, images: int, seed: int) -> None:
    problem, options = (GEOMETRIES | ATOMIC_GEOMETRIES)[name]
    exact(spec(of_images(problem, images * problem.n), "tma_im2col", {**PLAIN, **options}, bias(name)), seed)


#: Layers at their sizes, of which the first candidates are tried.
LAYERS: dict[str, ConvProblem] = {
    "resnet50/res2_3x3": make("wgrad", 64, 64, 64, (56, 56), (3, 3), pad=1),
    "resnet50/res3_3x3_s2": make("wgrad", 64, 128, 128, (56, 56), (3, 3), stride=2, pad=1),
    "resnet50/res5_3x3": typed(make("wgrad", 8, 512, 512, (7, 7), (3, 3), pad=1, dtype="bf16"), w="f32"),
    "resnet50/res4_1x1_b": make("wgrad", 64, 1024, 256, (14, 14), (1, 1)),
    "resnet50/conv1": typed(make("wgrad", 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3), w="f32"),
    "resnet50/res3_3x3 in planes": laid_out(
        make("wgrad", 8, 128, 128, (28, 28), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"
    ),
    "yolov2/conv23": make("wgrad", 8, 1024, 425, (13, 13), (1, 1)),
    "resnext50/res2_3x3": make("wgrad", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    "convnext/stage2": typed(make("wgrad", 8, 192, 192, (28, 28), (7, 7), pad=3, groups=192), w="f32"),
    "three axes": make("wgrad", 2, 64, 64, (16, 28, 28), (3, 3, 3), pad=1),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int) -> None:
    problem = LAYERS[layer]
    for options in strategies.STRATEGIES["tma_im2col"].candidates(problem, TARGET)[:12]:
        exact(spec(problem, "tma_im2col", options), seed)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(many_images("tma_wgrad"))
    options = {**data.draw(some_options("tma_im2col")), "kernel": "tma_wgrad"}
    assume(serves(problem, "tma_im2col", options))
    exact(spec(problem, "tma_im2col", options), seed)


@pytest.mark.parametrize("layer", ["resnet50/res2_3x3", "resnet50/res4_1x1_b", "resnext50/res2_3x3"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_slices_are_added_as_they_come(layer: str, dtype: str, seed: int) -> None:
    """Call after call: each begins with zeros of its own."""
    problem = typed(LAYERS[layer], w=dtype)
    made = exact(spec(problem, "tma_im2col", {"kernel": "tma_wgrad", **ATOMIC}), seed)
    check_again(made, problem, seed)


def check_again(made: Kernel, problem: ConvProblem, seed: int) -> None:
    """Fails unless quick calls, whose launches start back to back, are right, too."""
    arrays, out = gpu_runs.inputs(problem, seed), gpu_runs.outputs(problem)
    for _ in range(20):
        made(*arrays.values(), out=out)
    report = verify.check(problem, arrays, out, cupy, made.manifest.arithmetic)
    assert report, f"{report}\nseed {seed}, {made}"


@pytest.mark.parametrize("options", [{}, ATOMIC])
def test_epilogue(options: Options, seed: int) -> None:
    problem = typed(make("wgrad", 8, 128, 128, (28, 28), (3, 3), pad=1, dtype="bf16"), w="f32")
    check(spec(problem, "tma_im2col", options, "operand g: f32[k, r, s, c]  w = acc + 0.9 * g"), seed)


#: Ways in which blocks share the pixels.
SHARED: dict[str, Options] = {
    "clusters": {"tile.n": 192, "split_k": 8},
    "slices": {**ROWS, "tile.n": 192, "slices": 16},
    "slices of clusters, three consumers": {**ROWS, "tile.n": 576, "warps.n": 3, "split_k": 2, "slices": 12},
}


@pytest.mark.parametrize("name", SHARED)
def test_every_run_is_the_same_to_the_bit(name: str, seed: int) -> None:
    problem = typed(make("wgrad", 16, 64, 256, (28, 28), (3, 3), pad=1), w="f32")
    made = kernel(spec(problem, "tma_im2col", {**PLAIN, **SHARED[name]}))
    gpu_runs.same_to_the_bit(made, problem, seed)
