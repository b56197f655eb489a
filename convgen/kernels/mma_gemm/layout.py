"""What follows from a problem and a configuration of mma_gemm: operands, tiles, steps, shared memory, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels import base
from convgen.kernels.mma_gemm.config import Config
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.cost import functions
from convgen.kernels.parts.limits import MAX_REGISTERS, WARP
from convgen.kernels.parts.mma import CHUNK_BYTES, COLUMNS, K_BYTES, MMAS, ROWS, Mma
from convgen.kernels.parts.prepare import Prepared, words_last
from convgen.kernels.parts.reader import Loading, Reader, Tile, loading, reader
from convgen.kernels.parts.walk import Walk, walk

#: What a row of pixels takes a thread beyond a place and one for each bound, where there are more than two.
FURTHER_BOUND = 2
#: Cycles of an element that is loaded by itself: from a sector that others share, or from one of its own
#: (ResNet-50 in NCHW on an NVIDIA H200; the model was 2 to 10 times too fast without).
TOGETHER, APART = 0.12, 0.5
#: The same of one that cp.async copies by itself.
COPIED_ALONE = 0.15
#: Registers for the sums of one slice, where factors are taken apart.
SLICE_SUMS = 44


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """What follows from a problem and a configuration."""

    @cached_property
    def prepared(self) -> Prepared:
        """What is laid out anew before the product, and the problem as the product reads it."""
        found = words_last(self.problem) if self.config.relayout else None
        return found or Prepared(self.problem)

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @cached_property
    def columns(self) -> output.Columns:
        return output.columns(self.read)

    @property
    def swapped(self) -> bool:
        """Whether the product's rows are output channels, and its columns pixels."""
        return self.columns.role == "pixels"

    @property
    def warp_rows(self) -> int:
        c = self.config
        return c.tile_n // c.warps_n if self.swapped else c.tile_m // c.warps_m

    @property
    def warp_columns(self) -> int:
        c = self.config
        return c.tile_m // c.warps_m if self.swapped else c.tile_n // c.warps_n

    @property
    def warps_across(self) -> int:
        return self.config.warps_m if self.swapped else self.config.warps_n

    @cached_property
    def run(self) -> int:
        return output.run_length(self.read, self.columns, self.warp_columns)

    @property
    def element_bytes(self) -> int:
        return self.read.x.element.bytes

    @property
    def row_bytes(self) -> int:
        return self.config.tile_k * self.element_bytes

    @cached_property
    def walks(self) -> dict[str, Walk]:
        return {role: walk(self.read, role, self.config.order, self.config.tile_k) for role in ("x", "w")}

    @property
    def steps(self) -> int:
        """k steps of one slice."""
        return -(-self.walks["x"].depth // (self.config.tile_k * self.config.split_k))

    def tile(self, role: str) -> Tile:
        c = self.config
        return Tile(c.tile_m if role == "x" else c.tile_n, c.tile_k, c.threads, self.element_bytes)

    def reader(self, role: str) -> Reader:
        c = self.config
        tile = self.tile(role)
        permuted = self.run > 2 and (role == "x") == self.swapped
        return reader(self.read, self.walks[role], role, tile, self.steps * c.tile_k, c.split_k, permuted)

    @property
    def mma(self) -> Mma:
        return MMAS[self.read.x.dtype, self.config.math]

    @property
    def apart(self) -> bool:
        """Whether factors are taken apart: an infinite one less its rounding is a NaN."""
        return self.config.math == "tf32x3"

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.read.x.dtype, self.read.w.dtype)
        return self.mma.function(*(factors[::-1] if self.swapped else factors))

    @property
    def shared_bytes(self) -> int:
        return self.config.stages * self.stage

    @property
    def stage(self) -> int:
        """Bytes of a stage: tiles of x and w."""
        return (self.config.tile_m + self.config.tile_n) * self.row_bytes

    @property
    def tiles(self) -> tuple[int, int]:
        p, c = self.read, self.config
        return -(-p.output_pixels // c.tile_m), -(-p.k_per_group // c.tile_n)

    @property
    def index(self) -> str:
        return lowering.index_type(self.read, (self.tiles[0] * self.config.tile_m,))

    @cached_property
    def loads(self) -> dict[str, Loading]:
        """How tiles of x and w are loaded."""
        return {role: loading(self.walks[role], self.tile(role)) for role in ("x", "w")}

    def sliced(self, split_k: int, stages: int, blocks: int | str | None) -> Layout:
        """The same tiles with another split and other stages, on which neither walks nor loads nor registers depend;
        with as many blocks as a multiprocessor holds, unless they are given."""
        made = self.knowing("registers", "tile_demands")
        return made.sibling(split_k=split_k, stages=stages, blocks=int(blocks or self._held(stages)))

    @cached_property
    def tile_demands(self) -> dict[str, Any]:
        """What the cost model asks of a tile, whatever its split and its stages."""
        c = self.config
        loads = [(self.tile(role).rows, self.loads[role]) for role in "xw"]
        instructions = self.slices * self.warp_rows / ROWS * self.warp_columns / COLUMNS
        results = c.tile_m * c.tile_n / c.threads
        return dict(
            instructions=instructions * (3 if self.apart else 1) * (2 if self.element_bytes == 4 else 1),
            reads=self.slices * c.warps_m * c.warps_n * (self.warp_rows + self.warp_columns) / 4,
            writes=(c.tile_m + c.tile_n) * self.row_bytes / 128,
            copies=sum(rows * c.tile_k / how.piece for rows, how in loads if how.asynchronous),
            alone=sum(rows * c.tile_k * _alone(how) for rows, how in loads),
            warps=c.warps_m * c.warps_n,
            results=results,
            stores=results / self.run,
            traffic=(c.tile_m + c.tile_n) * self.row_bytes,
            functions=functions(self.problem) * c.tile_m * c.tile_n,
        )

    @cached_property
    def registers(self) -> int:
        """An estimate of the registers a thread needs."""
        r, c = self.warp_rows, self.warp_columns
        total = r * c // WARP + (r + c) // 4 * (3 if self.apart else 2) + 28 + SLICE_SUMS * self.apart
        for role in ("x", "w"):
            loads = self.loads[role]
            bounds = len(self.walks[role].bounds)
            total += loads.share.rows * (1 + bounds + FURTHER_BOUND * max(0, bounds - 2))
            if not loads.asynchronous:
                # elements on their way, and where each piece of them comes from
                pieces = CHUNK_BYTES // self.element_bytes // loads.piece
                total += 4 * loads.share.rows * loads.share.chunks + 4 * pieces
        return total

    @property
    def held(self) -> int:
        """Blocks that a multiprocessor holds; at most 4."""
        return self._held(self.config.stages)

    def _held(self, stages: int) -> int:
        registers = min(self.registers, MAX_REGISTERS)
        return max(1, min(4, self.target.resident_blocks(self.config.threads, registers, stages * self.stage)))

    @property
    def slices(self) -> int:
        """Instructions of a k step: 32 bytes of gemm_k each."""
        return self.row_bytes // K_BYTES

    @property
    def tile_count(self) -> int:
        return math.prod(self.tiles) * self.read.groups

    @property
    def ragged(self) -> int:
        """Of how many of x and y the pixels begin inside a sector.  y counts where no reduction stores it and threads
        can store 16 bytes at once: what narrower stores cost is told by their number."""
        x, y = self.read.x, self.read.y
        x_pixel, y_pixel = (
            (x.pitch or self.read.c) * self.element_bytes,
            (y.pitch or self.read.k) * y.element.bytes,
        )
        stores = not self.swapped and self.config.split_k == 1
        return (x_pixel % SECTOR != 0) + (stores and y_pixel % CHUNK_BYTES == 0 and y_pixel % SECTOR != 0)


def _alone(how: Loading) -> float:
    """Cycles of an element that is copied by itself, beyond those of a copy."""
    if how.asynchronous:
        return COPIED_ALONE if how.piece == 1 else 0.0
    return TOGETHER if how.together else APART
