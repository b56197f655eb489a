"""Epilogue expressions: what happens to an accumulator before it is stored; and prologues, of the same expressions:
what happens to an element of the input before it is multiplied.

An epilogue is a list of assignments over `acc`, the operands and numbers.  Operands broadcast by dim
name: `b: f32[k]` has one value for every output channel.  The tree below is the whole of it; C text is
made in `codegen.epilogue`, NumPy values in `ir.reference`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from convgen.ir.tensor import Tensor

#: How strongly operators bind, here and in C.  Comparisons do not chain; the others associate to the left.
PRECEDENCE: dict[str, int] = {
    "||": 1, "&&": 2, **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 3), **dict.fromkeys("+-", 4),
    **dict.fromkeys("*/", 5),
}  # fmt: skip
COMPARISON, UNARY, ATOM = PRECEDENCE["<"], 6, 7
#: Largest number that a value holds, by its type.
LARGEST = {"f32": float.fromhex("0x1.fffffep+127"), "f64": float.fromhex("0x1.fffffffffffffp+1023")}
#: And the least that rounds to more.
BEYOND = {"f32": float.fromhex("0x1.ffffffp+127"), "f64": math.inf}


class Expr:
    """Base of the tree's nodes.  Their text has the parentheses that it needs, and no others."""

    @property
    def precedence(self) -> int:
        return ATOM

    def children(self) -> tuple[Expr, ...]:
        return ()

    def walk(self) -> Iterator[Expr]:
        yield self
        for child in self.children():
            yield from child.walk()


@dataclass(frozen=True)
class Number(Expr):
    """A number as it is written: finite and not negative, since a minus sign is a `Unary`."""

    value: float

    @property
    def precedence(self) -> int:
        return UNARY if self.value < 0 else ATOM

    def __str__(self) -> str:
        return repr(int(self.value)) if self.value == int(self.value) and abs(self.value) < 1e15 else repr(self.value)


@dataclass(frozen=True)
class Acc(Expr):
    """The accumulator of this output element."""

    def __str__(self) -> str:
        return "acc"


@dataclass(frozen=True)
class OperandRef(Expr):
    """The element of an operand that belongs to this output element."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class LocalRef(Expr):
    """A value assigned earlier in the same epilogue, before it is rounded to the type of a result."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TensorRef(Expr):
    """A tensor that the operator reads: in an epilogue all of the value of a further result, which is its sum; in a
    prologue the element of the input."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Unary(Expr):
    """`op` is "-" or "!"."""

    op: str
    operand: Expr

    @property
    def precedence(self) -> int:
        return UNARY

    def children(self) -> tuple[Expr, ...]:
        return (self.operand,)

    def __str__(self) -> str:
        return f"{self.op}{_within(self.operand, UNARY)}"


@dataclass(frozen=True)
class Binary(Expr):
    """`op` is one of + - * / < <= > >= == != && ||.  Comparisons and logic give 1 or 0."""

    op: str
    left: Expr
    right: Expr

    @property
    def precedence(self) -> int:
        return PRECEDENCE[self.op]

    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def __str__(self) -> str:
        own = self.precedence
        return f"{_within(self.left, own + (own == COMPARISON))} {self.op} {_within(self.right, own + 1)}"


@dataclass(frozen=True)
class Call(Expr):
    """A call of one of `FUNCTIONS`."""

    function: str
    arguments: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.arguments

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


def _within(e: Expr, least: int) -> str:
    """The text of a part, in parentheses where it binds less than it must."""
    return str(e) if e.precedence >= least else f"({e})"


@dataclass(frozen=True)
class Function:
    """A function of the epilogue language: its name, its parameters' names and what it computes."""

    name: str
    parameters: tuple[str, ...]
    doc: str

    @property
    def arity(self) -> int:
        return len(self.parameters)


_FUNCTIONS = (
    Function("relu", ("x",), "max(x, 0)"),
    Function("leaky_relu", ("x", "slope"), "x where x > 0, slope * x elsewhere"),
    Function("gelu", ("x",), "x * (1 + erf(x / sqrt(2))) / 2"),
    Function("gelu_tanh", ("x",), "gelu by its tanh approximation"),
    Function("silu", ("x",), "x / (1 + exp(-x))"),
    Function("sigmoid", ("x",), "1 / (1 + exp(-x))"),
    Function("tanh", ("x",), "hyperbolic tangent"),
    Function("exp", ("x",), "e to the x"),
    Function("log", ("x",), "natural logarithm"),
    Function("sqrt", ("x",), "square root"),
    Function("abs", ("x",), "magnitude"),
    Function("min", ("x", "y"), "the smaller"),
    Function("max", ("x", "y"), "the larger"),
    Function("clamp", ("x", "low", "high"), "min(max(x, low), high)"),
    Function("select", ("condition", "x", "y"), "x where condition is not 0, y elsewhere"),
    Function("round_f16", ("x",), "x as f16 rounds it"),
    Function("round_bf16", ("x",), "x as bf16 rounds it"),
)
FUNCTIONS: dict[str, Function] = {f.name: f for f in _FUNCTIONS}
#: Functions whose names a spec may give to something else, as it could before there were these.
NOT_RESERVED = frozenset({"round_f16", "round_bf16"})


@dataclass(frozen=True)
class Assignment:
    name: str
    value: Expr

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


@dataclass(frozen=True)
class Prologue:
    """Operands, which have dims of the input's, and assignments.  The last one is to the input, whose element it gives:
    computed in float32 from the one in memory, and rounded to the input's type.  What lies outside of the input is
    padding, as it would be without a prologue."""

    operands: tuple[Tensor, ...]
    body: tuple[Assignment, ...]


@dataclass(frozen=True)
class Epilogue:
    """Operands, assignments and further results.  The last assignment is to the operator's result; earlier ones name
    locals and further results.  A further result has dims of the operator's, or of a tensor that the operator reads
    (`summed`); it is the sum over those that it lacks."""

    operands: tuple[Tensor, ...]
    body: tuple[Assignment, ...]
    results: tuple[Tensor, ...] = ()

    def renamed(self, names: Mapping[str, str]) -> Epilogue:
        """The same with other names of its tensors' dims."""
        operands, results = (tuple(t.renamed(names) for t in ts) for ts in (self.operands, self.results))
        return replace(self, operands=operands, results=results)

    @property
    def summed(self) -> dict[str, str]:
        """The further results that are sums of tensors that the operator reads, with these tensors' names."""
        return {a.name: a.value.name for a in self.body if isinstance(a.value, TensorRef)}

    @property
    def pointwise(self) -> tuple[Assignment, ...]:
        """The results computed for each element of the operator's result: all but sums of tensors that the operator
        reads."""
        return tuple(a for a in self.body if not isinstance(a.value, TensorRef))

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The functions that are computed for each element of the operator's result: a search asks often."""
        return tuple(e.function for a in self.pointwise for e in a.value.walk() if isinstance(e, Call))

    @property
    def is_identity(self) -> bool:
        """Whether the result is the accumulator itself, and nothing else is computed from it."""
        return len(self.pointwise) == 1 and isinstance(self.pointwise[0].value, Acc)

    @property
    def reads(self) -> dict[str, frozenset[str]]:
        """The operands that each assigned value depends on."""
        found: dict[str, frozenset[str]] = {}
        for a in self.body:
            nodes = list(a.value.walk())
            own = frozenset(e.name for e in nodes if isinstance(e, OperandRef))
            found[a.name] = own.union(*(found[e.name] for e in nodes if isinstance(e, LocalRef)))
        return found
