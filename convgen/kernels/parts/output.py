"""Turns accumulators into y and further results: runs of neighboring elements, the epilogue, vector stores.

mma.sync leaves a lane two neighboring columns of each 8.  Which column of the problem an mma column stands
for is ours to choose, so the tile's columns are dealt out such that a lane's columns of `run / 2`
instructions are neighbors in y: what a lane stores at once is one vector, and a warp's vectors fill whole
sectors without a detour through shared memory.  Columns are output channels where y's channels are
innermost, and pixels otherwise (then x and w change places in the product).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sympy import Expr, Integer, Symbol

from convgen.codegen.c_expr import NO_NAMES, Names, c_expr
from convgen.codegen.epilogue import c_epilogue
from convgen.ir import integer
from convgen.ir.formula import number
from convgen.ir.index_map import IndexMap, decompose, derive, variable
from convgen.ir.integer import symbol
from convgen.ir.phases import Phases
from convgen.ir.problem import ConvProblem
from convgen.ir.size import divisor
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import lowering
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.phase_table import PhaseTable
from convgen.kernels.parts.runs import VECTOR_BYTES, Raw, bracket, decode_run, load_run, raw_run, run_words, store_run

M, N, GROUP = symbol("gemm_m"), symbol("gemm_n"), symbol("group")
CHANNEL, OFFSET = symbol("k"), symbol("offset")


def pixel_dims(problem: ConvProblem) -> tuple[str, ...]:
    """The dims that gemm_m runs over, in the order in which they lie in y."""
    dims = ("n", *problem.spatial.output)
    return (*(d for d in dims if d not in problem.y.dims), *(d for d in problem.y.dims if d in dims))


def _extent(problem: ConvProblem) -> Callable[[str], Expr]:
    return lambda dim: number(problem.extent(dim))


def product_map(problem: ConvProblem, phases: Phases | None = None) -> IndexMap:
    """y and the operands over gemm_m (pixels), gemm_n (channels of a group) and the group; of a dgrad's `phases`, over
    the pixels of one, `phase`."""
    pixels = problem.n * phases.pixels if phases else problem.output_pixels
    variables = [
        variable("gemm_m", pixels),
        variable("gemm_n", problem.k_per_group),
        variable("group", problem.groups),
    ]
    loop = decompose(M, pixel_dims(problem), _extent(problem))
    if phases:
        table, sp = PhaseTable(phases, problem.spatial), problem.spatial
        positions = {"n": problem.n} | {o: axis.positions for o, axis in zip(sp.output, phases.axes, strict=True)}
        loop = decompose(M, pixel_dims(problem), lambda dim: Integer(positions[dim]))
        for o, axis in zip(sp.output, phases.axes, strict=True):
            loop[o] = axis.stride * loop[o] + table.value(f"first_{o}", "phase.")
            variables += [variable(f"phase.first_{o}", axis.stride)]
    return derive(problem, variables, loop | {"g": GROUP, "k_in_group": N})


def channel_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over gemm_m (pixels) and k (channels of all groups)."""
    loop = decompose(M, pixel_dims(problem), _extent(problem))
    variables = (variable("gemm_m", problem.output_pixels), variable("k", problem.k))
    return derive(problem, variables, loop | {"k": CHANNEL})


def element_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over the offset of an element of y."""
    absent = {d: Integer(0) for d in ("n", *problem.spatial.output, "k") if d not in problem.y.dims}
    loop = decompose(OFFSET, problem.y.dims, _extent(problem)) | absent
    return derive(problem, (variable("offset", problem.y.size),), loop)


@dataclass(frozen=True)
class Columns:
    """The columns of the product: y's innermost dims, along which a lane holds neighbors.

    A run of neighbors begins at a multiple of its length and does not cross a multiple of `extent`.
    """

    role: str  # "channels" or "pixels"
    dims: tuple[str, ...]
    extent: int

    @property
    def index(self) -> Symbol:
        return N if self.role == "channels" else M


def columns(problem: ConvProblem) -> Columns:
    """Channels where they are innermost in y, else the dims that are."""
    dims = problem.y.long_dims
    if not dims or dims[-1] == "k" or problem.y.pitch:
        return Columns("channels", ("k",), problem.k_per_group)
    inner = dims[dims.index("k") + 1 if "k" in dims else 0 :]
    return Columns("pixels", inner, math.prod(problem.extent(d) for d in inner))


def neighbors(tensor: Tensor, along: Columns) -> int:
    """How many neighboring columns are neighbors in a tensor too, as a power of two: any run of so many that begins at
    a multiple of that number is contiguous and aligned to it.  0 if the tensor has one element for all columns."""
    if along.extent == 1:
        return 1  # a tensor need not have a dim of one element
    if not any(d in tensor.dims for d in along.dims):
        return 0
    if tensor.long_dims[-len(along.dims) :] != along.dims or (tensor.pitch and along.dims != ("k",)):
        return 1
    return math.gcd(divisor(along.extent), tensor.pitch or 0, 1 << 10)


def run_length(problem: ConvProblem, along: Columns, width: int) -> int:
    """Elements that a lane stores at once: one vector, where y's rows are aligned and a warp's `width`
    columns hold four of them (one for each lane of a quad)."""
    widest = max(VECTOR_BYTES // problem.y.element.bytes, 2)
    return max(math.gcd(neighbors(problem.y, along), widest, width // 4), 1)


@dataclass(frozen=True)
class Result:
    """Finished text for a run of y: `v` holds accumulators, `loads` stand before the loop over the run,
    `body` makes result i, `store` writes the vectors; `words` are what it writes, `at` is where.

    `channels` are loads, too: of operands that have a value for each channel alone, by name.  A thread that keeps its
    channels loads them once, and adds sums up: `body` adds to `total_<name>[e]`.  `further` stores further results.
    `raws`, of operands as large as the result, come before `loads`, which decode them, or are made long before.
    """

    c_type: str  # of v
    loads: tuple[str, ...]
    body: tuple[str, ...]
    store: tuple[str, ...]
    words: tuple[str, ...] = ()
    at: str = ""
    channels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    further: tuple[str, ...] = ()
    constants: tuple[Definition, ...] = ()  # definitions of what these mention
    of_store: tuple[Definition, ...] = ()  # and of what only y's store does
    raws: tuple[Raw, ...] = ()

    @property
    def text(self) -> str:
        """All text but y's store, to find the names that it mentions."""
        channels = (line for _, lines in self.channels for line in lines)
        return "\n".join([*channels, *(r.value for r in self.raws), *self.loads, *self.body, *self.further])


@dataclass(frozen=True)
class _Run:
    """A run of so many neighbors along `index` that begins where the maps say: C text of offsets into a tensor."""

    problem: ConvProblem
    maps: IndexMap
    names: Callable[[Tensor], Names]
    index: Symbol
    length: int

    @property
    def ranges(self) -> integer.Ranges:
        return {**self.maps.ranges, symbol("e"): (0, self.length - 1)}

    def first(self, t: Tensor) -> str:
        """The index of its first element."""
        return self._text(self.maps.offset(t.buffer), t)

    def element(self, t: Tensor) -> str:
        """The index of element e."""
        offset = self.maps.accesses[t.name].offset.subs(self.index, self.index + symbol("e"))
        return self._text(integer.simplify(offset, self.ranges), t)

    def _text(self, e: Expr, t: Tensor) -> str:
        return c_expr(e, self.ranges, lowering.symbols(self.problem), self.names(t))


def result(problem: ConvProblem, maps: IndexMap, along: Columns, index: Symbol, run: int, accumulator: str) -> Result:
    """The epilogue and the store of a run of the result that begins where `maps` says.

    `index` is the variable of `maps` that runs along the neighbors.
    """
    constants = Constants(problem.result)
    at = _Run(problem, maps, _names(constants, problem, maps), index, run)
    dtype = problem.result.dtype
    y = f"{problem.result.role} + {bracket(at.first(problem.result))}"
    if not lowering.has_epilogue(problem):
        stored, words = store_run(dtype, y, run, accumulator), run_words(dtype, run, accumulator)
        return Result(lowering.ACCUMULATORS[accumulator].c_type, (), (), stored, words, y, of_store=constants.all)
    assert problem.epilogue
    loads: list[str] = []
    raws: list[Raw] = []
    channels: list[tuple[str, tuple[str, ...]]] = []
    values: dict[str, str] = {}
    for t in lowering.used_operands(problem):
        name, common = f"value_{t.name}", neighbors(t, along)
        if common == 0:
            loads.append(f"const float {name} = {lowering.load(t.dtype, f'operand_{t.name}[{at.first(t)}]', 'f32')};")
            values[t.name] = name
            continue
        values[t.name] = f"{name}[e]"
        if common >= run:
            pointer = f"operand_{t.name} + {bracket(at.first(t))}"
            if along.role == "channels" and is_of_channels(problem, t):
                channels.append((t.name, tuple(load_run(t.dtype, name, pointer, run))))
            elif t.size == problem.result.size and (found := raw_run(t.dtype, name, pointer, run)):
                raws += found
                loads += decode_run(t.dtype, name, [raw.name for raw in found], run, "f32")
            else:
                loads += load_run(t.dtype, name, pointer, run)
            continue
        element = f"operand_{t.name}[{at.element(t)}]"
        loads += [f"float {name}[{run}];", *_each(run, f"{name}[e] = {lowering.load(t.dtype, element, 'f32')};")]
    body = []
    *named, last = lowering.used_body(problem)
    for assignment in named:
        body.append(f"const float local_{assignment.name} = {c_epilogue(assignment.value, 'v[e]', values)};")
        values[assignment.name] = f"local_{assignment.name}"
    further: list[str] = []
    for t in problem.elementwise:
        name = f"further_{t.name}"
        loads.append(f"float {name}[{run}];")
        body.append(f"{name}[e] = {values[t.name]};")
        if neighbors(t, along) >= run:
            pointer = f"result_{t.name} + {bracket(at.first(t))}"
            further += store_run(t.dtype, pointer, run, "f32", name)
        else:
            element = f"result_{t.name}[{at.element(t)}]"
            further += _each(run, f"{element} = {lowering.store(t.dtype, f'{name}[e]', 'f32')};")
    body += (f"total_{t.name}[e] += {values[t.name]};" for t in problem.sums if problem.like(t) is problem.result)
    body.append(f"v[e] = {c_epilogue(last.value, 'v[e]', values)};")
    stored = store_run(dtype, y, run, "f32")
    lines = [*(raw.value for raw in raws), *loads, *further, *(line for _, some in channels for line in some)]
    return Result("float", tuple(loads), tuple(body), stored, run_words(dtype, run, "f32"), y, tuple(channels),
                  tuple(further), *constants.parted("\n".join(lines)), tuple(raws))  # fmt: skip


def _each(run: int, statement: str) -> list[str]:
    """Lines that do something with each element e of a run."""
    return ["#pragma unroll", f"for (int e = 0; e < {run}; ++e) {statement}"]


def partial_result(problem: ConvProblem, maps: IndexMap, run: int, accumulator: str) -> Result:
    """The store of a run of one part's sums, which lie as y does."""
    row = lowering.ACCUMULATORS[accumulator]
    constants = Constants()
    place = bracket(c_expr(maps.offset("y"), maps.ranges, names=_names(constants, problem, maps)(problem.y)))
    stored = store_run(accumulator, f"partial + {place}", run, accumulator)
    return Result(row.c_type, (), (), stored, of_store=constants.all)


def _names(constants: Constants, problem: ConvProblem, maps: IndexMap) -> Callable[[Tensor], Names]:
    """Names for offsets into a tensor; gemm_m counts y's pixels, unless it counts those of a phase."""
    counts = not problem.dynamic and maps.ranges.get(M) == (0, problem.output_pixels - 1)
    pixels = constants.of_index(pixel_dims(problem), problem.extent) if counts else NO_NAMES
    return lambda t: constants.strides(t, problem.groups, pixels)


def is_of_channels(problem: ConvProblem, t: Tensor) -> bool:
    """Whether an operand has a value for each channel alone.  Where there is one pixel, it may be the result's own
    array: threads without a pixel leave it alone."""
    return not {*t.long_dims} - {"k"} and not lowering.is_in_place(problem, t)


def channel_operands(problem: ConvProblem) -> tuple[Tensor, ...]:
    """The operands that have only a value for each channel."""
    return tuple(t for t in problem.operands if is_of_channels(problem, t))
