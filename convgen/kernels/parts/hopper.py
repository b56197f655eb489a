"""Shared by the kernels that use TMA and wgmma: limits of tensor maps, swizzles, and how registers are dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Obstacles
from convgen.kernels.parts.assignment import forward, served
from convgen.kernels.parts.limits import MAX_REGISTERS
from convgen.targets import Target

if TYPE_CHECKING:
    from convgen.ir.index_map import TmaAxis

#: Of a tensor map (CUDA driver API, cuTensorMapEncodeTiled): elements a side of its box, and their stride.
MAX_BOX, MAX_ELEMENT_STRIDE = 256, 8
MAX_PIXELS = 1024  # of an im2col box (CUDA driver API, cuTensorMapEncodeIm2col: pixelsPerColumn)
ROW_ALIGNMENT = 16  # bytes: strides of a tensor map
SWIZZLE_ALIGNMENT = 1024  # bytes: where a tile in a swizzle of 128 bytes begins
#: Columns of a box of B where these are contiguous: the widest swizzle's span, of 2-byte elements.
COLUMNS_BOX = 64
#: Registers of a consumer's thread besides its accumulators: for descriptors and barriers while it multiplies, and for
#: all addresses and counters.
MULTIPLY_REGISTERS, OTHER_REGISTERS = 28, 40


def aligned(size: int) -> int:
    """Bytes from the beginning of a swizzled operand to where the next may begin."""
    return -(-size // SWIZZLE_ALIGNMENT) * SWIZZLE_ALIGNMENT


def wgmma_obstacles(
    problem: ConvProblem, target: Target, outputs: tuple[str, ...], also: tuple[Op, ...] = ()
) -> Obstacles:
    """Why wgmma cannot compute a convolution with these result types, whatever the tiles.  `also` are what a kernel's
    strategy serves besides fprop: dgrad where it has the product of a forward convolution."""
    found = target_obstacles(target)
    no = found.no
    if not also and problem.op is not Op.FPROP:
        no(f"op {problem.op} is not served; only fprop is")
    elif not served(problem):
        others = " and wgrad are" if Op.WGRAD in also else " is"
        no(f"op {problem.op} is not served; fprop{others}, and dgrad except for a slice of a grouped filter")
    if problem.padding is not Padding.ZERO and problem.op is not Op.FPROP:
        no(f"op {problem.op} with `{problem.padding}` padding adds up the gradients of copies, which wgmma does not")
    read = forward(problem)
    found += type_obstacles(read.x, read.w, read.y, problem.accumulate, outputs)
    return found


def target_obstacles(target: Target) -> Obstacles:
    """Why a target cannot run wgmma at all."""
    found = Obstacles()
    if "wgmma" not in target.features:
        found.no(f"target {target} has no wgmma", "target sm_90a has it")
    return found


def type_obstacles(a: Tensor, b: Tensor, result: Tensor, accumulate: str, outputs: tuple[str, ...]) -> Obstacles:
    """Why wgmma cannot multiply factors of these types into such a result."""
    found = Obstacles()
    no = found.no
    if not (a.dtype == b.dtype and a.dtype in ("f16", "bf16")):
        no(f"types {a.dtype} x {b.dtype}: {a.name} and {b.name} must both be f16 or bf16")
    if accumulate != "f32":
        no(f"accumulate {accumulate}: only f32 is served")
    if result.dtype not in outputs:
        no(f"output type {result.dtype}: {', '.join(outputs[:-1])} or {outputs[-1]}")
    return found


@dataclass(frozen=True)
class Im2colLimits:
    """Ranges of an im2col tensor map by rank (CUDA driver API, cuTensorMapEncodeIm2col; PTX ISA, im2col offsets)."""

    corner_low: int
    corner_high: int
    offset_high: int


LIMITS: dict[int, Im2colLimits] = {
    3: Im2colLimits(-32768, 32767, 65535),
    4: Im2colLimits(-128, 127, 255),
    5: Im2colLimits(-16, 15, 31),
}


def wgrad_type_obstacles(problem: ConvProblem) -> Obstacles:
    """Why tensor cores cannot multiply x and y into w."""
    return type_obstacles(problem.x, problem.y, problem.w, problem.accumulate, ("f16", "bf16", "f32"))


def im2col_obstacles(axes: Sequence[TmaAxis], taps: Sequence[int]) -> Obstacles:
    """Why an im2col tensor map cannot express a walk along these axes, under so many taps each."""
    found = Obstacles()
    rank = len(axes) + 2
    limits = LIMITS[rank]
    for axis, count in zip(axes, taps, strict=True):
        if axis.element_stride > MAX_ELEMENT_STRIDE:
            found.no(f"stride {axis.dim}={axis.element_stride} is above a tensor map's {MAX_ELEMENT_STRIDE}")
        for name, corner in (("lower", axis.lower), ("upper", axis.upper)):
            if not limits.corner_low <= corner <= limits.corner_high:
                found.no(
                    f"the im2col box's {name} corner on {axis.dim} is {corner}; "
                    f"rank {rank} allows [{limits.corner_low}, {limits.corner_high}]",
                    "less padding or dilation",
                )
        furthest = axis.offset(count - 1)
        if furthest > limits.offset_high:
            found.no(
                f"the last tap on {axis.dim} is {furthest} pixels away; rank {rank} allows {limits.offset_high}",
                "a smaller dilation",
            )
    return found


@dataclass(frozen=True)
class RegisterSplit:
    """Registers a thread after setmaxnreg, for a number of consumer warpgroups at one block a multiprocessor.  Producer
    plus consumers never exceed the launch's registers: a kernel that asks for more waits forever.  None: the launch's
    own registers suffice."""

    producer: int
    consumer: int


REGISTERS: dict[int, RegisterSplit | None] = {1: None, 2: RegisterSplit(40, 232), 3: RegisterSplit(32, 160)}


def register_split(consumers: int, blocks: int) -> RegisterSplit | None:
    """The split of a kernel that runs so many blocks a multiprocessor."""
    return REGISTERS[consumers] if blocks == 1 else None


def block_threads(consumers: int, blocks: int = 1) -> int:
    """Threads per block: the consumers' warpgroups, then the producer: a warp, or for setmaxnreg a whole warpgroup."""
    return 128 * consumers + (128 if register_split(consumers, blocks) else 32)


def launch_registers(target: Target, threads: int, blocks: int) -> int:
    """Registers a thread that ptxas has for a launch: the warps of a multiprocessor's blocks share them, in fours,
    one for each of its quarters."""
    fours = -(-(threads // 32 * blocks) // 4)
    return min(target.registers_per_sm // (128 * fours) // 8 * 8, MAX_REGISTERS)


def launch_blocks(target: Target, threads: int, registers: int) -> int:
    """Blocks per multiprocessor if each thread has so many registers at launch."""
    fours = target.registers_per_sm // (128 * 8 * -(-registers // 8))
    return fours * 4 // (threads // 32) if registers <= MAX_REGISTERS else 0


def accumulators_at_launch(target: Target, threads: int, blocks: int) -> int:
    """Accumulators a thread that ptxas has registers for: it compiles a wgmma with the registers of the launch, before
    setmaxnreg gives more."""
    return launch_registers(target, threads, blocks) - MULTIPLY_REGISTERS


#: wgmma's k for 2-byte elements (PTX ISA, "wgmma.mma_async").
PRODUCT_CHANNELS = 16
#: Channels of a k block: rows of 128, 64, and 32 bytes, each of which has a swizzle.
SPANS = (64, 32, 16)
#: Those of which shorter blocks are worth considering: the share that they span, at most, of what longer ones do.
FEWER = {32: 0.85, 16: 0.8}


def spans(channels: int) -> list[int]:
    """Channels of a k block that are worth considering: the most of which a block uses at least half, since it has the
    fewest rows, and a short last block costs few products; and fewer, if blocks then span fewer channels."""
    found = [next((k for k in SPANS if k < 2 * channels), SPANS[-1])]
    for k, least in FEWER.items():
        if -(-channels // k) * k <= least * (-(-channels // found[-1]) * found[-1]):
            found.append(k)
    return found


def products(channels: int) -> int:
    """wgmmas that multiply so many channels of 2 bytes."""
    return -(-channels // PRODUCT_CHANNELS)


def mean_products(full: int, last: int, blocks: int) -> float:
    """The mean number of products for so many blocks of channels, the last of which takes fewer."""
    return full - (full - last) / blocks


def memory_order(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    """Whether a tensor's dims lie in this order, outermost first; it need not have all of them."""
    return tensor.dims == tuple(d for d in dims if d in tensor.dims)


def lies_as(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    """Whether a tensor lies in memory as these dims do, outermost first; dims of one element aside."""
    return tensor.long_dims == tuple(d for d in dims if tensor.extent(d) > 1)
