"""The runtime's C interface: its records (runtime/launch.h has the same layout), its functions, its memory."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import cache

import numpy

from convgen.emulator.compiler import runtime_library

Progress = CFUNCTYPE(c_int, c_uint32, c_uint32)


class Region(Structure):
    _fields_ = (
        ("name", c_char_p),
        ("base", c_uint64),
        ("bytes", c_uint64),
        ("element_bytes", c_uint64),
        ("writable", c_uint32),
        ("shared", c_uint32),
        ("row", c_uint64),
        ("pitch", c_uint64),
    )


class Request(Structure):
    _fields_ = (
        ("entry", c_void_p),
        ("parameters", POINTER(c_void_p)),
        ("seed", c_uint64),
        ("grid", c_uint32 * 3),
        ("block", c_uint32),
        ("cluster", c_uint32),
        ("shared_bytes", c_uint32),
        ("registers", c_uint32),
        ("checks", c_uint32),
        ("threads", c_uint32),
        ("region_count", c_uint32),
        ("dependent", c_uint32),
        ("regions", POINTER(Region)),
        ("progress", Progress),
        ("events", c_void_p),
    )


class Map(Structure):
    _fields_ = (
        ("base", c_uint64),
        ("dims", c_uint64 * 5),
        ("strides", c_uint64 * 5),
        ("element_strides", c_uint32 * 5),
        ("box", c_uint32 * 5),
        ("lower", c_int * 3),
        ("upper", c_int * 3),
        ("channels", c_uint32),
        ("pixels", c_uint32),
        ("rank", c_uint32),
        ("im2col", c_uint32),
        ("element_bytes", c_uint32),
        ("swizzle", c_uint32),
        ("fill", c_uint32),
    )


#: What a kernel's 128 bytes begin with, before the address of the map's fields.
MAP_MAGIC = 0x70616D726F736E74
MAP_BYTES = 128


@cache
def runtime() -> ctypes.CDLL:
    """The loaded runtime, its symbols visible to kernels.  Raises NoHostCompiler."""
    library = ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.convgen_emulator_run.argtypes = [POINTER(Request), POINTER(c_void_p)]
    library.convgen_emulator_free.argtypes = [c_void_p]
    library.convgen_emulator_allocate.argtypes = [c_uint64]
    library.convgen_emulator_allocate.restype = c_void_p
    library.convgen_emulator_release.argtypes = [c_void_p, c_uint64]
    return library


@cache
def kernel(path: str) -> ctypes.CDLL:
    runtime()
    return ctypes.CDLL(path)


def bounds(path: str, entry: str) -> tuple[int, ...]:
    """The numbers of `declared.bounds`."""
    return tuple((c_int * 5).in_dll(kernel(path), f"convgen_bounds_{entry}"))


class Buffer:
    """Global memory of the emulated GPU: bytes between stretches that fault.  Raises MemoryError.

    Of a channel slice, kernels may touch the first `row` of each `pitch` bytes.  Its address is `begins` bytes behind a
    page's.  Kernels only read one that is not `writable`."""

    writable = False

    def __init__(
        self, name: str, size: int, element_bytes: int = 1, row: int = 0, pitch: int = 0, begins: int = 0
    ) -> None:
        self.name, self.size, self.element_bytes, self.row, self.pitch = name, size, element_bytes, row, pitch
        self._begins, page = begins, runtime().convgen_emulator_allocate(begins + size) or 0
        if not page:
            raise MemoryError(f"no {size} bytes for {name}")
        self.address = page + begins
        self.bytes = numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def release(self) -> None:
        runtime().convgen_emulator_release(self.address - self._begins, self._begins + self.size)

    def region(self, shared: bool = True) -> Region:
        """`shared` with other kernels: a tensor or a workspace.  Others are a launch's parameters, read alone."""
        writable = int(shared and self.writable)
        name = self.name.encode()
        return Region(name, self.address, self.size, self.element_bytes, writable, int(shared), self.row, self.pitch)
