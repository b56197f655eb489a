"""Kernels launched by CuPy: the same results, bit by bit, as by the driver's launches."""

from __future__ import annotations

import numpy as np
import pytest

import convgen

cupy = pytest.importorskip("cupy")
EPILOGUE = "epilogue { operand b: f32[k]  y = relu(acc + b) }"
CHANNELS_LAST = "input x: f16[n=8, h=14, w=14, c=64]  filter w: f16[k=64, r=3, s=3, c=64]  output y: f16[n, p, q, k]"
CHANNELS_FIRST = "input x: f16[n=8, c=64, h=14, w=14]  filter w: f16[k=64, c=64, r=3, s=3]  output y: f16[n, k, p, q]"
FEW_TILES = "input x: f16[n=8, h=7, w=7, c=512]  filter w: f16[k=512, r=3, s=3, c=512]  output y: f16[n, p, q, k]"
DEPTHWISE = (
    "input x: f16[n=8, h=14, w=14, c=64]  filter w: f16[k=64, r=3, s=3, c=1]  output y: f16[n, p, q, k]  groups 64"
)
#: Launches with tensor maps, plain pointers, clusters, several steps, cuBLAS.
KERNELS = {
    "tma_im2col": f"{CHANNELS_LAST} {EPILOGUE} strategy tma_im2col",
    "tma_im2col, split": f"{FEW_TILES} strategy tma_im2col {{ split_k 2 }}",
    "tma_im2col, stream": f"{FEW_TILES} strategy tma_im2col {{ stream_k 1 }}",
    "tma_im2col, NCHW": f"{CHANNELS_FIRST} strategy tma_im2col",
    "tma_halo": f"{CHANNELS_LAST} {EPILOGUE} strategy tma_halo",
    "depthwise": f"{DEPTHWISE} strategy depthwise",
    "implicit_gemm": f"{CHANNELS_LAST} strategy implicit_gemm {{ kernel mma_gemm  split_k 4 }}",
    "im2col": f"{CHANNELS_LAST} op wgrad strategy im2col",
    "direct": f"{CHANNELS_LAST} {EPILOGUE} strategy direct",
}


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_the_same_bit_by_bit(target, rng, name):
    if "tma" in KERNELS[name] and "tma" not in target.features:
        pytest.skip(f"{target} has no TMA")
    if name == "im2col":
        try:
            from cupy_backends.cuda.libs import cublas  # noqa: F401
        except ImportError as error:
            pytest.skip(str(error))
    kernel = convgen.compile(f"conv layer {{ {KERNELS[name]} pad 1 }}", target=target.name)
    manifest = kernel.manifest
    tensors = manifest.arguments
    arguments = [cupy.asarray(rng.standard_normal(t.shape).astype(t.element.numpy)) for t in tensors]
    expected = kernel(*arguments).view("u1")
    made = [kernel.launch_raw(*arguments)]
    out = cupy.full(manifest.result.shape, np.nan, manifest.result.element.numpy)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(2):
        assert kernel.launch_raw(*arguments, out=out, stream=stream) is out
    stream.synchronize()
    assert all((result.view("u1") == expected).all() for result in (*made, out))


def test_torch_tensors_too(target, rng):
    torch = pytest.importorskip("torch")
    kernel = convgen.compile(f"conv layer {{ {KERNELS['direct']} pad 1 }}", target=target.name)
    tensors = kernel.manifest.arguments
    arguments = [torch.from_numpy(rng.standard_normal(t.shape).astype(t.element.numpy)).cuda() for t in tensors]
    made = kernel.launch_raw(*arguments)
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made, kernel(*arguments))
