"""Properties that are computed when they are first asked for, and take long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property as _cached_property
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(_cached_property):
        """Without the lock that Python 3.11 holds for all objects of a class: a process that is forked meanwhile would
        wait for it for ever."""

        def __init__(self, function: Callable[[Any], T]) -> None:
            super().__init__(function)
            self.lock = nullcontext()


__all__ = ["cached_property"]
