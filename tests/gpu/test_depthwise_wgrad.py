"""depthwise_wgrad on a GPU: exact on integers over many images, at layers' sizes, the same to the bit in every run."""

from __future__ import annotations

import gpu_runs
import pytest
from gpu_tma import check, exact, many_images, of_images
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from special_values import expected, with_specials
from tma_specs import SEEDS, kernel, some_options, spec, typed
from wgrad_specs import DEPTHWISE_GEOMETRIES, DEPTHWISE_PLAIN

from convgen.ir import verify
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", DEPTHWISE_GEOMETRIES)
def test_geometry(name: str, images: int, seed: int, target: Target) -> None:
    problem, options = DEPTHWISE_GEOMETRIES[name]
    if "split_k" in options and "cluster" not in target.features:
        pytest.skip(f"{target} has no clusters")
    problem = of_images(problem, images * problem.n)
    exact(spec(problem, "depthwise", {**DEPTHWISE_PLAIN, **options}, target=target.name), seed)


#: Layers at their sizes, of which the first candidates are tried.
LAYERS: dict[str, ConvProblem] = {
    "mobilenet_v2/dw144_56": make("wgrad", 64, 144, 144, (56, 56), (3, 3), pad=1, groups=144),
    "mobilenet_v2/dw96_112_s2": make("wgrad", 64, 96, 96, (112, 112), (3, 3), stride=2, pad=1, groups=96),
    "mobilenet_v2/dw960_7": typed(make("wgrad", 8, 960, 960, (7, 7), (3, 3), pad=1, groups=960, dtype="bf16"), w="f32"),
    "convnext/stage1": make("wgrad", 8, 96, 96, (56, 56), (7, 7), pad=3, groups=96),
    "convnext/stage4": typed(make("wgrad", 64, 768, 768, (7, 7), (7, 7), pad=3, groups=768), w="f32"),
    "one axis, causal": make("wgrad", 4, 1536, 1536, (2048,), (4,), pad=((3, 0),), groups=1536, dtype="bf16"),
    "float32": make("wgrad", 8, 64, 64, (28, 28), (5, 5), pad=2, groups=64, dtype="f32"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int, target: Target) -> None:
    problem = LAYERS[layer]
    offered = strategies.STRATEGIES["depthwise"].candidates(problem, target)
    for options in [o for o in offered if o.get("kernel") == "depthwise_wgrad"][:8]:
        exact(spec(problem, "depthwise", options, target=target.name), seed)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int, target: Target) -> None:
    problem = data.draw(many_images("depthwise_wgrad"))
    options = {**data.draw(some_options("depthwise")), "kernel": "depthwise_wgrad"}
    assume(not strategies.STRATEGIES["depthwise"].obstacles(problem, target, options))
    exact(spec(problem, "depthwise", options, target=target.name), seed)


def test_epilogue(seed: int, target: Target) -> None:
    problem = typed(make("wgrad", 8, 96, 96, (28, 28), (3, 3), pad=1, groups=96, dtype="bf16"), w="f32")
    text = "operand g: f32[k, r, s]  w = acc + 0.9 * g"
    check(spec(problem, "depthwise", {"kernel": "depthwise_wgrad"}, text, target=target.name), seed)


@pytest.mark.parametrize("role", ["x", "y"])
def test_infinities_stay_in_their_windows(role: str, seed: int, target: Target) -> None:
    problem = make("wgrad", 4, 80, 80, (30, 29), (3, 3), pad=1, groups=80)
    arrays = with_specials(problem, role, seed)
    given = {name: gpu_runs.on_device(a) for name, a in arrays.items()}
    made = kernel(spec(problem, "depthwise", {"kernel": "depthwise_wgrad"}, target=target.name))
    out = made(*given.values(), out=gpu_runs.poisoned(problem.w))
    report = verify.compare(problem, cupy.asnumpy(out), expected(problem, arrays))
    assert report, f"{role}: {report}\nseed {seed}"


@pytest.mark.parametrize("shared", [{"slices": 64}, {"split_k": 8, "slices": 1}], ids=["slices", "a cluster"])
def test_every_run_is_the_same_to_the_bit(shared: dict[str, int], seed: int, target: Target) -> None:
    if "split_k" in shared and "cluster" not in target.features:
        pytest.skip(f"{target} has no clusters")
    problem = typed(make("wgrad", 16, 96, 96, (56, 56), (3, 3), pad=1, groups=96), w="f32")
    made = kernel(spec(problem, "depthwise", {"kernel": "depthwise_wgrad", **shared}, target=target.name))
    gpu_runs.same_to_the_bit(made, problem, seed)
