"""How much work a function is, in a number that does not depend on how busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> int:
    """Python functions called by `work`: 5 million take a second or so."""
    count = 0

    def count_calls(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
