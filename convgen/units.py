"""Amounts with their units, as people read them: three digits and a prefix, never an exponent."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")


def si(value: float, unit: str) -> str:
    """`1.85 GFLOP`.  Rounded first: 999,999 bytes are 1 MB."""
    rounded, power = _rounded(value), 0
    while rounded >= 1000 ** (power + 1) and power + 1 < len(_PREFIXES):
        power += 1
    return f"{_digits(rounded / 1000**power)} {_PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """`27.3 us`, `2.16 ms`, `1.5 s`."""
    if seconds < 1e-9:
        return "< 0.001 us"
    us = _rounded(seconds * 1e6)
    size, unit = next((row for row in ((1e6, "s"), (1e3, "ms")) if us >= row[0]), (1.0, "us"))
    return f"{_digits(us / size)} {unit}"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
