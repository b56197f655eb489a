"""Check each thing that convgen needs on this machine, and say what works, what does not, and how to fix it.

The exit code is 0 if kernels can be compiled, and run on a GPU or in the emulator; else it is 1.

examples:
  convgen doctor
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from convgen import __version__, plurals
from convgen.cli import console
from convgen.diagnostics import ConvgenError


@dataclass(frozen=True)
class Part:
    """Something that convgen uses: `probe` says what was found, or raises ConvgenError with a hint."""

    name: str
    use: str
    probe: Callable[[], str]


class Absent(ConvgenError):
    """Something that some uses of convgen need is not there."""


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    rows, remedies, works = [], [], set()
    with console.spinner("looking") as say:
        for part in PARTS:
            say(f"trying {part.name}")
            try:
                found, state = part.probe(), "works"
                works.add(part.name)
            except ConvgenError as e:
                found, _, hint = str(e).partition("\nhint: ")
                found, state = " ".join(found.splitlines()[:2]), "missing"
                remedies.append(f"{part.name}: {hint or 'nothing, unless you need it ' + part.use}")
            rows.append((part.name, state, part.use, found))
    console.table(("part", "state", "what it is for", "found"), rows)
    if remedies:
        console.write("\nwhat to do:\n" + "\n".join(f"  {line}" for line in remedies))
    compiles = "NVRTC" in works
    on_gpu, emulated = compiles and {"GPU", "CuPy"} <= works, "host compiler" in works
    console.write(f"\nkernels can be {_verdict(compiles, on_gpu, emulated)}")
    return 0 if compiles and (on_gpu or emulated) else 1


def _verdict(compiles: bool, on_gpu: bool, emulated: bool) -> str:
    """Says which kernels can be run here."""
    if not (compiles or emulated):
        return "neither compiled nor run here"
    if not (on_gpu or emulated):
        return "compiled, but not run here, on a GPU or in the emulator"
    run = f"run {'on the GPU' if on_gpu else 'in the emulator'}"
    return f"compiled, and {run}" if compiles else f"{run}, but not compiled here"


def _python() -> str:
    return f"convgen {__version__} on Python {sys.version.split()[0]}"


def _nvrtc() -> str:
    from convgen.runtime import nvrtc, nvrtc_library
    from convgen.runtime.errors import CompileError
    from convgen.targets import DEFAULT_TARGET, TARGETS

    version = nvrtc.nvrtc_version()
    try:
        nvrtc.compile_source('extern "C" __global__ void probe() {}\n', TARGETS[DEFAULT_TARGET])
    except CompileError as e:
        if "\nhint: " in str(e):
            raise
        wheel = "nvidia-cuda-nvrtc" if version.startswith("13") else "nvidia-cuda-nvrtc-cu12"
        raise Absent(f"{e}\nhint: install it again: pip install --force-reinstall {wheel}") from None
    if nvrtc_library.load().is_old:
        oldest = ".".join(map(str, nvrtc_library.OLDEST))
        raise Absent(
            f"NVRTC {version} makes some kernels slow\n"
            f"hint: install NVRTC {oldest} or newer: pip install 'convgen[nvrtc]'"
        )
    return f"NVRTC {version} compiles for {DEFAULT_TARGET}"


def _host_compiler() -> str:
    from convgen.emulator import compiler

    compiler.runtime_library()
    found = compiler.host_compiler()
    return f"{found.path}: {found.version.splitlines()[0]}"


def _cache() -> str:
    from convgen.cache import Cache

    cache = Cache()
    if not cache.enabled:
        raise Absent(f"the cache is off\nhint: unset CONVGEN_CACHE, which is {os.environ['CONVGEN_CACHE']}")
    if cache.distrust or not cache.can_be_written:
        raise Absent(f"{cache.root} cannot be used\nhint: set CONVGEN_CACHE_DIR to a folder that only you can write to")
    entries, size = cache.extent()
    return f"{cache.root}: {plurals.counted(entries, 'entry')}, {size / (1 << 20):.1f} MiB"


def _driver() -> str:
    from convgen.runtime import cuda

    return plurals.counted(cuda.driver().device_count, "GPU") + " seen by the CUDA driver"


def _gpu() -> str:
    from convgen.runtime.launch import gpu_at_hand
    from convgen.targets import target_for

    found = gpu_at_hand()
    if found is None:
        raise Absent("no GPU\nhint: none is needed to compile; `convgen run --device emulate` runs on the CPU")
    capability = ".".join(map(str, found.capability))
    target = target_for(found.capability)
    if target is None:
        raise Absent(
            f"{found.name} has compute capability {capability}\nhint: `convgen list targets` shows what convgen serves"
        )
    return f"{found.name}: target {target}"


def _cupy() -> str:
    from convgen.runtime import cupy_library

    return f"CuPy {cupy_library.load().__version__}"


def _cublas() -> str:
    from convgen.runtime import cublas
    from convgen.runtime.errors import DriverError, NoCupy

    try:
        cublas.find()
    except NoCupy:
        extras = "pip install 'convgen[cuda13,cublas13]', or 'convgen[cuda12,cublas12]' for CUDA 12"
        raise Absent(f"convgen finds cuBLAS through CuPy, which is missing\nhint: {extras}") from None
    except DriverError as e:
        raise Absent(f"cuBLAS is not installed\nhint: {str(e).partition('hint: ')[2]}") from None
    return "found"


def _torch() -> str:
    """Reports torch by its installed version: importing it takes seconds."""
    try:
        return f"PyTorch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        raise Absent("PyTorch is not installed\nhint: pip install torch, for `convgen.torch` and baselines") from None


PARTS: tuple[Part, ...] = (
    Part("convgen", "", _python),
    Part("NVRTC", "to compile kernels", _nvrtc),
    Part("host compiler", "to run kernels without a GPU", _host_compiler),
    Part("cache", "to keep what was compiled", _cache),
    Part("driver", "to run on a GPU", _driver),
    Part("GPU", "to run on it", _gpu),
    Part("CuPy", "to run on a GPU", _cupy),
    Part("cuBLAS", "strategy im2col", _cublas),
    Part("PyTorch", "convgen.torch", _torch),
)
