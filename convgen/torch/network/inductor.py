"""Inductor, kept from printing graphs.

Where Inductor meets an operator that it has no lowering for, as convgen's, it prints the operator's arguments for its
log (torch 2.11 even if nobody reads that), and an argument with all that it is made of: each residual block doubles
the text, so that a network of fifty layers takes hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

_brief: ContextVar[bool] = ContextVar("brief", default=False)


@contextmanager
def brief() -> Iterator[None]:
    """Within, and in this thread, Inductor tells of an operator by its name alone."""
    _install()
    before = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(before)


@cache
def _install() -> None:
    try:
        from torch._inductor.exc import OperatorIssue
    except ImportError:  # it is not public: another torch may not have it
        return
    in_full = OperatorIssue.operator_str

    def operator_str(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return f"  target: {target}" if _brief.get() else in_full(target, args, kwargs)

    OperatorIssue.operator_str = staticmethod(operator_str)
