"""Divides the load of a tile into shared memory among threads: rows of elements, in chunks of 16 bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convgen.kernels.parts.mma import CHUNK_BYTES


@dataclass(frozen=True)
class Tile:
    """Rows by elements of gemm_k, loaded by so many threads."""

    rows: int
    k: int
    threads: int
    element_bytes: int

    @property
    def chunks(self) -> int:
        return self.k * self.element_bytes // CHUNK_BYTES


@dataclass(frozen=True)
class Share:
    """A thread's share of a tile: C text of its row (`i` counts them) and its first chunk, and the numbers that are
    `named` there."""

    named: Mapping[str, int]
    row: str
    rows: int
    chunk: str
    chunks: int
    chunk_stride: int
    active: str  # condition for having work; empty where it always holds

    @property
    def chunk_of_j(self) -> str:
        """C text of its chunk number `j`."""
        if self.chunks == 1:
            return self.chunk
        step = "j" if self.chunk_stride == 1 else "j * chunks_at_once"
        return step if self.chunk == "0" else f"{self.chunk} + {step}"


def share(tile: Tile, along_rows: bool) -> Share:
    """`along_rows`: neighboring threads take neighboring rows, else neighboring chunks."""
    if not along_rows:
        step = tile.threads // tile.chunks
        rows = -(-tile.rows // step)
        guard = "row < tile_rows" if rows * step != tile.rows else ""
        named = {"row_chunks": tile.chunks, "rows_at_once": step, "tile_rows": tile.rows}
        return Share(
            named, _many("thread / row_chunks", "rows_at_once", rows), rows, "thread % row_chunks", 1, 1, guard
        )
    if tile.rows >= tile.threads:
        rows = -(-tile.rows // tile.threads)
        guard = "row < tile_rows" if rows * tile.threads != tile.rows else ""
        return Share({"tile_rows": tile.rows}, _many("thread", "threads", rows), rows, "0", tile.chunks, 1, guard)
    parts = max(p for p in range(1, tile.threads // tile.rows + 1) if tile.chunks % p == 0)
    guard = f"thread < {'chunks_at_once * ' * (parts > 1)}tile_rows" if parts * tile.rows != tile.threads else ""
    # threads without work load what others do: past the tile's last chunk memory may end
    chunk = f"thread / tile_rows{' % chunks_at_once' if guard else ''}" if parts > 1 else "0"
    named = {"tile_rows": tile.rows, "chunks_at_once": parts}
    return Share(named, "thread % tile_rows", 1, chunk, tile.chunks // parts, parts, guard)


def k_rows_share(tile: Tile) -> Share:
    """The same of a tile in rows of gemm_k, whose chunks are neighboring rows: a thread has a chunk of several k."""
    chunks = tile.rows * tile.element_bytes // CHUNK_BYTES
    step = tile.threads // chunks
    rows = -(-tile.k // step)
    guards = ["thread < row_chunks * rows_at_once"] if chunks * step < tile.threads else []
    guards += ["row < tile_k"] if rows * step != tile.k else []
    named = {"row_chunks": chunks, "rows_at_once": step}
    row = _many("thread / row_chunks", "rows_at_once", rows)
    return Share(named, row, rows, "thread % row_chunks", 1, step, " && ".join(guards))


def _many(first: str, at_once: str, count: int) -> str:
    return f"{first} + i * {at_once}" if count > 1 else first
