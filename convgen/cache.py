"""A cache of files under content keys, safe under many processes at once.

An entry is a folder of files with a SHA256SUMS beside them.  It is written elsewhere and renamed into
place, so nobody ever sees half of one; a lost race is fine, since both sides wrote the same.  An entry
that does not match its sum is discarded and counts as missing.  If the cache cannot be written, it warns
once, and the work goes on without it.

The cache holds code: cubins for the GPU, and the emulator's libraries for this process.  Sums detect
accidents.  As protection against other users, the folder is used only if it belongs to this user (or to
root) and nobody else may write to it.  New folders are made that way; those above it are the user's choice.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from convgen.diagnostics import warn
from convgen.resources import cache_directory, cache_is_off

#: Entries beyond this many bytes go, least recently used first.
LIMIT_BYTES = 2 << 30
_SUMS = "SHA256SUMS"
_ROOT = 0  # the user who may do anything anyway
_OWNER_ONLY = 0o700
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_STAGED = "convgen-"  # prefix of folders that are being added or removed
_STALE_SECONDS = 24 * 3600
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_warned: set[Path] = set()


class CacheWarning(UserWarning):
    """The cache cannot be used; compiled kernels are not kept."""


class Cache:
    """`root` is the folder; by default CONVGEN_CACHE_DIR or the user's cache folder.  CONVGEN_CACHE=0
    in the environment turns every cache off.  Keys end in a hexadecimal digest."""

    def __init__(self, root: Path | None = None) -> None:
        found = root or cache_directory()
        self.root = found or Path(os.devnull)
        self.enabled = found is not None and not cache_is_off()

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry by name; None if it is missing, corrupt (it is then removed) or others may have written
        it."""
        entry = self._entry(key)
        if not self.enabled or not os.path.isdir(entry) or not self._trusts(self.root, entry.parent, entry):
            return None
        try:
            files = _verified(entry)
        except (OSError, ValueError):
            self._discard(entry)
            return None
        with suppress(OSError):  # a cache that may only be read
            os.utime(entry)
        return files

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep files under a key.  An entry that is there stays."""
        entry = self._entry(key)
        if not self.enabled or not self._trusts(self.root, entry.parent):
            return
        staging = None
        try:
            staging = self._staging()
            for name, data in files.items():
                (staging / name).write_bytes(data)
            (staging / _SUMS).write_bytes(_sums(files))
            entry.parent.mkdir(_OWNER_ONLY, exist_ok=True)
            _rename_unless_taken(staging, entry)
        except OSError as error:
            self._warn_unusable(error)
        finally:
            if staging is not None:
                shutil.rmtree(staging, ignore_errors=True)
        if key.endswith("00"):  # one put in 256: looking at every entry takes time
            with suppress(OSError):  # a folder that cannot be read, or from which another process removes entries
                self._prune()

    @property
    def distrust(self) -> str:
        """Why the folder is not used: who else can write to it; empty where nobody can."""
        return _distrust(self.root)

    @property
    def can_be_written(self) -> bool:
        """Whether the folder, or the one that it would be made in, may be written to."""
        nearest = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        return nearest.is_dir() and os.access(nearest, os.W_OK)

    def extent(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [size for _, size, _ in self._rows()]
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Removes every entry and nothing else: the user's files may be there, too.  Returns how many it could not
        remove."""
        return sum(not self._discard(entry) for entry in self._entries())

    def _entry(self, key: str) -> Path:
        return self.root / key[-2:] / key

    def _entries(self) -> list[Path]:
        return [sums.parent for sums in self.root.glob(f"[0-9a-f][0-9a-f]/*/{_SUMS}")]

    def _staging(self) -> Path:
        """A fresh folder on the cache's own file system."""
        self.root.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
        base = self.root / "staging"
        base.mkdir(_OWNER_ONLY, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_STAGED, dir=base))

    def _discard(self, entry: Path) -> bool:
        """Takes an entry out of sight in one step, then deletes it; whether it could."""
        try:
            grave = self._staging()
            with suppress(FileNotFoundError):  # another process has done it
                os.rename(entry, grave / entry.name)
            shutil.rmtree(grave, ignore_errors=True)
        except OSError as error:
            self._warn_unusable(error)
            return False
        return True

    def _trusts(self, *folders: Path) -> bool:
        """Whether nobody else could have put anything into these folders, of which some may not be there yet."""
        for folder in folders:
            if reason := _distrust(folder):
                self._warn(f"{folder} {reason}", "Set CONVGEN_CACHE_DIR to a folder that only you can write to")
                return False
        return True

    def _warn_unusable(self, error: OSError) -> None:
        reason = "it is not a folder" if error.errno == errno.EEXIST else error.strerror or str(error)
        self._warn(reason, "Set CONVGEN_CACHE_DIR to a folder that can be written")

    def _warn(self, reason: str, remedy: str) -> None:
        if self.root in _warned:
            return
        _warned.add(self.root)
        warn(
            f"convgen's cache {self.root} cannot be used ({reason}), so what was made once is made again. "
            f"{remedy}, or CONVGEN_CACHE=0 to turn the cache off.",
            CacheWarning,
        )

    def _rows(self) -> list[tuple[float, int, Path]]:
        """When each entry was last used, its bytes, its folder."""
        rows = []
        for entry in self._entries():
            with suppress(OSError):  # another process is removing it
                rows.append((entry.stat().st_mtime, sum(f.stat().st_size for f in entry.iterdir()), entry))
        return rows

    def _prune(self) -> None:
        rows = self._rows()
        excess = sum(size for _, size, _ in rows) - LIMIT_BYTES
        for _, size, entry in sorted(rows):
            if excess <= 0:
                break
            self._discard(entry)
            excess -= size
        for left in self.root.glob(f"staging/{_STAGED}*"):  # of processes that were killed
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)


def _distrust(folder: Path) -> str:
    """Why others may have written a folder's contents; empty if they cannot have."""
    try:
        found, link = folder.stat(), folder.lstat()
    except OSError:  # missing or unreadable: using it says so
        return ""
    if not {found.st_uid, link.st_uid} <= {os.geteuid(), _ROOT}:
        return "belongs to another user"
    return "can be written by other users" if found.st_mode & _OTHERS_WRITE else ""


def _rename_unless_taken(staging: Path, entry: Path) -> None:
    """Another process that was faster keeps the place."""
    try:
        os.rename(staging, entry)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise


def _sums(files: Mapping[str, bytes]) -> bytes:
    """The text that sha256sum prints for these files."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


def _verified(entry: Path) -> dict[str, bytes]:
    """The files of an entry.  Raises ValueError where they are not those of its sums, byte for byte."""
    files = {name: (entry / name).read_bytes() for name in os.listdir(entry)}
    if files.pop(_SUMS, None) != _sums(files):
        raise ValueError("the files do not match their checksums")
    return files
