"""mma_gemm's dgrad on a GPU: exact on integers over many images, at layers' sizes, whatever the target."""

from __future__ import annotations

import pytest
from gpu_tma import exact, many_images, of_images
from hypothesis import given, settings
from hypothesis import strategies as st
from mma_dgrad_specs import GEOMETRIES, KERNEL, LAYERS, LAYOUTS, TILES
from problems import make
from tma_specs import SEEDS, laid_out, served_options, spec

from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import Target

pytest.importorskip("cupy")


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, images: int, seed: int, target: Target) -> None:
    problem = of_images(GEOMETRIES[name], images * GEOMETRIES[name].n)
    exact(spec(problem, "implicit_gemm", KERNEL, target=target.name), seed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, stride: int, seed: int, target: Target) -> None:
    problem = laid_out(make("dgrad", 37, 40, 24, (9, 8), (3, 3), stride, pad=1), **LAYOUTS[name])
    exact(spec(problem, "implicit_gemm", KERNEL, target=target.name), seed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("x", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", TILES)
def test_tile(name: str, x: str, stride: int, seed: int, target: Target) -> None:
    for k in (64, 40):
        problem = laid_out(make("dgrad", 37, 136, k, (9, 8), (3, 3), stride, pad=1), x=x)
        exact(spec(problem, "implicit_gemm", {**KERNEL, **TILES[name]}, target=target.name), seed)


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int, target: Target) -> None:
    problem = LAYERS[layer]
    offered = strategies.STRATEGIES["implicit_gemm"].candidates(problem, target)
    for options in [o for o in offered if o.get("kernel") == "mma_gemm"][:4]:
        exact(spec(problem, "implicit_gemm", options, target=target.name), seed)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(target: Target, data: st.DataObject, seed: int) -> None:
    problem = data.draw(many_images("mma_dgrad"))
    options: Options = data.draw(served_options(problem, "implicit_gemm", "mma_gemm", target.name, KERNEL))
    exact(spec(problem, "implicit_gemm", options, target=target.name), seed)
