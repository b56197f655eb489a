"""Kernels in files and pickles: an artifact's files, without the spec and without anything of this process.

A file is one line, `convgen kernel FORMAT SHA256`, where the sum is that of the rest, and then a zip of the
artifact's files.  Reading one runs nothing in it.  Running the kernel does: `emulate` compiles its source for this
machine.  So a saved kernel is to be trusted as a program is.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from convgen.diagnostics import ConvgenError
from convgen.files import write_all
from convgen.runtime.artifacts import Artifact
from convgen.runtime.errors import SavedKernelError
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import ManifestError
from convgen.spec import UsageError

#: Changes whenever files of it can no longer be read.
_FORMAT = b"2"
_HEAD = re.compile(rb"convgen kernel (\w+) ([0-9a-f]{64})\n")
_OLDEST_DATE = (1980, 1, 1, 0, 0, 0)  # a zip's: the same kernel gives the same bytes


def files(artifacts: Sequence[Artifact]) -> dict[str, bytes]:
    """The artifacts' files by name; those of a kernel's further classes of sizes in numbered folders."""
    return {f"{i}/{name}" if i else name: data for i, a in enumerate(artifacts) for name, data in a.files().items()}


def restore(files: Mapping[str, bytes]) -> Kernel:
    """The kernel of an artifact's files, or of several.  Raises ManifestError, KeyError, WrongArguments."""
    folders: dict[str, dict[str, bytes]] = {}
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, {})[name] = data
    return one([Kernel(Artifact.of(folders[folder])) for folder in sorted(folders, key=lambda f: int(f or 0))])


def one(kernels: Sequence[Kernel]) -> Kernel:
    """The kernel of one kernel for each class of sizes.  Raises WrongArguments."""
    if len(kernels) == 1:
        return kernels[0]
    from convgen.runtime.dynamic import joined

    return joined(kernels)


def packed(kernel: Kernel) -> bytes:
    """The contents of the kernel's file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files(kernel._artifacts).items():
            archive.writestr(zipfile.ZipInfo(name, _OLDEST_DATE), data, zipfile.ZIP_DEFLATED)
    body = made.getvalue()
    return b"convgen kernel %b %b\n" % (_FORMAT, _sum(body)) + body


def write(path: str | os.PathLike[str], kernel: Kernel) -> None:
    """Writes the whole file or nothing.  Raises ConvgenError."""
    write_all({_path(path): packed(kernel)}, new_folders=False)


def read(path: str | os.PathLike[str]) -> Kernel:
    """The kernel in a file.  Raises SavedKernelError where it is not what `write` wrote, and ConvgenError."""
    path = _path(path)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as e:
        raise ConvgenError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
    head = _HEAD.match(data)
    if head is None:
        raise SavedKernelError(f"{path}: not a file that `Kernel.save` wrote")
    if head[1] != _FORMAT:
        raise SavedKernelError(f"{path}: saved by another version of convgen\nhint: compile the spec again")
    if head[2] != _sum(body := data[head.end() :]):
        raise SavedKernelError(f"{path}: damaged: its checksum is wrong\nhint: save the kernel again")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            return restore({name: archive.read(name) for name in archive.namelist()})
    except ManifestError as e:
        raise SavedKernelError(f"{path}: {e}") from None
    except (zipfile.BadZipFile, KeyError, ValueError) as e:
        raise SavedKernelError(f"{path}: not a file that `Kernel.save` wrote: {e}") from None


def _path(path: str | os.PathLike[str]) -> Path:
    """Raises UsageError."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"the path is of type {type(path).__name__}\nhint: give the name of a file, or a Path")
    return Path(path)


def _sum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
