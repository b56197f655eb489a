"""NVRTC through ctypes: finds the library, loads it, compiles a source with it.

CuPy has bindings too, but importing them takes a fifth of a second, most of which a compilation has no use for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from convgen.runtime.errors import CompileError

#: The library as the loader knows it, in the order of preference.
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
#: The first version that compiles every kernel well: the ptxas of 12.8 makes products of wgmma wait for one another.
OLDEST = (12, 9)
#: Where a driver is installed, NVRTC from 12.9 on keeps what it compiled, and gives it back with an empty log: without
#: ptxas's figures.  (NVRTC's documentation, "Caching".)  convgen has a cache of its own.
_UNCACHED = "--no-cache"


@dataclass(frozen=True)
class Result:
    """NVRTC's output for a source; `error` is empty if compilation succeeded, else NVRTC's name for the error."""

    error: str
    log: str
    ptx: str
    cubin: bytes


class Library:
    """A loaded NVRTC."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = c_char_p
        major, minor = c_int(), c_int()
        self._call("nvrtcVersion", byref(major), byref(minor))
        self.version = f"{major.value}.{minor.value}"
        self.is_old = (major.value, minor.value) < OLDEST

    def compile(self, source: str, file: str, options: Sequence[str]) -> Result:
        """Compiles a source that the log shall call `file`."""
        options = [*options, *(() if self.is_old else (_UNCACHED,))]
        program, text = c_void_p(), [option.encode() for option in options]
        self._call("nvrtcCreateProgram", byref(program), source.encode(), file.encode(), 0, None, None)
        try:
            status = self._library.nvrtcCompileProgram(program, len(text), (c_char_p * len(text))(*text))
            log, ptx = (self._get(what, program).rstrip(b"\0").decode() for what in ("ProgramLog", "PTX"))
            return Result(self._error(status), log.strip(), ptx, self._get("CUBIN", program))
        finally:
            self._library.nvrtcDestroyProgram(byref(program))

    def _get(self, what: str, program: c_void_p) -> bytes:
        """A product of a compilation; empty if there is none."""
        size = c_size_t()
        if getattr(self._library, f"nvrtcGet{what}Size")(program, byref(size)):
            return b""
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, data)
        return data.raw

    def _error(self, status: int) -> str:
        return self._library.nvrtcGetErrorString(c_int(status)).decode() if status else ""

    def _call(self, function: str, *arguments: object) -> None:
        if error := self._error(getattr(self._library, function)(*arguments)):
            raise CompileError(f"{function}: {error}")


@cache
def load() -> Library:
    """NVRTC: its wheel's, else the system's, else the CUDA toolkit's; an old one where there is no other.

    Raises CompileError.
    """
    toolkit = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    wheels = [path for name in _NAMES for path in wheel_files() if path.name == name]
    refusals, old = [], []
    candidates: tuple[Path | str, ...] = (*wheels, *_NAMES, f"{toolkit}/lib64/libnvrtc.so")
    for candidate in candidates:
        try:
            library = Library(_of_wheel(candidate) if isinstance(candidate, Path) else ctypes.CDLL(candidate))
        except OSError as error:
            refusals.append(str(error))
            continue
        if not library.is_old:
            return library
        old.append(library)
    if old:
        return old[0]
    raise CompileError(
        f"NVRTC, which compiles kernels, could not be loaded: {'; '.join(refusals)}\n"
        "hint: pip install 'convgen[nvrtc]'; to run kernels as well, 'convgen[cuda13]' or 'convgen[cuda12]'"
    )


def _of_wheel(path: Path) -> ctypes.CDLL:
    """A wheel's NVRTC, with what it opens when it compiles, which lies beside it: that of CUDA 13.0, which torch wants,
    does not look there."""
    for builtins in path.parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(path))


def wheel_files() -> Iterator[Path]:
    """The files of NVRTC as its wheels install it: nvidia/cu13/lib, and nvidia/cuda_nvrtc/lib of CUDA 12."""
    spec = find_spec("nvidia")
    for base in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(base).glob("*/*/*nvrtc*"))
