"""Shared by kernels that access memory element by element: element types, named integers, epilogues.

Everything here makes C text from records; the templates put it in place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sympy import Expr, Integer, Symbol

from convgen.codegen.c_expr import NO_NAMES, Names, c_expr
from convgen.codegen.epilogue import c_epilogue
from convgen.ir import integer
from convgen.ir.dtypes import DTYPES
from convgen.ir.epilogue import Assignment, LocalRef, OperandRef
from convgen.ir.formula import counted, number
from convgen.ir.index_map import Access, decompose, derive
from convgen.ir.integer import symbol
from convgen.ir.plan import Limit
from convgen.ir.problem import PLACES, ConvProblem
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.constants import Constants, extent_name
from convgen.kernels.parts.limits import MAX_THREADS

# ---- element types -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversion:
    """C text of an element type's conversions, {0} being what is converted, and of its NaN.  `to_int` is empty where
    the type has no integer value, `nan` where it has none.  Conversions to integers saturate, and round to nearest
    even.  `to_float` and `from_float` are to and from float, except for f64, which is not mixed with other types."""

    to_float: str
    from_float: str
    to_int: str
    from_int: str
    nan: str = ""


CONVERSIONS: dict[str, Conversion] = {
    "f16": Conversion("cvt_f32_f16({0})", "cvt_f16_f32({0})", "", "cvt_f16_f32(float({0}))", "f16(0x7e00)"),
    "bf16": Conversion("cvt_f32_bf16({0})", "cvt_bf16_f32({0})", "", "cvt_bf16_f32(float({0}))", "bf16(0x7fc0)"),
    "f32": Conversion("{0}", "{0}", "", "float({0})", "__uint_as_float(0x7fc00000)"),
    "f64": Conversion("{0}", "{0}", "", "double({0})", "__longlong_as_double(0x7ff8000000000000)"),
    "e4m3": Conversion("cvt_f32_e4m3({0})", "cvt_e4m3_f32({0})", "", "cvt_e4m3_f32(float({0}))", "e4m3(0x7f)"),
    "e5m2": Conversion("cvt_f32_e5m2({0})", "cvt_e5m2_f32({0})", "", "cvt_e5m2_f32(float({0}))", "e5m2(0x7f)"),
    "s8": Conversion("float({0})", "cvt_s8_f32({0})", "int({0})", "cvt_s8_f32(float({0}))"),
    "s32": Conversion("float({0})", "__float2int_rn({0})", "{0}", "{0}"),
}
#: Functions that round two floats and pack them in a word.
PACK = {"f16": "cvt_f16x2_f32", "bf16": "cvt_bf16x2_f32"}
#: C type of an access of so many bytes, and the function that loads them from shared memory.
ACCESS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "Vec4"}
SHARED_LOADS = {2: "ld_shared_u16", 4: "ld_shared_u32", 8: "ld_shared_u64", 16: "ld_shared_v4_u32"}


@dataclass(frozen=True)
class Accumulator:
    c_type: str
    zero: str


ACCUMULATORS: dict[str, Accumulator] = {
    "f32": Accumulator("float", "0.0f"),
    "f64": Accumulator("double", "0.0"),
    "s32": Accumulator("int", "0"),
}


def load(dtype: str, element: str, accumulate: str) -> str:
    """C text of a stored element as the accumulator's type."""
    row = CONVERSIONS[dtype]
    return (row.to_int if accumulate == "s32" else row.to_float).format(element)


def store(dtype: str, value: str, accumulate: str) -> str:
    """C text of a value of the accumulator's type as a stored element."""
    row = CONVERSIONS[dtype]
    return (row.from_int if accumulate == "s32" else row.from_float).format(value)


def decode(dtype: str, word: str, accumulate: str) -> str:
    """C text of an element, the low bits of a word, as the accumulator's type."""
    row = DTYPES[dtype]
    if row.bytes < 4:
        return load(dtype, f"{row.c_type}({word})", accumulate)
    return f"__uint_as_float({word})" if row.is_float else f"{ACCUMULATORS[accumulate].c_type}(int({word}))"


# ---- integers ----------------------------------------------------------------------------------

#: What indices of generated code, 32-bit `int`s, stay below.
INT_LIMIT = 2**31
#: More threads than a block has: the last block counts past the end.
LAST_BLOCK = MAX_THREADS
#: x's dims d, h, w under names that the tensors x, w, y do not have.
INPUT_NAMES = {"d": "in_d", "h": "in_h", "w": "in_w"}


def coordinate_name(dim: str) -> str:
    return INPUT_NAMES.get(dim, dim)


def index_type(problem: ConvProblem, counts: Iterable[int]) -> str:
    """C type of a kernel's indices: 64 bits where a tensor, a padded extent or one of `counts` needs them."""
    indexed = (*counts, *_indexed(problem).values())
    return "int" if all(count < INT_LIMIT - LAST_BLOCK for count in indexed) else "long long"


def _indexed(problem: ConvProblem) -> dict[str, int]:
    """The numbers that any kernel counts, by what they are: elements of tensors, padded extents."""
    elements = {f"elements of {t.name}": t.span for t in problem.tensors}
    return elements | {f"padded {d}": e for d, e in zip(problem.spatial.input, problem.padded, strict=True)}


def index_limits(problem: ConvProblem, index: str) -> tuple[Limit, ...]:
    """Limits on sizes that a call decides, for indices of this type."""
    if index != "int":
        return ()
    counts = ((what, count) for what, count in _indexed(problem).items() if isinstance(count, Size))
    return tuple(Limit(what, count, INT_LIMIT - LAST_BLOCK - 1) for what, count in counts)


def linear(terms: Iterable[tuple[str, int]], index: str, names: Names = NO_NAMES) -> str:
    """C text of a sum of named ints, each times a number, of the type `index`."""
    cast = "" if index == "int" else f"({index})"
    found = (name if step == 1 else f"{cast}{name} * {factor(step, names)}" for name, step in terms if step)
    return " + ".join(found) or "0"


def factor(value: int, names: Names = NO_NAMES) -> str:
    """C text of a number, or of a size that a call decides, that may stand in a product."""
    if not isinstance(value, Size) and value > 1:
        return " * ".join(names.factors(value))
    text = number_text(value)
    return f"({text})" if isinstance(value, Size) and (" " in text or text.startswith("-")) else text


def symbols(problem: ConvProblem) -> str:
    """C type of the symbols of expressions, for casts: of sizes that a call decides, limits keep all in 32 bits."""
    return "" if problem.dynamic else "int"


def number_text(value: int) -> str:
    """C text of a number, or of a size that a call decides, whose limits keep all of it in 32 bits."""
    return c_expr(integer.simplify(number(value), {}), {}, symbols="")


@dataclass(frozen=True)
class Condition:
    """A condition on named integers, both ways round."""

    holds: str
    fails: str


def all_hold(tests: Sequence[Condition]) -> str:
    return " && ".join(t.holds for t in tests)


def any_fails(tests: Sequence[Condition]) -> str:
    return " || ".join(t.fails for t in tests)


@dataclass
class Scope:
    """The named integers of a kernel and their ranges, while its text is made, and its `constants`.

    `let` names an expression and keeps the line that defines it until `take`.  What follows from sizes that a call
    decides is as large as an int may be, and no cast shows it to fit: `index_limits` does.
    """

    index: str  # C type of an index
    limited: bool = False  # by the limits of a call's sizes
    ranges: dict[Symbol, tuple[int, int]] = field(default_factory=dict)
    constants: Constants = field(default_factory=lambda: Constants(defined=False))
    _lines: list[str] = field(default_factory=list)

    def declare(self, name: str, extent: int) -> Expr:
        """The symbol of a loop counter or parameter in [0, extent); 0 if that is its only value."""
        if extent == 1:
            return Integer(0)
        self.ranges[symbol(name)] = counted(extent)
        return symbol(name)

    def let(
        self, name: str, value: Expr, extent: int | None = None, comment: str = "", names: Names = NO_NAMES
    ) -> Expr:
        """Name a value; a constant needs no name.  `extent` narrows its range to [0, extent)."""
        value = integer.simplify(value, self.ranges)
        if isinstance(value, Integer):
            return value
        bounds = integer.bounds(value, self.ranges)
        self.ranges[symbol(name)] = bounds if extent is None else counted(extent)
        self.line(f"const {self.index} {name} = {self.text(value, names)};", comment)
        return symbol(name)

    def line(self, text: str, comment: str = "") -> None:
        self._lines.append(f"{text}  // {comment}" if comment else text)

    def take(self) -> list[str]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def text(self, value: Expr, names: Names = NO_NAMES) -> str:
        """C text of a value, simplified."""
        casts = self.index if not self.limited else ""
        return c_expr(integer.simplify(value, self.ranges), self.ranges, casts, names)

    def extent(self, dim: str, value: int) -> str:
        """C text of a dim's extent: a constant, a number, or a size that a call decides."""
        return number_text(value) if isinstance(value, Size) else self.constants.extent(dim, value)

    def bound_tests(self, value: Expr, low: int, limit: Expr, dim: str = "") -> list[Condition]:
        """Conditions for low <= value < limit, an extent of a dim: those that can fail."""
        least, most = integer.bounds(value, self.ranges)
        text, high = self.text(value), self.text(limit)
        if dim and isinstance(limit, Integer) and most >= limit:
            high = self.extent(dim, int(limit))
        tests = []
        if least < low:
            tests.append(Condition(f"{text} >= {low}", f"{text} < {low}"))
        if most >= integer.bounds(limit, self.ranges)[0]:
            tests.append(Condition(f"{text} < {high}", f"{text} >= {high}"))
        return tests


def coordinates(
    scope: Scope, index: Expr, dims: Sequence[str], extents: Sequence[int], name: Callable[[str], str] = extent_name
) -> dict[str, Expr]:
    """Name each coordinate of a flat index over dims, outermost first."""
    extent = dict(zip(dims, extents, strict=True))
    names = scope.constants.of_index(dims, extent.__getitem__, name)
    return {
        dim: scope.let(coordinate_name(dim), value, extent[dim], names=names)
        for dim, value in decompose(index, dims, lambda d: number(extent[d])).items()
    }


def window(
    scope: Scope, problem: ConvProblem, role: str, dim: str, at: Mapping[str, Expr], name: str = ""
) -> tuple[Expr, list[Condition]]:
    """Name the coordinate that the window gives for one dim of a tensor: of x (the window is placed
    forward, from an output pixel) or of y or the lowered tensor (backward, from an input pixel).

    `at` holds the other coordinates.  The tests say under which conditions there is an element.  The dim's `name` is
    its own, unless another is given.
    """
    name = name or dim
    sp = problem.spatial
    found = sp.input if dim in sp.input else sp.output
    index_map = derive(problem, (), {d: e for d, e in at.items() if d not in found})
    access, value, tests = index_map.accesses[role], index_map.loop[dim], []
    for row in access.divisible:
        stride = int(row.divisor)
        if row.dim != dim or integer.simplify(integer.mod(row.value, row.divisor), scope.ranges) == 0:
            continue
        start = scope.let(f"start_{name}", row.value)
        low, high = integer.bounds(start, scope.ranges)
        if low < 0:
            tests.append(Condition(f"{start} >= 0", f"{start} < 0"))
        if isinstance(start, Symbol):
            # where the tests hold it is not negative, and C's division is exact
            scope.ranges[start] = (max(low, 0), max(high, 0))
        tests.append(Condition(f"{start} % {stride} == 0", f"{start} % {stride} != 0"))
        value = integer.floordiv(start, row.divisor)
    named = scope.let(coordinate_name(name), value)
    place = dict(zip(sp.output, (PLACES[i] for i in sp.input), strict=True)).get(dim)
    for bound in access.bounds:
        if bound.dim in (dim, place):
            own = bound.dim == dim
            tests += scope.bound_tests(named if own else bound.value, bound.low, bound.high, name if own else "")
    return named, tests


def offset(scope: Scope, tensor: Tensor, at: Mapping[str, Expr], groups: int = 1, name: str = "") -> str:
    """C text of an element's offset, from named coordinates, in a tensor whose channels form so many groups."""
    names = scope.constants.strides(tensor, groups, name=name)
    return scope.text(Access(tensor, {d: at[d] for d in tensor.dims}).offset, names)


def filter_offset(problem: ConvProblem, channel: str, constants: Constants, mirrored: bool = False) -> str:
    """C text of a filter element's offset, from the output channel of that name, `tap` and `c` in the group; of a
    `mirrored` filter `tap` counts from the last one."""
    scope = Scope("int", constants=constants)
    at = {"k": scope.declare(channel, problem.k), "c": scope.declare("c", problem.c_per_group)}
    tap = scope.declare("tap", problem.taps)
    at |= decompose(
        problem.taps - 1 - tap if mirrored else tap, problem.spatial.filter, lambda d: Integer(problem.extent(d))
    )
    return offset(scope, problem.w, at)


def drop_unused(lines: Sequence[str], later: str) -> list[str]:
    """The lines whose `const` name is mentioned further down."""
    kept: list[str] = []
    for line in reversed(lines):
        defined = re.match(r"const [\w ]+ (\w+) = ", line)
        if defined is None or re.search(rf"\b{defined.group(1)}\b", later):
            kept.append(line)
            later = f"{later}\n{line}"
    return kept[::-1]


# ---- epilogues ---------------------------------------------------------------------------------


def used_body(problem: ConvProblem) -> tuple[Assignment, ...]:
    """The epilogue's assignments that results depend on, in order."""
    kept: list[Assignment] = []
    wanted = {t.name for t in problem.further}
    for a in reversed(problem.epilogue.pointwise if problem.epilogue else ()):
        if not kept or a.name in wanted:
            kept.append(a)
            wanted |= {e.name for e in a.value.walk() if isinstance(e, LocalRef)}
    return tuple(kept[::-1])


def prologue(problem: ConvProblem, element: str, offsets: Mapping[str, str], guard: str = "") -> tuple[list[str], str]:
    """Turns an element of x into a factor: lines of C, and its text in the accumulator's type.

    `offsets` gives the offset of each operand's element.  The lines define `value_<operand>` and `local_<name>`; where
    `guard` does not hold, nothing is loaded."""
    assert problem.prologue
    x, number = problem.x, problem.number
    c_type, zero = ACCUMULATORS[number].c_type, ACCUMULATORS[number].zero
    lines, values = [], {x.name: "given"}

    def loaded(dtype: str, text: str) -> str:
        found = load(dtype, text, number)
        return f"{guard} ? {found} : {zero}" if guard else found

    lines.append(f"const {c_type} given = {loaded(x.dtype, element)};")
    for t in problem.prologue.operands:
        values[t.name] = f"value_{t.name}"
        lines.append(f"const {c_type} value_{t.name} = {loaded(t.dtype, f'operand_{t.name}[{offsets[t.name]}]')};")
    *locals_, last = problem.prologue.body
    for a in locals_:
        values[a.name] = f"local_{a.name}"
        lines.append(f"const {c_type} local_{a.name} = {c_epilogue(a.value, '', values, number)};")
    rounded = store(x.dtype, c_epilogue(last.value, "", values, number), number)
    return lines, load(x.dtype, rounded, problem.accumulate)


@lru_cache(maxsize=64)  # called for each configuration of a search
def is_in_place(problem: ConvProblem, operand: Tensor) -> bool:
    """Whether an operand may share a result's array: the kernel writes it as it goes, and sums only afterwards."""
    return any(operand.name == o and result not in (t.name for t in problem.sums) for o, result in problem.in_place)


def used_operands(problem: ConvProblem) -> tuple[Tensor, ...]:
    """The operands of the epilogue that results depend on, in order."""
    used = {e.name for a in used_body(problem) for e in a.value.walk() if isinstance(e, OperandRef)}
    return tuple(t for t in problem.operands if t.name in used)


def has_epilogue(problem: ConvProblem) -> bool:
    return problem.epilogue is not None and not problem.epilogue.is_identity


def epilogue(
    problem: ConvProblem, acc: str, offsets: Mapping[str, str], accumulate: str | None = None
) -> tuple[list[str], str]:
    """Turns an accumulator into an element of the result: lines of C, and the text of the stored element.

    `acc` is a variable of the accumulator's type, `offsets` gives the offset of each operand's element and of each
    further result's.  The lines define `value_<operand>` and `local_<name>`, and store further results: after all that
    is read, since an operand may be the result's own array.
    """
    accumulate = accumulate or problem.accumulate
    dtype = problem.result.dtype
    if problem.epilogue is None or problem.epilogue.is_identity:
        return [], store(dtype, acc, accumulate)
    number = problem.number
    c_type = ACCUMULATORS[number].c_type
    lines, values = [], {}
    for t in used_operands(problem):
        element = f"operand_{t.name}[{offsets[t.name]}]"
        lines.append(f"const {c_type} value_{t.name} = {load(t.dtype, element, number)};")
        values[t.name] = f"value_{t.name}"
    sums = acc if accumulate == number else f"{c_type}({acc})"
    *locals_, last = used_body(problem)
    for a in locals_:
        lines.append(f"const {c_type} local_{a.name} = {c_epilogue(a.value, sums, values, number)};")
        values[a.name] = f"local_{a.name}"
    for t in problem.elementwise:
        lines.append(f"result_{t.name}[{offsets[t.name]}] = {store(t.dtype, values[t.name], number)};")
    return lines, store(dtype, c_epilogue(last.value, sums, values, number), number)


def epilogue_offsets(scope: Scope, problem: ConvProblem, at: Mapping[str, Expr]) -> dict[str, str]:
    """Offsets of the elements of operands and of further results."""
    return {t.name: offset(scope, t, at) for t in (*used_operands(problem), *problem.elementwise)}
