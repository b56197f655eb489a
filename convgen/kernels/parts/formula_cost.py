"""What the epilogue's formula costs a thread: instructions for an element of the result."""

from __future__ import annotations

from functools import lru_cache

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import lowering

#: Of functions: of float32, and of results of 16 bits or less, which make do with approximations.  An instruction of
#: the unit for exponentials and reciprocals counts as four; measured are those of sigmoid (H200).
FUNCTIONS: dict[str, tuple[float, float]] = {
    "sigmoid": (24, 10), "silu": (25, 11), "gelu": (40, 20), "gelu_tanh": (40, 14), "tanh": (30, 30), "exp": (12, 12),
    "log": (20, 20), "sqrt": (12, 12),
}  # fmt: skip
#: Of another function, of a division, and of any other operation.
FUNCTION, DIVISION, OPERATION = 2.0, 14.0, 1.0
#: To load an element of an operand as large as the result, and to convert it.
LOAD = 3.0


@lru_cache(maxsize=64)  # asked for each configuration of a search
def formula_instructions(problem: ConvProblem) -> float:
    """Of all assignments that results depend on, but for sums, and of the loads."""
    if not lowering.has_epilogue(problem):
        return 0.0
    found = sum(_instructions(e, problem.narrow) for a in lowering.used_body(problem) for e in a.value.walk())
    alike = [t for t in lowering.used_operands(problem) if t.size == problem.result.size]
    return found + LOAD * len(alike)


def _instructions(e: ep.Expr, narrow: bool) -> float:
    match e:
        case ep.Call():
            return FUNCTIONS[e.function][narrow] if e.function in FUNCTIONS else FUNCTION
        case ep.Binary(op="/"):
            return DIVISION
        case ep.Binary() | ep.Unary():
            return OPERATION
    return 0.0
