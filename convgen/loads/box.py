"""The box of a TMA im2col load and its walk over the pixels of a tensor (PTX ISA, "Tensors", "im2col mode")."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convgen import plurals
from convgen.emulator.tensor_map import problems
from convgen.ir.index_map import FORWARD, TmaAxis, tma_axes
from convgen.ir.plan import Plan, TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.spec import UsageError

#: Bits of a load's offset by rank of the tensor (PTX ISA, "cp.async.bulk.tensor").
OFFSET_BITS = {3: 16, 4: 8, 5: 5}
#: Of a box where the plan has none: pixels, and bytes of channels (the widest swizzle).
DEFAULT_PIXELS, DEFAULT_BYTES = 64, 128


@dataclass(frozen=True)
class Pixel:
    """A pixel that is loaded: its image, its coordinates in the tensor, and its number from 1; 0 if it lies outside and
    is filled in."""

    n: int
    at: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class Load:
    """A load of a problem's box: where it starts (n, spatial coordinates, channel), its offsets, pixels and channels.

    `axes` are the tensor map's, outermost first; `images` and `extents` the tensor's.
    """

    problem: ConvProblem
    axes: tuple[TmaAxis, ...]
    start: tuple[int, ...]
    offsets: tuple[int, ...]
    pixels: int
    channels: int

    @property
    def role(self) -> str:
        """The role of the tensor that is loaded: x, or y for dgrad."""
        return "x" if self.problem.op in FORWARD else "y"

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(self.problem.extent(axis.dim) for axis in self.axes)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """For each axis, the first and the last coordinate that a load with these offsets can reach."""
        return tuple(
            (axis.lower + offset, extent - 1 + axis.upper + offset)
            for axis, offset, extent in zip(self.axes, self.offsets, self.extents, strict=True)
        )

    def walk(self) -> Iterator[Pixel]:
        """Along the innermost axis in element strides up to the box's upper corner, then the next row, then the next
        image."""
        n, at = self.start[0], list(self.start[1:-1])
        for _ in range(self.pixels):
            yield self._pixel(n, tuple(a + offset for a, offset in zip(at, self.offsets, strict=True)))
            for i in reversed(range(len(at))):
                axis = self.axes[i]
                at[i] += axis.element_stride
                if at[i] <= self.extents[i] - 1 + axis.upper:
                    break
                at[i] = axis.lower
            else:
                n += 1

    def _pixel(self, n: int, at: tuple[int, ...]) -> Pixel:
        inside = 0 <= n < self.problem.n and all(0 <= a < e for a, e in zip(at, self.extents, strict=True))
        number = n
        for a, extent in zip(at, self.extents, strict=True):
            number = number * extent + a
        return Pixel(n, at, number + 1 if inside else 0)

    def refusals(self) -> list[str]:
        """Why the driver or the hardware would refuse the load."""
        tensor, rank = self.problem.tensor(self.role), len(self.axes) + 2
        size, channels = tensor.element.bytes, tensor.extent("c" if self.role == "x" else "k")
        dims = (channels, *reversed(self.extents), self.problem.n)
        strides = [channels * size]
        for extent in dims[1:-1]:
            strides.append(strides[-1] * extent)
        inner = tuple(reversed(self.axes))
        found = TensorMap(
            tensor.name, "im2col", tensor.dtype, dims, tuple(strides), (1, *(a.element_stride for a in inner), 1),
            lower=tuple(a.lower for a in inner), upper=tuple(a.upper for a in inner),
            channels=self.channels, pixels=self.pixels,
        )  # fmt: skip
        refused = list(problems(found, tensor.bytes))
        most = (1 << OFFSET_BITS[rank]) - 1
        refused += [f"an offset of {o} is not in [0, {most}]" for o in self.offsets if not 0 <= o <= most]
        if self.start[-1] * size % 16:
            refused.append(f"it starts {self.start[-1] * size} bytes along a pixel: not a multiple of 16")
        return refused


def load_of(
    problem: ConvProblem,
    plan: Plan | None,
    at: Sequence[int],
    offsets: Sequence[int] | None,
    pixels: int | None,
    channels: int | None,
) -> Load:
    """`at` is n, the spatial coordinates and the channel, or the number of a tile of pixels.  The plan's box is the
    default, where it has one.  Of sizes that a call decides, the written ones count.  Raises UsageError."""
    problem = problem.static
    if problem.op is Op.COL2IM:
        raise UsageError(f"{problem.name}: col2im gathers from a matrix, which has no im2col box")
    if problem.op is Op.DGRAD and set(problem.stride) != {1}:
        raise UsageError(f"{problem.name}: a strided dgrad has no single im2col box")
    if problem.padding.repeats:
        raise UsageError(f"{problem.name}: padding is {problem.padding}: its pixels are copied before TMA loads them")
    axes = tma_axes(problem)
    box = _box_of(plan)
    element_bytes = problem.reads[0].element.bytes
    pixels = pixels or (box.pixels if box else DEFAULT_PIXELS)
    channels = channels or (box.channels if box else DEFAULT_BYTES // element_bytes)
    offsets = tuple(offsets) if offsets is not None else (0,) * len(axes)
    if len(offsets) != len(axes):
        raise UsageError(
            f"{problem.name}: --offsets needs {plurals.counted(len(axes), 'number')}, one for each of {_names(axes)}"
        )
    start = tuple(at) if len(at) != 1 else _tile(problem, axes, at[0], pixels)
    if len(start) != len(axes) + 2:
        needed = plurals.counted(len(axes) + 2, "number")
        raise UsageError(f"{problem.name}: --load needs {needed}, n, {_names(axes)} and the channel, or a tile's")
    load = Load(problem, axes, start, offsets, pixels, channels)
    for axis, first, extent in zip(axes, start[1:-1], load.extents, strict=True):
        last = extent - 1 + axis.upper
        if not axis.lower <= first <= last:
            raise UsageError(
                f"{problem.name}: a load cannot start at {axis.dim} = {first}: its windows start at {axis.lower} to "
                f"{last}\nhint: --offsets are added to the start"
            )
    return load


def has_box(plan: Plan | None) -> bool:
    """Whether a plan has a box of im2col mode, the default of `load_of`."""
    return _box_of(plan) is not None


def _box_of(plan: Plan | None) -> TensorMap | None:
    maps = [p.map for launch in plan.launches for p in launch.params if p.map] if plan else []
    return next((m for m in maps if m.mode == "im2col"), None)


def _tile(problem: ConvProblem, axes: tuple[TmaAxis, ...], tile: int, pixels: int) -> tuple[int, ...]:
    """Where the tile of that number starts: tiles are of that many consecutive pixels of the result."""
    result = problem.output if problem.op in FORWARD else problem.input
    count = problem.n * math.prod(result)
    if not 0 <= tile * pixels < count:
        raise UsageError(f"{problem.name}: there is no tile {tile}: the last is {(count - 1) // pixels}")
    first, at = tile * pixels, list[int]()
    for axis, extent in zip(reversed(axes), reversed(result), strict=True):
        at.insert(0, first % extent * axis.element_stride + axis.lower)
        first //= extent
    return (first, *at, 0)


def _names(axes: tuple[TmaAxis, ...]) -> str:
    return ", ".join(axis.dim for axis in axes)
