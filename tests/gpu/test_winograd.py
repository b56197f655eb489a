"""winograd on a GPU: exact on integers over many images, within its bound on layers, whatever the target."""

from __future__ import annotations

import gpu_runs
import numpy as np
import pytest
from gpu_tma import check, of_images
from problems import make
from tma_specs import kernel, spec, typed
from winograd_specs import DENOMINATORS, GEOMETRIES, exact_inputs

from convgen.ir.problem import ConvProblem
from convgen.ir.reference import decode, reference
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


def skip_unserved(problem: ConvProblem, options: Options, target: Target) -> None:
    if obstacles := strategies.STRATEGIES["winograd"].obstacles(problem, target, options):
        pytest.skip(obstacles[0].message)


@pytest.mark.parametrize("images", [1, 37])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, images: int, seed: int, target: Target) -> None:
    problem, options = GEOMETRIES[name]
    problem, m = of_images(problem, images * problem.n), int(options.get("tile", 2))
    skip_unserved(problem, options, target)
    made = kernel(spec(problem, "winograd", options, target=target.name))
    arrays = exact_inputs(problem, m, seed)
    given = [gpu_runs.on_device(a) for a in arrays.values()]
    found = decode(cupy.asnumpy(made(*given, out=gpu_runs.outputs(problem))), problem.y.dtype)
    right, unit = reference(problem, arrays), DENOMINATORS[m] ** 2
    assert np.array_equal(np.rint(found / unit), right / unit) and np.allclose(found, right, atol=0.5)


#: Layers, their type, and tiles.
LAYERS: dict[str, tuple[ConvProblem, str, int]] = {
    "vgg16/conv1_2": (make("fprop", 2, 64, 64, (224, 224), (3, 3), pad=1), "f32", 4),
    "vgg16/conv4_2": (make("fprop", 8, 512, 512, (28, 28), (3, 3), pad=1), "f16", 2),
    "resnet50/res3_3x3": (make("fprop", 64, 128, 128, (28, 28), (3, 3), pad=1), "f16", 4),
    "resnet50/res5_3x3": (make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1), "bf16", 2),
    "odd": (make("fprop", 5, 37, 101, (19, 33), (3, 3), pad=((0, 2), (1, 0))), "f32", 2),
}


@pytest.mark.parametrize("product", ["tma_im2col", "mma_gemm"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str, product: str, seed: int, target: Target) -> None:
    problem, dtype, tile = LAYERS[layer]
    problem, options = typed(problem, x=dtype, w=dtype, y=dtype), {"tile": tile, "product": product}
    skip_unserved(problem, options, target)
    check(spec(problem, "winograd", options, "residual", target=target.name), seed)
    cupy.get_default_memory_pool().free_all_blocks()


#: Layers of form fused, their type and options: as the model chooses, and the schedule that it does not.
FUSED: dict[str, tuple[ConvProblem, str, Options]] = {
    "vgg16/conv1_2": (make("fprop", 2, 64, 64, (224, 224), (3, 3), pad=1), "f16", {}),
    "vgg16/conv2_1": (make("fprop", 8, 64, 128, (112, 112), (3, 3), pad=1), "f16", {"schedule": "cooperative"}),
    "vgg16/conv3_2": (make("fprop", 8, 256, 256, (56, 56), (3, 3), pad=1), "f16", {}),
    "vgg16/conv4_2": (make("fprop", 8, 512, 512, (28, 28), (3, 3), pad=1), "bf16", {"weight_stages": 2}),
    "resnet50/res2_3x3": (make("fprop", 64, 64, 64, (56, 56), (3, 3), pad=1), "f16", {"schedule": "pingpong"}),
    "resnet50/res5_3x3": (make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1), "f16", {"tile.n": 32}),
    "resnet50/res4_3x3": (make("fprop", 9, 256, 256, (14, 14), (3, 3), pad=1), "f16", {"cluster": 4}),
    "odd": (make("fprop", 5, 37, 101, (19, 33), (5, 3), pad=((0, 2), (1, 0))), "bf16", {}),
    "one axis": (make("fprop", 16, 96, 80, (4001,), (3,), pad=1), "f16", {}),
}


@pytest.mark.parametrize("layer", FUSED)
def test_fused_layers(layer: str, seed: int, target: Target) -> None:
    problem, dtype, options = FUSED[layer]
    problem, options = typed(problem, x=dtype, w=dtype, y=dtype), {"form": "fused", **options}
    skip_unserved(problem, options, target)
    check(spec(problem, "winograd", options, "residual", target=target.name), seed)
    cupy.get_default_memory_pool().free_all_blocks()


def test_a_captured_call_repeats(seed: int, target: Target) -> None:
    """Four launches that share workspaces, replayed from a graph: the same bits as a call."""
    problem = typed(make("fprop", 4, 64, 64, (28, 28), (3, 3), pad=1), x="f32", w="f32", y="f32")
    made = kernel(spec(problem, "winograd", {"tile": 4}, "bias f32", target=target.name))
    given = list(gpu_runs.inputs(made.plan.problem, seed).values())  # type: ignore[union-attr]
    right, out = made(*given), gpu_runs.poisoned(problem.y)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        made(*given, out=out)
        stream.begin_capture()
        made(*given, out=out)
        graph = stream.end_capture()
    out[...] = 0
    cupy.cuda.Device().synchronize()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert (out == right).all()
