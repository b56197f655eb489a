"""Kernels whose threads each make one element, or a few: their record, parameters and formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sympy import Expr, Integer

from convgen.codegen.c_expr import c_expr
from convgen.ir import dynamic, integer
from convgen.ir.dtypes import DTYPES
from convgen.ir.index_map import FORWARD, derive, literal_geometry, symbolic_geometry
from convgen.ir.integer import symbol
from convgen.ir.plan import Launch, Param
from convgen.ir.problem import PLACES, ConvProblem, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.constants import Constants, Definition, extent_name
from convgen.kernels.parts.limits import BLOCK
from convgen.kernels.parts.lowering import (
    Condition,
    Scope,
    all_hold,
    any_fails,
    coordinate_name,
    drop_unused,
    number_text,
    used_operands,
)

#: What moves so many bytes at once.
RUN_TYPES = {2: "u16", 4: "u32", 8: "u64", 16: "Vec4"}


@dataclass(frozen=True)
class Pointer:
    """A kernel parameter: the C name and element type of a buffer, whether the kernel writes it, and how many
    neighboring elements it moves as one."""

    name: str
    dtype: str
    buffer: str
    written: bool = False
    run: int = 1

    @property
    def param(self) -> Param:
        return Param(self.name, "pointer", self.buffer, alignment=DTYPES[self.dtype].bytes * self.run)

    @property
    def vector_param(self) -> Param:
        """Like `param`, for a kernel that loads and stores vectors of up to 16 bytes."""
        return Param(self.name, "pointer", self.buffer)

    @property
    def declaration(self) -> str:
        constant = "" if self.written else "const "
        return f"{constant}{self.c_type}* __restrict__ {self.name}"

    @property
    def c_type(self) -> str:
        element = DTYPES[self.dtype]
        return RUN_TYPES[element.bytes * self.run] if self.run > 1 else element.c_type


@dataclass(frozen=True)
class Kernel:
    """A kernel whose threads each make one element (or a few): finished text for its template.

    It covers `units` (rows of a matrix, images) of `per_unit` threads each.  A sliced kernel covers a run
    of them in one launch: its last parameters are `first_<unit>`, unless the place does not matter to it,
    and `<unit>s`.  `sizes` are parameters, too: extents that a call decides, by name.
    """

    template: str
    entry: str
    comment: tuple[str, ...]
    pointers: tuple[Pointer, ...]
    index: str  # C type of indices
    units: int
    per_unit: int
    sliced: str  # the unit's name: "row", "image"; empty where one launch covers all
    text: Mapping[str, object]  # what else the template wants
    block: int = BLOCK
    needs_first: bool = True  # whether a sliced kernel needs to know where its slice starts
    sizes: Mapping[str, int] = field(default_factory=dict)
    constants: Constants = field(default_factory=Constants)

    @property
    def parameters(self) -> tuple[str, ...]:
        """C text of all parameters."""
        return (*(p.declaration for p in self.pointers), *(f"int {name}" for name in (*self.sizes, *self._slice(0, 0))))

    @property
    def named(self) -> tuple[Definition, ...]:
        """Definitions of the constants that its text mentions."""
        return self.constants.within(str(self.text))

    @property
    def threads(self) -> str:
        """C text of the number of threads with work."""
        if not self.sliced:
            return number_text(self.units * self.per_unit)
        wide = "(long long)" if self.index == "long long" else ""
        return f"{wide}{self.sliced}s * {self.per_unit}"

    def _slice(self, first: int, count: int) -> dict[str, int]:
        """The integer parameters of a sliced launch."""
        if not self.sliced:
            return {}
        return ({f"first_{self.sliced}": first} if self.needs_first else {}) | {f"{self.sliced}s": count}

    def launch(self, first: int = 0, count: int = 0) -> Launch:
        """The launch over all units or, of a sliced kernel, over `count` from `first` on."""
        threads = (count if self.sliced else self.units) * self.per_unit
        ints = (Param(name, "int", value=value) for name, value in {**self.sizes, **self._slice(first, count)}.items())
        params = (*(p.param for p in self.pointers), *ints)
        return Launch(self.entry, (-(-threads // self.block), 1, 1), self.block, params)


def sizes(problem: ConvProblem) -> dict[str, int]:
    """The extents that a call decides, by their names in the kernel."""
    return {dim.upper(): problem.extent(dim) for dim in dynamic.varying(problem)}


def size_params(problem: ConvProblem) -> tuple[Param, ...]:
    """The same as parameters, after all others."""
    return tuple(Param(name, "int", value=size) for name, size in sizes(problem).items())


def fprop_pointers(problem: ConvProblem) -> list[Pointer]:
    """x, w, y, the operands and further results."""
    return [*factor_pointers(problem), *result_pointers(problem)]


def factor_pointers(problem: ConvProblem) -> list[Pointer]:
    """x and w."""
    return [Pointer("x", problem.x.dtype, "x"), Pointer("w", problem.w.dtype, "w")]


def result_pointers(problem: ConvProblem) -> list[Pointer]:
    """y, the operands and further results."""
    return [Pointer("y", problem.y.dtype, "y", written=True), *epilogue_pointers(problem)]


def prologue_pointers(problem: ConvProblem) -> list[Pointer]:
    """The prologue's operands."""
    operands = problem.prologue.operands if problem.prologue else ()
    return [Pointer(f"operand_{t.name}", t.dtype, t.name) for t in operands]


def epilogue_pointers(problem: ConvProblem) -> list[Pointer]:
    """The operands that results depend on, and further results."""
    operands = [Pointer(f"operand_{t.name}", t.dtype, t.name) for t in used_operands(problem)]
    return operands + [Pointer(f"result_{t.name}", t.dtype, t.name, written=True) for t in problem.elementwise]


# ---- formulas, for comments --------------------------------------------------------------------


def window_formulas(problem: ConvProblem) -> list[str]:
    """How the window is placed: in symbols, and with this problem's numbers."""
    sp = problem.spatial
    walked = sp.output if problem.op in FORWARD else sp.input
    loop = {d: symbol(coordinate_name(d)) for d in ("n", "c", "k", *walked, *sp.filter)}
    if problem.op not in FORWARD:
        loop |= {i: symbol(f"position_{i}") for i in sp.input if PLACES[i] in problem.places}
    ranges = {loop[d]: (0, problem.extent(d) - 1) for d in loop}
    lines = []
    places = [
        f"  position_{i} is each place where in_{i} stands in the padded input ({problem.padding})"
        for i in sp.input
        if PLACES[i] in problem.places
    ]
    for i, o in zip(sp.input, sp.output, strict=True):
        sides = []
        for geometry in (symbolic_geometry(problem), literal_geometry(problem)):
            index_map = derive(problem, (), loop, geometry)
            if problem.op in FORWARD:
                left, right = Integer(1), index_map.loop[i]
            else:
                row = next(d for d in index_map.accesses["y"].divisible if d.dim == o)
                left, right = row.divisor, row.value
            sides.append((left, right))
        (symbolic, value), (number, literal) = sides
        name = coordinate_name(i if problem.op in FORWARD else o)
        literal = integer.simplify(literal, ranges)
        said, here = (c_expr(e, {}, symbols="") for e in (value, literal))
        before = f"{name} = {said}" if symbolic == 1 else f"{name} * {symbolic} = {said}"
        after = f"{name} = {here}" if number == 1 else f"{name} * {number} = {here}"
        lines.append(f"  {before}, here {after}")
    return [*lines, *places] if problem.op not in FORWARD else lines


def fill(problem: ConvProblem) -> str:
    """The value of padding, in words."""
    return "which is NaN" if problem.padding is Padding.NAN else "which counts as zero"


def flat_formula(dims: Sequence[str]) -> str:
    """The flat index over dims, outermost first: (n * P + p) * Q + q."""
    text = ""
    for dim in dims:
        name = coordinate_name(dim)
        if not text:
            text = name
            continue
        text = f"({text})" if " + " in text else text
        text = f"{text} * {extent_name(dim)} + {name}"
    return text


def element(name: str, dims: Sequence[str]) -> str:
    """A tensor's element in a formula: x[n, in_h, in_w, c]."""
    return f"{name}[{', '.join(coordinate_name(d) for d in dims)}]"


def prologue_formulas(problem: ConvProblem) -> list[str]:
    body = problem.prologue.body if problem.prologue else ()
    return ["Prologue, of each element of x before it is multiplied:", *(f"  {a}" for a in body)] if body else []


def epilogue_formulas(problem: ConvProblem) -> list[str]:
    body = problem.epilogue.body if problem.epilogue and not problem.epilogue.is_identity else ()
    return ["Epilogue:", *(f"  {a}" for a in body)] if body else []


# ---- dims --------------------------------------------------------------------------------------


def live_dims(tensor: Tensor) -> list[str]:
    """Dims that matter to the layout: those of more than one element."""
    return [d for d, e in zip(tensor.dims, tensor.extents, strict=True) if e > 1]


def all_zero(problem: ConvProblem) -> dict[str, Expr]:
    """Coordinate 0 for every dim, as for a tensor that lacks it."""
    sp = problem.spatial
    return {d: Integer(0) for d in ("n", "c", "k", *sp.input, *sp.filter, *sp.output)}


# ---- loops -------------------------------------------------------------------------------------


@dataclass
class Level:
    """A nesting level: its opening, the lines at its start, and the lines before and after it."""

    opening: str
    lines: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


@dataclass
class Nest:
    """Loops within loops, while their text is made.  `lines` come first, then `levels`, outermost first."""

    lines: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    @property
    def blanks(self) -> str:
        """The indentation of a line inside all loops."""
        return "  " * (len(self.levels) + 1)

    @property
    def opened(self) -> str:
        """The loops up to their innermost lines."""
        found = []
        for depth, level in enumerate(self.levels, 1):
            outer, inner = "  " * depth, "  " * (depth + 1)
            found += [*(outer + line for line in level.before), f"{outer}{level.opening} {{"]
            found += [inner + line for line in level.lines]
        return "".join(f"{line}\n" for line in found)

    @property
    def closed(self) -> str:
        """Their closing braces, and the lines after them."""
        found = []
        for depth, level in reversed([*enumerate(self.levels, 1)]):
            outer = "  " * depth
            found += [f"{outer}}}", *(outer + line for line in level.after)]
        return "".join(f"{line}\n" for line in found)

    def add(self, lines: Iterable[str]) -> None:
        (self.levels[-1].lines if self.levels else self.lines).extend(lines)

    def loop(self, scope: Scope, dim: str, extent: int) -> Expr:
        """Open a loop over a dim and give its counter; an extent of 1 takes no loop."""
        counter = scope.declare(coordinate_name(dim), extent)
        if extent > 1:
            limit = scope.extent(dim, extent)
            self.levels.append(Level(f"for ({scope.index} {counter} = 0; {counter} < {limit}; ++{counter})"))
        return counter

    def place(self, scope: Scope, problem: ConvProblem, dim: str, at: dict[str, Expr]) -> None:
        """Open a loop over the places of a pixel in the padded input, along an axis that has several."""
        name = PLACES[dim]
        if name in problem.places:
            at[name] = self.loop(scope, name, problem.extent(name))
            # unrolled, each position along each axis has its own conditions, too many for the registers
            self.levels[-1].before.append("#pragma unroll 1")

    def only_where(self, tests: Sequence[Condition]) -> None:
        """Makes what follows conditional on all tests."""
        if not tests:
            return
        # a test without names never holds: after a `continue`, NVRTC would warn about unreachable loops
        settled = any(not any(map(str.isalpha, t.holds)) for t in tests)
        if any(level.opening.startswith("for") for level in self.levels) and not settled:
            self.add([f"if ({any_fails(tests)}) continue;"])
        else:
            self.levels.append(Level(f"if ({all_hold(tests)})"))

    def drop_unused(self, later: str) -> None:
        """Drop names that nothing further in, nor `later`, mentions."""
        for level in reversed(self.levels):
            level.lines = drop_unused(level.lines, later)
            later = "\n".join([level.opening, *level.lines, later])
        self.lines = drop_unused(self.lines, later)
