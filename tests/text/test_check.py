"""What a spec means: extents that are inferred or refused, types, operators, the lowered matrix, options."""

from __future__ import annotations

from inspect import signature

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convgen import frontend
from convgen.diagnostics import Diagnostic, SpecError
from convgen.frontend.names import ARGUMENTS
from convgen.ir.problem import SPATIAL
from convgen.kernels.base import Option
from convgen.runtime.kernel import Kernel

BIG = 2**31 - 1


def problem(text: str, **arguments):
    (request,) = frontend.load(text, **arguments)
    return request.problem


def errors(text: str, **arguments) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpecError) as caught:
        frontend.load(text, **arguments)
    return caught.value.diagnostics


def codes(text: str, **arguments) -> list[str]:
    return [d.code for d in errors(text, **arguments)]


def conv(
    x: str = "f16[n=2, h=9, w=8, c=4]", w: str = "f16[k=6, r=3, s=3, c]", y: str = "f16[n, p, q, k]", rest: str = ""
) -> str:
    return f"conv a {{ input x: {x} filter w: {w} output y: {y} {rest} }}"


# --- extents -----------------------------------------------------------------------------------------


@st.composite
def axes(draw):
    """(input, filter, stride, dilation, low, high) of an axis whose output is not empty."""
    filter_, stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    low, high = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    extent = draw(st.integers(1, 12))
    assume((filter_ - 1) * dilation < extent + low + high)
    return extent, filter_, stride, dilation, low, high


def positions(extent, filter_, stride, dilation, low, high) -> int:
    """Number of places at which a window lies inside of the padded input, counted one by one."""
    padded = range(-low, extent + high)
    return sum(
        all(start + tap * dilation in padded for tap in range(filter_)) for start in range(-low, extent + high, stride)
    )


@given(st.lists(axes(), min_size=1, max_size=3), st.integers(1, 3))
def test_output_extents_are_counts_of_windows(geometry, groups):
    sp = SPATIAL[len(geometry)]

    def listed(dims, at):
        return ", ".join(f"{d}={g[at]}" for d, g in zip(dims, geometry, strict=True))

    def by_axis(at):
        return " ".join(f"{d}={g[at]}" for d, g in zip(sp.input, geometry, strict=True))

    text = f"""conv a {{
      input x: f16[n=2, {listed(sp.input, 0)}, c={4 * groups}]
      filter w: f16[k={6 * groups}, {listed(sp.filter, 1)}, c]
      output y: f16[n, {", ".join(sp.output)}, k]
      stride {by_axis(2)} dilation {by_axis(3)} groups {groups}
      pad {" ".join(f"{d}=({g[4]}, {g[5]})" for d, g in zip(sp.input, geometry, strict=True))}
    }}"""
    found = problem(text)
    assert found.output == tuple(positions(*g) for g in geometry)
    assert found.y.extents == (2, *found.output, 6 * groups)
    assert found.w.extents == (6 * groups, *found.filter, 4) and found.c == 4 * groups


@given(axes().filter(lambda g: g[2] == 1))
def test_with_unit_stride_the_input_follows_from_the_output(g):
    extent, filter_, _, dilation, low, high = g
    text = conv("f16[n=2, w, c=4]", f"f16[k=6, s={filter_}, c]", f"f16[n, q={positions(*g)}, k]")
    found = problem(text.replace("}", f"dilation {dilation} pad ({low}, {high}) }}"))
    assert found.input == (extent,)


@pytest.mark.parametrize(
    ("text", "extents"),
    [
        (conv(), {"n": 2, "c": 4, "k": 6, "p": 7, "q": 6}),
        (conv(w="f16[k, r=3, s=3, c]", y="f16[n, p, q, k=5]"), {"k": 5}),
        (conv(x="f16[n, h=9, w=8, c]", w="f16[k=6, r=3, s=3, c=4]", y="f16[n=3, p, q, k]"), {"n": 3, "c": 4}),
        (conv(x="f16[n, h=9, w=8, c]", w="f16[k=6, r=3, s=3, c=4]", y="f16[n=3, p, q, k]", rest="groups 2"), {"c": 8}),
        (conv(x="f16[n=2, h=9, w=8, c=12]", rest="groups 3"), {"c": 12, "g": 3}),
        (conv("f16[h=9, w=8]", "f16[r=3, s=3]", "f16[p, q]"), {"n": 1, "c": 1, "k": 1, "p": 7, "q": 6}),
        (conv("f16[n=2, h=9, c=4]", "f16[k=6, r=3, c]", "f16[n, p, k]"), {"h": 9, "w": 1, "s": 1, "q": 1}),
        (conv("f16[n=2, c=4]", "f16[k=6, c]", "f16[n, k]"), {"w": 1, "s": 1, "q": 1}),
        (conv("f16[n=2, w=8, c=4]", "f16[k=6, s=3, c]", "f16[n, q, k]", "stride h=1"), {"h": 1, "r": 1, "p": 1}),
        (conv("f16[n=2, h=9, w=8, c=6]", "f16[k=6, r=3, s=3]", "f16[n, p, q, k]", "groups 6"), {"c": 6, "g": 6}),
        ("let n = 5 let h = 9 let w = h - 1 let k = 2 " + conv("f16[n, h, w]", "f16[k, r=3, s=3]"), {"n": 5, "w": 8}),
        ("let a = 7 let b = a * 2 - (a + 1) / 4 % 3 " + conv(x="f16[n=b, h=9, w=8, c=4]"), {"n": 12}),
        (conv("f16[n=2, h, w=8, c=4]", y="f16[n, p=7, q, k]", rest="op dgrad"), {"h": 9}),
    ],
)  # fmt: skip
def test_extents(text, extents):
    found = problem(text)
    assert {dim: found.extent(dim) for dim in extents} == extents


def test_the_order_of_dims_is_the_layout():
    found = problem(conv("f16[n=2, c=4, h=9, w=8]", "f16[r=3, s=3, c, k=6]", "f16[q, n, k, p]"))
    assert found.x.strides == (288, 72, 8, 1) and found.w.strides == (72, 24, 6, 1)
    assert found.y.dims == ("q", "n", "k", "p") and found.y.extents == (6, 2, 6, 7)


def test_defines_override_lets():
    text = "let n = 8 let half = n / 2 " + conv("f16[n, h=9, w=8, c=half]")
    assert (problem(text).n, problem(text).c) == (8, 4)
    found = problem(text, defines={"n": 64})
    assert (found.n, found.c) == (64, 32)
    # what a define replaces is not evaluated
    assert problem("let n = 1 / 0 " + conv("f16[n, h=9, w=8, c=4]"), defines={"n": 3}).n == 3


def test_defines_may_be_any_integer():
    import numpy

    assert problem("let n = 8 " + conv("f16[n, h=9, w=8, c=4]"), defines={"n": numpy.int64(3)}).n == 3
    for wrong in ("3", 2.0, numpy.array([1, 2])):
        assert codes("let n = 8 " + conv(), defines={"n": wrong}) == ["E103"]
    assert codes("let n = 8 " + conv(), defines={"n": 2**70}) == ["E005"]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(-3, 3), st.sampled_from("+-*/%"))
def test_arithmetic_of_sizes(a, b, c, op):
    text = f"let v = {a} {op} {b} + ({c}) " + conv("f16[n=v, h=9, w=8, c=4]")
    if op in "/%" and (b == 0 or (op == "/" and a % b)):
        assert codes(text) == ["E104"]
        return
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // (b or 1), "%": a % (b or 1)}[op] + c
    if value < 1:
        assert codes(text) == ["E209"]
    else:
        assert problem(text).n == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (conv(y="f16[n, p=8, q, k]"), ["E208"]),
        (conv(y="f16[n=3, p, q, k=7]"), ["E208", "E208"]),
        (conv(w="f16[k=6, r=3, s=3, c=5]"), ["E208"]),
        (conv(w="f16[k=6, r=3, s=3]"), ["E208"]),
        (conv(y="f16[n, p, q]"), ["E208"]),
        (conv(y="f16[n, p, k]"), ["E208"]),
        (conv(rest="groups 3"), ["E210"]),
        (conv(w="f16[k=6, r=3, s=3, c=4]", rest="groups 3"), ["E210"]),  # no c of the filter would do
        (conv(w="f16[k=5, r=3, s=3, c=2]", rest="groups 2"), ["E210"]),
        (conv(w="f16[k=6, r=10, s=3, c]"), ["E211"]),
        (conv(w="f16[k=6, r=10, s=9, c]"), ["E211", "E211"]),
        (conv(rest="dilation 5"), ["E211", "E211"]),
        (conv(x="f16[n, h, w=8, c=4]"), ["E207"]),
        (conv(x="f16[n=2, h, w=8, c=4]", y="f16[n, p=5, q, k]", rest="stride 2"), ["E207"]),
        (conv(w="f16[k, r, s, c]"), ["E207"]),
        (conv(x="f16[n=2, h, w=8, c=4]", y="f16[n, p=2, q, k]", rest="pad 3"), ["E209"]),
        (conv(x=f"f16[n=2, h={BIG}, w=8, c=4]", rest="pad 1"), ["E209"]),
        (conv(x="f16[n=2, h=3, w=8, c=4]", w="f16[k, r, s=3, c]", rest="pad h=4 circular"), ["E207", "E209"]),
        (conv(x="f16[n=2, h=9, w=8, d=3, c=4]"), ["E208"]),  # a third axis that the output lacks
        (conv(x="f16[n=2, h=9, w=8, r=4]"), ["E203"]),
        (conv(x="f16[n2, h=9, w=8, c=4]"), ["E203"]),  # and its extent is known
        (conv(rest="strategy implicit_gemm { tile m==64 n=64 k=32 }"), ["E002"]),
        (conv(x="f16[n=2, h=9, w=8, c=4, c=4]"), ["E204"]),
        (conv(rest="stride d=1 d=2"), ["E204"]),
        (conv(rest="stride p=1"), ["E203"]),
        (conv(rest="stride (1, 1)"), ["E209"]),
        (conv(rest="stride 0 pad (-1, 0) dilation h=0 groups 0"), ["E209"] * 4),
        (conv(rest=f"pad {BIG + 1} stride {BIG + 1}"), ["E209"] * 2),
        (conv(x="f16[n=0, h=-1, w=8, c=4]"), ["E209", "E209"]),
        (conv(x=f"f16[n={BIG}, h={BIG}, w=8, c=4]"), ["E212", "E212"]),
    ],
)  # fmt: skip
def test_extents_that_cannot_be(text, found):
    assert codes(text) == found


@pytest.mark.parametrize(("dtype", "size"), [("s8", 1), ("f16", 2), ("f32", 4), ("f64", 8)])
def test_offsets_in_bytes_fit_64_bits(dtype, size):
    def text(c: int) -> str:
        return conv(f"{dtype}[n={2**30}, w={2**20}, c={c}]", f"{dtype}[k=1, c]", f"{dtype}[n, q, k]")

    assert problem(text(2**13 // size)).x.bytes == 2**63
    assert codes(text(2**13 // size + 1)) == ["E212"]


def test_an_extent_that_a_let_gives_unseen_is_explained():
    (found,) = errors("let n = 8 " + conv())
    assert (found.code, found.message) == ("E208", "n is 8 in `y`, but n is 2 in `x`")
    assert found.hint == "`n` alone in `y` is the `let n`"


@pytest.mark.parametrize(("defines", "sets"), [({}, "`let n`"), ({"n": -3}, "the define n=-3")])
def test_a_let_out_of_range_is_reported_where_it_is_first_used_alone(defines, sets):
    text = (
        "let n = 0 "
        + conv("f16[n, h=9, w=8, c=4]", rest="groups n")
        + conv("f16[n=n, h=9, w=8, c=4]").replace("conv a", "conv b")
    )
    (found,) = errors(text, defines=defines)
    assert (found.code, found.hint) == ("E209", f"{sets} sets it")


def test_the_largest_extents():
    found = problem(conv(f"f16[n={BIG}, h=1, w=1, c=1]", "f16[k=1, r=1, s=1, c]", rest=f"stride {BIG} dilation {BIG}"))
    assert found.n == BIG and found.output == (1, 1)
    found = problem(conv(f"f16[n=2, h={BIG}, w=1, c=1]", f"f16[k=1, r={BIG}, s=1, c]"))
    assert found.output == (1, 1)


# --- settings, names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("conv a { }", ["E201"] * 3),
        ("conv a { op im2col }", ["E201"] * 3),
        (conv(rest="stride 1 stride 1 groups 1 groups 1"), ["E202", "E202"]),
        (conv(rest="stride 2 stride 0 groups 1 groups -1"), ["E202", "E209", "E202", "E209"]),
        (conv(rest="pad 1 pad v=1 frob"), ["E202", "E203", "E216"]),
        (conv(rest="input z: f16[n=2]"), ["E202"]),
        (conv() + conv(), ["E101"]),
        (conv(rest="op fprop dgrad") + conv().replace("conv a", "conv a_dgrad"), ["E101"]),
        (conv().replace("w:", "x:"), ["E101"]),
        (conv(rest="epilogue { operand w: f32[] y = acc + w }"), ["E101"]),
        (conv().replace("x:", "acc:").replace("w:", "relu:"), ["E006", "E006"]),
        (conv().replace("conv a", f"conv {'a' * 65}"), ["E006"]),
        (conv(rest="op fprop dgrad").replace("conv a", f"conv {'a' * 60}"), ["E006"]),
        ("let m = 1 let m = 2 " + conv(), ["E101"]),
    ],
)
def test_settings_and_names_that_cannot_be(text, found):
    assert codes(text) == found


def test_a_tensor_is_not_called_as_another_argument_of_the_kernel():
    for method in (Kernel.__call__, Kernel.emulate):
        assert {p for p in signature(method).parameters if p not in ("arrays", "named")} <= ARGUMENTS.keys()
    for name in ARGUMENTS:
        assert codes(conv().replace(" x:", f" {name}:")) == ["E006"]
        assert codes(conv(rest=f"epilogue {{ operand {name}: f32[k] y = acc + {name} }}")) == ["E006"]
        assert problem(conv().replace(" y:", f" {name}:")).y.name == name


def test_names_are_the_users():
    """C's and Python's keywords are names as others."""
    text = conv(rest="epilogue { operand for: f32[k] int = acc * for class = int + 1 }")
    text = text.replace("conv a", "conv while").replace(" x:", " __global__:").replace(" y:", " class:")
    found = problem(text)
    assert (found.name, found.x.name, found.y.name) == ("while", "__global__", "class")
    assert problem(conv().replace("conv a", f"conv {'a' * 64}")).name == "a" * 64


# --- types -------------------------------------------------------------------------------------------

FLOATS = ("f16", "bf16", "f32", "e4m3", "e5m2")


F64_X, F64_W, F64_Y = "f64[n=2, h=9, w=8, c=4]", "f64[k=6, r=3, s=3, c]", "f64[n, p, q, k]"


@pytest.mark.parametrize("x", (*FLOATS, "s8", "s32"))
@pytest.mark.parametrize("w", (*FLOATS, "s8", "s32"))
def test_types_that_go_together(x, w):
    text = conv(f"{x}[n=2, h=9, w=8, c=4]", f"{w}[k=6, r=3, s=3, c]", "f32[n, p, q, k]")
    if "s32" in (x, w):
        assert set(codes(text)) == {"E205"}
    elif x == w or {x, w} == {"e4m3", "e5m2"}:
        assert problem(text).accumulate == ("s32" if x == "s8" else "f32")
    else:
        assert codes(text) == ["E206"]


@pytest.mark.parametrize("y", (*FLOATS, "s8", "s32"))
def test_a_result_may_have_any_type(y):
    assert problem(conv(y=f"{y}[n, p, q, k]")).y.dtype == y
    assert problem(conv(w=f"{y}[k=6, r=3, s=3, c]", rest="op wgrad")).w.dtype == y
    assert problem(conv(x=f"{y}[n=2, h=9, w=8, c=4]", rest="op dgrad")).x.dtype == y


@pytest.mark.parametrize(
    ("x", "accumulate", "found"),
    [
        ("f16", "f32", []), ("s8", "s32", []), ("f16", "s32", ["E206"]), ("s8", "f32", ["E206"]),
        ("f64", "f64", []), ("f64", "f32", ["E206"]), ("f32", "f64", ["E206"]),
        ("f16", "f16", ["E205"]), ("f16", "double", ["E205"]),
    ],
)  # fmt: skip
def test_accumulators(x, accumulate, found):
    text = conv(f"{x}[n=2, h=9, w=8, c=4]", f"{x}[k=6, r=3, s=3, c]", f"{x}[n, p, q, k]", f"accumulate {accumulate}")
    assert codes(text) == found if found else problem(text).accumulate == accumulate


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        (conv(y="f64[n, p, q, k]"), "`y` is f64, but `x` is f16", "f64[n, p"),
        (conv(F64_X, F64_W), "`y` is f16, but `x` is f64", "f16[n, p"),
        (
            conv(F64_X, F64_W, F64_Y, "epilogue { operand b: f32[k] y = acc + b }"),
            "`b` is f32, but `x` is f64",
            "f32[k]",
        ),
        (
            conv(F64_X, F64_W, F64_Y, "prologue { operand b: f32[c] x = x + b }"),
            "`b` is f32, but `x` is f64",
            "f32[c]",
        ),
        (conv(rest="epilogue { operand b: f64[k] y = acc + b }"), "`b` is f64, but `x` is f16", "f64[k]"),
        (
            conv(rest="epilogue { result t: f64[n, p, q, k] t = acc y = t }"),
            "`t` is f64, but `x` is f16",
            "f64[n, p, q, k]",
        ),
    ],
)
def test_f64_is_mixed_with_no_other_type(text, message, at):
    """The error stands at the tensor that differs from the input."""
    diagnostic = only_error(text)
    assert (diagnostic.code, diagnostic.message) == ("E206", message)
    assert text_from(text, diagnostic.span).startswith(at)
    assert diagnostic.message in [d.message for d in errors(f"let a = b {text}")]


@pytest.mark.parametrize(
    ("types", "found"),
    [(("f16", "f64", "f64"), ["E206"]), (("f64", "f64", "f23"), ["E205"]), (("s32", "s32", "f64"), ["E205"])],
)
def test_a_wrong_type_is_not_a_mixed_one_besides(types, found):
    x, w, y = types
    assert codes(conv(f"{x}[n=2, h=9, w=8, c=4]", f"{w}[k=6, r=3, s=3, c]", f"{y}[n, p, q, k]")) == found


def test_a_block_without_tensors_mixes_none():
    assert set(codes("conv a { }")) == {"E201"}


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (conv(w="f16[k=6, r=3, s=3]"), "w: f16"),
        (conv(y="f16[p, q, k]"), "y: f16"),
        (conv(y="f16[n, p, q]"), "y: f16"),
        (conv(x="f16[h=9, w=8, c=4]", y="f16[n=2, p, q, k]"), "x: f16"),
    ],
)
def test_a_dim_is_lacking_in_the_tensor_without_it(text, at):
    diagnostic = only_error(text)
    assert diagnostic.code == "E208" and diagnostic.hint.startswith(f"give `{at[0]}` the dim")
    assert text_from(text, diagnostic.span).startswith(at)


def only_error(text):
    with pytest.raises(SpecError) as error:
        frontend.load(text)
    (diagnostic,) = error.value.diagnostics
    return diagnostic


def text_from(text, span):
    return text.splitlines()[span.line - 1][span.column - 1 :]


def test_sums_and_numbers_of_f64_are_f64():
    made = problem(conv(F64_X, F64_W, F64_Y, "epilogue { result s: f64[k] s = acc y = acc * 1e300 }"))
    assert made.number == made.sums[0].dtype == "f64"
    assert codes(conv(F64_X, F64_W, F64_Y, "epilogue { result s: f32[k] s = acc y = acc * 1e309 }")) == ["E205", "E005"]


# --- operators and the lowered matrix ----------------------------------------------------------------


def test_several_operators_share_a_geometry():
    requests = frontend.load(conv(rest="op wgrad fprop dgrad"))
    assert [r.problem.name for r in requests] == ["a_wgrad", "a_fprop", "a_dgrad"]
    assert len({(r.problem.x, r.problem.w, r.problem.y, r.problem.output) for r in requests}) == 1


@pytest.mark.parametrize(
    ("ops", "count"),
    [("forward", 1), ("fprop fprop", 1), ("im2col fprop", 1), ("im2col col2im", 1), ("fpropp dgradd", 2)],
)
def test_operators_that_cannot_be(ops, count):
    assert codes(conv(rest=f"op {ops}")) == ["E213"] * count


def lowering(
    matrix: str, op: str = "im2col", x: str = "f32[n=2, h=9, w=8, c=4]", w: str = "f32[r=3, s=2]", rest: str = ""
) -> str:
    return f"conv a {{ input x: {x} filter w: {w} lowered m: {matrix} op {op} {rest} }}"


@pytest.mark.parametrize(
    ("axes", "dims", "counts", "shape"),
    [
        ("rows, cols", ("n", "p", "q", "c", "r", "s"), (3, 3), (98, 24)),
        ("cols, rows", ("c", "r", "s", "n", "p", "q"), (3, 3), (24, 98)),
        ("n*p*q, r*s*c", ("n", "p", "q", "r", "s", "c"), (3, 3), (98, 24)),
        ("n, c*r*s, p*q", ("n", "c", "r", "s", "p", "q"), (1, 3, 2), (2, 24, 49)),
        ("n, cols, p, q", ("n", "c", "r", "s", "p", "q"), (1, 3, 1, 1), (2, 24, 7, 7)),
        ("1, rows*cols, 1", ("n", "p", "q", "c", "r", "s"), (0, 6, 0), (1, 2352, 1)),
    ],
)
@pytest.mark.parametrize("op", ["im2col", "col2im"])
def test_lowered_matrices(axes, dims, counts, shape, op):
    found = problem(lowering(f"f32[{axes}]", op))
    assert (found.lowered.dims, found.lowered.axes, found.lowered.shape) == (dims, counts, shape)
    assert (found.op, found.c, found.k) == (op, 4, 1) and found.lowered.role == "lowered"
    assert found.y.dims == ("n", "p", "q", "k") and found.y.extents == (2, 7, 7, 1) and found.y.name == "y"


def test_dims_of_extent_1_need_not_be_in_a_lowered_matrix():
    assert problem(lowering("f32[c*r*s, p*q]", x="f32[h=9, w=8, c=4]")).lowered.shape == (24, 49)
    assert problem(lowering("f32[n*c*r*s, p*q]", x="f32[h=9, w=8, c=4]")).lowered.shape == (24, 49)
    assert codes(lowering("f32[c*r*s, p*q]")) == ["E214"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (lowering("f32[rows, rows]"), ["E214", *["E204"] * 3]),
        (lowering("f32[rows, k]"), ["E203"]),
        (lowering("f32[rows, z]"), ["E203", "E214"]),
        (lowering("f32[rows, 2, cols]"), ["E203"]),
        (lowering("f16[rows, cols]"), ["E206"]),
        (lowering("f32[rows, cols]", rest="epilogue { m = acc }"), ["E305"]),
        (lowering("f32[rows, cols]", op="fprop"), ["E201", "E214"]),
        (conv(rest="op im2col"), ["E201"]),
        # extents that disagree hide nothing of the matrix
        (lowering("f32[foo, n*n]", w="f32[r=3, s=2, c=3]"), ["E203", "E204", "E208", "E214"]),
    ],
)
def test_lowered_matrices_that_cannot_be(text, found):
    assert sorted(codes(text)) == sorted(found)


def test_groups_of_a_lowered_matrix_need_no_filter_channels():
    found = problem(lowering("f32[rows, cols]", rest="groups 2"))
    assert (found.c, found.k, found.c_per_group, found.k_per_group) == (4, 2, 2, 1)


def test_the_made_up_output_takes_a_free_name():
    text = lowering("f32[rows, cols]").replace("x:", "y:").replace("w:", "y1:")
    assert problem(text).y.name == "y2"


# --- strategy and target -----------------------------------------------------------------------------


KNOWN = {
    "fast": (
        Option("tile.m", "", choices=(64, 128)),
        Option("stages", "", high=9),
        Option("order", "", choices=("inner", "outer")),
    )
}


@pytest.mark.parametrize(
    ("block", "options", "found"),
    [
        ("fast { tile m=64 stages 9 order inner }", {"tile.m": 64, "stages": 9, "order": "inner"}, []),
        ("fast { stages two + 1 tile m=two * 64 }", {"stages": 3, "tile.m": 128}, []),
        ("fast { order outer }", {"order": "outer"}, []),  # a choice wins over a let of its name
        ("auto", {}, []),
        ("auto { stages 3 }", {}, ["E403"]),
        ("slow", {}, ["E402"]),
        ("slow { stages 3 }", {}, ["E402"]),
        ("fast { tile m=65 stages 0 order upwards }", {}, ["E404"] * 3),
        ("fast { stages 10 order 3 tile m=inner }", {}, ["E404"] * 3),
        ("fast { stage 3 tile 64 }", {}, ["E403"] * 2),
        ("fast { stages 3 stages 3 }", {}, ["E202"]),
        ("fast { stages 1 / 0 }", {}, ["E104"]),
    ],
)
def test_options_against_what_is_known(block, options, found):
    text = "let two = 2 let outer = 5 " + conv(rest=f"strategy {block}")
    if found:
        assert codes(text, strategies=KNOWN) == found
    else:
        assert frontend.load(text, strategies=KNOWN)[0].options == options


def test_a_kernel_in_the_place_of_its_strategy():
    known = {"gemm": (Option("kernel", "", choices=("mma", "stem")),)}
    (found,) = errors(conv(rest="strategy stem"), strategies=known)
    assert found.hint == "it is a kernel of gemm: `strategy gemm { kernel stem }`"


def test_targets_against_what_is_known():
    text = conv(rest="target sm_90a")
    assert frontend.load(text)[0].target == frontend.load(text, targets=["sm_90a"])[0].target == "sm_90a"
    assert codes(text, targets=["sm_80"]) == ["E405"]


def test_blocks_use_every_let_and_a_let_those_above_it():
    assert (
        problem("conv a { input x: f16[n, c=8] filter w: f16[k=m, c] output y: f16[n, k] } let n = 4 let m = n").k == 4
    )
    (error,) = errors("let m = n let n = 4 conv a { input x: f16[n, c=8] filter w: f16[k=m, c] output y: f16[n, k] }")
    assert (error.code, error.hint) == ("E102", "a let can use only the lets above it")
