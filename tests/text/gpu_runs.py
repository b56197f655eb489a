"""Runs a strategy's kernel on a GPU, on poisoned memory, and holds it against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import convgen
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.runtime.kernel import Kernel


def _joined(settings: list[str]) -> list[str]:
    """Settings of one name as one: tile m=128, tile n=64 -> tile m=128 n=64."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        name, value = setting.split(" ", 1)
        found.setdefault(name, []).append(value)
    return [f"{name} {' '.join(values)}" for name, values in found.items()]


def spec_text(problem: ConvProblem, strategy: str, options: Mapping[str, int | str]) -> str:
    """The problem's canonical spec with a strategy block."""
    # a dotted option, tile.m, is the key m of the setting tile
    settings = [
        f"{name.split('.')[0]} {name.split('.')[1]}={value}" if "." in name else f"{name} {value}"
        for name, value in options.items()
    ]
    block = f"strategy {strategy} {{ {'  '.join(_joined(settings))} }}"
    return str(problem).replace("\n  op ", f"\n  {block}\n  op ", 1)


def compiled(problem: ConvProblem, strategy: str, options: Mapping[str, int | str] | None = None) -> Kernel:
    kernel = convgen.compile(spec_text(problem, strategy, options or {}))
    assert isinstance(kernel, Kernel)
    return kernel


def _raw(array: Any) -> Any:
    """A NumPy array as CuPy holds it: types that CuPy lacks as their bits."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" or array.dtype.isbuiltin != 1 else array


def on_device(array: Any) -> Any:
    import cupy

    return cupy.asarray(_raw(array))


def inputs(problem: ConvProblem, seed: int) -> dict[str, Any]:
    """Normal data on the GPU for every tensor that is read, by role or operand name."""
    import cupy

    tensors = problem.arguments
    if any(t.dtype not in ("f16", "bf16", "f32") for t in tensors):
        return {name: on_device(a) for name, a in verify.random_inputs(problem, seed).items()}
    random = cupy.random.default_rng(seed)

    def normal(tensor: Tensor) -> Any:
        if tensor.pitch:
            return normal(tensor.whole)[..., : tensor.row]
        values = random.standard_normal(tensor.shape, dtype=cupy.float32)
        if tensor.dtype != "bf16":
            return values.astype(numpy_dtype(tensor.dtype))
        bits = values.view(cupy.uint32)  # rounded to nearest even
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(cupy.uint16)

    return {t.buffer: normal(t) for t in tensors}


def poisoned(tensor: Tensor) -> Any:
    import numpy

    if tensor.pitch:
        return poisoned(tensor.whole)[..., : tensor.row]
    return on_device(verify.poison(numpy.empty(tensor.size, numpy_dtype(tensor.dtype)))).reshape(tensor.shape)


def outputs(problem: ConvProblem) -> Any:
    """What a call takes as `out`, poisoned: an array, or a tuple of one for each result."""
    arrays = tuple(map(poisoned, problem.results))
    return arrays if problem.further else arrays[0]


def run(kernel: Kernel, problem: ConvProblem, arrays: Mapping[str, Any], out: Any) -> Any:
    return kernel(*arrays.values(), out=out)


def check(problem: ConvProblem, strategy: str, options: Mapping[str, int | str] | None = None, seed: int = 0) -> None:
    """Fails unless every element of the kernel's result is within rounding of the reference."""
    import cupy

    kernel = compiled(problem, strategy, options)
    arrays = inputs(problem, seed)
    out = run(kernel, problem, arrays, outputs(problem))
    report = verify.check(problem, arrays, out, cupy, kernel.manifest.arithmetic)
    cupy.get_default_memory_pool().free_all_blocks()
    assert report, f"{report}\nseed {seed}, {strategy} {dict(options or {})}\n{problem}"


#: Runs of a kernel whose sums must not depend on the order in which blocks finish.
RUNS = 1000


def same_to_the_bit(kernel: Kernel, problem: ConvProblem, seed: int) -> None:
    """Fails unless every run writes the same results, to the bit."""
    import cupy

    def bits(out: Any) -> list[Any]:
        return [array.view(f"u{array.itemsize}") for array in (out if isinstance(out, tuple) else (out,))]

    arrays = inputs(problem, seed)
    first = bits(run(kernel, problem, arrays, outputs(problem)))
    outs, different = outputs(problem), cupy.zeros((), cupy.int64)
    for _ in range(RUNS):
        for array in bits(outs):
            array.fill(~array.dtype.type(0))  # NaN
        run(kernel, problem, arrays, outs)
        unlike = [(now != then).any() for now, then in zip(bits(outs), first, strict=True)]
        different += cupy.stack(unlike).any()
    assert int(different) == 0, f"{int(different)} of {RUNS} runs differ\nseed {seed}\n{problem}"
