"""A manifest as a C++ program that runs its kernel by the CUDA driver API: for programs without Python, and to read.

The program (templates/host.cpp.j2) does what `runtime.launch` does at a call: it encodes the tensor maps, allows the
shared memory, and launches the plan's steps with their grids, attributes and workspaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm, prod

from convgen.codegen.render import environment
from convgen.diagnostics import ConvgenError
from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import SPREAD_FROM, Fill, Gemm, Launch, Param, Step, TensorMap
from convgen.ir.tensor import Tensor
from convgen.runtime.manifest import Manifest
from convgen.runtime.tensor_map import DATA_TYPES, FILLS, FUNCTIONS, L2_PROMOTIONS, SWIZZLES

#: What encodes a tensor map, by entry point, parameter and map.
_MapFunctions = dict[tuple[str, str, TensorMap], str]


class NoHostProgram(ConvgenError):
    """The plan has steps that the CUDA driver API alone does not run."""


@dataclass(frozen=True)
class _Buffer:
    """Memory that the program allocates: a tensor's, or a workspace."""

    name: str
    bytes: int


@dataclass(frozen=True)
class _File:
    """A tensor's file, and which argument of the program names it."""

    file: str
    text: str
    buffer: str
    bytes: int
    argument: int
    written: bool
    sliced: bool


@dataclass(frozen=True)
class _Map:
    """A tensor map as arguments of `cuTensorMapEncode*`."""

    function: str
    text: str
    im2col: bool
    encode: str
    dtype: str
    rank: int
    dims: str
    strides: str
    element_strides: str
    box: str
    lower: str
    upper: str
    channels: int
    pixels: int
    swizzle: str
    l2_promotion: str
    fill: str


@dataclass(frozen=True)
class _Step:
    """A launch, with C++ text of its parameters and its grid; or the filling of a buffer."""

    text: str
    fill: bool = False
    buffer: str = ""
    bytes: int = 0
    entry: str = ""
    params: tuple[str, ...] = ()
    addresses: str = ""
    grid: str = ""
    block: int = 0
    shared_bytes: int = 0
    spread_bytes: int = 0  # where blocks are few
    cluster: int = 0  # of a persistent kernel whose blocks run in clusters
    blocks_per_sm: str = ""
    work: int = 0
    unit: int = 1
    dependent: bool = False


def program(manifest: Manifest) -> str:
    """The C++ source.  Raises NoHostProgram where cuBLAS computes a part of the plan, or a call decides sizes."""
    if any(isinstance(step, Gemm) for step in manifest.steps):
        raise NoHostProgram(
            f"{manifest.name}: a host program runs only kernels, but this plan calls cuBLAS"
            "\nhint: use a strategy other than im2col; --strategy direct serves every convolution"
        )
    if manifest.dynamic:
        raise NoHostProgram(
            f"{manifest.name}: a host program is for fixed sizes\nhint: leave `dynamic` out of the spec"
        )
    launches = [step for step in manifest.steps if isinstance(step, Launch)]
    maps = _map_functions(launches)
    names = _buffer_names(manifest)
    files = _files(manifest, names)
    sizes = _sizes(manifest)
    return environment().get_template("host.cpp.j2").render(
        name=manifest.name,
        file=file_name(manifest.name),
        cubin=f"{manifest.name}.cubin",
        tensors=files,
        inputs=[f for f in files if not f.written],
        outputs=[f for f in files if f.written],
        argument_count=files[-1].argument + 1,
        buffers=[_Buffer(name, sizes[buffer]) for buffer, name in names.items()],
        kernels=list({launch.entry: launch for launch in launches}.values()),
        maps=[_map(function, m) for (_, _, m), function in maps.items()],
        persistent=any(launch.persistent for launch in launches),
        spread_from=SPREAD_FROM,
        steps=[_step(step, manifest, names, maps) for step in manifest.steps],
    )  # fmt: skip


def file_name(name: str) -> str:
    """The file name of a convolution's program."""
    return f"{name}_host.cpp"


def _buffer_names(manifest: Manifest) -> dict[str, str]:
    """The program's names for the memory that steps refer to; they are distinct, and not C++ keywords."""
    names = {t.buffer: f"{t.role}_{t.name}" if t.role in ("operand", "result") else t.role for t in manifest.tensors}
    return names | {
        w.name: "workspace_" + re.sub(r"\W", "_", w.name.removeprefix("workspace.")) for w in manifest.workspaces
    }


def _sizes(manifest: Manifest) -> dict[str, int]:
    """Bytes of the memory that steps refer to."""
    tensors = {t.buffer: _bytes(t) for t in manifest.tensors}
    return tensors | {w.name: w.bytes for w in manifest.workspaces}


def _bytes(tensor: Tensor) -> int:
    """Bytes in memory, and in a file as NumPy's `tofile` writes an array: for a slice of channels, those of the whole
    array."""
    return tensor.whole.span * tensor.element.bytes


def _files(manifest: Manifest, names: dict[str, str]) -> list[_File]:
    """Inputs in the order of a call's arguments, then results; the first argument is the cubin."""
    tensors = [(names[t.buffer], t) for t in manifest.tensors]
    return [
        _File(f"{name}.bin", str(t), name, _bytes(t), i, written=t in manifest.results, sliced=t.pitch is not None)
        for i, (name, t) in enumerate(tensors, 2)
    ]


def _map_functions(launches: Iterable[Launch]) -> _MapFunctions:
    """The functions that encode maps: one for each parameter, or each value of it where a kernel is launched again."""
    functions: _MapFunctions = {}
    for launch in launches:
        for p in launch.params:
            if p.map is not None and (key := (launch.entry, p.name, p.map)) not in functions:
                others = sum((entry, name) == key[:2] for entry, name, _ in functions)
                functions[key] = f"{launch.entry}_{p.name}" + (f"_{others + 1}" if others else "")
    return functions


def _map(function: str, m: TensorMap) -> _Map:
    return _Map(
        function=function,
        text=str(m),
        im2col=m.mode == "im2col",
        encode=FUNCTIONS[m.mode],
        dtype=DATA_TYPES[str(DTYPES[m.dtype].tma)].name,
        rank=len(m.dims),
        dims=_list(m.dims),
        strides=_list(m.strides) or "0",
        element_strides=_list(m.element_strides),
        box=_list(m.box),
        lower=_list(m.lower),
        upper=_list(m.upper),
        channels=m.channels,
        pixels=m.pixels,
        swizzle=SWIZZLES[m.swizzle].name,
        l2_promotion=L2_PROMOTIONS[m.l2_promotion].name,
        fill=FILLS[m.fill].name,
    )


def _step(step: Step, manifest: Manifest, names: dict[str, str], maps: _MapFunctions) -> _Step:
    if isinstance(step, Fill):
        return _Step(str(step), fill=True, buffer=names[step.buffer], bytes=_sizes(manifest)[step.buffer])
    assert isinstance(step, Launch)  # products by cuBLAS have been refused
    unit, work = lcm(step.cluster, step.multiple_of), prod(step.grid)
    per_sm = f" * {step.blocks_per_sm}" if step.blocks_per_sm > 1 else ""
    grid = f"blocks_at_once(multiprocessors{per_sm}, {work}, {unit}), 1, 1" if step.persistent else _list(step.grid)
    return _Step(
        text=str(step),
        entry=step.entry,
        params=tuple(_param(step, p, names, maps) for p in step.params),
        addresses=", ".join(f"&{p.name}" for p in step.params),
        grid=grid,
        block=step.block,
        shared_bytes=step.shared_bytes,
        spread_bytes=step.spread_bytes if step.cluster == 1 else 0,
        cluster=step.cluster if step.persistent and step.cluster > 1 else 0,
        blocks_per_sm=per_sm,
        work=work,
        unit=unit,
        dependent=step.dependent,
    )


def _param(launch: Launch, p: Param, names: dict[str, str], maps: _MapFunctions) -> str:
    """C++ that declares a kernel's parameter."""
    if p.map is not None:
        return f"CUtensorMap {p.name} = {maps[launch.entry, p.name, p.map]}(memory.{names[p.buffer]});"
    if p.kind == "int":
        return f"int {p.name} = {p.value};"
    return f"CUdeviceptr {p.name} = memory.{names[p.buffer]};"


def _list(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
