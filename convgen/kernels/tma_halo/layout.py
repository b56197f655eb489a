"""What follows from a problem and a configuration: the halo tile, tiles, threads, shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.hopper import block_threads, memory_order, products
from convgen.kernels.parts.operand_tiles import Chunk
from convgen.kernels.tma_halo.config import Config
from convgen.kernels.tma_halo.halo import ALIGNMENT, Halo, aligned, halo_of, windows
from convgen.targets import Target


def as_read(problem: ConvProblem, bundle: int, fold: int) -> prepare.Prepared:
    """The problem as the kernel reads it."""
    return prepare.channels_last(problem, taps_outside=False, bundle=bundle, copy_w=bundle == fold == 1)


def pixels_outside(problem: ConvProblem) -> bool:
    """Whether the channels of y are neighbours."""
    return memory_order(problem.y, ("n", *problem.spatial.output, "k"))


def threads(config: Config) -> int:
    """Threads of a block.  Streamed weights have a producer, and so a warp, of their own."""
    least = 128 * config.consumers + (64 if config.weight_stages else 32)
    return max(block_threads(config.consumers), least)


#: Chunks of the operands that a consumer has in flight: halo tiles want the room.
SLOTS = 2


@dataclass(frozen=True)
class Geometry:
    """What follows from a problem and a configuration.  Sizes in bytes."""

    span: int
    blocks: int  # of input channels
    last_products: int  # of 16 channels each, in the last block
    halo: Halo
    weight_box: int
    weights: int
    strips: int
    line_tiles: int
    tiles: int
    channel_tiles: int
    chunk_pixels: int
    chunk: int
    arriving: tuple[Chunk, ...]  # operands, in chunks like those of y
    slots: int  # of each consumer, for a chunk of each of them
    slot: int
    total: int


def geometry(problem: ConvProblem, config: Config) -> Geometry:
    """The halo tile of a tile, how many tiles there are, and the shared memory that it takes."""
    h, w = windows(problem, config.fold)
    span = config.tile_k * problem.x.element.bytes
    blocks = -(-problem.c_per_group // config.tile_k)
    halo = halo_of(h, w, config.tile_m, config.strip, config.images, span)
    weight_box = config.tile_n * span
    weights = weight_bytes(config, weight_box, blocks * len(h.offsets) * len(w.offsets) * weight_box)
    strips, line_tiles = -(-w.output // config.strip), -(-halo.line // config.tile_m)
    tiles = -(-problem.n // config.images) * strips * line_tiles
    chunk_pixels = max(c for c in (64, 48, 32, 16) if config.consumer_pixels % c == 0)
    chunk = aligned(chunk_pixels * config.consumer_channels * problem.y.element.bytes)
    operands = operand_tiles.shaped(problem) if pixels_outside(problem) else ()
    arriving = operand_tiles.chunks(operands, chunk_pixels, config.consumer_channels)
    slots, slot = SLOTS if arriving else 0, aligned(sum(c.bytes for c in arriving))
    return Geometry(
        span, blocks, products(problem.c_per_group - (blocks - 1) * config.tile_k),
        halo, weight_box, weights, strips, line_tiles, tiles, -(-problem.k // config.own_channels),
        chunk_pixels, chunk, arriving, slots, slot, shared_bytes(config, halo.bytes, weights, chunk + slots * slot),
    )  # fmt: skip


def weight_bytes(config: Config, weight_box: int, resident: int) -> int:
    """Bytes of weights in shared memory; `resident` of all that a block needs."""
    return aligned(config.rings * config.weight_stages * weight_box or resident)


def shared_bytes(config: Config, halo: int, weights: int, chunk: int) -> int:
    """Of a block: halo tiles of `halo` bytes, weights, a `chunk` for each consumer (and what it takes of operands),
    barriers, the alignment of the base."""
    barriers = 16 * config.rings * (config.stages + config.weight_stages) + (0 if config.weight_stages else 8)
    return ALIGNMENT + config.rings * config.stages * halo + weights + config.consumers * chunk + barriers


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A configuration of a problem as the kernel reads it."""

    prepared: prepare.Prepared

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @cached_property
    def size(self) -> Geometry:
        return geometry(self.read, self.config)

    @property
    def threads(self) -> int:
        return threads(self.config)


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    return Layout(problem, target, config, as_read(problem, config.group_pack, config.fold))
