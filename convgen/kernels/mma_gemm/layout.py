"""What follows from a problem and a configuration of mma_gemm: operands, tiles, steps, shared memory, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from convgen.ir.phases import Phases, phases
from convgen.ir.problem import SECTOR, ConvProblem
from convgen.kernels import base
from convgen.kernels.mma_gemm.config import Config
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.cost import functions, lines
from convgen.kernels.parts.k_rows import KRowsReader, Panels, k_rows_reader, panels
from convgen.kernels.parts.limits import MAX_REGISTERS, WARP
from convgen.kernels.parts.mma import CHUNK_BYTES, COLUMNS, K_BYTES, MMAS, ROWS, Mma
from convgen.kernels.parts.prepare import Prepared, words_last
from convgen.kernels.parts.reader import Loading, Reader, loading, reader
from convgen.kernels.parts.shares import Tile
from convgen.kernels.parts.walk import Walk, walk

#: What a row of pixels takes a thread beyond a place and one for each bound, where there are more than two.
FURTHER_BOUND = 2
#: Cycles of an element that is loaded by itself: from a sector that others share, or from one of its own
#: (ResNet-50 in NCHW on an NVIDIA H200; the model was 2 to 10 times too fast without).
TOGETHER, APART = 0.12, 0.5
#: The same of one that cp.async copies by itself.
COPIED_ALONE = 0.15
#: The same of a part of a pixel's channels, or of a filter's, that is less than a chunk: by its bytes; fewer bytes than
#: cp.async copies go through registers.
PIECES = {2: 0.19, 4: 0.156, 8: 0.103}
#: Neighbors that a lane has after an exchange: the columns of an instruction.
EXCHANGED = COLUMNS
#: Blocks that a multiprocessor is taken to hold.
MOST_HELD = 4
#: Registers for the sums of one slice, where factors are taken apart.
SLICE_SUMS = 44
#: Registers of a strided dgrad's phase, besides elements in flight.
PHASE = 8


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """Everything that follows from a problem and a configuration."""

    @cached_property
    def assigned(self) -> Assignment:
        return assignment(self.problem)

    @cached_property
    def prepared(self) -> Prepared:
        """The tensors that are rearranged before the product, and the forward convolution as the product reads it."""
        found = words_last(self.problem) if self.config.relayout else None
        return found or Prepared(self.assigned.problem)

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @cached_property
    def phases(self) -> Phases | None:
        """The phases of a dgrad; one for unit stride."""
        return phases(self.problem) if self.assigned.backward else None

    @cached_property
    def phase_taps(self) -> tuple[int, ...]:
        """The taps of each phase; for a forward convolution, all taps."""
        return self.phases.taps if self.phases else (self.read.taps,)

    @cached_property
    def pixels(self) -> int:
        """gemm_m: output pixels, of a phase those that its walk passes."""
        return self.read.n * self.phases.pixels if self.phases else self.read.output_pixels

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
        run = output.run_length(self.read, self.columns, self.warp_columns)
        if self.columns.role == "pixels" and len(self.phase_taps) > 1:
            return 1  # a phase's pixels are no neighbors
        if self.k_rows and not self.swapped:  # columns are as they lie in memory: two of an instruction, or by exchange
            return EXCHANGED if run >= EXCHANGED else min(run, 2)
        return run

    @property
    def exchanges(self) -> bool:
        """Whether lanes exchange results, so that each stores neighbors."""
        return self.k_rows and self.run == EXCHANGED and not self.swapped

    @property
    def k_rows(self) -> bool:
        """Whether w's tile lies in rows of gemm_k."""
        return self.loads["w"].k_rows

    @property
    def panels(self) -> Panels:
        """The panels of w's tile, if it consists of panels."""
        return panels(self.tile("w"), self.warp_rows if self.swapped else self.warp_columns)

    @property
    def element_bytes(self) -> int:
        return self.read.x.element.bytes

    @property
    def row_bytes(self) -> int:
        return self.config.tile_k * self.element_bytes

    @cached_property
    def walks(self) -> dict[str, Walk]:
        c = self.config
        return {role: walk(self.read, role, c.order, c.tile_k, self.phases) for role in ("x", "w")}

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """gemm_k of each phase."""
        longest = max(*self.phase_taps, 1)
        return tuple(self.walks["x"].depth // longest * taps for taps in self.phase_taps)

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """k steps of one part of gemm_k, of each phase."""
        return tuple(-(-depth // (self.config.tile_k * self.config.split_k)) for depth in self.depths)

    @property
    def steps(self) -> int:
        """k steps of one part of gemm_k, of the phase that has the most."""
        return max(self.phase_steps)

    @property
    def mean_steps(self) -> float:
        """The same, of a phase in the mean."""
        return sum(self.phase_steps) / len(self.phase_steps)

    def tile(self, role: str) -> Tile:
        c = self.config
        return Tile(c.tile_m if role == "x" else c.tile_n, c.tile_k, c.threads, self.element_bytes)

    def reader(self, role: str) -> Reader | KRowsReader:
        c = self.config
        tile, walked, covered = self.tile(role), self.walks[role], self.steps * c.tile_k
        reach = c.tile_k * c.split_k
        past_end = any(steps * reach > depth for steps, depth in zip(self.phase_steps, self.depths, strict=True))
        beyond = reach + (c.stages - 1) * c.tile_k  # at most; the last steps request some that do not exist
        if role == "w" and self.k_rows:
            return k_rows_reader(self.read, walked, tile, covered * c.split_k, beyond, past_end, c.split_k > 1)
        permuted = self.run > 2 and not self.exchanges and (role == "x") == self.swapped
        return reader(self.read, walked, role, tile, covered, beyond, c.split_k, past_end, permuted)

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
        """Tiles per phase, along m and n."""
        c = self.config
        return -(-self.pixels // c.tile_m), -(-self.read.k_per_group // c.tile_n)

    @property
    def index(self) -> str:
        return lowering.index_type(self.read, (self.tiles[0] * self.config.tile_m,))

    @cached_property
    def loads(self) -> dict[str, Loading]:
        """How tiles of x and w are loaded."""
        return {role: loading(self.walks[role], self.tile(role)) for role in ("x", "w")}

    def split(self, split_k: int, stages: int, blocks: int | str | None) -> Layout:
        """The same tiles with another split and other stages, which affect neither walks nor loads nor registers; with
        as many blocks as a multiprocessor holds, unless given."""
        made = self.knowing("registers", "tile_demands")
        return made.sibling(split_k=split_k, stages=stages, blocks=int(blocks or self._held(stages)))

    @cached_property
    def tile_demands(self) -> dict[str, Any]:
        """The cost model's input for a tile, whatever its split and its stages."""
        c = self.config
        loads = [(self.tile(role).rows, self.loads[role]) for role in "xw"]
        whole = [(rows, how) for rows, how in loads if not self._in_pieces(how)]
        pieces = [(rows, how) for rows, how in loads if self._in_pieces(how)]
        instructions = self.slices * self.warp_rows / ROWS * self.warp_columns / COLUMNS
        results = c.tile_m * c.tile_n / c.threads
        return dict(
            instructions=instructions * (3 if self.apart else 1) * (2 if self.element_bytes == 4 else 1),
            shared_reads=self.slices * c.warps_m * c.warps_n * (self.warp_rows + self.warp_columns) / 4,
            shared_writes=(c.tile_m + c.tile_n) * self.row_bytes / 128,
            copies=sum(rows * c.tile_k / how.piece for rows, how in whole if how.asynchronous),
            alone=sum(rows * c.tile_k * _alone(how) for rows, how in whole),
            pieces=sum(rows * c.tile_k * self._piece(how) for rows, how in pieces),
            lines=sum(rows * self._lines(how) for rows, how in pieces),
            gathered=float(any(not how.asynchronous for _, how in pieces)),
            warps=c.warps_m * c.warps_n,
            results=results,
            stores=results / self.run,
            traffic=(c.tile_m + c.tile_n) * self.row_bytes,
            functions=functions(self.problem) * c.tile_m * c.tile_n,
        )

    def _in_pieces(self, how: Loading) -> bool:
        """Whether a tile's row that is contiguous along gemm_k is copied in pieces of less than a chunk."""
        return how.dealt or not (how.asynchronous or how.along_rows or how.k_rows)

    def _piece(self, how: Loading) -> float:
        """Cycles of an element of such a row."""
        return PIECES[how.piece * self.element_bytes] / how.piece if how.asynchronous else PIECES[2]

    def _lines(self, how: Loading) -> float:
        """Lines of L1 that such a row touches in a step, which copies go through."""
        return lines(self.row_bytes, how.piece * self.element_bytes) if how.dealt else 0.0

    @cached_property
    def registers(self) -> int:
        """An estimate of the registers a thread needs."""
        r, c = self.warp_rows, self.warp_columns
        total = r * c // WARP + (r + c) // 4 * (3 if self.apart else 2) + 28 + SLICE_SUMS * self.apart
        for role in ("x", "w"):
            loads = self.loads[role]
            bounds = len(self.walks[role].bounds)
            rows = 1 if loads.k_rows else loads.share.rows
            total += rows * (1 + bounds + FURTHER_BOUND * max(0, bounds - 2))
            if not loads.asynchronous:
                # elements in flight, and the source of each piece of them
                pieces = CHUNK_BYTES // self.element_bytes // loads.piece
                total += 4 * loads.share.rows * loads.share.chunks + 4 * pieces
                total += PHASE * (len(self.phase_taps) > 1)
        return total

    @property
    def held(self) -> int:
        """Blocks that a multiprocessor holds; at most `MOST_HELD`."""
        return self._held(self.config.stages)

    def _held(self, stages: int) -> int:
        registers = min(self.registers, MAX_REGISTERS)
        return max(1, min(MOST_HELD, self.target.resident_blocks(self.config.threads, registers, stages * self.stage)))

    @property
    def slices(self) -> int:
        """Instructions of a k step: 32 bytes of gemm_k each."""
        return self.row_bytes // K_BYTES

    @property
    def tile_count(self) -> int:
        return math.prod(self.tiles) * len(self.phase_taps) * self.read.groups

    @property
    def ragged(self) -> int:
        """For how many of x and y pixels begin inside a sector.  y counts if no reduction stores it and threads can
        store 16 bytes at once: the cost of narrower stores follows from their number.  If x is copied in pieces,
        neither counts."""
        y = self.read.y
        y_pixel = (y.pitch or self.read.k) * y.element.bytes
        stores = not self.swapped and self.config.split_k == 1 and not self._in_pieces(self.loads["x"])
        return self.ragged_x + (stores and y_pixel % CHUNK_BYTES == 0 and y_pixel % SECTOR != 0)

    @property
    def ragged_x(self) -> int:
        """1 where pixels of x begin inside a sector, and are copied by whole chunks."""
        whole = not self._in_pieces(self.loads["x"])
        return int(whole and (self.read.x.pitch or self.read.c) * self.element_bytes % SECTOR != 0)


def _alone(how: Loading) -> float:
    """Cycles of an element that is copied by itself, beyond those of a copy."""
    if how.asynchronous:
        return COPIED_ALONE if how.piece == 1 else 0.0
    return TOGETHER if how.together else APART
