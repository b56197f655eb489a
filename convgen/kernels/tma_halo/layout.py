"""What follows from a problem and a configuration: the halo tile, tiles, threads, shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.ir.problem import ConvProblem
from convgen.kernels import base
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.hopper import SWIZZLE_ALIGNMENT, block_threads, lies_as, memory_order, products
from convgen.kernels.parts.operand_tiles import EpilogueTile
from convgen.kernels.tma_halo.config import Config, Rings
from convgen.kernels.tma_halo.halo import Halo, aligned, depth, halo_of, windows
from convgen.targets import Target


def as_read(problem: ConvProblem, bundle: int, fold: int) -> prepare.Prepared:
    """The forward convolution that has the problem's product, as the kernel reads it."""
    assigned = assignment(problem)
    forward = assigned.problem
    # dgrad's filter has its output channels innermost as it lies
    copied = bundle == fold == 1 and not (assigned.backward and output_channels_inside(forward))
    return prepare.channels_last(forward, taps_outside=False, bundle=bundle, copy_w=copied)


def output_channels_inside(problem: ConvProblem) -> bool:
    """Whether the filter's output channels are neighbors, which TMA brings 64 at a time."""
    w = problem.w
    return math.gcd(problem.k, w.pitch or 0) % 8 == 0 and lies_as(w, ("c", *problem.spatial.filter, "k"))


def w_columns(problem: ConvProblem, config: Config) -> bool:
    """Whether the filters of the problem as it is read are multiplied with their output channels contiguous."""
    return not config.fills and output_channels_inside(problem)


def pixels_outside(problem: ConvProblem) -> bool:
    """Whether the channels of y are neighbors."""
    return memory_order(problem.y, ("n", *problem.spatial.output, "k"))


def in_vectors(problem: ConvProblem) -> bool:
    """Whether y is stored `STORE_VECTOR` channels of a pixel at once, not element by element."""
    return pixels_outside(problem) and math.gcd(problem.k, problem.y.pitch or 0) % STORE_VECTOR == 0


def threads(config: Config) -> int:
    """Threads of a block.  Streamed weights have a producer, and so a warp, of their own."""
    least = 128 * config.consumers + (64 if config.weight_stages else 32)
    return max(block_threads(config.consumers), least)


#: Elements of y that a thread stores at once.
STORE_VECTOR = 8
#: Epilogue tiles of the operands that a consumer has in flight: halo tiles want the room.
SLOTS = 2


@dataclass(frozen=True)
class Geometry:
    """What follows from a problem and a configuration.  Sizes in bytes."""

    span: int
    blocks: int  # of input channels
    last_products: int  # of 16 channels each, in the last block
    halos: int  # of a tile: each block of input channels has one for each tap along d
    halo: Halo
    weight_box: int
    weights: int
    strips: int
    line_tiles: int
    tiles: int
    channel_tiles: int
    epi_tile_pixels: int
    epi_tile_bytes: int
    arriving: tuple[EpilogueTile, ...]  # operands, in epilogue tiles like those of y
    slots: int  # of each consumer, for an epilogue tile of each of them
    slot: int
    total: int


def geometry(problem: ConvProblem, config: Config) -> Geometry:
    """The halo tile of a tile, how many tiles there are, and the shared memory that it takes."""
    h, w = windows(problem, config.fold)
    span = config.tile_k * problem.x.element.bytes
    blocks = -(-problem.c_per_group // config.tile_k)
    halo = halo_of(h, w, config.tile_m, config.strip, config.images, span)
    weight_box = config.tile_n * span
    d = depth(problem)
    halos = blocks * len(d.offsets)
    weights = weight_bytes(config, weight_box, halos * len(h.offsets) * len(w.offsets) * weight_box)
    strips, line_tiles = -(-w.output // config.strip), -(-halo.line // config.tile_m)
    tiles = -(-problem.n * d.output // config.images) * strips * line_tiles
    epi_tile_pixels = max(c for c in (64, 48, 32, 16) if config.consumer_pixels % c == 0)
    epi_tile_bytes = aligned(epi_tile_pixels * config.consumer_channels * problem.y.element.bytes)
    shape = epi_tile_pixels, config.consumer_channels
    arriving = operand_tiles.copied(problem, STORE_VECTOR, *shape) if in_vectors(problem) else ()
    slots, slot = SLOTS if arriving else 0, aligned(sum(c.bytes for c in arriving))
    return Geometry(
        span, blocks, products(problem.c_per_group - (blocks - 1) * config.tile_k), halos,
        halo, weight_box, weights, strips, line_tiles, tiles, -(-problem.k // config.own_channels),
        epi_tile_pixels, epi_tile_bytes, arriving, slots, slot,
        shared_bytes(config, halo.bytes, weights, epi_tile_bytes + slots * slot),
    )  # fmt: skip


def weight_bytes(config: Rings, weight_box: int, resident: int) -> int:
    """Bytes of weights in shared memory; `resident` of all that a block needs."""
    return aligned(config.rings * config.weight_stages * weight_box or resident)


def shared_bytes(config: Rings, halo: int, weights: int, epi_tile_bytes: int) -> int:
    """Of a block: halo tiles of `halo` bytes, weights, an epilogue tile for each consumer (and what it takes of
    operands), barriers, the alignment of the base."""
    barriers = 16 * config.rings * (config.stages + config.weight_stages) + (0 if config.weight_stages else 8)
    tiles = config.rings * config.stages * halo + config.consumers * epi_tile_bytes
    return SWIZZLE_ALIGNMENT + tiles + weights + barriers


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A configuration of a problem as the kernel reads it."""

    prepared: prepare.Prepared

    @property
    def read(self) -> ConvProblem:
        return self.prepared.problem

    @property
    def assigned(self) -> Assignment:
        return assignment(self.problem)

    @property
    def w_columns(self) -> bool:
        """Whether wgmma takes the filters with their output channels contiguous, not their input channels."""
        return w_columns(self.read, self.config)

    @cached_property
    def size(self) -> Geometry:
        return geometry(self.read, self.config)

    @property
    def threads(self) -> int:
        return threads(self.config)


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    return Layout(problem, target, config, as_read(problem, config.group_pack, config.fold))
