"""Host programs compile against cuda.h, and ask the driver for what a call of the kernel asks for."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import fake_driver
import pytest
from fake_kernels import LAUNCH, MAP, STREAM, array, kernel

from convgen import driver
from convgen.cli import main
from convgen.ir.plan import Fill, Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime import host
from convgen.runtime.artifacts import Artifact, uncompiled
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import Manifest

SPECS = Path(__file__).parents[2] / "specs"
STRICT = ("-std=c++17", "-Wall", "-Wextra", "-Werror")


def planned(name: str, strategy: str | None = None) -> Manifest:
    (compilation,) = driver.load(driver.Spec((SPECS / f"{name}.conv").read_text(), strategy=strategy))
    return uncompiled("", compilation.plan).manifest


def small() -> Manifest:
    """A buffer filled with zeros, a kernel with an integer parameter, launched again over another map."""
    again = replace(LAUNCH, params=(replace(LAUNCH.params[0], map=replace(MAP, box=(8, 8))), *LAUNCH.params[1:]))
    return kernel(Fill("sums"), LAUNCH, again, workspaces=(Workspace("sums", 40),)).manifest


#: Also: two kernels and a workspace; clusters, as many as run at once; maps of either mode; persistent blocks; slices
#: of channels; two results.
MANIFESTS: dict[str, Callable[[], Manifest]] = {
    "small": small,
    **{
        name: partial(planned, f"golden/{name}")
        for name in ("tma_im2col_stream_k", "tma_im2col_cluster", "tma_halo_nchw")
    },
    **{name: partial(planned, f"examples/{name}", "direct") for name in ("channel_slices", "further_result")},
}


def cuda_h() -> Path:
    """The folder of cuda.h, from the wheel of CUDA's runtime."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for header in Path(folder).glob("cu*/include/cuda.h"):
            return header.parent
    pytest.skip("no cuda.h: pip install nvidia-cuda-runtime")


def built(text: str, folder: Path) -> Path:
    """A program as a library, linked with the fake driver in its folder."""
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    source, library = folder / "host.cpp", folder / "host.so"
    source.write_text(text)
    # by its path: another test's driver has the same name
    parts = (f"-I{cuda_h()}", str(source), str(folder / "libcuda.so"))
    subprocess.run([compiler, *STRICT, "-shared", "-fPIC", *parts, "-o", str(library)], check=True)
    return library


def arguments(made: Manifest, folder: Path) -> list[str]:
    """The program's arguments: the cubin, the inputs' files, and where the result goes."""
    (folder / "kernel.cubin").write_bytes(b"\x7fELF")
    paths = [folder / f"{t.name}.bin" for t in made.tensors]
    for tensor, path in zip((*made.reads, *made.operands), paths, strict=False):
        path.write_bytes(bytes(tensor.whole.span * tensor.element.bytes))
    return ["host", str(folder / "kernel.cubin"), *map(str, paths)]


def run(library: Path, values: list[str]) -> int:
    encoded = [value.encode() for value in values]
    return ctypes.CDLL(str(library)).main(len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))


def seen(fake: fake_driver.FakeDriver) -> tuple:
    """What the driver was asked for, but for addresses and streams."""
    launches = [
        (
            launch.entry, tuple(launch.config.grid), tuple(launch.config.block), launch.config.shared_bytes,
            launch.config.attribute_count,
            launch.config.attribute_count and (launch.attribute.id, launch.attribute.value),
        )
        for launch in fake.launches
    ]  # fmt: skip
    fields = [name for name, _ in fake_driver.MapRecord._fields_ if name != "address"]
    plain = [[getattr(m, f) for f in fields] for m in fake.maps]
    maps = {tuple(tuple(v) if isinstance(v, ctypes.Array) else v for v in values) for values in plain}
    return launches, maps, [(fill.bytes, fill.value) for fill in fake.fills]


@pytest.mark.costly
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_program_asks_the_driver_for_what_a_call_does(name: str, tmp_path: Path, monkeypatch) -> None:
    made = MANIFESTS[name]()
    fake = fake_driver.install(tmp_path, monkeypatch)
    fake.clusters = 7
    assert run(built(host.program(made), tmp_path), arguments(made, tmp_path)) == 0
    program, limit = seen(fake), fake.shared_limit
    for tensor in made.results:
        assert (tmp_path / f"{tensor.name}.bin").stat().st_size == tensor.whole.span * tensor.element.bytes
    assert fake.held == 0

    (tmp_path / "again").mkdir()
    fake = fake_driver.install(tmp_path / "again", monkeypatch)
    fake.clusters = 7
    called = Kernel(Artifact("0", made, "", b"\x7fELF", "", ""))
    tensors = {
        t.name: array(t, (i + 1) << 28, strides=tuple(stride * t.element.bytes for stride in t.strides))
        for i, t in enumerate(made.tensors)
    }
    results = tuple(tensors.pop(t.name) for t in made.results)
    tensors["out"] = results if made.further else results[0]
    if size := called.workspace_bytes:
        tensors["workspace"] = array(Tensor("", "", "s8", ("n",), (size,)), 9 << 28)
    called(**tensors, stream=STREAM)
    launches, maps, fills = program
    sliced = [(t.whole.span * t.element.bytes, 0) for t in made.results if t.pitch]  # which the program clears first
    assert (launches, maps, fills[len(sliced) :]) == seen(fake) and fills[: len(sliced)] == sliced
    assert limit == fake.shared_limit


def test_a_file_of_the_wrong_size_is_refused(tmp_path: Path, monkeypatch) -> None:
    made = small()
    fake_driver.install(tmp_path, monkeypatch)
    library, values = built(host.program(made), tmp_path), arguments(made, tmp_path)
    Path(values[2]).write_bytes(b"short")
    script = f"import sys, test_host; sys.exit(test_host.run({str(library)!r}, {{}}))"

    def process(values: list[str]) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", script.format(values)]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)

    refused = process(values)
    assert (refused.returncode, refused.stderr) == (1, f"{values[2]}: 5 bytes, of {made.tensors[0].bytes}\n")
    assert not Path(values[-1]).exists()
    usage = process(values[:-1])
    assert "\n//   ./tiny tiny.cubin x.bin w.bin operand_b.bin y.bin\n//\n" in host.program(made)
    assert usage.returncode == 2 and usage.stderr.startswith("usage: host tiny.cubin x.bin w.bin operand_b.bin y.bin")


def test_a_plan_that_calls_cublas_has_no_program(tmp_path: Path) -> None:
    hint = "calls cuBLAS\nhint: use a strategy other than im2col; --strategy direct"
    with pytest.raises(host.NoHostProgram, match=hint):
        host.program(planned("golden/im2col_gemm"))


def test_compile_writes_a_host_program(tmp_path: Path, capsys) -> None:
    spec = str(SPECS / "golden" / "direct_wgrad.conv")
    assert main(["compile", spec, "--emit", "cu,host", "-o", str(tmp_path)]) == 0
    assert "wrote 2 files (.cu, _host.cpp)" in capsys.readouterr().out
    assert (tmp_path / "direct_wgrad_host.cpp").read_text().startswith("// Generated by convgen: a host program")
    refused = str(SPECS / "golden" / "im2col_gemm.conv")
    assert main(["compile", refused, "--emit", "cu,host", "-o", str(tmp_path / "no")]) == 1
    assert "calls cuBLAS" in capsys.readouterr().err and not (tmp_path / "no").exists()
