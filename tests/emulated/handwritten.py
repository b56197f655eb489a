"""Hand-written kernels of tests/emulated/kernels, made into whole sources as the generator would make them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from convgen import emulator
from convgen.codegen import ptx
from convgen.codegen.render import environment
from convgen.ir.plan import Launch, Param, TensorMap

KERNELS = Path(__file__).parent / "kernels"


def whole_source(body: str, defines: Mapping[str, object] | None = None) -> str:
    """Types, the PTX functions in use, macros, then the body: what NVRTC and the emulator both take."""
    env = environment()
    macros = "".join(f"#define {name} {value}\n" for name, value in (defines or {}).items())
    # a macro may name a function
    functions = "\n\n".join(
        ptx.render_function(env, name) for name in ptx.functions_used(body + macros.replace("\n", "(\n"))
    )
    types = env.get_template("types.cuh.j2").render()
    return f"{types}\n#ifndef CONVGEN_EMULATE\n{functions}\n#endif\n\n// ---- kernel\n{macros}{body}"


def kernel_source(name: str, defines: Mapping[str, object] | None = None) -> str:
    return whole_source((KERNELS / name).read_text(encoding="utf-8"), defines)


def tiled(buffer: str, dtype: str, dims: Sequence[int], box: Sequence[int], **fields) -> TensorMap:
    """A tiled map over a packed tensor, innermost dim first."""
    return TensorMap(
        buffer, "tiled", dtype, tuple(dims), packed_strides(dtype, dims),
        fields.pop("element_strides", (1,) * len(dims)), box=tuple(box), **fields,
    )  # fmt: skip


def packed_strides(dtype: str, dims: Sequence[int]) -> tuple[int, ...]:
    """Strides in bytes of dims[1:]."""
    from convgen.ir.dtypes import DTYPES

    return tuple(int(np.prod(dims[: i + 1])) * DTYPES[dtype].bytes for i in range(len(dims) - 1))


def launch(
    entry: str,
    params: Sequence[TensorMap | str | int],
    *,
    block: int = 128,
    grid: int = 1,
    cluster: int = 1,
    shared_bytes: int = 0,
    dependent: int = 0,
) -> Launch:
    """A parameter is a tensor map, the name of a buffer, or an integer."""
    made = []
    for i, p in enumerate(params):
        if isinstance(p, TensorMap):
            made.append(Param(f"p{i}", "tensor_map", p.buffer, p))
        elif isinstance(p, str):
            made.append(Param(f"p{i}", "pointer", p))
        else:
            made.append(Param(f"p{i}", "int", value=p))
    return Launch(entry, (grid, 1, 1), block, tuple(made), shared_bytes, cluster, dependent=bool(dependent))


def run(
    source: str,
    entry: str,
    params: Sequence[TensorMap | str | int],
    buffers: Mapping[str, np.ndarray],
    *,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    inputs: Collection[str] = (),
    **shape: int,
) -> None:
    """One launch of a shape as `launch` takes it."""
    made = launch(entry, params, **shape)
    emulator.emulate(source, [made], buffers, inputs=inputs, seed=seed, threads=threads, progress=progress)
