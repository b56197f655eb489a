"""How near results of float32 are to each other that are computed in different ways."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def near(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
