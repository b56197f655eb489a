"""What the epilogue's formula costs a thread: instructions for an element of the result."""

from __future__ import annotations

from functools import lru_cache

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import lowering
from convgen.kernels.parts.cost import FUNCTIONS

#: Of a function that `FUNCTIONS` does not have, of a division, and of any other operation.
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
            return FUNCTIONS.get(e.function, (FUNCTION, FUNCTION))[not narrow]
        case ep.Binary(op="/"):
            return DIVISION
        case ep.Binary() | ep.Unary():
            return OPERATION
    return 0.0
