"""What only CI has for certain: elsewhere tests that need it are skipped, and there they fail."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def module(name: str) -> ModuleType:
    """A module of the extra `ci`."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)


def absent(what: str) -> None:
    """Says that something else is not there."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)
