"""Small kernels for the fake driver, and CuPy arrays over addresses that nobody reads."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from convgen.ir.plan import Launch, Param, TensorMap
from convgen.ir.tensor import Tensor
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import Manifest

cupy = pytest.importorskip("cupy")
STREAM = 0x5EED
X, W, B, Y = 0x100000, 0x200000, 0x300000, 0x400000  # addresses

IMAGE = Tensor("image", "x", "f16", ("n", "h", "w", "c"), (2, 5, 6, 8))
FILTER = Tensor("weights", "w", "f16", ("k", "r", "s", "c"), (16, 3, 3, 8))
BIAS = Tensor("b", "operand", "f32", ("k",), (16,))
RESULT = Tensor("result", "y", "bf16", ("n", "p", "q", "k"), (2, 3, 4, 16))
MAP = TensorMap("x", "tiled", "f16", (8, 60), (16,), (1, 1), box=(8, 4), swizzle=32)
LAUNCH = Launch(
    "convgen_tiny",
    (7, 3, 2),
    96,
    (
        Param("x_map", "tensor_map", "x", MAP),
        Param("w", "pointer", "w"),
        Param("operand_b", "pointer", "b", alignment=4),
        Param("y", "pointer", "y"),
        Param("seven", "int", value=-7),
    ),
    shared_bytes=1000,
)


def kernel(*steps, workspaces=(), operands=(BIAS,), reads=(IMAGE, FILTER), result=RESULT, target="sm_90a",
           further=(), in_place=()) -> Kernel:  # fmt: skip
    manifest = Manifest(
        convgen="0", name="tiny", op="fprop", strategy="direct", config="", reason="", notes=(), arithmetic="",
        target=target,
        digest="", spec="conv tiny {}", macs=0, min_bytes=0, reads=reads, operands=operands, result=result,
        steps=steps or (LAUNCH,), workspaces=workspaces, resources={}, nvrtc="13.0", flags=(), further=further,
        in_place=in_place,
    )  # fmt: skip
    return Kernel(Artifact("0", manifest, "// source", b"\x7fELF", "", ""))


def array(tensor: Tensor, address: int, dtype=None, shape=None, strides=None, device: int = 0):
    """A CuPy array at an address of a GPU that need not exist."""
    dtype = np.dtype(dtype or getattr(np, tensor.element.numpy, None) or getattr(ml_dtypes, tensor.element.numpy))
    memory = cupy.cuda.UnownedMemory((device << 32) + address, 1 << 30, None, device)
    return cupy.ndarray(shape or tensor.shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def right() -> dict:
    return {"image": array(IMAGE, X), "weights": array(FILTER, W), "b": array(BIAS, B), "out": array(RESULT, Y)}


def parameter(launch, index: int, kind):
    """A parameter of a launch; its kernel keeps it alive."""
    return ctypes.cast(launch.params[index], ctypes.POINTER(kind)).contents
