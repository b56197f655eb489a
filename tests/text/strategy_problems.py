"""Random problems with the types, layouts and epilogues that the element-by-element strategies serve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st
from problems import operands, operands_like, problems

from convgen.ir import epilogue as ep
from convgen.ir.problem import OPS, ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor

FLOATS = ("f16", "bf16", "f32", "e4m3", "e5m2")
PRODUCTS = (Op.FPROP, Op.DGRAD, Op.WGRAD)


def _expression(draw, names: Sequence[str], depth: int) -> ep.Expr:
    """A tree over acc, numbers and the given operands and locals (the last is a local if it is `t`)."""
    kind = draw(st.sampled_from(("leaf", "binary", "call", "select", "minus"))) if depth else "leaf"

    def inner() -> ep.Expr:
        return _expression(draw, names, depth - 1)

    if kind == "binary":
        return ep.Binary(draw(st.sampled_from("+-*")), inner(), inner())
    if kind == "select":
        return ep.Call("select", (ep.Binary(draw(st.sampled_from(("<", ">="))), inner(), inner()), inner(), inner()))
    if kind == "minus":
        return ep.Unary("-", inner())
    if kind == "call":
        name = draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "abs", "min", "max")))
        return ep.Call(name, tuple(inner() for _ in range(ep.FUNCTIONS[name].arity)))
    name = draw(st.sampled_from(("acc", "acc", "number", *names)))
    if name == "acc":
        return ep.Acc()
    if name == "number":
        return ep.Number(draw(st.sampled_from((0.5, 2.0, -1.0, 0.1))))
    return ep.LocalRef(name) if name == "t" else ep.OperandRef(name)


@st.composite
def epilogues(draw, result: Tensor) -> ep.Epilogue:
    """Operands over some of the result's dims, or shaped like it, perhaps a local, which may be a further result, and a
    result that depends on all."""
    types = ("f32", "f16", "bf16", "s8")
    given = [draw(operands(result, name, types) | operands_like(result, name, types)) for name in ("b", "z")]
    names = [t.name for t in given]
    local = ep.Assignment("t", _expression(draw, names, 1))
    last = ep.Assignment(result.name, ep.Binary("-", ep.Acc(), _expression(draw, [*names, "t"], 2)))
    body = (local, last) if ep.LocalRef("t") in last.value.walk() else (last,)
    used = {e.name for a in body for e in a.value.walk() if isinstance(e, ep.OperandRef)}
    results = [draw(further_results(result, local.name))] if len(body) > 1 and draw(st.booleans()) else []
    return ep.Epilogue(tuple(t for t in given if t.name in used), body, tuple(results))


@st.composite
def further_results(draw, result: Tensor, name: str) -> Tensor:
    """All dims of the result, in its order or another."""
    dims = draw(st.one_of(st.just(result.dims), st.permutations(result.dims)))
    dtype = draw(st.sampled_from(("f32", "f16", "bf16", "s8")))
    return Tensor(name, "result", dtype, tuple(dims), tuple(map(result.extent, dims)))


def _maybe_epilogue(draw, op: Op):
    return epilogues if op in PRODUCTS and draw(st.booleans()) else None


def with_types(problem: ConvProblem, **dtypes: str) -> ConvProblem:
    """The same problem with other element types, by role."""
    given = {role: replace(problem.tensor(role), dtype=dtype) for role, dtype in dtypes.items()}
    return replace(problem, **given)  # type: ignore[arg-type]


@st.composite
def direct_problems(draw, op: Op) -> ConvProblem:
    """Any geometry, layout, types and epilogue of an operator."""
    problem = draw(problems(ops=(op,), epilogues=_maybe_epilogue(draw, op), work=2000, paddings=tuple(Padding)))
    dtype = draw(st.sampled_from((*FLOATS, "s8")))
    types = dict.fromkeys(OPS[op].reads, dtype)
    if op in PRODUCTS:
        types["w" if op is not Op.WGRAD else "y"] = {"e4m3": "e5m2"}.get(dtype, dtype)
        types[OPS[op].writes] = draw(st.sampled_from((*FLOATS, "s8", "s32")))
    else:
        types |= {"x": dtype, "lowered": dtype}
    if dtype == "s8" and problem.padding is Padding.NAN:  # which integers do not have
        problem = replace(problem, padding=Padding.ZERO)
    return replace(with_types(problem, **types), accumulate="s32" if dtype == "s8" else "f32")


def _in_order(draw, tensor: Tensor, orders: Sequence[Sequence[str]]) -> Tensor:
    """The tensor in one of some layouts."""
    dims = [d for d in draw(st.sampled_from(orders)) if d in tensor.dims]
    return replace(tensor, dims=tuple(dims), extents=tuple(tensor.extent(d) for d in dims))


@st.composite
def matrix_problems(draw, op: Op) -> ConvProblem:
    """Problems whose filter and output are matrices as they lie in memory, of types that GEMMs take."""
    problem = draw(problems(ops=(op,), epilogues=_maybe_epilogue(draw, op), work=2000, paddings=tuple(Padding)))
    sp = problem.spatial
    dtype = draw(st.sampled_from(("f16", "bf16", "f32")))
    if op not in PRODUCTS:
        return with_types(problem, x=dtype, lowered=dtype)
    types = dict.fromkeys(OPS[op].reads, dtype) | {OPS[op].writes: draw(st.sampled_from((dtype, "f16", "f32")))}
    problem = with_types(problem, **types)
    return replace(
        problem,
        w=_in_order(draw, problem.w, (("k", *sp.filter, "c"), ("k", "c", *sp.filter), (*sp.filter, "c", "k"))),
        y=_in_order(draw, problem.y, (("n", *sp.output, "k"), ("n", "k", *sp.output))),
    )


def meets_input(problem: ConvProblem) -> bool:
    """Whether some window reaches the input at all; where none does, compilers warn of unreachable loops."""
    axes = zip(
        problem.input, problem.filter, problem.output, problem.stride, problem.dilation, problem.pad_lo, strict=True
    )
    return all(
        any(0 <= o * stride + f * dilation - lo < extent for o in range(outputs) for f in range(taps))
        for extent, taps, outputs, stride, dilation, lo in axes
    )


def unused_names(source: str) -> list[str]:
    """Constants and parameters of the kernels that nothing mentions."""
    kernels = source.partition("// ---- kernel")[2]
    code = re.sub(r"//.*", "", kernels)
    names = re.findall(r"(?:const\w* [\w ]+ |__restrict__ )(\w+)(?: =|[,\n])", code)
    mentions = Counter(re.findall(r"\w+", code))
    return [name for name in names if mentions[name] < 2]
