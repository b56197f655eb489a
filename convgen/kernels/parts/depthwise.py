"""Shared by the depthwise kernels: which problems they serve, runs of channels, the result of a run, formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir.index_map import IndexMap, derive, variable
from convgen.ir.integer import floordiv, symbol
from convgen.ir.plan import TensorMap
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor
from convgen.kernels import base
from convgen.kernels.base import C, Obstacle, Obstacles
from convgen.kernels.parts import lowering, output
from convgen.kernels.parts.assignment import Assignment, assignment
from convgen.kernels.parts.axes import Axis, axes
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import element, epilogue_formulas, window_formulas
from convgen.kernels.parts.hopper import ROW_ALIGNMENT
from convgen.kernels.parts.limits import type_obstacles
from convgen.kernels.parts.mma import MOST_PIXELS
from convgen.targets import Target


def depthwise_obstacles(problem: ConvProblem, target: Target) -> list[Obstacle]:
    """Why a problem is not a depthwise convolution that these kernels serve."""
    found = Obstacles(type_obstacles(problem, target))
    no = found.no
    if problem.op is Op.WGRAD:
        return [Obstacle("op wgrad is not served by this kernel", "kernel depthwise_wgrad", "kernel")]
    if problem.op not in (Op.FPROP, Op.DGRAD):
        no(f"op {problem.op} is not served; fprop, dgrad and wgrad are")
    if problem.op is Op.DGRAD and problem.k_per_group > 1:
        no(f"op dgrad of {problem.k_per_group} filters per channel is not served; of one it is")
    if problem.groups != problem.c:
        no(f"groups {problem.groups} of {problem.c} channels: each channel must be a group")
    if problem.rank > 2:
        no("three spatial dims are not served")
    size = problem.input if problem.op is Op.DGRAD else problem.output
    if (pixels := problem.n * math.prod(size)) >= MOST_PIXELS:
        no(f"{pixels} pixels of the result do not fit 32 bits")
    return found


def boxes(tensor: Tensor, sides: Mapping[str, int], swizzle: int = 0) -> TensorMap:
    """A map of a tensor whose channels are innermost, with boxes of so many channels, columns, rows and images."""
    size, (channels, *outer) = tensor.element.bytes, sides
    strides = tuple(
        (tensor.stride(d) or tensor.size) * size
        if tensor.extent(d) > 1
        else -(-tensor.bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
        for d in outer
    )
    extents = tuple(tensor.extent(d) for d in (channels, *outer))
    return TensorMap(
        tensor.role, "tiled", tensor.dtype, extents, strides, (1,) * len(sides), box=tuple(sides.values()),
        swizzle=swizzle,
    )  # fmt: skip


@dataclass(frozen=True)
class Depthwise(base.Layout[C]):
    """The layout of a depthwise kernel: a configuration of the forward convolution that has the problem's product, or
    whose outputs are the runs of a strided dgrad's phases."""

    @cached_property
    def assigned(self) -> Assignment:
        return assignment(self.problem)

    @property
    def read(self) -> ConvProblem:
        """The forward convolution, of operands x, w and y."""
        return self.assigned.problem

    @property
    def multiplier(self) -> int:
        return self.read.k_per_group

    @cached_property
    def axes(self) -> tuple[Axis, Axis]:
        return axes(self.read, self.assigned.phases)

    @property
    def run_outputs(self) -> int:
        """Outputs of a run along either axis: they divide a filter's taps among them, since a tap reaches one of
        them."""
        return math.prod(axis.phases for axis in self.axes)

    def filter_offset(self, constants: Constants) -> str:
        """C text of the offset of an element of w, from `channel` and the forward convolution's `tap`."""
        if self.assigned.mirrored:  # from the last tap, which is no few strides of rows
            constants = Constants(defined=False)
        return lowering.filter_offset(self.read, "channel", constants, self.assigned.mirrored)


def whole_runs(layout: Depthwise[C], tile_p: int, tile_q: int) -> Obstacles:
    """A thread's tile is of whole runs."""
    found = Obstacles()
    for option, size, axis in zip(("tile.p", "tile.q"), (tile_p, tile_q), layout.axes, strict=True):
        if size % axis.phases:
            found.no(f"{option} {size} is not a multiple of dgrad's stride, {axis.phases}", option=option)
    return found


@lru_cache(maxsize=64)  # called for each configuration of a search
def channel_run(problem: ConvProblem) -> int:
    """Channels that are neighbors in x and in y, as a power of two that divides all offsets: of outputs."""
    along = output.Columns("channels", ("k",), problem.k)
    in_x = problem.x.innermost == "c"
    multiplier = problem.k_per_group
    if not in_x or output.neighbors(problem.y, along) <= 1:
        return 1
    run = math.gcd(output.neighbors(problem.y, along), 16)
    while run > 1 and multiplier % run and run % multiplier:
        run //= 2
    # a run of inputs must be aligned as well
    while run > multiplier and math.gcd(problem.c, problem.x.pitch or 0) % (run // multiplier):
        run //= 2
    return run


def vector_obstacles(problem: ConvProblem, vector: int, most: int) -> Obstacles:
    """Why so many channels cannot form one vector, which has room for `most`."""
    run, found = channel_run(problem), Obstacles()
    most = min(run, most)
    if run % vector or vector > most:
        found.no(f"vector {vector}: {most} channels are aligned neighbors", f"vector {most} or less", "vector")
    return found


def run_result(problem: ConvProblem, vector: int) -> output.Result:
    """The epilogue and the store of `vector` neighboring channels from channel k of output pixel n, p, q."""
    along = output.Columns("channels", ("k",), problem.k)
    return output.result(problem, _element_map(problem), along, symbol("k"), vector, problem.accumulate)


def _element_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over an output pixel and its channel."""
    dims = ("n", *problem.spatial.output, "k")
    variables = [variable(d, problem.extent(d)) for d in dims]
    at: dict[str, Expr] = {v.name: v.symbol for v in variables}
    return derive(problem, variables, {**at, "g": floordiv(symbol("k"), Integer(problem.k_per_group))})


def ends(layout: Depthwise[C]) -> dict[str, str]:
    """C text of the output's extents by coordinate: names of constants, or sizes that a call decides."""
    named = zip("pq", layout.axes, strict=True)
    return {d: lowering.number_text(a.output) if isinstance(a.output, Size) else d.upper() for d, a in named}


def formulas(layout: Depthwise[C]) -> list[str]:
    """The formulas of a depthwise convolution, for comments."""
    problem = layout.read
    sp, m = problem.spatial, problem.k_per_group
    windows = _phase_formulas(layout) if layout.assigned.phases else window_formulas(problem)
    taps = [f"{f.upper()} - 1 - {f}" if layout.assigned.mirrored else f for f in sp.filter]
    x = element("x", ("n", *sp.input, "k" if m == 1 else f"k / {m}"))
    product = f"{x} * {element('w', ('k', *taps))}"
    return [
        f"{element('y', ('n', *sp.output, 'k'))} = sum over {', '.join(sp.filter)} of {product}, where",
        *windows,
        *epilogue_formulas(problem),
    ]


def _phase_formulas(layout: Depthwise[C]) -> list[str]:
    """Formulas for the outputs that a tap of a strided dgrad reaches, with this problem's numbers."""
    given, sp = layout.problem, layout.read.spatial
    rows = zip(sp.input, sp.output, sp.filter, given.stride, given.pad_lo, given.dilation, strict=True)
    lines = []
    for i, o, f, stride, lo, dilation in rows:
        pixel = c_expr(symbol(o) + lo - symbol(f) * dilation, {}, symbols="")
        lines.append(f"  {lowering.coordinate_name(i)} * {stride} = {pixel}")
    return lines
