"""Host programs (convgen compile --emit host) compute what a call of the kernel computes, bit by bit."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import convgen
from convgen.ir.dtypes import numpy_dtype
from convgen.runtime import host

SPECS = Path(__file__).parents[2] / "specs" / "golden"


def tools() -> tuple[str, Path, str]:
    """The C++ compiler, the folder of cuda.h, and the driver's library."""
    compiler = shutil.which("c++")
    found = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    header = next((h.parent for folder in folders for h in folder.glob("cu*/include/cuda.h")), None)
    if compiler is None or header is None:
        pytest.skip("needs a C++ compiler, and cuda.h: pip install nvidia-cuda-runtime")
    return compiler, header, "-l:libcuda.so.1"


@pytest.mark.parametrize("name", ["tma_im2col_stream_k", "tma_im2col_cluster", "tma_halo_nchw", "depthwise_stream"])
def test_a_host_program_computes_what_a_call_computes(name: str, tmp_path: Path, rng) -> None:
    compiler, header, library = tools()
    kernel = convgen.compile(SPECS / f"{name}.conv")
    source, program = tmp_path / host.file_name(name), tmp_path / name
    source.write_text(host.program(kernel.manifest))
    subprocess.run([compiler, "-std=c++17", f"-I{header}", str(source), library, "-o", str(program)], check=True)
    (tmp_path / "cubin").write_bytes(kernel.cubin)

    tensors = kernel.manifest.arguments
    inputs = {t.name: rng.standard_normal(t.shape, dtype="f4").astype(numpy_dtype(t.dtype)) for t in tensors}
    files = [tmp_path / f"{t.name}.bin" for t in kernel.manifest.tensors]
    for array, path in zip(inputs.values(), files, strict=False):
        array.tofile(path)
    subprocess.run([str(program), str(tmp_path / "cubin"), *map(str, files)], check=True)

    cupy = pytest.importorskip("cupy")
    called = kernel(**{key: cupy.asarray(array) for key, array in inputs.items()}).get()
    made = np.fromfile(files[-1], called.dtype).reshape(called.shape)
    assert np.array_equal(made.view("u1"), called.view("u1"))
