"""Epilogue expressions as C text: one expression of `acc` and loaded operands, in float or, for f64, in double.

`C_FUNCTIONS` is the table of what each function becomes; its small device functions live in
templates/helpers.cuh.j2 and templates/ptx.  A NaN passes through all of them.  Numbers are printed so
that they round to the same value.
"""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir import epilogue as ep

#: Text of a call, over already-printed arguments, by the type of values.
C_FUNCTIONS: dict[str, dict[str, str]] = {}
C_FUNCTIONS["f32"] = {
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
    "round_f16": "cvt_f32_f16(cvt_f16_f32({0}))",
    "round_bf16": "cvt_f32_bf16(cvt_bf16_f32({0}))",
}
C_FUNCTIONS["f64"] = C_FUNCTIONS["f32"] | {
    "relu": "max_nan_f64({0}, 0.0)",
    "tanh": "tanh({0})",
    "exp": "exp({0})",
    "log": "log({0})",
    "sqrt": "sqrt({0})",
    "abs": "fabs({0})",
    "min": "min_nan_f64({0}, {1})",
    "max": "max_nan_f64({0}, {1})",
    "clamp": "min_nan_f64(max_nan_f64({0}, {1}), {2})",
    "round_f16": "(double)cvt_f32_f16(cvt_f16_f32(odd_f32({0})))",
    "round_bf16": "(double)cvt_f32_bf16(cvt_bf16_f32(odd_f32({0})))",
}
#: The least positive number of f32.
_LEAST = 2.0**-149
#: A condition with two results binds less than any operator.
_CHOICE = 0


def c_number(value: float, number: str) -> str:
    """A literal of the type of values, `number`: 0 where the type has no number so small, which compilers refuse."""
    text = repr(0.0 if number == "f32" and abs(value) <= _LEAST / 2 else float(value))
    if text in ("inf", "-inf"):
        return "INFINITY" if value > 0 else "-INFINITY"
    return "NAN" if text == "nan" else f"{text}f" if number == "f32" else text


def c_epilogue(  # noqa: C901 - a case for each kind of node
    e: ep.Expr, acc: str, values: Mapping[str, str], number: str = "f32"
) -> str:
    """C text of an expression; `values` gives the text of each operand and local, and in a prologue of the input, by
    name, and `number` their type, f32 or f64."""
    zero, one = c_number(0, number), c_number(1, number)

    def go(x: ep.Expr) -> tuple[str, int]:
        """Text, and how strongly it binds."""
        match x:
            case ep.Number():
                return c_number(x.value, number), x.precedence
            case ep.Acc():
                return acc, ep.ATOM
            case ep.OperandRef() | ep.LocalRef() | ep.TensorRef():
                return values[x.name], ep.ATOM
            case ep.Unary(op="-"):
                return f"-{within(x.operand, ep.ATOM)}", ep.UNARY  # "--" would be a decrement
            case ep.Unary():
                return f"{within(x.operand, ep.COMPARISON + 1)} == {zero} ? {one} : {zero}", _CHOICE
            case ep.Binary(op="&&" | "||"):
                left, right = (f"{within(part, ep.COMPARISON + 1)} != {zero}" for part in (x.left, x.right))
                return f"{left} {x.op} {right} ? {one} : {zero}", _CHOICE
            case ep.Binary(precedence=ep.COMPARISON):
                left, right = (within(part, ep.COMPARISON + 1) for part in (x.left, x.right))
                return f"{left} {x.op} {right} ? {one} : {zero}", _CHOICE
            case ep.Binary(op="/", right=ep.Number(value=divisor)) if number == "f32" and 1e-30 < abs(divisor) < 1e30:
                # a quotient takes a dozen instructions and a branch; its reciprocal is off by half a unit, as torch's
                return f"{within(x.left, x.precedence)} * {c_number(1 / divisor, number)}", x.precedence
            case ep.Binary():
                return f"{within(x.left, x.precedence)} {x.op} {within(x.right, x.precedence + 1)}", x.precedence
            case ep.Call(function="select"):
                condition, yes, no = x.arguments
                test = f"{within(condition, ep.COMPARISON + 1)} != {zero}"
                return f"{test} ? {within(yes, _CHOICE + 1)} : {within(no, _CHOICE + 1)}", _CHOICE
            case ep.Call():
                return C_FUNCTIONS[number][x.function].format(*(go(a)[0] for a in x.arguments)), ep.ATOM
        raise TypeError(f"no C text for {x!r}")

    def within(x: ep.Expr, least: int) -> str:
        text, own = go(x)
        return text if own >= least else f"({text})"

    return go(e)[0]
