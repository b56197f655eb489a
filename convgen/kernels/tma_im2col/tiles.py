"""What follows from a problem and a configuration: how tensors lie, tiles, k steps, shared memory, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.hopper import (
    ROW_ALIGNMENT,
    block_threads,
    launch_registers,
    lies_as,
    products,
    register_split,
)
from convgen.kernels.parts.operand_tiles import Chunk
from convgen.kernels.tma_im2col.config import TmaIm2colConfig
from convgen.targets import Target


def as_read(problem: ConvProblem, bundle: int) -> prepare.Prepared:
    """The problem as the kernel reads it."""
    return prepare.channels_last(problem, copy_x=not x_in_planes(problem), bundle=bundle)


def is_pointwise(problem: ConvProblem) -> bool:
    """1x1, unit stride, no padding: x is a matrix already, and a plain tiled map serves."""
    return problem.taps == 1 and set(problem.stride) == {1} and not any((*problem.pad_lo, *problem.pad_hi))


def plane(problem: ConvProblem) -> int:
    """The pixels of an image where they are neighbours in y, channels outside of them; else 0."""
    y, pixels = problem.y, math.prod(problem.output)
    in_order = lies_as(y, ("n", "k", *problem.spatial.output))
    return pixels if in_order and y.element.bytes == 2 and pixels > 1 and problem.k > 1 else 0


def x_in_planes(problem: ConvProblem) -> bool:
    """Whether x is multiplied as it lies, in planes: an image is the matrix [channels, pixels] already."""
    x, pixels = problem.x, plane(problem)
    in_order = lies_as(x, ("n", "c", *problem.spatial.input))
    return is_pointwise(problem) and in_order and pixels > 0 and pixels % 8 == problem.c % 8 == 0


def stores_by_tma(problem: ConvProblem) -> bool:
    """Whether a tile of y can leave by TMA stores: channels innermost, pixels in order, rows aligned; or planes,
    where 64 pixels are never of two images."""
    y = problem.y
    if pixels := plane(problem):
        return pixels % 64 == 0 or x_in_planes(problem)
    in_order = tuple(d for d in ("n", *problem.spatial.output, "k") if d in y.dims)
    return y.dims == in_order and y.element.bytes == 2 and problem.k * 2 % ROW_ALIGNMENT == 0


def store_vector(problem: ConvProblem) -> int:
    """Elements that threads may store at once where TMA cannot: neighbours in y, aligned wherever a row begins.  0
    where neighbours are neither channels nor pixels of an image, or not of 2 bytes."""
    y = problem.y
    if pixels := plane(problem):
        return math.gcd(pixels, 8)
    return math.gcd(problem.k, 8) if y.dims[-1] == "k" and y.element.bytes == 2 else 0


def stores_pairs(problem: ConvProblem, config: TmaIm2colConfig) -> bool:
    """Whether threads store y as wgmma's fragments lie, and two float32 channels of a pixel at once: four threads fill
    a sector."""
    y = problem.y
    return y.dtype == "f32" and y.dims[-1] == "k" and problem.k % 2 == 0 and not config.by_channels


def taps_outside(problem: ConvProblem) -> bool:
    """Whether the filter's taps lie outside of its output channels: RSKC, not KRSC."""
    return problem.w.dims[0] != "k" and problem.taps > 1


def m_tiles(problem: ConvProblem, m: int) -> int:
    """Tiles of m pixels; where x is in planes, of one image each."""
    if x_in_planes(problem):
        return problem.n * -(-plane(problem) // m)
    return -(-problem.output_pixels // m)


def tile_count(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Tiles, counted by whole clusters."""
    m = config.m * (config.cluster if config.shared == "w" else 1)
    n = config.n * (config.cluster if config.shared == "x" else 1)
    return m_tiles(problem, m) * -(-problem.k // n) * config.cluster


def pixels_together(problem: ConvProblem) -> int:
    """Pixels that tiles cut up as one row: those of an image where x is in planes, else all."""
    return plane(problem) if x_in_planes(problem) else problem.output_pixels


def channel_blocks(problem: ConvProblem, k: int) -> int:
    """Blocks of `k` input channels that a tap is read by."""
    return -(-problem.c_per_group // k)


def k_steps(problem: ConvProblem, k: int) -> int:
    """Steps of a tile's k loop: one tap's block of `k` channels each."""
    return problem.taps * channel_blocks(problem, k)


def last_products(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Products, of 16 channels each, in the last of a tap's blocks of channels: none of what lies past them all.
    Stages of several blocks in no such order are multiplied in full."""
    blocks = channel_blocks(problem, config.k)
    in_order = config.order == "channels_inner" and config.merge % blocks == 0
    if config.merge == 1 or blocks == 1 or in_order:
        return products(problem.c_per_group - (blocks - 1) * config.k)
    return products(config.k)


def k_stages(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Stages that a tile's k steps fill, `merge` to a stage."""
    return k_steps(problem, config.k) // config.merge


@dataclass(frozen=True)
class Footprint:
    """Shared memory of a configuration, in bytes.  A box is one TMA load; a stage holds `merge` of each."""

    x_box: int
    w_box: int
    stage: int
    chunk_m: int
    chunk_n: int
    chunk: int
    arriving: tuple[Chunk, ...]  # operands, in chunks like those of y
    slots: int  # of each consumer, for a chunk of each of them
    slot: int
    aligned: bool  # the chunks start at the next 1024 bytes
    partials: int
    total: int


#: Channels of the widest chunk without a swizzle; two of 64 pixels take 26 KB a consumer.
WIDEST_CHUNK = 104


def chunk_columns(problem: ConvProblem, columns: int) -> int:
    """Channels of a chunk of `columns` that y leaves in, 64 pixels at a time, where wgmma's rows are pixels.

    A swizzle span (PTX ISA, "Swizzling modes") of 128 or 64 bytes, which stmatrix writes without bank conflicts; or,
    for TMA, an odd number of 16 bytes, which needs no swizzle for that.  Threads and planes take powers of two."""
    spans = [c for c in (64, 32, 16, 8, 1) if columns % c == 0]
    if spans[0] >= 32 or plane(problem) or not stores_by_tma(problem):
        return spans[0]
    return max([spans[0], *(c for c in range(8, WIDEST_CHUNK + 1, 16) if columns % c == 0)])


def chunk_shape(problem: ConvProblem, config: TmaIm2colConfig) -> tuple[int, int]:
    """Pixels and channels of a chunk that y leaves in, two a consumer: 64 pixels by so many channels, or up to 64
    pixels by 64 channels."""
    columns = config.columns // config.split
    if config.by_channels:
        return max(d for d in (16, 32, 48, 64) if columns % d == 0 or d == 16), 64
    return 64, chunk_columns(problem, columns)


def arriving(problem: ConvProblem, config: TmaIm2colConfig) -> tuple[Chunk, ...]:
    """The operands that arrive as tiles, in chunks like those of y: by TMA where y leaves by it, else copied by
    threads, which takes vectors of 4 bytes or more."""
    if problem.epilogue is None or not (vector := store_vector(problem)):
        return ()
    m, n = chunk_shape(problem, config)
    pixels = plane(problem)
    shape = (n, m) if pixels else (m, n)
    if stores_by_tma(problem):
        return operand_tiles.boxes(problem, pixels or problem.k, *shape)
    return operand_tiles.chunks((t for t in operand_tiles.shaped(problem) if vector * t.element.bytes >= 4), *shape)


def threads(problem: ConvProblem, config: TmaIm2colConfig) -> int:
    """Threads of a block.  Operands that TMA brings have a producer, and so a warp, for each consumer."""
    warps = 5 * config.consumers + 1 if stores_by_tma(problem) and arriving(problem, config) else 0
    return max(block_threads(config.consumers, config.blocks), 32 * warps)


def footprint(problem: ConvProblem, config: TmaIm2colConfig) -> Footprint:
    """Shared memory: stages of x and w, chunks of y on its way out and of operands on their way in, a split's partial
    sums, barriers."""
    span = config.k * problem.x.element.bytes
    x_box, w_box = config.m * span, config.n * span
    stage = config.merge * (x_box + w_box)
    chunk_m, chunk_n = chunk_shape(problem, config)
    chunk = chunk_m * chunk_n * 2 if store_vector(problem) else 0
    operands = arriving(problem, config)
    slots, slot = operand_tiles.slots(operands, config.consumers * config.blocks), sum(c.bytes for c in operands)
    stages = config.stages * stage
    aligned = plane(problem) > 0 or (chunk > 0 and (config.by_channels or slots > 0) and stages % 1024 > 0)
    partials = config.m * config.n * 4 // config.split * (config.split - 1)
    barriers = 16 * config.stages + 16 + 8 * config.consumers + 16 * config.consumers * slots
    # 1024 to align the base
    total = 1024 + stages + 1024 * aligned + config.consumers * (2 * chunk + slots * slot) + partials + barriers
    return Footprint(x_box, w_box, stage, chunk_m, chunk_n, chunk, operands, slots, slot, aligned, partials, total)


def accumulators_of(config: TmaIm2colConfig) -> int:
    """Accumulators of a consumer's thread."""
    return config.own_rows // 64 * config.columns // 2


def registers_of(problem: ConvProblem, config: TmaIm2colConfig, target: Target) -> int:
    """Registers that a consumer's thread may use."""
    split = register_split(config.consumers, config.blocks)
    return split.consumer if split else launch_registers(target, threads(problem, config), config.blocks)
