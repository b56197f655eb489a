"""Turns a plan and its source into a compiled artifact, through two levels of cache.

An artifact's key is over what was compiled (source, NVRTC's version, flags, the plan's launches): whoever
makes the same kernel again gets the cubin.  A *request key* is over what the user asked for, with every
file of convgen itself: under it the driver keeps artifacts' keys, so that a hit needs no parsing, no
planning and no rendering.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from convgen.cache import Cache
from convgen.ir.plan import Plan
from convgen.resources import directory
from convgen.runtime import nvrtc, nvrtc_library
from convgen.runtime.manifest import Manifest
from convgen.turns import turn

#: Changes whenever the files of an entry change their names or meaning.
_SCHEMA = 1
_SOURCE, _CUBIN, _PTX = "kernel.cu", "kernel.cubin", "kernel.ptx"
_LOG, _MANIFEST = "nvrtc.log", "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel: all that `Kernel` needs, and `log`, NVRTC's."""

    key: str
    manifest: Manifest
    source: str
    cubin: bytes
    ptx: str
    log: str

    @classmethod
    def of(cls, files: Mapping[str, bytes], key: str = "") -> Artifact:
        """The artifact of these `files`.  Raises ManifestError, and KeyError where one is missing."""
        manifest = Manifest.from_json(files[_MANIFEST])
        source, ptx, log = (files[name].decode() for name in (_SOURCE, _PTX, _LOG))
        return cls(key or _key(source, manifest), manifest, source, files[_CUBIN], ptx, log)

    def files(self) -> dict[str, bytes]:
        """All of it but the key, as the cache and `saved` keep it."""
        return {
            _SOURCE: self.source.encode(),
            _CUBIN: self.cubin,
            _PTX: self.ptx.encode(),
            _LOG: self.log.encode(),
            _MANIFEST: self.manifest.to_json().encode(),
        }


def build(source: str, plan: Plan, cache: Cache | None = None) -> Artifact:
    """Compiles a plan's source, or takes it from the cache.  Raises CompileError."""
    cache = cache or Cache()
    version, flags = nvrtc.nvrtc_version(), nvrtc.flags(plan.target)
    bare = Manifest.of(plan, {}, version, flags)
    key = _key(source, bare)
    with turn(key) if cache.enabled else nullcontext():
        if found := load(key, cache):
            return found
        compiled = nvrtc.compile_source(source, plan.target)
        made = Artifact(
            key, replace(bare, resources=compiled.resources), source, compiled.cubin, compiled.ptx, compiled.log
        )
        cache.put(key, made.files())
        return made


def uncompiled(source: str, plan: Plan) -> Artifact:
    """A plan's source without code for a GPU: what emulating takes."""
    return Artifact("", Manifest.of(plan, {}, "", nvrtc.flags(plan.target)), source, b"", "", "")


def load(key: str, cache: Cache | None = None) -> Artifact | None:
    """An artifact that was built before; None where the cache does not have it."""
    files = (cache or Cache()).get(key)
    return None if files is None else Artifact.of(files, key)


def _key(source: str, manifest: Manifest) -> str:
    return _digest(_SCHEMA, source, replace(manifest, resources={}).to_json())


def request_key(**request: object) -> str:
    """Key of a request: everything that decides its outcome, by name, as JSON-able values (spec text,
    defines, target, strategy...).  convgen's own files and the NVRTC library are added here."""
    return _digest(request, schema_digest())


@cache
def schema_digest() -> str:
    """Digest of convgen's files and the NVRTC library by path, size and time: cheap, and any change shows."""
    roots = [Path(__file__).resolve().parent.parent, directory("templates"), directory("grammar")]
    return _digest([list(_stats(root)) for root in roots], list(_nvrtc_files()), os.environ.get("CUDA_PATH"))


def _stats(root: Path) -> Iterator[tuple[str, int, int]]:
    """(path, size, time) of every file under a folder, compiled Python apart."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(folder, name)
            stat = os.stat(path)
            yield os.path.relpath(path, root), stat.st_size, stat.st_mtime_ns


def _nvrtc_files() -> Iterator[tuple[str, int, int]]:
    """NVRTC as its wheel installs it; loading it to ask its version would take longer than a whole hit."""
    for path in nvrtc_library.wheel_files():
        yield str(path), path.stat().st_size, path.stat().st_mtime_ns


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
