"""Which thread loads what of a tile that is on its way to shared memory: rows of elements in chunks of 16 bytes."""

from __future__ import annotations

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
    """A thread's share of a tile: C text of its row (`i` counts them) and its first chunk."""

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
        step = "j" if self.chunk_stride == 1 else f"j * {self.chunk_stride}"
        return step if self.chunk == "0" else f"{self.chunk} + {step}"


def share(tile: Tile, along_rows: bool) -> Share:
    """`along_rows`: neighboring threads take neighboring rows, else neighboring chunks."""
    if not along_rows:
        step = tile.threads // tile.chunks
        rows = -(-tile.rows // step)
        guard = f"row < {tile.rows}" if rows * step != tile.rows else ""
        return Share(_plus(f"thread / {tile.chunks}", "i", step, rows), rows, f"thread % {tile.chunks}", 1, 1, guard)
    if tile.rows >= tile.threads:
        rows = -(-tile.rows // tile.threads)
        guard = f"row < {tile.rows}" if rows * tile.threads != tile.rows else ""
        return Share(_plus("thread", "i", tile.threads, rows), rows, "0", tile.chunks, 1, guard)
    parts = max(p for p in range(1, tile.threads // tile.rows + 1) if tile.chunks % p == 0)
    guard = f"thread < {parts * tile.rows}" if parts * tile.rows != tile.threads else ""
    # threads without work load what others do: past the tile's last chunk memory may end
    chunk = f"thread / {tile.rows}{f' % {parts}' if guard else ''}" if parts > 1 else "0"
    return Share(f"thread % {tile.rows}", 1, chunk, tile.chunks // parts, parts, guard)


def k_rows_share(tile: Tile) -> Share:
    """The same of a tile in rows of gemm_k, whose chunks are neighboring rows: a thread has a chunk of several k."""
    chunks = tile.rows * tile.element_bytes // CHUNK_BYTES
    step = tile.threads // chunks
    rows = -(-tile.k // step)
    guards = [f"thread < {chunks * step}"] if chunks * step < tile.threads else []
    guards += [f"row < {tile.k}"] if rows * step != tile.k else []
    row = _plus(f"thread / {chunks}", "i", step, rows)
    return Share(row, rows, f"thread % {chunks}", 1, step, " && ".join(guards))


def _plus(text: str, counter: str, step: int, count: int) -> str:
    return f"{text} + {counter} * {step}" if count > 1 else text
