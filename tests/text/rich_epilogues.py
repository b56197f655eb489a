"""Random epilogues and prologues of all that the language has: every operator and function, operands of every type,
several results, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from problems import operands, operands_like

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor

TYPES = ("f32", "f16", "bf16", "s8", "s32", "e4m3", "e5m2")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGIC = ("&&", "||")
#: Of small whole numbers they give whole numbers, without rounding.
WHOLE_CALLS = ("relu", "abs", "min", "max", "clamp", "select")
CALLS = (*WHOLE_CALLS, "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
#: Of any x inside of the functions' domains, and of float32's range.
INSIDE = ("exp(-abs(x))", "log(abs(x) + 1)", "sqrt(abs(x))", "x / (abs(x) + 1)", "x / 3")


@dataclass(frozen=True)
class Expressions:
    """Trees over some leaves; `whole`: with whole numbers and operations that are exact on them."""

    leaves: tuple[ep.Expr, ...]
    whole: bool

    def draw(self, draw, depth: int) -> ep.Expr:
        kinds = ("leaf", "binary", "binary", "call", "compare", "unary", *(() if self.whole else ("inside",)))
        kind = draw(st.sampled_from(kinds)) if depth else "leaf"

        def inner() -> ep.Expr:
            return self.draw(draw, depth - 1)

        if kind == "binary":
            return self._binary(draw, inner)
        if kind == "compare":
            return ep.Binary(draw(st.sampled_from((*COMPARISONS, *LOGIC))), inner(), inner())
        if kind == "unary":
            return ep.Unary(draw(st.sampled_from("-!")), inner())
        if kind == "call":
            name = draw(st.sampled_from(WHOLE_CALLS if self.whole else CALLS))
            return ep.Call(name, tuple(inner() for _ in range(ep.FUNCTIONS[name].arity)))
        if kind == "inside":
            return _inside(draw(st.sampled_from(INSIDE)), inner())
        return draw(st.sampled_from(self.leaves) | self._numbers())

    def _numbers(self) -> st.SearchStrategy[ep.Expr]:
        return st.sampled_from((1, 2, 3) if self.whole else (0.5, 2.0, 1.0, 0.1)).map(lambda v: ep.Number(float(v)))

    def _binary(self, draw, inner) -> ep.Expr:
        op = draw(st.sampled_from("+-*"))
        if op != "*":
            return ep.Binary(op, inner(), inner())
        # one factor is no tree, so that no value leaves float32's range, or whole ones the 2^24 that it has all of
        given = st.sampled_from([leaf for leaf in self.leaves if not isinstance(leaf, ep.LocalRef)])
        return ep.Binary(op, inner(), draw(self._numbers() if self.whole else given | self._numbers()))


def _inside(name: str, x: ep.Expr) -> ep.Expr:
    magnitude = ep.Call("abs", (x,))
    beyond = ep.Binary("+", magnitude, ep.Number(1.0))
    return {
        "exp(-abs(x))": ep.Call("exp", (ep.Unary("-", magnitude),)),
        "log(abs(x) + 1)": ep.Call("log", (beyond,)),
        "sqrt(abs(x))": ep.Call("sqrt", (magnitude,)),
        "x / (abs(x) + 1)": ep.Binary("/", x, beyond),
        "x / 3": ep.Binary("/", x, ep.Number(3.0)),
    }[name]


def _used(body: Sequence[ep.Assignment], results: Sequence[Tensor]) -> tuple[ep.Assignment, ...]:
    """What results depend on: the language refuses a local that nothing reads."""
    wanted, kept = {body[-1].name, *(t.name for t in results)}, []
    for a in reversed(body):
        if a.name in wanted:
            kept.append(a)
            wanted |= {e.name for e in a.value.walk() if isinstance(e, ep.LocalRef)}
    return tuple(kept[::-1])


def _read(given: Sequence[Tensor], body: Sequence[ep.Assignment]) -> tuple[Tensor, ...]:
    """The operands that the assignments read."""
    read = {e.name for a in body for e in a.value.walk() if isinstance(e, ep.OperandRef)}
    return tuple(t for t in given if t.name in read)


@st.composite
def _operands(draw, result: Tensor, plain: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of an epilogue; the first may be a result's own array, for the most part."""
    if plain:
        innermost = replace(result, dims=result.dims[-1:], extents=result.extents[-1:])
        a, z = (draw(operands_like(result, name, (result.dtype,))) for name in "az")
        return a, draw(operands_like(innermost, "b", ("f32", "f16", "bf16"))), z
    like = draw(operands_like(result, "a", (result.dtype, result.dtype, *TYPES)))
    return like, draw(operands(result, "b", TYPES)), draw(operands(result, "z", TYPES))


@st.composite
def _results(draw, result: Tensor, name: str, plain: bool) -> Tensor:
    """A further one with a value for each element of the result."""
    dims = result.dims if plain else draw(st.sampled_from((result.dims, tuple(draw(st.permutations(result.dims))))))
    dtype = result.dtype if plain else draw(st.sampled_from((result.dtype, result.dtype, *TYPES)))
    return Tensor(name, "result", dtype, dims, tuple(map(result.extent, dims)))


@st.composite
def rich_epilogues(draw, problem: ConvProblem, whole: bool, further: bool = True, sums: bool = True) -> ep.Epilogue:
    """Of up to three operands, and two locals, which with `further` may be results, and with `sums` sums.  Half of them
    have what TMA moves, too: operands of the innermost dim or as the result lies, and results as it lies."""
    result, plain = problem.result, draw(st.booleans())
    given = draw(_operands(result, plain))
    leaves: list[ep.Expr] = [ep.Acc(), *(ep.OperandRef(t.name) for t in (given[0], *given))]
    body, results = [], []
    kinds = ("none", "local", *(("result",) if further else ()), *(("sum",) if further and sums else ()))
    for name in ("t", "u"):
        kind = draw(st.sampled_from(kinds))
        if kind == "none" or (kind == "sum" and not result.dims):
            continue
        body.append(ep.Assignment(name, Expressions(tuple(leaves), whole).draw(draw, 2)))
        if kind == "result":
            results.append(draw(_results(result, name, plain)))
        if kind == "sum":
            results.append(draw(_sums(result, name)))
        else:
            leaves.append(ep.LocalRef(name))
    reads = [t for t in problem.reads if t.dims] if further and sums and draw(st.integers(0, 3)) == 0 else []
    if reads:
        read = draw(st.sampled_from(reads))
        results.append(draw(_sums(read, "v")))
        body.append(ep.Assignment("v", ep.TensorRef(read.name)))
    value = Expressions(tuple(leaves), whole).draw(draw, 3)
    if draw(st.integers(0, 7)):  # most depend on the sum
        value = ep.Binary(draw(st.sampled_from("+-")), ep.Acc(), value)
    kept = _used([*body, ep.Assignment(result.name, value)], results)
    return ep.Epilogue(_read(given, kept), kept, tuple(results))


@st.composite
def _sums(draw, of: Tensor, name: str) -> Tensor:
    """A result that leaves out one dim or more of a tensor."""
    dims = tuple(draw(st.lists(st.sampled_from(of.dims), unique=True, max_size=len(of.dims) - 1)))
    return Tensor(name, "result", "f32", dims, tuple(map(of.extent, dims)))


@st.composite
def rich_prologues(draw, problem: ConvProblem, by_tma: bool) -> ep.Prologue:
    """Of up to two operands: of any dims and types, or those that tma_im2col takes."""
    x = problem.x

    def operand(name: str) -> Tensor:
        if not by_tma:
            return draw(operands(x, name, TYPES))
        dims = tuple(d for d in draw(st.sampled_from((("c",), ("n", "c")))) if d in x.dims)
        dtype = draw(st.sampled_from(("f32", "f16", "bf16")))
        return Tensor(name, "operand", dtype, dims, tuple(map(x.extent, dims)))

    given = (operand("scale"), operand("shift"))
    leaves = (ep.TensorRef(x.name), *(ep.OperandRef(t.name) for t in given))
    value = Expressions(leaves, False).draw(draw, 2)
    value = ep.Binary(draw(st.sampled_from("+-*")), ep.TensorRef(x.name), value)
    body = (ep.Assignment(x.name, value),)
    return ep.Prologue(_read(given, body), body)
