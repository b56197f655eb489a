"""What follows from rings of halo tiles and of boxes of filters: shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from convgen import plurals
from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT, aligned, memory_order
from convgen.kernels.parts.lowering import SHARED_LOADS
from convgen.kernels.parts.operand_tiles import EpilogueTile
from convgen.kernels.parts.partial_sums import PartialSum
from convgen.kernels.parts.result_tiles import elements
from convgen.kernels.tma_halo.config import RingConfig
from convgen.kernels.tma_halo.halo import Halo

#: Elements of y that a thread stores at once.
STORE_VECTOR = 8
#: Epilogue tiles of the operands that a consumer has in flight: halo tiles want the room.
SLOTS = 2


C = TypeVar("C", bound=RingConfig)


def y_channels_last(problem: ConvProblem) -> bool:
    """Whether the channels of y are neighbors."""
    return memory_order(problem.y, ("n", *problem.spatial.output, "k"))


@lru_cache(maxsize=64)
def store_vector(problem: ConvProblem) -> int:
    """Channels of a pixel of y that are stored at once: up to `STORE_VECTOR`, as alignment allows; 1 for planes."""
    return math.gcd(problem.k, problem.y.pitch or 0, STORE_VECTOR) if y_channels_last(problem) else 1


@dataclass(frozen=True)
class Stored:
    """C text by which threads store a pixel's channels: the number of vectors; a vector's channel; its destination, and
    its load from the epilogue tile."""

    vectors: str
    channel: str
    target: str
    load: str


def stored(vector: int, channels: str, offset: str, swizzle: str) -> Stored:
    """`vector` elements at once, of rows that `swizzle` permutes by 16 bytes; `offset`: of the first one in y."""
    target, of_chunk = elements(vector, "y", offset), STORE_VECTOR // vector
    chunk, rest = (f"column / {of_chunk}", f" + column % {of_chunk} * {2 * vector}") if of_chunk > 1 else ("column", "")
    place = f"epi_tile_base + pixel * (channels * 2) + ({chunk}{swizzle.format(row='pixel')}) * chunk_bytes{rest}"
    load = f"{SHARED_LOADS[2 * vector]}({place})"
    if vector == 1:
        return Stored(channels, "column", target, load)
    return Stored(f"({channels} / {vector})", f"column * {vector}", target, load)


@dataclass(frozen=True)
class RingLayout(base.Layout[C]):
    """A configuration of a problem as the kernel reads it: rings of halo tiles and of boxes of filters, and an epilogue
    tile for each consumer.  Sizes in bytes."""

    prepared: prepare.Prepared

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @property
    def own_producers(self) -> bool:
        """Whether each ring has its own producer.  One that fills rings in turn waits, within a tile, for a ring that
        has fewer stages than the tile has halo tiles, and meanwhile leaves the others empty."""
        config = self.config
        return config.rings > 1 and not config.weight_stages and config.stages < self.halos

    @property
    def span(self) -> int:
        """The bytes of a pixel's channels, and of an output channel's: the swizzle's span."""
        return self.config.tile_k * self.read.x.element.bytes

    @property
    def blocks(self) -> int:
        """Blocks of a group's input channels."""
        return -(-self.channels // self.config.tile_k)

    @property
    def halos(self) -> int:
        """Halo tiles of a tile."""
        return self.blocks

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.read.c

    @property
    def uneven(self) -> bool:
        """Whether the last channel tile of each group, or pack, has fewer channels."""
        return False

    @property
    def partial_sums(self) -> tuple[PartialSum, ...]:
        """The partial sums of all sums."""
        return ()

    # ---- shared memory

    @property
    def halo(self) -> Halo:
        """The halo tile of a tile."""
        raise NotImplementedError

    @property
    def filter_box(self) -> int:
        """Bytes of the filters that are streamed at once."""
        raise NotImplementedError

    @property
    def filter_boxes(self) -> int:
        """Such boxes of a tile's output channels."""
        raise NotImplementedError

    @property
    def epi_tile_shape(self) -> tuple[int, int]:
        """Pixels and channels of an epilogue tile; each consumer has one."""
        raise NotImplementedError

    @property
    def filter_bytes(self) -> int:
        """Bytes of all filters: those in flight, or those of a tile's output channels."""
        return self._filter_bytes(self.config.weight_stages)

    def _filter_bytes(self, stages: int) -> int:
        return aligned((self.config.rings * stages or self.filter_boxes) * self.filter_box)

    @property
    def epi_tile_pixels(self) -> int:
        return self.epi_tile_shape[0]

    @cached_property
    def epi_tile_bytes(self) -> int:
        return aligned(math.prod(self.epi_tile_shape) * self.read.y.element.bytes)

    @cached_property
    def store_vector(self) -> int:
        """Channels of a pixel of y that are stored at once."""
        return store_vector(self.read)

    @property
    def in_vectors(self) -> bool:
        """Whether these are as many as there ever are."""
        return self.store_vector == STORE_VECTOR

    @cached_property
    def arriving(self) -> tuple[EpilogueTile, ...]:
        """Operands, in epilogue tiles like those of y."""
        return operand_tiles.copied(self.read, STORE_VECTOR, *self.epi_tile_shape) if self.in_vectors else ()

    @property
    def slots(self) -> int:
        """Slots per consumer, each for an epilogue tile of every operand."""
        return SLOTS if self.arriving else 0

    @cached_property
    def slot(self) -> int:
        return aligned(sum(tile.bytes for tile in self.arriving))

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, in bytes, with barriers and room for the swizzle's alignment."""
        return self.config.stages * self.stage_bytes + self.fixed_by(self.config.weight_stages)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a halo tile in each ring, with its two barriers."""
        return self.config.rings * (self.halo.bytes + 16)

    def fixed_by(self, weight_stages: int) -> int:
        """All but the halo tiles, with another number of boxes of filters: it does not depend on the halo tile."""
        barriers = 8 * self._barriers(0, weight_stages)
        return SWIZZLE_ALIGNMENT + self.epilogue_bytes + self._filter_bytes(weight_stages) + barriers

    @cached_property
    def epilogue_bytes(self) -> int:
        """Bytes of all consumers' epilogue tiles."""
        return self.config.consumers * (self.epi_tile_bytes + self.slots * self.slot)

    def _barriers(self, stages: int, weight_stages: int) -> int:
        """The number of barriers: two per stage; if all filters stay, one on which they arrive."""
        return 2 * self.config.rings * (stages + weight_stages) + (0 if weight_stages else 1)

    @property
    def shared_table(self) -> tuple[tuple[str, str], ...]:
        c = self.config
        rings, consumers = plurals.counted(c.rings, "ring"), plurals.counted(c.consumers, "consumer")
        held = f"{self.filter_boxes} boxes"
        if c.weight_stages:
            held = f"{rings} x {plurals.counted(c.weight_stages, 'stage')}"
        rows = [
            ("halo tiles", f"{rings} x {plurals.counted(c.stages, 'stage')} x {self.halo.bytes}"),
            ("filters", f"{held} x {self.filter_box}"),
            ("y", f"{consumers} x {self.epi_tile_bytes}"),
        ]
        if self.arriving:
            names = " and ".join(tile.name for tile in self.arriving)
            rows.append((names, f"{consumers} x {self.slots} slots x {self.slot}"))
        return (*rows, ("barriers", f"{self._barriers(c.stages, c.weight_stages)} x 8"))
