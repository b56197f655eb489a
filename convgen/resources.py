"""Finds the files that ship beside the code: templates, the grammar, the emulator's headers.

In a checkout they stand at the top level; in a wheel they are packed inside the package.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from convgen.diagnostics import ConvgenError

_PACKAGE = Path(__file__).resolve().parent


class MissingFiles(ConvgenError):
    """Files that ship with convgen are not there, or not as files."""


@cache
def directory(name: str) -> Path:
    """The folder `templates`, `grammar` or `emulator/include`.  Raises MissingFiles."""
    for base in (_PACKAGE / "_data", _PACKAGE.parent, _PACKAGE):
        if (base / name).is_dir():
            return base / name
    if not _PACKAGE.is_dir():
        hint = "install it with pip, or unpack the archive and put the folder on the path"
        raise MissingFiles(f"convgen cannot run from an archive: {_PACKAGE} is no folder\nhint: {hint}")
    raise MissingFiles(f"{_PACKAGE} has no folder {name!r}: the installation is incomplete\nhint: install it again")


def cache_is_off() -> bool:
    """Whether CONVGEN_CACHE turns every cache off."""
    return os.environ.get("CONVGEN_CACHE", "").strip().lower() in ("0", "no", "false", "off")


def cache_directory() -> Path | None:
    """Where work is kept between runs: CONVGEN_CACHE_DIR, or the user's cache folder.  None where that is off."""
    if cache_is_off():
        return None
    if chosen := os.environ.get("CONVGEN_CACHE_DIR"):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("convgen"))
