"""A problem as tma_im2col multiplies it: operands A, B and C, and how they lie in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from convgen.ir.index_map import TmaAxis, tma_axes
from convgen.ir.phases import Phases
from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels.parts import patches, prepare
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.hopper import ROW_ALIGNMENT, lies_as
from convgen.kernels.tma_im2col.tap_rows import TapRows, tap_rows

#: Channels that the boxes of some tile do not reach beyond.
LEAST_BOX = 16


@dataclass(frozen=True)
class Gemm:
    """C[pixels, columns] = A[pixels, taps x channels] B[columns, taps x channels], of 2-byte factors.

    A is x (dgrad: y's gradient) by the windows of its pixels, B the filter, C y (dgrad: x's gradient), in the names of
    the forward convolution that has the same product.  `prepared` has the tensors as the kernel reads them.  A strided
    dgrad is such a product for each of its `phases`.
    """

    assigned: Assignment
    prepared: prepare.Prepared
    b_columns: bool  # B's columns are contiguous (wgmma's MN-major), not its channels (K-major)
    group_pack: int = 1  # groups that are multiplied as one; the last of these may have fewer

    @cached_property
    def problem(self) -> ConvProblem:
        return self.prepared.problem

    @property
    def phases(self) -> Phases | None:
        """Where there are several, of as many pixels each."""
        return self.assigned.phases

    @cached_property
    def taps(self) -> tuple[int, ...]:
        """The taps of each phase."""
        return self.phases.taps if self.phases else (self.problem.taps,)

    @cached_property
    def pixels(self) -> int:
        """gemm_m of a phase, counted by the positions of its walk."""
        return self.problem.n * self.phases.pixels if self.phases else self.problem.output_pixels

    @cached_property
    def columns(self) -> int:
        """gemm_n: output channels of all groups."""
        return self.problem.k

    @cached_property
    def group(self) -> prepare.Group | None:
        """The channels of the groups that are multiplied as one; None where these are all."""
        forward, pack = self.assigned.problem, self.group_pack
        return prepare.Group(pack * forward.c_per_group, pack * forward.k_per_group) if forward.groups > pack else None

    @cached_property
    def channels(self) -> int:
        """Channels of a tap in a group."""
        return self.group.c if self.group else self.problem.c

    @cached_property
    def own_zeros(self) -> bool:
        """Whether A is multiplied by extra zeros, which turn its infinities into NaNs: between packed groups, or after
        a group's channels, if the next group's follow in x."""
        return self.group_pack > 1 or (self.group is not None and self.channels % LEAST_BOX > 0)

    @cached_property
    def group_columns(self) -> int:
        """Columns of C in a group."""
        return self.group.k if self.group else self.problem.k

    @cached_property
    def element_bytes(self) -> int:
        """Bytes per element of A and B."""
        return self.problem.x.element.bytes

    @cached_property
    def pointwise(self) -> bool:
        """1x1, unit stride, no padding: A is a matrix already, and a plain tiled map serves."""
        return self.phases is None and self.problem.is_pointwise

    @cached_property
    def axes(self) -> tuple[TmaAxis, ...]:
        """The windows, as TMA walks them."""
        if self.phases:
            return tuple(axis.walk for axis in self.phases.axes)
        return () if self.pointwise else tma_axes(self.problem)

    @cached_property
    def read_again(self) -> int:
        """Bytes of A that taps read after another tap has."""
        problem, strides = self.problem, (1,) * self.problem.rank if self.phases else self.problem.stride
        axes = zip(problem.input, problem.output, problem.filter, strides, strict=True)
        read = problem.n * math.prod(min(size, outputs * min(taps, by)) for size, outputs, taps, by in axes)
        return max(sum(self.taps) * self.pixels - read, 0) * problem.c * self.element_bytes

    @cached_property
    def tap_rows(self) -> TapRows | None:
        """Where tiles may leave out rows of taps that meet padding alone."""
        problem = self.problem
        if self.phases or self.pointwise or problem.dynamic or problem.padding is Padding.NAN:
            return None
        return tap_rows(problem, self.axes[0])

    @cached_property
    def plane(self) -> int:
        """The pixels of an image where they are neighbors in C, channels outside of them; else 0."""
        return 0 if self.phases else plane(self.problem)

    @cached_property
    def a_planes(self) -> bool:
        """Whether A is multiplied as it lies, in planes: an image is the matrix [channels, pixels] already."""
        return self.phases is None and x_in_planes(self.problem)

    @property
    def stores_pixels(self) -> bool:
        """Whether TMA stores channels of pixels, not pixels of planes."""
        return self.stores_by_tma and not self.plane

    @cached_property
    def stores_by_tma(self) -> bool:
        """Whether a tile of C can leave by TMA stores: channels innermost, pixels in order, rows aligned; or planes,
        where 64 pixels are never of two images."""
        problem, y = self.problem, self.problem.y
        if self.phases:
            return False  # a phase's pixels are no neighbors
        if self.plane:
            return self.plane % 64 == 0 or self.a_planes
        in_order = tuple(d for d in ("n", *problem.spatial.output, "k") if d in y.dims)
        aligned = math.gcd(problem.k, y.pitch or 0) * 2 % ROW_ALIGNMENT == 0
        return y.dims == in_order and y.element.bytes == 2 and aligned

    @cached_property
    def store_vector(self) -> int:
        """Elements that threads may store at once where TMA cannot: neighbors in C, aligned wherever a row begins.  0
        where neighbors are neither channels nor pixels of an image, or not of 2 bytes."""
        y = self.problem.y
        if self.plane:
            return math.gcd(self.plane, 8)
        return math.gcd(self.columns, y.pitch or 0, 8) if y.innermost == "k" and y.element.bytes == 2 else 0

    @property
    def taps_outside(self) -> bool:
        """Whether the filter's taps lie outside of its output channels: RSKC, not KRSC."""
        return self.problem.w.dims[0] != "k" and self.problem.taps > 1

    @cached_property
    def traffic(self) -> dict[str, int]:
        """The cost model's input from the problem: rows of A begin at pixels, with groups at each group's channels."""
        found = self.prepared.traffic
        if self.group is None:
            return found
        return found | {"x_pitch": math.gcd(found["x_pitch"], self.channels * self.element_bytes)}

    @property
    def pixels_together(self) -> int:
        """Pixels that tiles cut up as one row: those of an image where A is in planes, else all."""
        return self.plane if self.a_planes else self.pixels

    def m_tiles(self, m: int) -> int:
        """Tiles of m pixels; where A is in planes, of one image each."""
        return self.problem.n * -(-self.plane // m) if self.a_planes else -(-self.pixels // m)


def plane(problem: ConvProblem) -> int:
    """The pixels of an image where they are neighbors in y, channels outside of them; else 0."""
    y, pixels = problem.y, math.prod(problem.output)
    in_order = lies_as(y, ("n", "k", *problem.spatial.output))
    return pixels if in_order and y.element.bytes == 2 and pixels > 1 and problem.k > 1 else 0


def x_in_planes(problem: ConvProblem) -> bool:
    """Whether x is multiplied as it lies, in planes."""
    x, pixels = problem.x, plane(problem)
    in_order = lies_as(x, ("n", "c", *problem.spatial.input))
    as_it_lies = problem.is_pointwise and problem.prologue is None
    return as_it_lies and in_order and pixels > 0 and pixels % 8 == problem.c % 8 == 0


@lru_cache(maxsize=64)
def gemm(problem: ConvProblem, group_pack: int = 1) -> Gemm:
    """The GEMM of a problem that `assignment.served` says is one, neighboring groups packed."""
    assigned = assignment(problem)
    forward = patches.folded(assigned.problem) if not assigned.backward else assigned.problem
    assigned = replace(assigned, problem=forward)
    # dgrad's filter, as it lies, has B's columns innermost and its channels outermost
    aligned = math.gcd(forward.k, forward.w.pitch or 0) % 8 == 0
    columns = (
        assigned.backward
        and forward.groups == 1
        and aligned
        and lies_as(forward.w, ("c", *forward.spatial.filter, "k"))
    )
    in_planes = assigned.strided is None and x_in_planes(forward)
    loads_pad = forward.padding is Padding.NAN and group_pack * forward.c_per_group % LEAST_BOX == 0
    prepared = prepare.channels_last(
        forward, copy_x=not in_planes, copy_w=not columns, group_pack=group_pack, loads_pad=loads_pad
    )  # fmt: skip
    return Gemm(assigned, prepared, columns, group_pack)
