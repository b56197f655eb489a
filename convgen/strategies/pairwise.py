"""The epilogue of kernels whose threads hold accumulators in pairs of neighbouring output channels.

wgmma and mma.sync leave two neighbouring columns in a thread.  The generated `epilogue` function takes
both, loads each operand once (as a pair where channels are contiguous in it), and leaves the results.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Integer

from convgen.codegen.c_expr import c_expr
from convgen.codegen.epilogue import c_epilogue
from convgen.ir import integer
from convgen.ir.epilogue import OperandRef
from convgen.ir.index_map import IndexMap, decompose, derive, variable
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor

#: How one element, and a pair of neighbours, of each type becomes float.
LOAD = {"f32": "{0}", "f16": "cvt_f32_f16({0})", "bf16": "cvt_f32_bf16({0})", "s32": "float({0})", "s8": "float({0})",
        "e4m3": "cvt_f32_e4m3({0})", "e5m2": "cvt_f32_e5m2({0})"}  # fmt: skip
PAIR_LOADS = {"f32": "load_pair_f32", "f16": "load_pair_f16", "bf16": "load_pair_bf16"}
STORE = {"f32": "{0}", "f16": "cvt_f16_f32({0})", "bf16": "cvt_bf16_f32({0})"}
PACK = {"f16": "cvt_f16x2_f32", "bf16": "cvt_bf16x2_f32"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of the epilogue function: C text of its type, and its name."""

    c_type: str
    name: str


@dataclass(frozen=True)
class PairEpilogue:
    """Finished text: parameters, statements once a pair, statements once an element, the formulas."""

    parameters: tuple[Parameter, ...]
    loads: tuple[str, ...]
    body: tuple[str, ...]
    formula: tuple[str, ...]


@dataclass(frozen=True)
class SingleEpilogue:
    """The same for one element at a time: statements, then the value that is returned."""

    parameters: tuple[Parameter, ...]
    body: tuple[str, ...]
    value: str
    formula: tuple[str, ...]


@dataclass(frozen=True)
class PairStore:
    """A store of y without TMA: the element's offset for column `gemm_n`, its conversion."""

    offset: str
    wide: bool
    convert: str


def output_map(problem: ConvProblem) -> IndexMap:
    """y and the operands over gemm_m (pixels) and gemm_n (channels)."""
    sp = problem.spatial
    m, n = variable("gemm_m", problem.output_pixels), variable("gemm_n", problem.k)
    loop = decompose(m.symbol, ("n", *sp.output), lambda d: Integer(problem.extent(d))) | {"k": n.symbol}
    return derive(problem, (m, n), loop)


def _offset(maps: IndexMap, name: str, tensor: Tensor) -> str:
    text = c_expr(maps.offset(name), maps.ranges)
    return text if tensor.size < 2**31 else text.replace("gemm_m", "(long long)gemm_m", 1)


def epilogue(problem: ConvProblem) -> PairEpilogue | None:
    """None where the accumulator is stored as it is."""
    ep = problem.epilogue
    if ep is None or ep.is_identity:
        return None
    maps = output_map(problem)
    loads, values = [], {}
    used = {e.name for a in ep.body for e in a.value.walk() if isinstance(e, OperandRef)}
    for t in ep.operands:
        if t.name not in used:
            continue
        offset, name = _offset(maps, t.name, t), f"value_{t.name}"
        if "k" not in t.dims:
            loads.append(f"const float {name} = {LOAD[t.dtype].format(f'operand_{t.name}[{offset}]')};")
            values[t.name] = name
            continue
        values[t.name] = f"{name}[i]"
        # neighbours in memory, and never across an alignment boundary: one load for both
        if t.dims[-1] == "k" and t.extent("k") % 2 == 0 and t.dtype in PAIR_LOADS:
            loads.append(f"float {name}[2];")
            loads.append(f"{PAIR_LOADS[t.dtype]}(operand_{t.name} + {_parenthesised(offset)}, {name});")
        else:
            second = c_expr(integer.simplify(maps.accesses[t.name].offset + t.stride("k"), maps.ranges), maps.ranges)
            # the last column of an odd width has no neighbour
            guard = f"gemm_n + 1 < {problem.k} ? " if problem.k % 2 else ""
            tail = " : 0.0f" if problem.k % 2 else ""
            first = LOAD[t.dtype].format(f"operand_{t.name}[{offset}]")
            other = LOAD[t.dtype].format(f"operand_{t.name}[{second}]")
            loads.append(f"const float {name}[2] = {{{first}, {guard}{other}{tail}}};")
    body = []
    for a in ep.body[:-1]:
        body.append(f"const float local_{a.name} = {c_epilogue(a.value, 'v[i]', values)};")
        values[a.name] = f"local_{a.name}"
    body.append(f"v[i] = {c_epilogue(ep.body[-1].value, 'v[i]', values)};")
    parameters = tuple(Parameter(f"const {t.element.c_type}*", f"operand_{t.name}") for t in ep.operands)
    return PairEpilogue(parameters, tuple(loads), tuple(body), tuple(str(a) for a in ep.body))


def single(problem: ConvProblem) -> SingleEpilogue | None:
    """The epilogue of one accumulator `v` at the output coordinates (n, p, q, k); None where there is none."""
    ep = problem.epilogue
    if ep is None or ep.is_identity:
        return None
    at = [variable(d, problem.extent(d)) for d in ("n", *problem.spatial.output, "k")]
    maps = derive(problem, at, {v.name: v.symbol for v in at})
    body, values = [], {}
    used = {e.name for a in ep.body for e in a.value.walk() if isinstance(e, OperandRef)}
    for t in ep.operands:
        if t.name in used:
            element = f"operand_{t.name}[{_offset(maps, t.name, t)}]"
            body.append(f"const float value_{t.name} = {LOAD[t.dtype].format(element)};")
            values[t.name] = f"value_{t.name}"
    for a in ep.body[:-1]:
        body.append(f"const float local_{a.name} = {c_epilogue(a.value, 'v', values)};")
        values[a.name] = f"local_{a.name}"
    parameters = tuple(Parameter(f"const {t.element.c_type}*", f"operand_{t.name}") for t in ep.operands)
    return SingleEpilogue(
        parameters, tuple(body), c_epilogue(ep.body[-1].value, "v", values), tuple(str(a) for a in ep.body)
    )


def store(problem: ConvProblem) -> PairStore:
    maps = output_map(problem)
    return PairStore(
        _offset(maps, "y", problem.y),
        problem.y.size >= 2**31,
        STORE[problem.y.dtype],
    )


def _parenthesised(text: str) -> str:
    return text if text.isidentifier() else f"({text})"
