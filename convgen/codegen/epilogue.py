"""Epilogue expressions as C text: one float expression of `acc` and loaded operands.

`C_FUNCTIONS` is the table of what each function becomes; its small device functions live in
templates/helpers.cuh.j2.  Numbers are printed so that they round to the same float.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir import epilogue as ep

#: Text of a call, over already-printed arguments.
C_FUNCTIONS: dict[str, str] = {
    "relu": "fmaxf({0}, 0.0f)",
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
    "min": "fminf({0}, {1})",
    "max": "fmaxf({0}, {1})",
    "clamp": "fminf(fmaxf({0}, {1}), {2})",
    "select": "(({0}) != 0.0f ? {1} : {2})",
}
_COMPARE = frozenset({"<", "<=", ">", ">=", "==", "!="})


def c_number(value: float) -> str:
    text = repr(float(value))
    if text in ("inf", "-inf"):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    if text == "nan":
        return "NAN"
    return f"({text}f)" if text.startswith("-") else f"{text}f"  # "--1.0f" would be a decrement


def c_epilogue(e: ep.Expr, acc: str, values: Mapping[str, str]) -> str:
    """C text of an expression; `values` gives the text of each operand and local by name."""

    def go(x: ep.Expr) -> str:
        if isinstance(x, ep.Number):
            return c_number(x.value)
        if isinstance(x, ep.Acc):
            return acc
        if isinstance(x, ep.OperandRef | ep.LocalRef):
            return values[x.name]
        if isinstance(x, ep.Unary):
            return f"(-{go(x.operand)})" if x.op == "-" else f"({go(x.operand)} == 0.0f ? 1.0f : 0.0f)"
        if isinstance(x, ep.Binary):
            left, right = go(x.left), go(x.right)
            if x.op in _COMPARE:
                return f"({left} {x.op} {right} ? 1.0f : 0.0f)"
            if x.op in ("&&", "||"):
                return f"({left} != 0.0f {x.op} {right} != 0.0f ? 1.0f : 0.0f)"
            return f"({left} {x.op} {right})"
        if isinstance(x, ep.Call):
            return C_FUNCTIONS[x.function].format(*(go(a) for a in x.arguments))
        raise TypeError(f"no C text for {x!r}")

    return go(e)
