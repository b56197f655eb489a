"""What a program shows on a terminal."""

from __future__ import annotations

import os


def everything(parent: int) -> bytes:
    """All that is read from a pseudo-terminal until its other end is closed."""
    shown = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:  # the other end is closed
            return shown
        if not data:
            return shown
        shown += data
