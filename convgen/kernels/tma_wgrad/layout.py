"""What follows from a problem and a configuration of tma_wgrad: tiles, boxes, the k loop, shared memory, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen import plurals
from convgen.kernels.parts import clusters
from convgen.kernels.parts.gradient import GradientLayout, y_sum
from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT, aligned, block_threads, launch_registers, register_split
from convgen.kernels.parts.window_axis import ONE, WindowAxis
from convgen.kernels.tma_wgrad.config import Config
from convgen.kernels.tma_wgrad.gemm import Gemm

#: y's channels of a box of A: wgmma's m, and the widest swizzle's span.
A_SPAN = 64
ELEMENT = 2  # bytes of a factor's


@dataclass(frozen=True)
class Layout(GradientLayout[Config]):
    """A configuration of a GEMM."""

    gemm: Gemm

    nan_cause = "zeros around y's rows turn x's infinities into NaNs and spread NaNs"

    # ---- tiles

    @property
    def shared_axes(self) -> int:
        """The last so many axes' taps are served by one box of x, or by one for each phase."""
        return min(2, self.problem.rank) if self.config.halo else self.config.row_taps

    @cached_property
    def taps(self) -> tuple[int, ...]:
        """Along these axes."""
        return self.gemm.problem.filter[self.problem.rank - self.shared_axes :]

    @property
    def box_taps(self) -> int:
        """Taps that a box of x serves."""
        return math.prod(self.taps)

    @cached_property
    def channel_blocks(self) -> int:
        """Blocks of `span` channels that a tap is read by."""
        return -(-self.gemm.channels // self.config.span)

    @property
    def box_columns(self) -> int:
        """Columns of C that a box of x makes, all its phases together."""
        return self.box_taps * self.config.span

    @cached_property
    def boxes(self) -> int:
        """Boxes of x for all columns of a pack: by taps (or filter rows), blocks of channels inside."""
        return self.gemm.problem.taps // self.box_taps * self.channel_blocks

    @property
    def tile_boxes(self) -> int:
        return self.config.tile_n // self.box_columns

    @property
    def m_tiles(self) -> int:
        return -(-self.gemm.rows // self.config.tile_m)

    @property
    def n_tiles(self) -> int:
        # a tile narrower than a box is illegal, but timed
        return -(-self.boxes // max(self.tile_boxes, 1))

    @cached_property
    def tiles(self) -> int:
        return self.gemm.packs * self.m_tiles * self.n_tiles

    @property
    def n_tail(self) -> bool:
        """Whether the last tile has boxes past the end."""
        return self.boxes % self.tile_boxes != 0

    @property
    def ends(self) -> bool:
        """Whether tiles may do without boxes past the last: not where their sums are looked at."""
        return not (self.own_zeros and self.stores_w)

    @property
    def a_ends(self) -> bool:
        """Whether some tiles load fewer boxes of A than others could."""
        fewer = self.gemm.last_fewer and (self.a_boxes > 1 or self.m_tiles > 1)
        return self.ends and (-(-self.gemm.rows // A_SPAN) % self.a_boxes != 0 or fewer)

    @property
    def b_ends(self) -> bool:
        """Whether some tiles load fewer boxes of B than others could."""
        return self.ends and self.n_tail

    @cached_property
    def a_loaded(self) -> int:
        """Boxes of A that the fullest tile loads."""
        return min(self.a_boxes, -(-self.gemm.rows // A_SPAN)) if self.ends else self.a_boxes

    @cached_property
    def b_loaded(self) -> int:
        """Boxes of B, each of all its phases, that the fullest tile loads."""
        return min(self.tile_boxes, self.boxes) if self.ends else self.tile_boxes

    @property
    def c_tail(self) -> bool:
        """Whether a tap's last block has channels past the end."""
        return self.gemm.channels % self.config.span != 0

    @property
    def tap_parts(self) -> bool:
        """Whether a product is of one tap of a halo: neighbors in a filter row are of different phases."""
        return bool(self.config.halo) and self.gemm.windows[-1].stride > 1

    @property
    def part_columns(self) -> int:
        """wgmma's n: a consumer's boxes lie apart by as many bytes each, or the taps of a filter row by as many rows of
        a box.  Of a stride's phases, a tap is a product."""
        if not self.shared_axes:
            return self.config.own_columns
        return self.config.span * (1 if self.tap_parts else self.taps[-1])

    @property
    def parts(self) -> int:
        """Parts of a consumer's columns, of so many columns each."""
        return self.config.own_columns // self.part_columns

    @property
    def store_columns(self) -> int:
        """Columns of a part that a block stores: those of its share of the cluster's sums."""
        return self.part_columns // self.config.split_k

    # ---- the k loop

    @cached_property
    def pixels(self) -> int:
        return self.gemm.pixels(self.shared_axes)

    @cached_property
    def steps(self) -> int:
        """k blocks of all pixels."""
        return -(-self.pixels // self.config.tile_k)

    @property
    def part_pixels(self) -> int:
        """Pixels of a step that a block loads of the operand that its cluster shares."""
        return self.config.tile_k // self.config.cluster

    @property
    def shares(self) -> int:
        """Blocks that share them."""
        return self.config.slices * self.config.split_k

    @property
    def blocks_at_once(self) -> int:
        """Blocks that the GPU runs at once."""
        return self.target.clustered_sms(self.config.launched) * self.config.blocks

    # ---- shared memory, in bytes

    @property
    def span(self) -> int:
        """`span` channels of a pixel of x: the swizzle's span."""
        return self.config.span * ELEMENT

    @cached_property
    def windows(self) -> tuple[WindowAxis, WindowAxis]:
        """The axes, rows and columns, whose taps share a box; of one tap where they do not."""
        h, w = [ONE, ONE, *self.gemm.windows[self.problem.rank - self.shared_axes :]][-2:]
        return h, w

    @cached_property
    def row_pixels(self) -> int:
        """Pixels from a pixel of x to the one below it, if a box has rows."""
        return self.gemm.walked(self.shared_axes)[-1]

    @property
    def phases(self) -> int:
        """Boxes that TMA loads for one here, each of pixels whose positions are equal modulo the stride."""
        h, w = self.windows
        return len(h.phases) * len(w.phases)

    @cached_property
    def reach(self) -> int:
        """Pixels of a box of x beyond those of the step."""
        h, w = self.windows
        return h.reach() * self.row_pixels + w.reach()

    @cached_property
    def own_zeros(self) -> bool:
        """Between y's rows and images."""
        return self.gemm.walked(self.shared_axes) != self.gemm.problem.output

    @property
    def b_box(self) -> int:
        """Bytes that TMA loads per phase."""
        return (self.config.tile_k + self.reach) * self.span

    @property
    def phase_room(self) -> int:
        """Bytes from a phase of a box to the next, which begins where the swizzle does."""
        return aligned(self.b_box)

    @property
    def b_room(self) -> int:
        """Bytes of a box of x."""
        return self.phases * self.phase_room

    @property
    def a_box(self) -> int:
        return self.config.tile_k * A_SPAN * ELEMENT

    @property
    def a_boxes(self) -> int:
        return self.config.tile_m // A_SPAN

    @cached_property
    def stage(self) -> int:
        return self.a_boxes * self.a_box + self.tile_boxes * self.b_room

    @property
    def sums(self) -> int:
        """Bytes of the sums of the cluster's other blocks, which overlay the stages."""
        return clusters.others_sums(self.config.tile_m, self.config.tile_n, self.config.split_k)

    @property
    def ones(self) -> int:
        """Bytes of the ones that y is multiplied by for its sum: 8 columns of 16."""
        return 8 * 16 * ELEMENT if y_sum(self.problem) else 0

    @property
    def barriers(self) -> int:
        """Barriers: full and empty ones of stages, and one for each consumer's sums."""
        config = self.config
        return 2 * config.stages + config.consumers * (config.split_k > 1)

    @property
    def shared_bytes(self) -> int:
        stages = self.config.stages
        return SWIZZLE_ALIGNMENT + max(stages * self.stage, self.sums) + self.ones + 8 * self.barriers

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        """The contents of shared memory, in order: purpose, count, and bytes of each."""
        c = self.config
        a_boxes, b_boxes = plurals.counted(self.a_boxes, "box"), plurals.counted(self.tile_boxes * self.phases, "box")
        rows = [
            ("A", f"{c.stages} stages x {a_boxes} x {c.tile_k} pixels x {A_SPAN * ELEMENT}"),
            ("B", f"{c.stages} stages x {b_boxes} x {self.b_room // self.phases}, {c.tile_k + self.reach} pixels each"),
        ]
        if self.ones:
            rows.append(("ones", f"8 columns x {self.ones // 8}"))
        rows.append(("barriers", f"{self.barriers} x 8"))
        if c.split_k > 1:
            rows.append(clusters.sums_row(self.sums, c.split_k, in_place=True))
        return tuple(rows)

    # ---- threads and registers

    @property
    def threads(self) -> int:
        return block_threads(self.config.consumers, self.config.blocks)

    @property
    def registers(self) -> int:
        """Registers that a consumer thread may use."""
        split = register_split(self.config.consumers, self.config.blocks)
        return split.consumer if split else launch_registers(self.target, self.threads, self.config.blocks)

    # ---- the result

    @property
    def y_parts(self) -> int:
        """Consumers that have the same rows and steps: each sums y over its share of the steps."""
        return self.n_tiles * self.config.warps_n

    @cached_property
    def bytes_read(self) -> int:
        """Bytes of device memory that hold both factors; of x, only the pixels that taps reach."""
        problem = self.gemm.problem
        reached = math.prod(min(taps / stride, 1) for taps, stride in zip(problem.filter, problem.stride, strict=True))
        return int(problem.x.bytes * reached) + problem.y.bytes

    @cached_property
    def bytes_alike(self) -> float:
        """Bytes of both factors, each per doubling of the tiles that read it at once; a cluster counts as one."""
        problem, c = self.problem, self.config
        readers = (("a", problem.y, self.n_tiles), ("b", problem.x, self.m_tiles))
        apart = ((t, tiles / (c.cluster if operand == c.shared else 1)) for operand, t, tiles in readers)
        return sum(t.bytes * math.log2(max(tiles, 1)) for t, tiles in apart)
