"""Epilogues: which operator they serve, how operands broadcast, what is refused; specs that print and read back."""

from __future__ import annotations

import dataclasses
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import operands, problems

from convgen import frontend
from convgen.diagnostics import SpecError
from convgen.frontend.wording import KEYWORDS
from convgen.ir import epilogue as ep
from convgen.ir.problem import Padding
from convgen.ir.tensor import Tensor

TENSORS = "input x: f16[n=2, h=9, w=8, c=4] filter w: f16[k=6, r=3, s=3, c] output y: f16[n, p, q, k]"


def conv(body: str, op: str = "fprop") -> str:
    return f"conv a {{ {TENSORS} op {op} epilogue {{ {body} }} }}"


def codes(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        frontend.load(text)
    return [d.code for d in caught.value.diagnostics]


@pytest.mark.parametrize(("result", "serves"), [("y", "fprop"), ("x", "dgrad"), ("w", "wgrad")])
def test_the_result_says_which_operator_is_served(result, serves):
    requests = frontend.load(conv(f"operand b: f32[] {result} = acc * b", "wgrad dgrad fprop"))
    assert [r.problem.op for r in requests if r.problem.epilogue] == [serves]
    (served,) = (r.problem for r in requests if r.problem.epilogue)
    assert served.epilogue.body[-1].name == served.result.name == result


@pytest.mark.parametrize(
    ("op", "result", "operand", "extents"),
    [
        ("fprop", "y", "k", (6,)),
        ("fprop", "y", "q, k, n", (6, 6, 2)),
        ("fprop", "y", "k=6, p=7", (6, 7)),
        ("fprop", "y", "", ()),
        ("dgrad", "x", "w, c", (8, 4)),
        ("wgrad", "w", "s, c, k", (3, 4, 6)),
    ],
)
def test_operands_broadcast_by_dim(op, result, operand, extents):
    (request,) = frontend.load(conv(f"operand b: bf16[{operand}] {result} = acc + b", op))
    (tensor,) = request.problem.operands
    assert (tensor.name, tensor.role, tensor.dtype, tensor.extents) == ("b", "operand", "bf16", extents)


def test_operands_of_wgrad_see_the_channels_of_a_group():
    text = (
        conv("operand b: f32[c] w = acc + b", "wgrad").replace("c=4]", "c=8]").replace("op wgrad", "groups 2 op wgrad")
    )
    assert frontend.load(text)[0].problem.operands[0].extents == (4,)


def test_operands_do_not_take_the_lets_of_their_dims():
    (request,) = frontend.load("let k = 6 let n = 2 " + conv("operand b: f32[k, n] y = acc + b"))
    assert request.problem.operands[0].extents == (6, 2)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = y", ["E301"]),
        ("y = x", ["E301"]),
        ("y = b", ["E301"]),
        ("y = acc + t t = acc", ["E301", "E304"]),
        ("y = relu", ["E301"]),
        ("y = rel(acc)", ["E302"]),
        ("y = acc(3)", ["E302"]),
        ("y = relu()", ["E303"]),
        ("y = clamp(acc, 0)", ["E303"]),
        ("y = select(acc, 1, 2, 3)", ["E303"]),
        ("y = foo(bar(acc), baz)", ["E302", "E302", "E301"]),
        ("", ["E304"]),
        ("t = acc", ["E304"]),
        ("y = acc y = acc", ["E304"]),
        ("y = acc x = acc", ["E304"]),
        ("x = acc", ["E305"]),
        ("operand b: f32[k] y = acc", ["E306"]),
        ("t = acc y = acc", ["E306"]),
        ("t = acc t = t y = t", ["E101"]),
        ("operand b: f32[k] operand b: f32[k] y = acc + b", ["E101"]),
        ("operand b: f32[k] b = acc y = b", ["E101"]),
        ("operand x: f32[k] y = acc + x", ["E101"]),
        ("acc = acc y = acc", ["E006"]),
        ("relu = acc y = relu", ["E006"]),
        ("operand out: f32[] y = acc + out", ["E006"]),
        ("operand lowered1: f32[c] y = acc + lowered1", ["E203"]),
        ("operand b: f32[k, k] y = acc + b", ["E204"]),
        ("operand b: f32[k=5] y = acc + b", ["E208"]),
        ("operand b: f32[n=1] y = acc + b", ["E208"]),
        ("operand b: f32[k=6 / 4] y = acc + b", ["E104"]),
        ("operand b: f64[k] y = acc + b", ["E206"]),
        ("y = acc % 2", ["E307"]),
        ("y = acc * 3.5e38", ["E005"]),
        ("y = acc * 1e400", ["E005"]),
        (f"{'t' * 65} = acc y = {'t' * 65}", ["E006"]),
        ("result t: f16[n, p, q, k] y = acc", ["E304"]),
        ("result t: f16[n, p, q, k] t = acc t = acc y = t", ["E304"]),
        ("result t: f16[n, p, q, k] t = acc", ["E304"]),
        ("result t: f16[n, p, q, k] t = acc y = t u = t", ["E304"]),
        ("result t: f16[n, p, q, k] y = t t = acc", ["E301"]),
        ("result t: f64[n, p, q, k] t = acc y = t", ["E206"]),
        ("result t: f16[n, p, q, c] t = acc y = t", ["E203"]),
        ("result t: f16[n, p, q, k=5] t = acc y = t", ["E208"]),
        ("result t: f16[n, p, q, k] operand t: f16[k] t = acc y = t", ["E101"]),
        ("result y: f16[n, p, q, k] y = acc", ["E101"]),
        ("result s: f16[k] s = acc y = acc", ["E205"]),
        ("result s: f32[k] s = acc y = s", ["E301"]),
        ("result s: f32[c] s = x y = s", ["E301"]),
        ("result s: f32[c] s = x * 2 y = acc", ["E301"]),
        ("result s: f32[n, h, w, c] s = x y = acc", ["E301"]),
        ("result s: f32[k] s = y y = acc", ["E301"]),
        ("result s: f32[k] s = x y = acc", ["E203"]),
        ("result s: f32[c=5] s = x y = acc", ["E208"]),
        ("result s: f16[c] s = x y = acc", ["E205"]),
        ("result t f16[k] y = acc", ["E002"]),
        # what an error says nothing of is checked, too
        ("operand z: f32[foo] y = bar(acc) + z", ["E203", "E302"]),
        ("operand z: f23[k=5] y = acc + z", ["E205", "E208"]),
        ("result t: f16[n, p, q, foo] t = acc y = bar(t)", ["E203", "E302"]),
        ("result s: f32[c] s = x y = bar(acc)", ["E302"]),
        ("result s: f32[c, foo] s = x y = bar(acc)", ["E203", "E302"]),
        # nobody knows of which tensor it is the sum
        ("result s: f32[c] s = xx y = acc", ["E301"]),
        ("result s: f32[c] y = acc", ["E304"]),
    ],
)
def test_epilogues_that_cannot_be(body, found):
    assert codes(conv(body)) == found


@pytest.mark.parametrize("body", ["operand x: f32[] y = acc + x", "result x: f32[k] x = acc y = acc"])
def test_tensors_may_not_have_the_names_of_other_arguments(body):
    text = conv(body).replace("input x:", "input a:")
    assert codes(text) == ["E006"]


def test_an_epilogue_is_checked_beside_an_unknown_operator():
    assert codes(conv("y = relv(acc)", "forward")) == ["E213", "E302"]


@pytest.mark.parametrize(
    "number", ["0", "1", "007", "1.", ".5", "0.1", "1e3", "1E-3", "2.5e+2", "3.4028234663852886e38"]
)
def test_numbers(number):
    (request,) = frontend.load(conv(f"y = acc * {number}"))
    assert request.problem.epilogue.body[0].value == ep.Binary("*", ep.Acc(), ep.Number(float(number)))


LARGEST = {"f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}


@pytest.mark.parametrize(
    ("number", "dtype"),
    [("3.4028235e38", "f32"), ("3.40282347e+38", "f32"), ("3.40282356e38", "f32"), ("1.7976931348623158e308", "f64")],
)
def test_a_number_that_rounds_to_the_largest_is_it(number: str, dtype: str):
    """As it is usually written."""
    text = conv(f"y = acc * {number}") if dtype == "f32" else conv(f"y = acc * {number}").replace("f16", "f64")
    (request,) = frontend.load(text)
    assert request.problem.epilogue.body[0].value == ep.Binary("*", ep.Acc(), ep.Number(LARGEST[dtype]))
    assert codes(text.replace(number, "3.40282357e38" if dtype == "f32" else "1.8e308")) == ["E005"]


@pytest.mark.parametrize(
    ("name", "written"),
    [("inf", "1 / 0"), ("INFINITY", "1 / 0"), ("NaN", "0 / 0"), ("pi", "3.14159265"), ("M_PI", "3.14159265"),
     ("true", "1"), ("False", "0")],
)  # fmt: skip
def test_a_constant_by_its_name_is_a_number(name: str, written: str):
    with pytest.raises(SpecError) as raised:
        frontend.load(conv(f"y = acc * {name}"))
    assert [d.hint for d in raised.value.diagnostics] == [f"write `{written}`"]
    assert frontend.load(conv(f"y = acc * ({written})"))


def test_results_are_given_in_the_order_of_their_declarations():
    body = "result s: f32[k] operand z: f16[n, p, q, k] result t: bf16[k, n, q, p] y = relu(acc) t = acc + z s = t * t"
    (request,) = frontend.load(conv(body))
    problem = request.problem
    assert [(t.name, t.role, t.dtype, t.extents) for t in problem.results] == [
        ("y", "y", "f16", (2, 7, 6, 6)),
        ("s", "result", "f32", (6,)),
        ("t", "result", "bf16", (6, 2, 6, 7)),
    ]
    assert [t.name for t in problem.elementwise] == ["t"] and [t.name for t in problem.sums] == ["s"]
    assert [str(a) for a in problem.epilogue.body] == ["t = acc + z", "s = t * t", "y = relu(acc)"]


def test_sums_of_what_the_operator_reads():
    """They have dims of that tensor, whose channels are those of all groups; the problem prints and reads back."""
    body = "result db: f32[k] db = y result sx: f32[c, n] sx = x result s: f32[] s = acc w = acc"
    text = conv(body, "wgrad").replace("c=4]", "c=8]").replace("op wgrad", "groups 2 op wgrad")
    problem = frontend.load(text)[0].problem
    assert [(t.name, t.extents) for t in problem.sums] == [("db", (6,)), ("sx", (8, 2)), ("s", ())]
    assert [problem.like(t).role for t in problem.sums] == ["y", "x", "w"] and not problem.elementwise
    assert frontend.load(str(problem))[0].problem == problem


def test_operands_that_may_be_a_results_own_array():
    """They lie as the result does, and the result depends on them."""
    body = """
    operand z: f16[n, p, q, k]  operand a: f16[n, k, p, q]  operand b: f32[n, p, q, k]  operand d: f16[n, p, q, k]
    result t: f16[n, k, p, q]
    u = acc + z
    t = u * a
    y = u + b + d
    """
    (request,) = frontend.load(conv(body))
    assert request.problem.in_place == (("z", "y"), ("d", "y"), ("a", "t"))


@pytest.mark.parametrize(
    "body",
    [
        "result = acc * 2 y = result",
        "result = acc u = result y = u",
        "operand result: f32[k] y = acc + result",
        "result result: f16[n, p, q, k] result = acc y = result",
        "result operand_: f32[k] operand_ = acc y = acc",
    ],
)
def test_result_is_a_name_like_others_but_where_it_declares(body):
    frontend.load(conv(body))


# --- printing and reading back -----------------------------------------------------------------------

RESERVED = {*KEYWORDS, *ep.FUNCTIONS, "acc", "x", "w", "y", "lowered", "out", "stream"}
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in RESERVED)
NUMBERS = st.one_of(
    st.integers(0, 2**40).map(float),
    st.floats(0, 3.4e38, allow_subnormal=True).map(abs),
    st.floats(0, 1, width=16).map(abs),
)


@st.composite
def expressions(draw, references: list[ep.Expr], depth: int = 3) -> ep.Expr:
    """Any expression over the references and numbers."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(st.sampled_from(references), NUMBERS.map(ep.Number)))
    inner = expressions(references, depth - 1)
    match draw(st.sampled_from(("unary", "binary", "call"))):
        case "unary":
            return ep.Unary(draw(st.sampled_from("-!")), draw(inner))
        case "binary":
            ops = ("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "&&", "||")
            return ep.Binary(draw(st.sampled_from(ops)), draw(inner), draw(inner))
    function = draw(st.sampled_from(list(ep.FUNCTIONS.values())))
    return ep.Call(function.name, tuple(draw(inner) for _ in range(function.arity)))


@st.composite
def epilogues(draw, result) -> ep.Epilogue:
    """Operands and locals, all of them used, and a result of any shape."""
    names = draw(st.lists(NAMES, unique=True, min_size=4, max_size=4))
    given_ = [draw(operands(result, n, ("f32", "f16", "s8"))) for n in names[: draw(st.integers(0, 2))]]
    known: list[ep.Expr] = [ep.Acc(), *(ep.OperandRef(t.name) for t in given_)]
    body = []
    for name in names[2 : draw(st.integers(2, 4))]:
        body.append(ep.Assignment(name, draw(expressions(known))))
        known.append(ep.LocalRef(name))
    results = [draw(further_results(result, name)) for name in names[2 : 2 + len(body)] if draw(st.booleans())]
    unread = [t.name for t in results if t.dtype == "f32"]
    body = [ep.Assignment(a.name, _without(a.value, unread)) for a in body]
    known = [e for e in known if str(e) not in unread]
    value = _without(draw(expressions(known)), unread)
    for reference in known[1:]:
        value = ep.Binary(draw(st.sampled_from("+-*/<")), value, reference)
    return ep.Epilogue(tuple(given_), (*body, ep.Assignment(result.name, value)), tuple(results))


@st.composite
def further_results(draw, result, name: str) -> Tensor:
    """With all dims of a result in any order; or the sum over all of them, in f32."""
    dims = draw(st.one_of(st.permutations(result.dims), st.just(())))
    dtype = draw(st.sampled_from(("f16", "s8"))) if len(dims) == len(result.dims) else "f32"
    return Tensor(name, "result", dtype, tuple(dims), tuple(map(result.extent, dims)))


def _without(e: ep.Expr, names: list[str]) -> ep.Expr:
    """The expression with `acc` in place of locals of these names."""
    match e:
        case ep.LocalRef():
            return ep.Acc() if e.name in names else e
        case ep.Unary():
            return ep.Unary(e.op, _without(e.operand, names))
        case ep.Binary():
            return ep.Binary(e.op, _without(e.left, names), _without(e.right, names))
        case ep.Call():
            return ep.Call(e.function, tuple(_without(a, names) for a in e.arguments))
    return e


#: Padding that integers have, too.
FILLS = tuple(p for p in Padding if p is not Padding.NAN)


@st.composite
def stated(draw):
    """A problem as a spec may state it, with the user's names, and epilogues where there can be one."""
    found = draw(problems(dtypes=("f16", "bf16", "f32", "e4m3", "e5m2", "s8"), paddings=FILLS))
    names = draw(st.lists(NAMES, unique=True, min_size=5, max_size=5))
    renamed = {role: dataclasses.replace(getattr(found, role), name=n) for role, n in zip("xwy", names, strict=False)}
    if found.lowered:
        renamed["lowered"] = dataclasses.replace(found.lowered, name=names[3])
    found = dataclasses.replace(found, name=names[4], **renamed)
    if not found.lowered and draw(st.booleans()):
        taken = set(names[:3])
        epilogue = draw(epilogues(found.result).filter(lambda e: not taken & declared(e)))
        found = dataclasses.replace(found, epilogue=epilogue)
    return found


def declared(epilogue: ep.Epilogue) -> set[str]:
    return {t.name for t in (*epilogue.operands, *epilogue.results)} | {a.name for a in epilogue.body[:-1]}


@given(stated())
def test_a_problem_prints_as_a_spec_that_reads_back_equal(problem):
    (request,) = frontend.load(str(problem))
    assert request.problem == problem
    assert str(request.problem) == str(problem) and request.problem.digest == problem.digest


@given(stated(), st.randoms())
def test_the_order_of_a_spec_and_its_extents_beyond_need_do_not_matter(problem, rng: random.Random):
    """Settings shuffled, and output extents left to be inferred."""
    lines = str(problem).split("\n")
    text = "\n".join(lines)
    head, settings, epilogue = lines[0], lines[1:-1], ""
    if problem.epilogue:
        start = settings.index("  epilogue {")
        end = settings.index("  }")
        epilogue = "\n".join(settings[start : end + 1])
        settings = [*settings[:start], epilogue, *settings[end + 1 :]]
    settings = [re.sub(r"\b([opq])=\d+", r"\1", s) if s.startswith("  output") else s for s in settings]
    rng.shuffle(settings)
    (request,) = frontend.load("\n".join([head, *settings, "}"]))
    assert request.problem == frontend.load(text)[0].problem


def test_the_depth_that_is_read_is_the_depth_that_is_printed():
    """An epilogue at the limit prints with a pair of parentheses for each operator, and reads back."""
    terms = " + ".join(["acc"] * 100)
    (request,) = frontend.load(conv(f"y = {terms}"))
    assert frontend.load(str(request.problem))[0].problem == request.problem
    assert codes(conv(f"y = {terms} + acc")) == ["E004"]


@given(NUMBERS)
def test_numbers_read_back_exactly(number):
    (request,) = frontend.load(conv(f"y = acc + {ep.Number(number)}"))
    found = request.problem.epilogue.body[0].value.right.value
    assert found == number and math.copysign(1, found) == 1


@pytest.mark.parametrize(("op", "made", "dim"), [("fprop", "y", "k"), ("dgrad", "x", "c"), ("wgrad", "w", "c")])
def test_the_hint_for_the_sum_of_the_result_names_acc(op, made, dim):
    text = conv(f"result a: f32[{dim}] result s: f32[{dim}] a = acc * acc s = {made} {made} = acc", op)
    with pytest.raises(SpecError) as caught:
        frontend.load(text)
    (error,) = caught.value.diagnostics
    assert error.code == "E301"
    assert error.hint.endswith("; a result that leaves out dims may be the sum of `acc`: `s = acc`")
    assert frontend.load(text.replace(f"s = {made} ", "s = acc "))


@pytest.mark.parametrize(
    ("given", "tip"), [("t: f32[n, p, q, k] t = acc y = t + y", ""), ("s: f32[k] s = acc y = y", "`acc`: `s = acc`")]
)
def test_a_sum_is_suggested_only_where_one_is_declared(given, tip):
    with pytest.raises(SpecError) as caught:
        frontend.load(conv(f"result {given}"))
    (error,) = caught.value.diagnostics
    _, found, end = error.hint.partition("may be the sum of ")
    assert (error.code, bool(found), end) == ("E301", bool(tip), tip)
