"""mma_wgrad on a GPU: exact on integers over many images, whatever the target."""

from __future__ import annotations

import pytest
from gpu_tma import exact, of_images
from problems import make
from tma_specs import laid_out, spec, typed
from wgrad_specs import MMA_ATOMIC_GEOMETRIES, MMA_GEOMETRIES, MMA_PLAIN, bias

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.targets import Target

pytest.importorskip("cupy")


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", [*MMA_GEOMETRIES, *MMA_ATOMIC_GEOMETRIES])
def test_geometry(name: str, images: int, seed: int, target: Target) -> None:
    problem, options = (MMA_GEOMETRIES | MMA_ATOMIC_GEOMETRIES)[name]
    problem = of_images(problem, images * problem.n)
    exact(spec(problem, "implicit_gemm", {**MMA_PLAIN, **options}, bias(name), target=target.name), seed)


LAYERS: dict[str, ConvProblem] = {
    "resnet50/res3_3x3": make("wgrad", 8, 128, 128, (28, 28), (3, 3), pad=1),
    "resnet50/conv1": typed(make("wgrad", 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3), w="f32"),
    "in planes": laid_out(make("wgrad", 4, 64, 64, (28, 28), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
    "resnext50/res2_3x3": make("wgrad", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32, dtype="bf16"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int, target: Target) -> None:
    problem = LAYERS[layer]
    offered = strategies.STRATEGIES["implicit_gemm"].candidates(problem, target)
    for options in [o for o in offered if o.get("kernel") == "mma_wgrad"][:4]:
        exact(spec(problem, "implicit_gemm", options, target=target.name), seed)
