"""Formulas of sizes as expressions: what a `Size` is in the text of a kernel."""

from __future__ import annotations

import ast
from functools import lru_cache

from sympy import Add, Expr, Integer, Mul
from sympy.core.sympify import converter

from convgen.ir import size
from convgen.ir.integer import INT_MAX, Extent, floordiv, mod

_OPERATORS = {ast.Add: Add, ast.Sub: lambda a, b: a - b, ast.Mult: Mul, ast.FloorDiv: floordiv, ast.Mod: mod}


def number(value: int) -> Expr:
    """A number, or the formula of a size: over `Extent`s."""
    return _formula(value.formula) if isinstance(value, size.Size) else Integer(value)


# where a size meets an expression; between sympy's own integers and Python's it would be taken for a number
converter[size.Size] = number


def counted(extent: int) -> tuple[int, int]:
    """Bounds of what counts up to an extent."""
    return 0, INT_MAX - 1 if isinstance(extent, size.Size) else extent - 1


@lru_cache(maxsize=4096)
def _formula(formula: str) -> Expr:
    return _expression(size.parsed(formula))


def _expression(tree: ast.expr) -> Expr:
    match tree:
        case ast.Name():
            return Extent(tree.id)
        case ast.Constant():
            return Integer(tree.value)
        case ast.UnaryOp():
            return -_expression(tree.operand)
        case ast.BinOp():
            return _OPERATORS[type(tree.op)](_expression(tree.left), _expression(tree.right))
    raise size.BadFormula(f"{ast.unparse(tree)!r} is not a formula over sizes")
