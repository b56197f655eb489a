"""Output files: each is whole or absent, and a set of files is written as one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from convgen.spec import UsageError


def check_place(path: Path | None) -> None:
    """Asks before long work whether a file can be written after it, and is not a spec.  Raises UsageError."""
    if path is None:
        return
    if path.suffix == ".conv" and path.is_file():
        raise UsageError(f"{path}: would be overwritten, and is a spec\nhint: name another file")
    if path.is_dir():
        raise UsageError(f"{path}: cannot be written: it is a folder")
    folder = next(p for p in path.absolute().parents if p.exists())
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{path}: cannot be written: {folder} takes no files")


def write_all(files: Mapping[Path, bytes], hint: str = "") -> None:
    """Writes files under temporary names beside their own, then renames all of them.

    Where one cannot be written, none is.  Raises UsageError, with the hint.
    """
    mark = f".{secrets.token_hex(4)}.tmp"
    staged: list[tuple[Path, Path]] = []
    hint = hint and f"\nhint: {hint}"
    made: list[Path] = []  # folders, outermost first
    at = Path()
    try:
        for at, data in files.items():
            if at.parent.exists() and not at.parent.is_dir():
                raise UsageError(f"{at.parent}: is not a folder{hint}")
            for folder in reversed([at.parent, *at.parent.parents]):
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    made.append(folder)
            if at.is_dir():
                raise UsageError(f"{at}: cannot be written: it is a folder")
            staging = at.with_name(at.name + mark)
            staged.append((staging, at))
            staging.write_bytes(data)
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
