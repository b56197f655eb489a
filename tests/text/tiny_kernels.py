"""Small kernels of tests/data/tiny.cu for tests on a GPU, launched through hand-written manifests."""

from __future__ import annotations

from pathlib import Path

from convgen.ir.plan import Launch, Param
from convgen.ir.tensor import Tensor
from convgen.runtime import nvrtc
from convgen.runtime.artifacts import Artifact
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import Manifest

SOURCE = (Path(__file__).parent.parent / "data" / "tiny.cu").read_text()
ROWS, COLUMNS = 300, 64
SIZE = ROWS * COLUMNS
X = Tensor("x", "x", "f32", ("n", "c"), (ROWS, COLUMNS))
B = Tensor("b", "operand", "f32", ("c",), (COLUMNS,))
Y = Tensor("y", "y", "f32", ("n", "k"), (ROWS, COLUMNS))
HALF_SECOND = 500_000_000  # clocks, on a GPU of about 1 GHz or more: a quarter at the least
_compiled: dict[str, nvrtc.Compiled] = {}


def kernel(target, *steps, reads=(X,), operands=(), result=Y, workspaces=()) -> Kernel:
    if target.name not in _compiled:
        _compiled[target.name] = nvrtc.compile_source(SOURCE, target)
    compiled = _compiled[target.name]
    manifest = Manifest(
        convgen="", name="tiny", op="fprop", strategy="", config="", reason="", notes=(), arithmetic="",
        target=target.name, digest="",
        spec="", macs=0, min_bytes=0, reads=reads, operands=operands, result=result, steps=steps, workspaces=workspaces,
        resources=compiled.resources, nvrtc="", flags=(),
    )  # fmt: skip
    return Kernel(Artifact("", manifest, SOURCE, compiled.cubin, compiled.ptx, compiled.log))


def pointer(name: str) -> Param:
    return Param(name, "pointer", name)


def number(value: int) -> Param:
    return Param("", "int", value=value)


def scale_step(delay: int = 0, result: str = "y") -> Launch:
    numbers = map(number, (COLUMNS, SIZE, delay))
    return Launch("convgen_scale", (4, 1, 1), 128, (pointer("x"), pointer("b"), pointer(result), *numbers))
