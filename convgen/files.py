"""Output files: each is whole or absent, and a set of files is written as one.

What a file's name leads to is kept: a link stays a link, a file keeps its mode, and a device or a pipe is written to,
not replaced.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from convgen.spec import UsageError, was_read

_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def check_writable(path: Path | None) -> None:
    """Asks before long work whether a file can be written after it, and is not a spec.  Raises UsageError."""
    if path is None:
        return
    if path.suffix == ".conv" and os.path.isfile(path):
        raise _is_spec(path)
    _check_not_read([path])
    _check_replaceable(path)
    _check_holds(_nearest(path), path, _is_stream(path))


def check_folder(folder: Path, hint: str) -> None:
    """Asks before long work whether files can be created in a folder, which need not be there yet.  Raises UsageError,
    with the hint."""
    _check_holds(folder if os.path.lexists(folder) else _nearest(folder), folder, hint=f"\nhint: {hint}")


def _check_holds(folder: Path, path: Path, is_there: bool = False, hint: str = "") -> None:
    """Raises UsageError, with the hint, if no new file can be created in a folder, for the requested `path`."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder{hint}")
    if not is_there and not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: cannot be written: no file can be created in {folder.absolute()}{hint}")


def _check_replaceable(path: Path, hint: str = "") -> None:
    """Raises UsageError for a folder, and for a file that nobody may write, or not this user: the folder that it is in
    would let it be replaced."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: cannot be written: it is a folder{hint}")
    with suppress(OSError, ValueError):
        if not (os.stat(path).st_mode & _WRITABLE and os.access(path, os.W_OK)):
            raise UsageError(f"{path}: cannot be written: it is read-only{hint}")


def _check_not_read(paths: Iterable[Path], hint: str = "") -> None:
    """Raises UsageError, with the hint, where one of the paths leads to a spec that was read."""
    for path in paths:
        if was_read(path):
            raise _is_spec(path, hint)


def _is_spec(path: Path, hint: str = "") -> UsageError:
    return UsageError(f"{path}: would be overwritten, and is a spec\nhint: {hint or 'name another file'}")


def _nearest(path: Path) -> Path:
    """The nearest existing folder above a path; perhaps a file, or a dangling link."""
    return next((p for p in path.parents if os.path.lexists(p)), Path())


def write_all(files: Mapping[Path, bytes], hint: str = "", new_folders: bool = True, formatted: bool = False) -> None:
    """Writes files under temporary names beside their own, then renames all of them; by default, in folders that need
    not exist yet.

    Where one cannot be written, none is; nor is a file replaced that was read as a spec, but by its own text,
    `formatted`.  Raises UsageError, with the hint.
    """
    _check_not_read(() if formatted else files, hint)
    mark = secrets.token_hex(8)
    staged: list[tuple[Path, Path]] = []
    hint = hint and f"\nhint: {hint}"
    made: list[Path] = []  # folders, outermost first
    at = Path()
    try:
        for at, data in files.items():
            folder = _nearest(at)
            if not folder.is_dir():
                raise UsageError(f"{folder}: is not a folder{hint}")
            for folder in reversed([at.parent, *at.parent.parents]) if new_folders else ():
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    made.append(folder)
            _check_replaceable(at, hint)
            if _is_stream(at):
                at.write_bytes(data)
                continue
            target = Path(os.path.realpath(at))
            staging = target.with_name(f".{mark}.{len(staged)}.tmp")
            staged.append((staging, target))
            _write_like(target, staging, data)
        for staging, at in staged:
            os.replace(staging, at)
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise UsageError(f"{at}: cannot be written: {reason}{hint}") from None
    finally:
        for staging, _ in staged:
            with suppress(OSError, ValueError):
                staging.unlink(missing_ok=True)
        for folder in reversed(made):  # where nothing was written
            with suppress(OSError):
                folder.rmdir()


def _is_stream(path: Path) -> bool:
    """Whether writing to it creates no file: a device, a pipe, a socket."""
    with suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def _write_like(target: Path, staging: Path, data: bytes) -> None:
    """Writes a new file with the mode of the one whose place it takes, if there is one."""
    with open(staging, "xb") as file:
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
        file.write(data)
