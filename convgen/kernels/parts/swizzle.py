"""Swizzles of tiles in shared memory (PTX ISA, "Swizzling modes"): 16-byte columns are permuted within a row, so that a
column's chunks in consecutive rows lie in different banks.

A swizzle is named by its span, the bytes of a row: 128, 64 or 32; 0 is none.
"""

from __future__ import annotations

CHUNK = 16  # bytes that stay together
#: Span -> the value of its field in wgmma's descriptors of shared memory.
FIELD = {128: 1, 64: 2, 32: 3, 0: 0}
SPANS = tuple(span for span in FIELD if span)


def mask(span: int) -> int:
    """The address bits that it changes, by XOR with the bits three places above them."""
    return span - CHUNK


def moved(span: int, row: str = "row") -> str:
    """C text of the number by which a 16-byte column's index is swizzled in a row of a tile: 128 bytes hold 8 columns
    of one row, 4 of two rows, or 2 of four."""
    columns = span // CHUNK
    rows = 8 // columns
    return f"{row}{f' >> {rows.bit_length() - 1}' if rows > 1 else ''} & {columns - 1}"


def applied(span: int, row: str = "row") -> str:
    """C text that changes the number before it so; none without a swizzle."""
    return f" ^ ({moved(span, row)})" if span else ""
