"""What follows from a problem and a configuration of tma_im2col: tiles, k blocks, shared memory, registers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convgen import plurals
from convgen.ir.tensor import Tensor
from convgen.kernels import base
from convgen.kernels.parts import clusters, hopper, image_operands, operand_tiles, result_tiles
from convgen.kernels.parts.operand_tiles import EpilogueTile
from convgen.kernels.parts.partial_sums import PartialSum, image_pixels, partial_bytes, partial_sums
from convgen.kernels.tma_im2col import ends, prologue
from convgen.kernels.tma_im2col.config import Config
from convgen.kernels.tma_im2col.epi_tiles import epi_tile_shape
from convgen.kernels.tma_im2col.gemm import Gemm
from convgen.kernels.tma_im2col.tap_rows import LEAST_SAVED, TapRows, mean_rows

#: Pixels that a warp adds up at once where they are rows of its fragments.
PIXELS = 16


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A configuration of a GEMM."""

    gemm: Gemm

    # ---- tiles

    @property
    def cluster_m(self) -> int:
        """Pixels of a cluster's tiles, which have channels in common."""
        return self.config.tile_m * (self.config.cluster if self.config.shared == "b" else 1)

    @property
    def cluster_n(self) -> int:
        """Channels of a cluster's tiles, which have pixels in common."""
        return self.config.tile_n * (self.config.cluster if self.config.shared == "a" else 1)

    @property
    def n_tiles(self) -> int:
        """Tiles of the same pixels, of a cluster each."""
        return -(-self.gemm.columns // self.cluster_n)

    @property
    def tile_count(self) -> int:
        """Tiles, counted by whole clusters."""
        tiles = self.gemm.m_tiles(self.cluster_m) * self.n_tiles
        return len(self.gemm.taps) * tiles * self.config.cluster

    @property
    def launched(self) -> int:
        """Blocks: one a tile, or for each share of a tile's k loop; those that share all k loops evenly."""
        blocks = self.tile_count * self.config.split_k
        return min(self.target.sms, blocks * self.k_stages) if self.config.stream_k else blocks

    # ---- the k loop

    @cached_property
    def channel_blocks(self) -> int:
        """Blocks of `tile_k` channels that a tap is read by."""
        return -(-self.gemm.channels // self.config.tile_k)

    @cached_property
    def phase_k_blocks(self) -> tuple[int, ...]:
        """k blocks of a tile of each phase: one tap's block of channels each."""
        return tuple(taps * self.channel_blocks for taps in self.gemm.taps)

    @cached_property
    def tap_rows(self) -> TapRows | None:
        """Where tiles leave out rows of taps that meet padding alone; None where every tile takes all taps."""
        config = self.config
        whole = config.order == "channels_inner" and config.k_blocks == config.split_k == 1
        whole = whole and not (config.stream_k or config.resident)
        found = self.gemm.tap_rows if whole and config.shared != "b" else None
        return found if found and mean_rows(found, config.tile_m) <= (1 - LEAST_SAVED) * found.taps else None

    @property
    def row_k_blocks(self) -> int:
        """k blocks of a row of taps."""
        return self.k_blocks // self.tap_rows.taps if self.tap_rows else self.k_blocks

    @property
    def mean_k_blocks(self) -> float:
        if self.tap_rows:
            return self.row_k_blocks * mean_rows(self.tap_rows, self.config.tile_m)
        return sum(self.phase_k_blocks) / len(self.phase_k_blocks)

    @property
    def k_blocks(self) -> int:
        """k blocks of a tile, of the longest phase."""
        return max(self.phase_k_blocks)

    @property
    def k_stages(self) -> int:
        """Stages that these fill, several to a stage."""
        return self.k_blocks // self.config.k_blocks

    @property
    def turns_meet(self) -> bool:
        """Whether a consumer's warps have to meet before it gives its turn away.  Where a tile has two steps or more,
        the wait for the first one's products is such a meeting: every warp has issued its part of them."""
        least = min(*self.phase_k_blocks, self.row_k_blocks)
        return self.config.schedule == "pingpong" and least <= self.config.k_blocks

    @property
    def last_products(self) -> int:
        """Products, of 16 channels each, in the last of a tap's blocks of channels: none of what lies past them all.
        Stages of several blocks in no such order are multiplied in full."""
        config, blocks = self.config, self.channel_blocks
        in_order = config.order == "channels_inner" and config.k_blocks % blocks == 0
        if config.k_blocks == 1 or blocks == 1 or in_order:
            return hopper.products(self.gemm.channels - (blocks - 1) * config.tile_k)
        return hopper.products(config.tile_k)

    # ---- shared memory, in bytes

    @cached_property
    def span(self) -> int:
        """tile_k channels of a row of A or B: the swizzle's span."""
        return self.config.tile_k * self.gemm.element_bytes

    @property
    def stage(self) -> int:
        """A stage holds `k_blocks` boxes of A and, unless B is resident, of B."""
        return self.config.k_blocks * (self.config.tile_m + (0 if self.config.resident else self.b_rows)) * self.span

    @property
    def resident_bytes(self) -> int:
        """Bytes of all of B's k blocks, if these stay."""
        return self.k_blocks * self.b_rows * self.span if self.config.resident else 0

    @property
    def b_rows(self) -> int:
        """Output channels of a k block of B: a tile's, or whole boxes where they are contiguous."""
        box = hopper.COLUMNS_BOX if self.gemm.b_columns else 1
        return -(-self.config.tile_n // box) * box

    @property
    def b_loaded(self) -> int:
        """Like `b_rows`, but the rows that TMA loads for a whole tile."""
        return ends.b_rows(self)

    @cached_property
    def epi_tile_shape(self) -> tuple[int, int]:
        """Pixels and channels of an epilogue tile; each consumer has two: 64 pixels by so many channels, or up to 64
        pixels by 64 channels."""
        return epi_tile_shape(self)

    @property
    def epi_tiles(self) -> int:
        """Epilogue tiles that a consumer stores one after the other."""
        m, n = self.epi_tile_shape
        config = self.config
        pixels, channels = (config.tile_m, config.own_rows) if config.swap_ab else (config.own_rows, config.tile_n)
        return -(-pixels // m) * -(-channels // n) // config.split_k

    @property
    def epi_tile_m(self) -> int:
        return self.epi_tile_shape[0]

    @property
    def epi_tile_n(self) -> int:
        return self.epi_tile_shape[1]

    @cached_property
    def epi_tile_bytes(self) -> int:
        return self.epi_tile_m * self.epi_tile_n * 2 if self.gemm.store_vector else 0

    @cached_property
    def arriving(self) -> tuple[EpilogueTile, ...]:
        """The operands that arrive as tiles, shaped as the epilogue tiles of C: by TMA where C leaves by it, else
        copied by threads, which takes vectors of 4 bytes or more."""
        g, problem = self.gemm, self.gemm.problem
        if problem.epilogue is None or not (vector := g.store_vector):
            return ()
        m, n = self.epi_tile_shape
        shape = (n, m) if g.plane else (m, n)
        if g.stores_by_tma:
            return operand_tiles.boxes(problem, g.plane or problem.k, *shape)
        return operand_tiles.copied(problem, vector, *shape)

    @cached_property
    def leaving(self) -> tuple[EpilogueTile, ...]:
        """The further results that are stored as C is, in epilogue tiles after its own."""
        g = self.gemm
        if not g.store_vector or not g.problem.elementwise:
            return ()
        m, n = self.epi_tile_shape
        row = (g.plane or g.problem.k) if g.stores_by_tma else 0
        return result_tiles.result_tiles(g.problem, row, g.store_vector, *((n, m) if g.plane else (m, n)))

    @property
    def partial_pixels(self) -> int:
        """Pixels that a warp adds up: where they are columns of its fragments, all of the tile that it finishes."""
        return self.config.columns // self.config.split_k if self.config.swap_ab else PIXELS

    @property
    def phase_rows(self) -> int:
        """Rows of a phase's partial sums, of whole tiles."""
        return self.gemm.m_tiles(self.cluster_m) * self.cluster_m // self.partial_pixels

    @property
    def partial_rows(self) -> int:
        """Rows of partial sums, of all phases."""
        return len(self.gemm.taps) * self.phase_rows

    @property
    def partial_sums(self) -> tuple[PartialSum, ...]:
        """The partial sums of all sums."""
        return partial_sums(self.gemm.problem, image_pixels(self.gemm.problem) // self.partial_pixels)

    @property
    def partial_bytes(self) -> dict[str, int]:
        """Bytes of each sum's rows, by its name."""
        return partial_bytes(self.gemm.problem, self.partial_sums, self.partial_rows)

    @property
    def sum_registers(self) -> int:
        """Registers for sums over pixels."""
        sums, phases = self.gemm.problem.sums, self.gemm.phases
        if not sums:
            return 0
        # whether y has a pixel of a phase, for each that is summed
        ragged = phases and (self.gemm.pixels % self.cluster_m or not all(axis.even for axis in phases.axes))
        inside = 88 if ragged else 0
        if self.config.swap_ab:  # two channels' sums find room, but not beside operands that arrive
            return 4 * len(self.arriving) + inside
        return 8 + 16 * len(sums) + inside

    @property
    def rewritten(self) -> int:
        """Elements of A, of a k block, that consumers write anew by a prologue."""
        return self.config.tile_m * self.config.tile_k if self.gemm.problem.prologue else 0

    @property
    def prologue_registers(self) -> int:
        """Registers for a prologue's operands, and for the elements at hand."""
        problem = self.gemm.problem
        return prologue.registers(problem, self.own_pixels, self.config.tile_k) if problem.prologue else 0

    @property
    def own_pixels(self) -> int:
        """Rows of A that a consumer multiplies."""
        return self.config.tile_m if self.config.swap_ab else self.config.own_rows

    @property
    def leaving_bytes(self) -> int:
        """Bytes of an epilogue tile of y and of those of the further results that go with it."""
        return self.epi_tile_bytes * (1 + len(self.leaving))

    @cached_property
    def of_images(self) -> tuple[Tensor, ...]:
        """The operands of images that threads hold for many pixels: where C leaves by epilogue tiles, of few images
        each.  Of images of one pixel they arrive as tiles."""
        problem = self.gemm.problem
        if self.gemm.phases:
            return ()
        many = image_operands.most_images(problem, self.epi_tile_m) > image_operands.MOST_IMAGES
        if not self.epi_tile_bytes or (self.config.swap_ab and many):
            return ()
        arriving = {c.tensor for c in self.arriving}
        return tuple(t for t in image_operands.of_images(problem) if t not in arriving)

    @property
    def tile_images(self) -> int:
        """Images that the pixels of a tile's columns touch."""
        return image_operands.most_images(self.gemm.problem, self.config.columns // self.config.split_k)

    @property
    def image_registers(self) -> int:
        """Registers for a tile's operands of images."""
        config = self.config
        if config.swap_ab:
            return self.tile_images * sum(config.own_rows // 32 if "k" in t.dims else 1 for t in self.of_images)
        return image_operands.registers(self.of_images, config.own_rows // 32, config.columns // config.split_k)

    @property
    def slots(self) -> int:
        """Slots per consumer, each for an epilogue tile of every operand."""
        return operand_tiles.slots(self.arriving, self.config.consumers * self.config.blocks) if self.arriving else 0

    @cached_property
    def slot(self) -> int:
        return sum(c.bytes for c in self.arriving)

    @property
    def alignment(self) -> int:
        """Bytes that lie unused in front of the epilogue tiles, which begin where a swizzle repeats."""
        repeats = self.epi_tile_bytes and (self.gemm.plane or self.config.swap_ab or self.slots)
        return -(self.config.stages * self.stage + self.resident_bytes) % hopper.SWIZZLE_ALIGNMENT if repeats else 0

    @property
    def split_sums(self) -> int:
        """Bytes of the sums that a block receives from the blocks with which it splits k."""
        return clusters.others_sums(self.config.tile_m, self.config.tile_n, self.config.split_k)

    @property
    def sums_in_place(self) -> bool:
        """Whether these sums overlay the stages once all products are made, because they do not fit beside them."""
        room = self.target.shared_limit(self.config.blocks) - self._without_sums
        return room < self.split_sums <= self.config.stages * self.stage

    @property
    def _without_sums(self) -> int:
        return self.fixed_bytes + self.alignment + self.config.stages * (self.stage + 16)

    def _barriers(self, stages: int) -> int:
        """Two of each stage and slot, one of each consumer's turn or of the sums for it, one where filters stay."""
        c = self.config
        own = c.consumers if c.schedule == "pingpong" or c.split_k > 1 else 0
        return 2 * stages + 2 * c.consumers * self.slots * self.gemm.stores_by_tma + own + c.resident

    @cached_property
    def fixed_bytes(self) -> int:
        """All but stages with their barriers, a split's sums, and the epilogue tiles' alignment; with the base's."""
        tiles = self.config.consumers * (2 * self.leaving_bytes + self.slots * self.slot)
        return hopper.SWIZZLE_ALIGNMENT + self.resident_bytes + tiles + 8 * self._barriers(0)

    @property
    def shared_bytes(self) -> int:
        return self._without_sums + (0 if self.sums_in_place else self.split_sums)

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        """The contents of shared memory, in order: purpose, count, and bytes of each."""
        c = self.config
        blocks, kept = f" x {c.k_blocks} k blocks" if c.k_blocks > 1 else "", plurals.counted(self.k_blocks, "k block")
        consumers = plurals.counted(c.consumers, "consumer")
        rows = [
            ("A", f"{c.stages} stages{blocks} x {c.tile_m} pixels x {self.span}"),
            ("B", f"{kept if c.resident else f'{c.stages} stages{blocks}'} x {self.b_rows} channels x {self.span}"),
        ]
        if self.alignment:
            rows.append(("alignment", f"{self.alignment}"))
        if self.epi_tile_bytes:
            names = " and ".join(["y", *(epi_tile.name for epi_tile in self.leaving)])
            rows.append((names, f"{consumers} x 2 epilogue tiles x {self.leaving_bytes}"))
        if self.arriving:
            names = " and ".join(epi_tile.name for epi_tile in self.arriving)
            rows.append((names, f"{consumers} x {self.slots} slots x {self.slot}"))
        if c.split_k > 1:
            rows.append(clusters.sums_row(self.split_sums, c.split_k, self.sums_in_place))
        return (*rows, ("barriers", f"{self._barriers(c.stages)} x 8"))

    # ---- threads and registers

    @property
    def threads(self) -> int:
        """Threads per block.  Operands that TMA loads have a producer warp for each consumer."""
        warps = 5 * self.config.consumers + 1 if self.gemm.stores_by_tma and self.arriving else 0
        return max(hopper.block_threads(self.config.consumers, self.config.blocks), 32 * warps)

    @property
    def registers(self) -> int:
        """Registers that a consumer thread may use."""
        split = hopper.register_split(self.config.consumers, self.config.blocks)
        return split.consumer if split else hopper.launch_registers(self.target, self.threads, self.config.blocks)

    @property
    def free_registers(self) -> int:
        """Registers left over by addresses and counters."""
        return self.registers - hopper.OTHER_REGISTERS

    @property
    def stores_pairs(self) -> bool:
        """Whether threads store C as wgmma's fragments lie, and two float32 channels of a pixel at once: four threads
        fill a sector."""
        y = self.gemm.problem.y
        return y.dtype == "f32" and y.has_pairs("k") and not self.config.swap_ab

    @property
    def b_boxes(self) -> int:
        """TMA loads of a k block of B: where its columns are contiguous, of 64 columns each."""
        rows = self.b_rows // (self.config.cluster if self.config.shared == "b" else 1)
        return rows // hopper.COLUMNS_BOX if self.gemm.b_columns else 1
