"""Infinities, NaNs, signed zeros, subnormals and the largest numbers, as inputs of every function and kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from problems import make

from convgen.ir import epilogue as ep
from convgen.ir.dtypes import DTYPES
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor

_INFO = np.finfo(np.float32)
#: float32 values, of which every function gets every combination.
VALUES = np.array(
    [np.inf, -np.inf, np.nan, 0.0, -0.0, _INFO.smallest_subnormal, -_INFO.smallest_subnormal, _INFO.max, -_INFO.max,
     0.5, -0.5, 3.0, -4.0, 100.0, -100.0],
    np.float32,
)  # fmt: skip


def _expressions() -> dict[str, ep.Expr]:
    arguments = (ep.Acc(), ep.OperandRef("a"), ep.OperandRef("b"))
    found: dict[str, ep.Expr] = {f: ep.Call(f, arguments[: row.arity]) for f, row in ep.FUNCTIONS.items()}
    found |= {op: ep.Binary(op, *arguments[:2]) for op in ep.PRECEDENCE}
    return found | {f"unary {op}": ep.Unary(op, ep.Acc()) for op in "-!"}


#: What an epilogue may compute, a function or an operator each.
EXPRESSIONS = _expressions()
#: All of them stored as float32, and one as every other type.
EPILOGUES = [*((name, "f32") for name in EXPRESSIONS), *(("relu", dtype) for dtype in DTYPES if dtype != "f32")]


def of_all_values(expression: ep.Expr, result: str = "f32") -> tuple[ConvProblem, dict[str, np.ndarray]]:
    """A 1x1 convolution whose epilogue is the expression of every combination of values."""
    count = len(VALUES)
    base = make(n=count, input=(count, count), filter=(1, 1), dtype="f32")
    used = {e.name for e in expression.walk() if isinstance(e, ep.OperandRef)}
    along = {name: dim for name, dim in (("a", "p"), ("b", "q")) if name in used}
    operands = tuple(Tensor(name, "operand", "f32", (dim,), (count,)) for name, dim in along.items())
    problem = replace(
        base,
        y=replace(base.y, dtype=result),
        epilogue=ep.Epilogue(operands, (ep.Assignment("y", expression),)),
    )
    x = np.broadcast_to(VALUES[:, None, None, None], problem.x.shape)
    arrays = {"x": np.ascontiguousarray(x), "w": np.ones(problem.w.shape, "f4")}
    return problem, arrays | dict.fromkeys(along, VALUES)
