"""Suites: specs of many convolutions that ship with convgen, by name."""

from __future__ import annotations

from pathlib import Path

from convgen.resources import directory
from convgen.spec import UsageError, unknown


def names() -> list[str]:
    """Every suite: a spec `NAME.conv`, or a folder NAME of specs.  Raises MissingFiles."""
    root = directory("specs")
    return sorted({path.relative_to(root).parts[0].removesuffix(".conv") for path in root.rglob("*.conv")})


def find(name: str) -> list[Path]:
    """The specs of a suite, or of one spec in a folder: FOLDER/NAME.  Raises UsageError, MissingFiles."""
    root = directory("specs")
    spec = root / f"{name}.conv"
    found = [spec] if spec.is_file() else sorted((root / name).glob("*.conv"))
    if not found or name.partition("/")[0] not in names():  # "" and ".." are also folders
        raise UsageError(unknown("suite", name, names()))
    return found
