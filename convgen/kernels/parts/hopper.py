"""What the kernels on TMA and wgmma share: limits of tensor maps, swizzles, and how registers are dealt out."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Obstacles
from convgen.kernels.parts.assignment import assignment, served
from convgen.targets import Target

#: Of a tensor map (CUDA driver API, cuTensorMapEncodeTiled): elements a side of its box, and their stride.
MAX_BOX, MAX_ELEMENT_STRIDE = 256, 8
ROW_ALIGNMENT = 16  # bytes: strides of a tensor map
SWIZZLE_ALIGNMENT = 1024  # bytes: where a tile in a swizzle of 128 bytes begins
#: wgmma's smem descriptor: swizzle span in bytes -> value of its field.
SWIZZLE_FIELD = {128: 1, 64: 2, 32: 3, 0: 0}


def wgmma_obstacles(
    problem: ConvProblem, target: Target, outputs: tuple[str, ...], backward: bool = False
) -> Obstacles:
    """What keeps wgmma from multiplying a convolution with these types of the result, whatever the tiles.  A kernel
    that goes `backward` serves dgrad as well, where it has the product of a forward convolution."""
    found = Obstacles()
    no = found.no
    if "wgmma" not in target.features:
        no(f"target {target} has no wgmma", "target sm_90a has it")
    if not backward and problem.op is not Op.FPROP:
        no(f"op {problem.op} is not served; only fprop is")
    elif not served(problem):
        no(f"op {problem.op} is not served; fprop is, and dgrad of unit stride without groups")
    if problem.padding is not Padding.ZERO and problem.op is not Op.FPROP:
        no(f"op {problem.op} with padding by {problem.padding}; the padding is added for fprop alone")
    forward = assignment(problem).problem if served(problem) else problem
    x, w, y = forward.x, forward.w, forward.y
    if not (x.dtype == w.dtype and x.dtype in ("f16", "bf16")):
        no(f"types {x.dtype} x {w.dtype}: {x.name} and {w.name} must both be f16 or bf16")
    if problem.accumulate != "f32":
        no(f"accumulate {problem.accumulate}: only f32 is served")
    if y.dtype not in outputs:
        no(f"output type {y.dtype}: {', '.join(outputs[:-1])} or {outputs[-1]}")
    return found


@dataclass(frozen=True)
class RegisterSplit:
    """Registers a thread after setmaxnreg, for a number of consumer warpgroups at one block a
    multiprocessor.  Producer plus consumers never exceed what the launch has: a kernel that asks for
    more waits for ever.  None: the launch's own registers do."""

    producer: int
    consumer: int


REGISTERS: dict[int, RegisterSplit | None] = {1: None, 2: RegisterSplit(40, 232), 3: RegisterSplit(32, 160)}


def register_split(consumers: int, blocks: int) -> RegisterSplit | None:
    """The split of a kernel that runs so many blocks a multiprocessor."""
    return REGISTERS[consumers] if blocks == 1 else None


def block_threads(consumers: int, blocks: int = 1) -> int:
    """Threads of a block: the consumers' warpgroups, then a warp for the producer, which setmaxnreg asks to be a
    warpgroup of its own."""
    return 128 * consumers + (128 if register_split(consumers, blocks) else 32)


def launch_registers(target: Target, threads: int, blocks: int) -> int:
    """Registers a thread that ptxas has for a launch: the warps of a multiprocessor's blocks share them, in fours,
    one for each of its quarters."""
    fours = -(-(threads // 32 * blocks) // 4)
    return min(target.registers_per_sm // (128 * fours) // 8 * 8, 255)


def products(channels: int) -> int:
    """wgmmas that multiply so many channels of 2 bytes: 16 each (PTX ISA, "wgmma.mma_async")."""
    return -(-channels // 16)


def mean_products(full: int, last: int, blocks: int) -> float:
    """Of so many blocks of channels, the last of which takes fewer products."""
    return full - (full - last) / blocks


def memory_order(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    """Whether a tensor's dims lie in this order, outermost first; it need not have all of them."""
    return tensor.dims == tuple(d for d in dims if d in tensor.dims)


def lies_as(tensor: Tensor, dims: tuple[str, ...]) -> bool:
    """Whether a tensor lies in memory as these dims do, outermost first; dims of one element aside."""
    return [d for d in tensor.dims if tensor.extent(d) > 1] == [d for d in dims if tensor.extent(d) > 1]
