"""Epilogues and stores of kernels whose threads hold accumulators in registers.

wgmma leaves two neighboring columns of the tile in a thread.  Where columns are output channels, the
generated `epilogue` function takes such a pair; where they are pixels, one element at a time.  Operands
that depend on the channel alone are loaded ahead, while the tensor cores work, and handed over by value;
so are values of operands that arrive as tiles (operand_tiles); the others are loaded at the element's
coordinates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from convgen.codegen.c_expr import NO_NAMES, Names, c_expr
from convgen.codegen.epilogue import c_epilogue
from convgen.ir import integer
from convgen.ir.index_map import IndexMap, decompose, derive, variable
from convgen.ir.integer import symbol
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts.lowering import (
    CONVERSIONS,
    PACK,
    has_epilogue,
    is_in_place,
    symbols,
    used_body,
    used_operands,
)

#: Functions that load two neighbors at once.
PAIR_LOADS = {"f32": "load_pair_f32", "f16": "load_pair_f16", "bf16": "load_pair_bf16"}


@dataclass(frozen=True)
class ChannelOperand:
    """An operand with a value for each output channel: the array that keeps a thread's values, and C text
    of the load of a pair from channel {n} on into {pair}, where {last} is the last one."""

    name: str
    array: str
    value: str
    element: str  # conversion of one element {0}
    load: str


@dataclass(frozen=True)
class Epilogue:
    """Finished text of an `epilogue` function: the channels' values that it takes, the names of values of operands that
    arrive as tiles, the pointers (C type, name) of what it loads and stores itself, its statements, the formulas.
    `value` is what a function of one element returns.  It returns the further results in `outs`, and stores the others
    by `stores`."""

    channels: tuple[ChannelOperand, ...]
    tiles: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]
    loads: tuple[str, ...]
    body: tuple[str, ...]
    value: str
    formula: tuple[str, ...]
    outs: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


def of_pairs(problem: ConvProblem, arriving: Collection[str] = (), leaving: Collection[str] = ()) -> Epilogue | None:
    """The epilogue for two neighboring channels `v` of pixel gemm_m, from gemm_n on; None if there is no epilogue.
    Operands `arriving` as tiles are handed over by value, further results `leaving` as tiles by reference."""
    if not has_epilogue(problem):
        return None
    maps = output_map(problem)
    loads, values = [], {name: f"value_{name}[i]" for name in arriving}
    for t in _loaded_at_coordinates(problem, arriving):
        name, offset = f"value_{t.name}", _offset(problem, maps, t.name)
        convert = CONVERSIONS[t.dtype].to_float
        if "k" not in t.dims:
            loads.append(f"const float {name} = {convert.format(f'operand_{t.name}[{offset}]')};")
            values[t.name] = name
            continue
        values[t.name] = f"{name}[i]"
        if t.innermost == "k" and _loads_pairs(t):
            loads += [f"float {name}[2];", f"{PAIR_LOADS[t.dtype]}(operand_{t.name} + ({offset}), {name});"]
            continue
        second = integer.simplify(maps.accesses[t.name].offset + t.stride("k"), maps.ranges)
        pair = [convert.format(f"operand_{t.name}[{text}]") for text in (offset, _text(second, problem, maps))]
        if problem.k % 2:  # the last channel has no neighbor
            pair[1] = f"gemm_n + 1 < GEMM_N ? {pair[1]} : 0.0f"
        start = f"const float {name}[2] = {{"
        loads += [f"{start}{pair[0]},", f"{' ' * len(start)}{pair[1]}}};"]
    stored = [t for t in problem.elementwise if t.name not in leaving]
    loads += [f"float further_{t.name}[2];" for t in stored]
    made = _epilogue(problem, "v[i]", values, loads, "[i]", arriving, leaving)
    stores = tuple(line for t in stored for line in _store_pair(t, problem, maps))
    held = (f"further_{name}[i] = local_{name};" for name in (*(t.name for t in stored), *made.outs))
    return replace(made, body=(*made.body, *held), stores=stores)


def of_elements(problem: ConvProblem, arriving: Collection[str] = (), leaving: Collection[str] = ()) -> Epilogue | None:
    """The epilogue for one element `v` at the output coordinates (n, p, q, k); None if there is no epilogue."""
    if not has_epilogue(problem):
        return None
    at = [variable(d, problem.extent(d)) for d in ("n", *problem.spatial.output, "k")]
    return _of_elements(problem, derive(problem, at, {v.name: v.symbol for v in at}), arriving, leaving)


def of_gemm_elements(
    problem: ConvProblem, arriving: Collection[str] = (), leaving: Collection[str] = ()
) -> Epilogue | None:
    """The same at pixel gemm_m and channel gemm_n."""
    return _of_elements(problem, output_map(problem), arriving, leaving) if has_epilogue(problem) else None


def _of_elements(
    problem: ConvProblem, maps: IndexMap, arriving: Collection[str], leaving: Collection[str] = ()
) -> Epilogue:
    loads, values = [], {name: f"value_{name}" for name in arriving}
    for t in _loaded_at_coordinates(problem, arriving):
        element = CONVERSIONS[t.dtype].to_float.format(f"operand_{t.name}[{_offset(problem, maps, t.name)}]")
        loads.append(f"const float value_{t.name} = {element};")
        values[t.name] = f"value_{t.name}"
    made = _epilogue(problem, "v", values, loads, "", arriving, leaving)
    stores = tuple(
        f"result_{t.name}[{at}] = {CONVERSIONS[t.dtype].from_float.format(f'local_{t.name}')};"
        for t, at in ((t, _offset(problem, maps, t.name)) for t in problem.elementwise)
        if t.name not in leaving
    )
    held = (f"further_{name} = local_{name};" for name in made.outs)
    return replace(made, body=(*made.body, *held), stores=stores)


def _store_pair(t: Tensor, problem: ConvProblem, maps: IndexMap) -> list[str]:
    """Lines that store a further result of two neighboring channels: at once, where they are aligned neighbors."""
    offset, pair = _offset(problem, maps, t.name), [f"further_{t.name}[{i}]" for i in range(2)]
    if t.has_pairs("k") and t.dtype in (*PACK, "f32"):
        made = f"Vec2{{{', '.join(pair)}}}" if t.dtype == "f32" else f"{PACK[t.dtype]}({', '.join(pair)})"
        word = "Vec2" if t.dtype == "f32" else "u32"
        return [f"*reinterpret_cast<{word}*>(result_{t.name} + ({offset})) = {made};"]
    second = integer.simplify(maps.accesses[t.name].offset + t.stride("k"), maps.ranges)
    has_second = "if (gemm_n + 1 < GEMM_N) " if problem.k % 2 else ""  # the last channel has no neighbor
    convert = CONVERSIONS[t.dtype].from_float
    return [
        f"result_{t.name}[{offset}] = {convert.format(pair[0])};",
        f"{has_second}result_{t.name}[{_text(second, problem, maps)}] = {convert.format(pair[1])};",
    ]


def _epilogue(
    problem: ConvProblem, acc: str, values: Mapping[str, str], loads: list[str], index: str, arriving: Collection[str],
    leaving: Collection[str],
) -> Epilogue:  # fmt: skip
    channels = tuple(_channel_operand(t, problem) for t in used_operands(problem) if of_channels(problem, t))
    known = dict(values) | {c.name: c.value + index for c in channels}
    *locals_, last = used_body(problem)
    body = []
    for a in locals_:
        body.append(f"const float local_{a.name} = {c_epilogue(a.value, acc, known)};")
        known[a.name] = f"local_{a.name}"
    loaded = _loaded_at_coordinates(problem, arriving)
    pointers = [(f"const {t.element.c_type}*", f"operand_{t.name}") for t in loaded]
    outs = tuple(t.name for t in problem.further if t.name in leaving)
    stored = (t for t in problem.elementwise if t.name not in leaving)
    pointers += [(f"{t.element.c_type}*", f"result_{t.name}") for t in stored]
    formula = tuple(str(a) for a in used_body(problem))
    value = c_epilogue(last.value, acc, known)
    return Epilogue(channels, tuple(arriving), tuple(pointers), tuple(loads), tuple(body), value, formula, outs)


def _channel_operand(t: Tensor, problem: ConvProblem) -> ChannelOperand:
    if _loads_pairs(t):
        load = f"{PAIR_LOADS[t.dtype]}(operand_{t.name} + {{n}}, {{pair}});"
    else:
        convert = CONVERSIONS[t.dtype].to_float
        first = convert.format(f"operand_{t.name}[{{n}}]")
        second = convert.format(f"operand_{t.name}[min({{n}} + 1, {{last}})]")
        load = f"{{pair}}[0] = {first}, {{pair}}[1] = {second};"
    return ChannelOperand(t.name, f"channel_{t.name}", f"value_{t.name}", CONVERSIONS[t.dtype].to_float, load)


def of_channels(problem: ConvProblem, t: Tensor) -> bool:
    """Whether an operand has a value for each output channel, which threads may read ahead: not one that may be a
    result's own array."""
    return t.dims == ("k",) and not is_in_place(problem, t)


def _loads_pairs(t: Tensor) -> bool:
    """Whether two neighboring channels are one aligned load."""
    return t.dtype in PAIR_LOADS and t.extent("k") % 2 == (t.pitch or 0) % 2 == 0


def _loaded_at_coordinates(problem: ConvProblem, arriving: Collection[str]) -> tuple[Tensor, ...]:
    return tuple(t for t in used_operands(problem) if not of_channels(problem, t) and t.name not in arriving)


def last_pair(problem: ConvProblem, channels: str) -> str:
    """C text: the last of `channels` at which a pair of them may be loaded."""
    return f"{channels} - {1 + (problem.k % 2 == 0)}"


# ---- the output over gemm_m and gemm_n ------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """A store of one element of y: C text of its offset at (gemm_m, gemm_n), and its conversion of {0}."""

    offset: str
    convert: str


def output_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over gemm_m (pixels) and gemm_n (channels)."""
    sp = problem.spatial
    m, n = variable("gemm_m", problem.output_pixels), variable("gemm_n", problem.k)
    loop = decompose(m.symbol, ("n", *sp.output), lambda d: Integer(problem.extent(d))) | {"k": n.symbol}
    return derive(problem, (m, n), loop)


def store(problem: ConvProblem) -> Store:
    return Store(offset(problem, problem.y), CONVERSIONS[problem.y.dtype].from_float)


def offset(problem: ConvProblem, tensor: Tensor) -> str:
    """C text of where y, or an operand, has its element at (gemm_m, gemm_n)."""
    return _offset(problem, output_map(problem), "y" if tensor.role == "y" else tensor.name)


def _offset(problem: ConvProblem, maps: IndexMap, name: str) -> str:
    return _text(maps.offset(name), problem, maps)


def _text(offset: Expr, problem: ConvProblem, maps: IndexMap) -> str:
    """C text of an offset; matrices have rows of GEMM_N channels."""
    is_matrix = problem.k > 1 and symbol("gemm_n") in maps.ranges
    names = Names({problem.k: "GEMM_N"}) if is_matrix else NO_NAMES
    return c_expr(offset, maps.ranges, symbols(problem), names)
