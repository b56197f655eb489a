"""A cache of files under content keys, safe under many processes at once.

An entry is a folder of files with a SHA256SUMS beside them.  It is written elsewhere and renamed into
place, so nobody ever sees half of one; a lost race is fine, since both sides wrote the same.  Whatever
does not match its sum is thrown away and counts as missing.  A cache that cannot be written is no
error: it warns once and the work goes on without it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from convgen.resources import cache_directory

#: Entries beyond this many bytes go, least recently used first.
LIMIT_BYTES = 2 << 30
_SUMS = "SHA256SUMS"
#: What else is kept in the folder: templates and the grammar in prepared form.
_PREPARED = ("templates/__jinja2_*.cache", "grammar.pickle")
_STAGED = "convgen-"  # how names of folders on their way in or out begin
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
        self.enabled = found is not None and os.environ.get("CONVGEN_CACHE", "1") != "0"

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of an entry by name; None where there is none or it is corrupt (it is removed)."""
        entry = self._entry(key)
        if not self.enabled or not os.path.isdir(entry):
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
        if not self.enabled:
            return
        entry = self._entry(key)
        staging = None
        try:
            staging = self._staging()
            for name, data in files.items():
                (staging / name).write_bytes(data)
            (staging / _SUMS).write_bytes(_sums(files))
            entry.parent.mkdir(parents=True, exist_ok=True)
            os.rename(staging, entry)
        except OSError as error:
            if error.errno not in _TAKEN:  # by another process, which was faster
                _warn(self.root, error)
        finally:
            if staging is not None:
                shutil.rmtree(staging, ignore_errors=True)
        if key.endswith("0"):  # one put in sixteen looks at the size of the whole
            self._prune()

    def extent(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [size for _, size, _ in self._rows()]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Removes every entry, and whatever else convgen keeps in the folder: the user's files may be there, too."""
        for entry in [*self._entries(), *(path for kept in _PREPARED for path in self.root.glob(kept))]:
            self._discard(entry)

    def _entry(self, key: str) -> Path:
        return self.root / key[-2:] / key

    def _entries(self) -> list[Path]:
        return [sums.parent for sums in self.root.glob(f"[0-9a-f][0-9a-f]/*/{_SUMS}")]

    def _staging(self) -> Path:
        """A fresh folder on the cache's own file system."""
        base = self.root / "staging"
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_STAGED, dir=base))

    def _discard(self, entry: Path) -> None:
        """Takes an entry out of sight in one step, then deletes it."""
        try:
            grave = self._staging()
            with suppress(FileNotFoundError):  # another process has done it
                os.rename(entry, grave / entry.name)
            shutil.rmtree(grave, ignore_errors=True)
        except OSError as error:
            _warn(self.root, error)

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


def _sums(files: Mapping[str, bytes]) -> bytes:
    """The text that sha256sum prints for these files."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


def _verified(entry: Path) -> dict[str, bytes]:
    """The files of an entry.  Raises ValueError where they are not those of its sums, byte for byte."""
    files = {name: (entry / name).read_bytes() for name in os.listdir(entry)}
    if files.pop(_SUMS, None) != _sums(files):
        raise ValueError("the files do not match their sums")
    return files


def _warn(root: Path, error: OSError) -> None:
    if root in _warned:
        return
    _warned.add(root)
    warnings.warn(
        f"convgen's cache {root} cannot be used ({error.strerror or error}); kernels are compiled anew each time. "
        "Set CONVGEN_CACHE_DIR to a folder that can be written, or CONVGEN_CACHE=0 to do without.",
        CacheWarning,
        stacklevel=3,
    )
