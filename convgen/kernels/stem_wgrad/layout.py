"""What follows from a problem and a configuration of stem_wgrad: vectors, lines, shared memory, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen import plurals
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import prepare
from convgen.kernels.parts.gradient import GradientLayout, y_sum
from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT, launch_registers
from convgen.kernels.stem_wgrad.config import Config

#: Elements of a vector: the 16 bytes that wgmma reads at once along n.
VECTOR, ELEMENT = 8, 2
VECTOR_BYTES = VECTOR * ELEMENT
#: y's channels of a box of A: wgmma's m, and the widest swizzle's span.
A_SPAN = 64
A_ROW_BYTES = A_SPAN * ELEMENT
#: Threads that make vectors: of a warpgroup, all but the warp that loads y.
BUILDERS = 96


@dataclass(frozen=True)
class Layout(GradientLayout[Config]):
    """A vector is some neighboring taps of a filter row by all channels of x, for one output column.  A line is the
    vectors of neighboring output columns: 16 bytes apart, as wgmma has its k.  Under a stride, the vectors of one row
    of x make several lines, its phases."""

    nan_cause = "zeros after y's rows turn x's infinities into NaNs and spread NaNs"

    @cached_property
    def prepared(self) -> prepare.Prepared:
        """The problem as TMA reads y: channels innermost, a multiple of 16 bytes."""
        return prepare.gradient_y(self.problem)

    # ---- vectors

    @property
    def filter_rows(self) -> int:
        return self.problem.filter[0]

    @property
    def vector_taps(self) -> int:
        """Taps of a vector."""
        return VECTOR // self.problem.c

    @property
    def used(self) -> int:
        """Elements of a vector that are pixels of x."""
        return self.vector_taps * self.problem.c

    @property
    def vectors(self) -> int:
        """Vectors that cover a filter row."""
        return -(-self.problem.filter[1] // self.vector_taps)

    @property
    def own_vectors(self) -> int:
        """A consumer's vectors."""
        return self.vectors // self.config.warps_n

    @property
    def consumers_m(self) -> int:
        """Consumers along m, each with its own rows."""
        return self.config.warps_m // 4

    @property
    def row_elements(self) -> int:
        """Elements per filter row."""
        return self.problem.filter[1] * self.problem.c

    @property
    def part_sums(self) -> int:
        """A thread's sums in a fragment of 64 rows by a part's columns."""
        return self.part_columns // 2

    @property
    def part_columns(self) -> int:
        """Columns of a product: one vector of each filter row."""
        return VECTOR * self.filter_rows

    @property
    def _reach(self) -> int:
        """Pixels of x from the first vector of a filter row to the last."""
        return self.vector_taps * (self.vectors - 1)

    @property
    def phase_step(self) -> int:
        """Pixels of x between the first vectors of neighboring phases."""
        stride = self.problem.stride[1]
        return self.vector_taps if self._reach < stride else math.gcd(self.vector_taps, stride)

    @property
    def phases(self) -> int:
        stride = self.problem.stride[1]
        return self.vectors if self._reach < stride else stride // self.phase_step

    # ---- lines

    @property
    def chunks(self) -> int:
        """Stages of y that an output row takes."""
        return -(-self.problem.output[1] // self.config.tile_k)

    @property
    def columns(self) -> int:
        """Vectors of a line: the columns of whole stages, and those that further taps reach."""
        return self.chunks * self.config.tile_k + self._reach // self.problem.stride[1]

    @property
    def row_vectors(self) -> int:
        """Vectors per row of x."""
        return self.phases * self.columns

    @property
    def x_row(self) -> int:
        """Bytes of the lines of a row of x."""
        return self.row_vectors * VECTOR_BYTES

    @property
    def round_rows(self) -> int:
        """Rows of x that an output row adds to those of the one above it, made at once."""
        return min(self.problem.stride[0], self.filter_rows)

    @property
    def fresh_rounds(self) -> int:
        """Rounds that make all rows of x under an output row."""
        return -(-self.filter_rows // self.round_rows)

    @property
    def fresh_rows(self) -> int:
        return self.fresh_rounds * self.round_rows

    @property
    def thread_vectors(self) -> int:
        """Vectors that a thread makes in a round."""
        return -(-self.round_rows * self.row_vectors // BUILDERS)

    @property
    def slots(self) -> int:
        """Slots for rows of x.  An output row begins once all but `depth - 1` of those above it are done with theirs.
        A row that is made but not read has a slot, too: builders do not wait for each other, and a late one would write
        it into the next row."""
        return self.config.depth * self.fresh_rows

    @property
    def copies(self) -> int:
        """Slots after them for copies of the first ones, so that the rows that an output row reads are neighbors."""
        return self.filter_rows - 1

    # ---- the k loop

    @property
    def rows(self) -> int:
        """Output rows, of all images."""
        return self.problem.n * self.problem.output[0]

    @property
    def m_tiles(self) -> int:
        return -(-self.problem.k // self.config.tile_m)

    @property
    def own_zeros(self) -> bool:
        """Whether y's rows are padded with zeros to a whole stage."""
        return self.problem.output[1] % self.config.tile_k > 0

    # ---- shared memory, in bytes

    @property
    def a_boxes(self) -> int:
        return self.config.tile_m // A_SPAN

    @property
    def a_box(self) -> int:
        return self.config.tile_k * A_ROW_BYTES

    @property
    def stage(self) -> int:
        return self.a_boxes * self.a_box

    @property
    def barriers(self) -> int:
        """Bytes of both pipelines' barriers: full and empty."""
        return 2 * 8 * (self.config.stages + self.config.depth)

    @property
    def operands(self) -> int:
        """Bytes of both pipelines' operands: stages of y, and rows of x."""
        return self.config.stages * self.stage + (self.slots + self.copies) * self.x_row

    @property
    def shared_bytes(self) -> int:
        return SWIZZLE_ALIGNMENT + self.operands + self.barriers

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        """The contents of shared memory, in order: purpose, count, and bytes of each."""
        c, lines = self.config, plurals.counted(self.phases, "line")
        return (
            ("A", f"{c.stages} stages x {plurals.counted(self.a_boxes, 'box')} x {c.tile_k} pixels x {A_ROW_BYTES}"),
            ("B", f"{self.slots + self.copies} rows x {lines} x {self.columns} vectors x {VECTOR_BYTES}"),
            ("barriers", f"{2 * (c.stages + c.depth)} x 8"),
        )

    # ---- threads and registers

    @property
    def threads(self) -> int:
        """Consumers, and a warpgroup that feeds them."""
        return 128 * (self.config.consumers + 1)

    @property
    def registers(self) -> int:
        return launch_registers(self.target, self.threads, 1)

    @property
    def accumulators(self) -> int:
        """Accumulators per consumer thread."""
        return self.config.own_fragments * self.own_vectors * self.part_columns // 2

    # ---- the result

    @cached_property
    def gathers(self) -> bool:
        """Whether a tile's sums meet in shared memory, to leave in runs of 16 bytes: where w has them as neighbors, and
        the pipelines' memory has room for them."""
        w = self.problem.w
        neighbors = w.dims == ("k", *self.problem.spatial.filter, "c") and not w.pitch and w.size % 4 == 0
        needed = self.config.tile_m * w.size // self.problem.k * 4
        return not self.stores_w and neighbors and needed <= self.operands

    @cached_property
    def sums_y(self) -> bool:
        """Whether y is summed, by a column of ones in vectors that have room for it."""
        return y_sum(self.problem) is not None and room_for_ones(self.problem)


def room_for_ones(problem: ConvProblem) -> bool:
    """Whether vectors have elements that no tap fills."""
    return VECTOR % problem.c > 0
