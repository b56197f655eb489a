"""A stand-in for the CUDA driver: tests/data/fake_libcuda.c, compiled and put in the real one's place."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from ctypes import c_char, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

from convgen.runtime.cuda import LaunchAttribute, LaunchConfig

SOURCE = Path(__file__).parent.parent / "data" / "fake_libcuda.c"


class LaunchRecord(ctypes.Structure):
    _fields_ = (
        ("config", LaunchConfig),
        ("attribute", LaunchAttribute),
        ("entry", c_char_p),
        ("params", ctypes.POINTER(c_void_p)),
        ("context", c_void_p),
        ("position", c_int),
    )


class MapRecord(ctypes.Structure):
    _fields_ = (
        *((name, c_int) for name in ("im2col", "dtype", "rank", "interleave", "swizzle", "l2_promotion", "fill")),
        ("address", c_void_p),
        ("dims", c_uint64 * 5),
        ("strides", c_uint64 * 4),
        ("element_strides", c_uint32 * 5),
        ("box", c_uint32 * 5),
        ("channels", c_uint32),
        ("pixels", c_uint32),
        ("lower", c_int * 3),
        ("upper", c_int * 3),
    )


class FillRecord(ctypes.Structure):
    _fields_ = (("address", c_uint64), ("bytes", c_uint64), ("stream", c_void_p), ("value", c_int), ("position", c_int))


class FakeDriver:
    """Its `fake_*` variables as attributes: `fake.devices = 2`, `fake.launch_count`."""

    def __init__(self, library: Path) -> None:
        object.__setattr__(self, "_library", ctypes.CDLL(str(library)))
        object.__setattr__(self, "_hooks", [])

    def __getattr__(self, name: str) -> int:
        try:
            return c_int.in_dll(self._library, f"fake_{name}").value
        except ValueError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: int) -> None:
        c_int.in_dll(self._library, f"fake_{name}").value = value

    def rename(self, gpu: str) -> None:
        """Gives the GPUs another name than NVIDIA H200."""
        (c_char * 64).in_dll(self._library, "fake_name").value = gpu.encode()

    def on_launch(self, function: Callable[[], None] | None) -> None:
        """Has a function called in each launch, by the thread that launches."""
        hook = ctypes.CFUNCTYPE(None)(function) if function else ctypes.CFUNCTYPE(None)()
        self._hooks.append(hook)  # which must live
        c_void_p.in_dll(self._library, "fake_on_launch").value = ctypes.cast(hook, c_void_p).value

    def destroy_graph(self, number: int) -> None:
        """Does away with the graph of a capture."""
        self._library.fake_destroy_graph(c_uint64(number))

    @property
    def launches(self) -> list[LaunchRecord]:
        return list((LaunchRecord * 4096).in_dll(self._library, "fake_launches"))[: self.launch_count]

    @property
    def fills(self) -> list[FillRecord]:
        return list((FillRecord * 4096).in_dll(self._library, "fake_fills"))[: self.fill_count]

    @property
    def maps(self) -> list[MapRecord]:
        return list((MapRecord * 4096).in_dll(self._library, "fake_maps"))[: self.map_count]

    @property
    def last_map(self) -> MapRecord:
        return MapRecord.in_dll(self._library, "fake_map")


def install(folder: Path, monkeypatch) -> FakeDriver:
    """A fresh fake driver, which `cuda.driver()` finds until the test ends.  Skips without a C compiler."""
    from convgen.runtime import cuda, launch, scratch

    library = folder / "libcuda.so"
    library.write_bytes(_compiled())  # a copy: each has its own variables
    monkeypatch.setattr(cuda, "LIBRARY", str(library))
    monkeypatch.setattr(cuda, "MONITOR", str(library))
    monkeypatch.setattr(cuda, "driver", cache(cuda.driver.__wrapped__))
    monkeypatch.setattr(launch, "gpu_at_hand", cache(launch.gpu_at_hand.__wrapped__))
    monkeypatch.setattr(scratch, "_of_streams", WeakValueDictionary())
    monkeypatch.setattr(scratch, "_captured", {})
    return FakeDriver(library)


@cache
def _compiled() -> bytes:
    import tempfile

    import pytest

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the fake driver")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fake.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", str(SOURCE), "-o", str(library)], check=True)
        return library.read_bytes()
