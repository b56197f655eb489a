"""Epilogue expressions as C text: one float expression of `acc` and loaded operands.

`C_FUNCTIONS` is the table of what each function becomes; its small device functions live in
templates/helpers.cuh.j2 and templates/ptx.  A NaN passes through all of them.  Numbers are printed so
that they round to the same float.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir import epilogue as ep

#: Text of a call, over already-printed arguments.
C_FUNCTIONS: dict[str, str] = {
    "relu": "max_nan_f32({0}, 0.0f)",
    "leaky_relu": "leaky_relu({0}, {1})",
    "gelu": "gelu({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "silu": "silu({0})",
    "sigmoid": "sigmoid({0})",
    "tanh": "tanhf({0})",
    "exp": "expf({0})",
    "log": "logf({0})",
    "sqrt": "sqrtf({0})",
    "abs": "fabsf({0})",
    "min": "min_nan_f32({0}, {1})",
    "max": "max_nan_f32({0}, {1})",
    "clamp": "min_nan_f32(max_nan_f32({0}, {1}), {2})",
}
#: A condition with two results binds less than any operator.
_CHOICE = 0


def c_number(value: float) -> str:
    text = repr(float(value))
    if text in ("inf", "-inf"):
        return "INFINITY" if value > 0 else "-INFINITY"
    return "NAN" if text == "nan" else f"{text}f"


def c_epilogue(e: ep.Expr, acc: str, values: Mapping[str, str]) -> str:  # noqa: C901 - a case for each kind of node
    """C text of an expression; `values` gives the text of each operand and local, and in a prologue of the input, by
    name."""

    def go(x: ep.Expr) -> tuple[str, int]:
        """Text, and how strongly it binds."""
        match x:
            case ep.Number():
                return c_number(x.value), x.precedence
            case ep.Acc():
                return acc, ep.ATOM
            case ep.OperandRef() | ep.LocalRef() | ep.TensorRef():
                return values[x.name], ep.ATOM
            case ep.Unary(op="-"):
                return f"-{within(x.operand, ep.ATOM)}", ep.UNARY  # "--" would be a decrement
            case ep.Unary():
                return f"{within(x.operand, ep.COMPARISON + 1)} == 0.0f ? 1.0f : 0.0f", _CHOICE
            case ep.Binary(op="&&" | "||"):
                left, right = (f"{within(part, ep.COMPARISON + 1)} != 0.0f" for part in (x.left, x.right))
                return f"{left} {x.op} {right} ? 1.0f : 0.0f", _CHOICE
            case ep.Binary(precedence=ep.COMPARISON):
                left, right = (within(part, ep.COMPARISON + 1) for part in (x.left, x.right))
                return f"{left} {x.op} {right} ? 1.0f : 0.0f", _CHOICE
            case ep.Binary():
                return f"{within(x.left, x.precedence)} {x.op} {within(x.right, x.precedence + 1)}", x.precedence
            case ep.Call(function="select"):
                condition, yes, no = x.arguments
                test = f"{within(condition, ep.COMPARISON + 1)} != 0.0f"
                return f"{test} ? {within(yes, _CHOICE + 1)} : {within(no, _CHOICE + 1)}", _CHOICE
            case ep.Call():
                return C_FUNCTIONS[x.function].format(*(go(a)[0] for a in x.arguments)), ep.ATOM
        raise TypeError(f"no C text for {x!r}")

    def within(x: ep.Expr, least: int) -> str:
        text, own = go(x)
        return text if own >= least else f"({text})"

    return go(e)[0]
