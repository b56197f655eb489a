"""stem_wgrad on a GPU: exact on integers over many images, at layers' sizes, and the same to the bit in every run."""

from __future__ import annotations

import gpu_runs
import pytest
from gpu_tma import check, exact, many_images, of_images
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, TARGET, kernel, laid_out, serves, some_options, spec, typed
from wgrad_specs import BIAS, STEM_GEOMETRIES, STEM_PLAIN, bias

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.targets import Target

pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def _needs_wgmma(target: Target) -> None:
    if target != TARGET:
        pytest.skip(f"these kernels are for {TARGET}, this GPU is for {target}")


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", STEM_GEOMETRIES)
def test_geometry(name: str, images: int, seed: int) -> None:
    problem, options = STEM_GEOMETRIES[name]
    text = spec(of_images(problem, images * problem.n), "implicit_gemm", {**STEM_PLAIN, **options}, bias(name))
    exact(text, seed)


#: Layers at their sizes, of which the first candidates are tried.
LAYERS: dict[str, ConvProblem] = {
    "resnet50/conv1": typed(make("wgrad", 8, 3, 64, (224, 224), (7, 7), 2, 3), w="f32"),
    "vgg16/conv1_1": make("wgrad", 8, 3, 64, (224, 224), (3, 3), pad=1, dtype="bf16"),
    "alexnet/conv1": make("wgrad", 64, 3, 64, (224, 224), (11, 11), 4, 2),
    "zfnet/conv1": make("wgrad", 8, 3, 96, (224, 224), (7, 7), 2, 1),
    "yolov2/conv1": make("wgrad", 8, 3, 32, (416, 416), (3, 3), pad=1),
    "one channel, in planes": laid_out(make("wgrad", 64, 1, 32, (28, 28), (5, 5)), x="nchw", w="kcrs"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int) -> None:
    problem = LAYERS[layer]
    offered = strategies.STRATEGIES["implicit_gemm"].candidates(problem, TARGET)
    own = [options for options in offered if options["kernel"] == "stem_wgrad"]
    assert own
    for options in own[:8]:
        exact(spec(problem, "implicit_gemm", options, BIAS), seed)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(many_images("stem_wgrad"))
    options = {**data.draw(some_options("implicit_gemm", kernel="stem_wgrad")), "kernel": "stem_wgrad"}
    assume(serves(problem, "implicit_gemm", options))
    exact(spec(problem, "implicit_gemm", options), seed)


def test_epilogue(seed: int) -> None:
    problem = typed(make("wgrad", 8, 3, 64, (112, 112), (7, 7), 2, 3, dtype="bf16"), w="f32")
    text = "operand g: f32[k, r, s, c]  w = acc + 0.9 * g"
    check(spec(problem, "implicit_gemm", {"kernel": "stem_wgrad"}, text), seed)


def test_every_run_is_the_same_to_the_bit(seed: int) -> None:
    problem = typed(make("wgrad", 16, 3, 64, (112, 112), (7, 7), 2, 3), w="f32")
    made = kernel(spec(problem, "implicit_gemm", {"kernel": "stem_wgrad"}))
    gpu_runs.same_to_the_bit(made, problem, seed)
