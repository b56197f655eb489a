"""The float64 reference against plain loops, and the comparison against right and wrong results."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import element, inside, loop_nest, make, operands, problems

from convgen.ir import epilogue as ep
from convgen.ir import verify
from convgen.ir.dtypes import DTYPES, numpy_dtype
from convgen.ir.problem import OPS, Op, Padding
from convgen.ir.reference import FUNCTIONS, accumulate, reference, references
from convgen.ir.tensor import Tensor

SEEDS = st.integers(0, 2**32 - 1)
FLOATS = tuple(name for name, row in DTYPES.items() if row.is_float)


# ---- the reference -----------------------------------------------------------------------------


def by_loops(problem, arrays):
    """The operator by its definition, one multiply-add at a time."""
    flat = {role: np.asarray(a, dtype=np.float64).reshape(-1) for role, a in arrays.items()}
    reads, writes = OPS[problem.op].reads, OPS[problem.op].writes
    flat[writes] = np.zeros(problem.result.size)
    matrix = problem.op in (Op.IM2COL, Op.COL2IM)
    for at in loop_nest(problem):
        if matrix and at["k"] % problem.k_per_group:
            continue  # the lowered matrix has no output channels
        if inside(problem, at):
            product = math.prod(flat[role][element(problem, role, at)] for role in reads)
            flat[writes][element(problem, writes, at)] += product
        elif problem.padding is Padding.NAN:
            flat[writes][element(problem, writes, at)] = np.nan
    return flat[writes].reshape(problem.result.shape)


@settings(max_examples=150, deadline=None)
@given(problems(paddings=tuple(Padding)), SEEDS)
def test_reference_is_the_definition(problem, seed):
    arrays = verify.random_inputs(problem, seed)
    np.testing.assert_allclose(reference(problem, arrays), by_loops(problem, arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [Padding.ZERO, Padding.NAN])
@pytest.mark.parametrize("op", Op)
def test_padding_takes_no_memory(op, padding):
    """Most windows of such a convolution lie outside of the input, as far as no array could be."""
    far, lowered = 10**6, "n*p*q,c*r*s" if Op(op) in (Op.IM2COL, Op.COL2IM) else ""
    padding = padding if "x" in OPS[op].reads else Padding.ZERO
    pad = ((far, far - 1), (far - 2, far))
    problem = make(op, 2, 2, 3, (4, 5), stride=far, pad=pad, dilation=2, lowered=lowered, padding=padding)
    arrays = verify.random_inputs(problem, 3)
    expected = by_loops(problem, arrays)
    assert np.isnan(expected).any() or expected.any()
    np.testing.assert_allclose(reference(problem, arrays), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(problems(paddings=tuple(Padding)), SEEDS, st.sampled_from((1, 100, 1000)))
def test_the_reference_gathers_piece_by_piece(problem, seed, held):
    """Runs of images, or places along one image's first axis: whichever a chunk holds."""
    arrays = verify.random_inputs(problem, seed)
    whole = reference(problem, arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("convgen.ir.reference._CHUNK", held)
        np.testing.assert_allclose(reference(problem, arrays), whole, rtol=1e-12, atol=1e-12)


def test_the_reference_of_one_large_image_takes_little_memory():
    """Its gathered matrix would take 27 times the image: half a GB."""
    problem = make("fprop", 1, 32, 8, (44, 44, 44), filter=(3, 3, 3), pad=((1, 1),) * 3)
    arrays = verify.random_inputs(problem, 5)
    tracemalloc.start()
    try:
        reference(problem, arrays)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_reference_takes_raw_bits():
    for dtype in FLOATS:
        problem = make(c=3, k=4, dtype=dtype)
        arrays = verify.random_inputs(problem, 1)
        bits = {role: a.view(f"u{a.dtype.itemsize}") for role, a in arrays.items()}
        np.testing.assert_array_equal(reference(problem, bits), reference(problem, arrays))


def test_padding_may_crop():
    """A negative padding drops border pixels."""
    inner = make(input=(4, 5), filter=(2, 2), c=2, k=2)
    outer = make(input=(6, 8), filter=(2, 2), c=2, k=2, pad=((-1, -1), (-2, -1)))
    assert outer.output == inner.output
    arrays = verify.random_inputs(outer, 2)
    cropped = {"x": np.ascontiguousarray(arrays["x"][:, 1:-1, 2:-1]), "w": arrays["w"]}
    np.testing.assert_allclose(reference(outer, arrays), reference(inner, cropped))


# ---- the epilogue ------------------------------------------------------------------------------

SCALAR = {
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x, slope: x if x > 0 else slope * x,
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "exp": math.exp,
    "round_f16": lambda x: float(np.float16(x)),
    "round_bf16": lambda x: float(numpy_dtype("bf16").type(x)),
    "log": lambda x: math.log(x) if x > 0 else (math.nan if x < 0 else -math.inf),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "abs": abs,
    "min": min,
    "max": max,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "select": lambda condition, x, y: x if condition else y,
}


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_results_of_an_epilogue(op):
    """One for each element, in another order of dims; sums over some dims and over all."""
    base = make(op, n=2, c=4, k=6, input=(5, 4), groups=2, dtype="f32")
    d = base.result.dims
    turned, kept = (d[2], d[0], d[3], d[1]), (d[3], d[0])
    further = [
        Tensor(name, "result", "f32", dims, tuple(map(base.result.extent, dims)))
        for name, dims in (("t", turned), ("s", kept), ("ss", ()))
    ]
    t, u = ep.LocalRef("t"), ep.Binary("*", ep.Acc(), ep.Acc())
    body = [("t", ep.Call("relu", (ep.Acc(),))), ("s", t), ("ss", u), (base.result.name, ep.Unary("-", t))]
    epilogue = ep.Epilogue((), tuple(ep.Assignment(*a) for a in body), tuple(further))
    problem = dataclasses.replace(base, epilogue=epilogue)
    arrays = verify.random_inputs(problem, 3)
    acc = reference(base, arrays)
    relu = np.maximum(acc, 0)
    expected = (-relu, relu.transpose(2, 0, 3, 1), relu.sum((1, 2)).T, (acc * acc).sum())
    found = references(problem, arrays)
    for value, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-12)
    outs = [value.astype(np.float32) for value in found]
    report = verify.check(problem, arrays, tuple(outs))
    assert report and all(f"{t.name} is right" in report.message for t in problem.results)
    for i, t in enumerate(problem.results):
        wrong = [out * np.float32(1 + 1e-3 * (i == j)) for j, out in enumerate(outs)]
        report = verify.check(problem, arrays, tuple(wrong))
        assert not report and report.message.startswith(f"{t.name} is wrong")


def test_every_function_is_tested():
    assert set(SCALAR) == set(FUNCTIONS) == set(ep.FUNCTIONS)


def with_epilogue(problem, body, *tensors):
    return dataclasses.replace(problem, epilogue=ep.Epilogue(tensors, body))


@pytest.mark.parametrize("name", list(ep.FUNCTIONS))
def test_functions_of_the_epilogue(name):
    arguments = (ep.Acc(), ep.OperandRef("a"), ep.OperandRef("b"))[: ep.FUNCTIONS[name].arity]
    base = make(c=2, k=3, dtype="f32")
    tensors = tuple(Tensor(n, "operand", "f32", base.y.dims, base.y.extents) for n in "ab")
    problem = with_epilogue(base, (ep.Assignment("y", ep.Call(name, arguments)),), *tensors)
    arrays = verify.random_inputs(problem, 3)
    acc = reference(base, arrays)
    columns = [acc, arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)][: len(arguments)]
    expected = [SCALAR[name](*map(float, row)) for row in zip(*(c.reshape(-1) for c in columns), strict=True)]
    np.testing.assert_allclose(reference(problem, arrays).reshape(-1), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("relu", (math.nan,), math.nan),
        ("relu", (-math.inf,), 0.0),
        ("min", (math.nan, 1.0), math.nan),
        ("min", (1.0, math.nan), math.nan),
        ("max", (math.nan, 1.0), math.nan),
        ("max", (1.0, math.nan), math.nan),
        ("clamp", (math.nan, 0.0, 6.0), math.nan),
        ("clamp", (1.0, math.nan, 6.0), math.nan),
        ("clamp", (1.0, 0.0, math.nan), math.nan),
        ("clamp", (math.inf, 0.0, 6.0), 6.0),
        ("leaky_relu", (math.nan, 0.5), math.nan),
        ("leaky_relu", (-math.inf, 0.5), -math.inf),
        ("sigmoid", (-math.inf,), 0.0),
        ("silu", (math.inf,), math.inf),
        ("silu", (-math.inf,), math.nan),  # as the formula says, and as torch has it
        ("gelu", (-math.inf,), math.nan),
        ("gelu_tanh", (-math.inf,), math.nan),
        ("select", (math.nan, 1.0, 2.0), 1.0),  # a NaN is not 0
        ("select", (0.0, math.nan, 2.0), 2.0),
    ],
)
def test_special_values(name, arguments, value):
    with np.errstate(all="ignore"):
        np.testing.assert_equal(float(FUNCTIONS[name](np, *map(np.float64, arguments))), value)


def test_operators_locals_and_broadcast():
    base = make(n=2, c=2, k=3, dtype="f32", groups=1)
    b = Tensor("b", "operand", "f32", ("k",), (3,))
    z = Tensor("z", "operand", "f16", ("q", "n"), (2, 2))
    acc, B, Z, t = ep.Acc(), ep.OperandRef("b"), ep.OperandRef("z"), ep.LocalRef("t")
    bigger = ep.Binary("&&", ep.Binary(">", t, ep.Number(0)), ep.Unary("!", ep.Binary("<=", Z, B)))
    body = (
        ep.Assignment("t", ep.Binary("-", ep.Binary("*", acc, Z), B)),
        ep.Assignment("y", ep.Call("select", (bigger, t, ep.Unary("-", ep.Binary("/", t, ep.Number(2)))))),
    )
    problem = with_epilogue(base, body, b, z)
    arrays = verify.random_inputs(problem, 4)
    got, sums = reference(problem, arrays), reference(base, arrays)
    for n, p, q, k in np.ndindex(2, 2, 2, 3):
        bias, scale = float(arrays["b"][k]), float(arrays["z"][q, n])
        value = sums[n, p, q, k] * scale - bias
        assert got[n, p, q, k] == pytest.approx(value if value > 0 and not scale <= bias else -value / 2, rel=1e-12)


# ---- rounding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_round_to_is_the_cast(dtype, seed):
    rng = np.random.default_rng(seed)
    row = DTYPES[dtype]
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    values = rng.standard_normal(200) * 2.0 ** rng.integers(info.minexp - row.mantissa_bits - 3, info.maxexp + 2, 200)
    values = np.concatenate([values, [0.0, np.nan, float(info.max), float(info.smallest_subnormal) / 2]])
    with np.errstate(over="ignore"):
        values = values.astype(np.float32).astype(np.float64)
        expected = values.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
    if row.bytes == 1:  # conversions of generated code saturate
        expected = np.where(abs(values) > float(info.max), np.copysign(float(info.max), values), expected)
    np.testing.assert_array_equal(verify.round_to(values, row), expected)


def test_round_to_integers_saturates():
    values = np.array([-200.0, -128.4, -0.5, 0.5, 1.5, 127.5, 300.0])
    np.testing.assert_array_equal(verify.round_to(values, DTYPES["s8"]), [-128, -128, 0, 0, 2, 127, 127])


# ---- comparing ---------------------------------------------------------------------------------


@cache
def products(problem):
    """Each multiply-add of a convolution: where it is in the loop nest, and its elements of y, x and w."""
    within = (at for at in loop_nest(problem) if inside(problem, at))
    return [(at, *(element(problem, role, at) for role in "yxw")) for at in within]


def as_kernel(problem, arrays, drop=lambda at: False):
    """What an fprop kernel accumulates: exact inputs, one addition at a time, in float32 or of f64 in float64.

    `drop(at)` leaves out products.
    """
    wide = numpy_dtype(problem.number)
    acc = np.zeros(problem.output_pixels * problem.k, wide)
    x, w = (arrays[r].astype(wide).reshape(-1) for r in "xw")
    for at, y, of_x, of_w in products(problem):
        if not drop(at):
            acc[y] += x[of_x] * w[of_w]
    return acc


def rounded(problem, acc):
    values = verify.round_to(np.asarray(acc, np.float64), problem.y.element)
    return values.astype(numpy_dtype(problem.y.dtype)).reshape(problem.y.shape)


@pytest.mark.parametrize("op", ["im2col", "col2im"])
def test_im2col_copies_an_infinity_and_a_sum_saturates(op):
    problem = make(op, 1, 1, 1, (1, 3), (1, 1), lowered="n*p*q,c*r*s", dtype="e5m2")
    values = np.array([1.5, np.inf, -np.inf], numpy_dtype("e5m2"))
    arrays = {problem.reads[0].role: values.reshape(problem.reads[0].shape)}
    saturated = np.array([1.5, 57344, -57344], values.dtype)
    for result, copied in ((values, True), (saturated, False)):
        report = verify.check(problem, arrays, result.reshape(problem.result.shape))
        assert report.ok == (copied == (op == "im2col")), report


SMALL = dict(n=2, c=5, k=4, input=(5, 4), pad=1)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", [*FLOATS, "s8"])
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_right_results_pass(dtype, seed):
    problem = make(**SMALL, dtype=dtype)
    arrays = verify.random_inputs(problem, seed)
    right = rounded(problem, as_kernel(problem, arrays))
    report = verify.check(problem, arrays, right)
    assert report, report
    plain = verify.compare(problem, right, reference(problem, arrays))
    assert plain, plain


def decisive_inputs(problem, seed, decides):
    """Random data of which the chosen products decide the sums, whatever the seed.

    `decides(at)` chooses weights by tap and channel.  The products of a chosen tap sum to at least 5 (of s8, 160),
    those of all other weights to at most 2.5 (of s8, 80).  Signs alternate over the output channels.
    """
    rng = np.random.default_rng(seed)
    if problem.x.element.is_float:
        x, small, large = rng.uniform(1, 2, problem.x.shape), rng.uniform(-1, 1, problem.w.shape) / 32, 1
    else:
        x, small, large = rng.integers(1, 3, problem.x.shape), rng.integers(-1, 2, problem.w.shape), 32
    w = small.copy()
    for k, r, s, c in np.ndindex(problem.w.shape):
        if decides(dict(r=r, s=s, c=c)):
            w[k, r, s, c] = -large if k % 2 else large
    return {"x": x.astype(numpy_dtype(problem.x.dtype)), "w": w.astype(numpy_dtype(problem.w.dtype))}


#: Weights, and the pixels whose sums they are left out of.
MISSING = {
    "a tap": (lambda at: at["r"] == 2 and at["s"] == 1, lambda at: True),
    "a tap at one pixel": (lambda at: at["r"] == 1 and at["s"] == 1, lambda at: at["p"] == 1 and at["q"] == 0),
    "a channel": (lambda at: at["c"] == 4, lambda at: True),
}


@pytest.mark.parametrize("dtype", [*FLOATS, "s8"])
@pytest.mark.parametrize("what", list(MISSING))
@settings(max_examples=3, deadline=None)
@given(SEEDS)
def test_missing_products_fail(dtype, what, seed):
    weights, pixels = MISSING[what]
    problem = make(**SMALL, dtype=dtype)
    arrays = decisive_inputs(problem, seed, weights)
    wrong = rounded(problem, as_kernel(problem, arrays, lambda at: weights(at) and pixels(at)))
    assert not verify.check(problem, arrays, wrong)
    assert not verify.compare(problem, wrong, reference(problem, arrays))


def center(at):
    return at["r"] == 1 and at["s"] == 1


@pytest.mark.parametrize("dtype", [*FLOATS, "s8"])
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_misplaced_elements_fail(dtype, seed):
    """Channels rotated, or two pixels swapped, in an otherwise exact result."""
    problem = make(**SMALL, dtype=dtype)
    arrays = decisive_inputs(problem, seed, center)  # neighboring channels differ in sign
    arrays["x"][0, 1, 1] = -arrays["x"][0, 1, 1]  # and so do these pixels
    expected = verify.expect(problem, arrays)
    right = rounded(problem, expected.value)
    assert verify.compare(problem, right, expected)
    assert not verify.compare(problem, np.roll(right, 1, axis=-1), expected)
    swapped = right.copy()
    swapped[0, 1, [0, 1]] = right[0, 1, [1, 0]]
    assert not verify.compare(problem, swapped, expected)


@pytest.mark.parametrize("dtype", [*FLOATS, "s8"])
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_padding_that_is_not_zero_fails(dtype, seed):
    problem = make(**SMALL, dtype=dtype)
    inner = make(**SMALL | {"input": (7, 6), "pad": 0}, dtype=dtype)
    arrays = decisive_inputs(problem, seed, lambda at: at["r"] == 0)  # which reads padding alone where p = 0
    clamped = arrays | {"x": np.pad(arrays["x"].astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")}
    wrong = rounded(problem, reference(inner, clamped))
    assert not verify.check(problem, arrays, wrong)


def test_two_ulps_fail():
    """The bound is as sharp as the output type allows: two units in the last place are wrong."""
    problem = make(n=1, c=64, k=8, input=(6, 6), pad=1)
    arrays = verify.random_inputs(problem, 5)
    expected = verify.expect(problem, arrays)
    right = expected.value.astype(np.float16)
    assert verify.compare(problem, right, expected)
    wrong = right.copy()
    wrong.view(np.uint16)[0, 3, 3, 3] += 2
    report = verify.compare(problem, wrong, expected)
    assert not report
    assert report.worst_index == (0, 3, 3, 3)
    assert "n=0, p=3, q=3, k=3" in report.message


@pytest.mark.parametrize("dtype", [*FLOATS, "s8", "s32"])
def test_poison_left_behind_fails(dtype):
    problem = make(**SMALL, dtype=dtype)
    arrays = verify.random_inputs(problem, 6)
    actual = verify.poison(np.empty(problem.y.shape, numpy_dtype(dtype)))
    assert not verify.check(problem, arrays, actual)
    expected = verify.expect(problem, arrays)
    actual[...] = rounded(problem, expected.value)
    assert verify.compare(problem, actual, expected)
    verify.poison(actual[1, 2, 1:2, 0:1])
    report = verify.compare(problem, actual, expected)
    assert not report
    if DTYPES[dtype].is_float:
        assert "never written" in report.message


def test_integers_are_exact():
    problem = make(**SMALL, dtype="s8")
    problem = dataclasses.replace(problem, y=dataclasses.replace(problem.y, dtype="s32"))
    arrays = verify.random_inputs(problem, 7)
    actual = reference(problem, arrays).astype(np.int32)
    assert verify.check(problem, arrays, actual)
    actual[0, 0, 0, 0] += 1
    assert not verify.check(problem, arrays, actual)


def test_raw_bits_compare():
    problem = make(**SMALL, dtype="bf16")
    arrays = verify.random_inputs(problem, 8)
    actual = rounded(problem, reference(problem, arrays))
    assert verify.check(problem, arrays, actual.view(np.uint16))


def test_wrong_shape_is_said():
    problem = make(**SMALL)
    arrays = verify.random_inputs(problem, 9)
    report = verify.check(problem, arrays, np.zeros((1, 2), np.float16))
    assert not report
    assert "shape" in report.message


@pytest.mark.parametrize("length", [64, 4608, 65536])
@settings(max_examples=2, deadline=None)
@given(SEEDS)
def test_long_sums(length, seed):
    """Float32 sums in blocks of 16, as tensor cores make them, and truncated at every step."""
    problem = make(c=length, k=16, input=(2, 2), filter=(1, 1), dtype="f16")
    problem = dataclasses.replace(problem, y=dataclasses.replace(problem.y, dtype="f32"))
    arrays = verify.random_inputs(problem, seed)
    arrays["x"][..., 0] = arrays["w"][..., 0] = 4  # a product that shows in the longest sum
    expected = verify.expect(problem, arrays)
    x = arrays["x"].astype(np.float64).reshape(4, length)
    w = arrays["w"].astype(np.float64).reshape(16, length)
    total = np.zeros((4, 16))
    for start in range(0, length, 16):
        total += x[:, start : start + 16] @ w[:, start : start + 16].T
        bits = total.astype(np.float32)
        beyond = abs(bits.astype(np.float64)) > abs(total)
        total = np.where(beyond, np.nextafter(bits, np.float32(0)), bits).astype(np.float64)
    right = total.astype(np.float32).reshape(problem.y.shape)
    report = verify.compare(problem, right, expected)
    assert report, report
    wrong = (total - x[:, :1] @ w[:, :1].T).astype(np.float32).reshape(problem.y.shape)
    assert not verify.compare(problem, wrong, expected)


def test_tf32_needs_its_own_arithmetic():
    problem = make(n=1, c=64, k=8, input=(6, 6), pad=1, dtype="f32")
    arrays = verify.random_inputs(problem, 10)
    coarse = {r: (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for r, a in arrays.items()}
    actual = reference(problem, coarse).astype(np.float32)
    assert verify.check(problem, arrays, actual, arithmetic="tf32")
    assert not verify.check(problem, arrays, actual)
    wrong = actual.copy()
    wrong[0, 2, 2, :] = actual[0, 2, 3, :]
    assert not verify.check(problem, arrays, wrong, arithmetic="tf32")


# ---- epilogues over intervals ------------------------------------------------------------------

LEAVES = st.one_of(
    st.just(ep.Acc()),
    st.just(ep.OperandRef("a")),
    st.just(ep.OperandRef("b")),
    st.floats(-4, 4, width=16).map(ep.Number),
)


def _grow(children):
    calls = [st.builds(ep.Call, st.just(f.name), st.tuples(*[children] * f.arity)) for f in ep.FUNCTIONS.values()]
    operators = st.sampled_from(["+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "&&", "||"])
    return st.one_of(
        st.builds(ep.Binary, operators, children, children),
        st.builds(ep.Unary, st.sampled_from("-!"), children),
        *calls,
    )


EXPRESSIONS = st.recursive(LEAVES, _grow, max_leaves=6)


def in_float32(e, values):
    """A kernel's epilogue: every step rounded to float32."""
    f = np.float32
    match e:
        case ep.Number():
            return f(e.value)
        case ep.Acc():
            return values["acc"]
        case ep.OperandRef():
            return values[e.name]
        case ep.Unary("-"):
            return -in_float32(e.operand, values)
        case ep.Unary("!"):
            return f(in_float32(e.operand, values) == 0)
        case ep.Binary():
            a, b = in_float32(e.left, values), in_float32(e.right, values)
            operators = {
                "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b,
                "<": lambda: f(a < b), "<=": lambda: f(a <= b), ">": lambda: f(a > b), ">=": lambda: f(a >= b),
                "==": lambda: f(a == b), "!=": lambda: f(a != b),
                "&&": lambda: f(a != 0 and b != 0), "||": lambda: f(a != 0 or b != 0),
            }  # fmt: skip
            return f(operators[e.op]())
        case ep.Call():
            arguments = [in_float32(a, values) for a in e.arguments]
            if e.function == "gelu":  # as templates/helpers.cuh.j2 has it
                x = arguments[0]
                return f(0.5) * x * (f(1) + f(math.erf(x * f(0.70710678))))
            if e.function == "gelu_tanh":
                x = arguments[0]
                return f(0.5) * x * (f(1) + np.tanh(f(0.79788456) * (x + f(0.044715) * x * x * x)))
            return f(FUNCTIONS[e.function](np, *arguments))
    raise TypeError(e)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, SEEDS)
@example(ep.Call("min", (ep.Acc(), ep.Call("sigmoid", (ep.Call("log", (ep.Number(0.0),)),)))), 0)
def test_float32_epilogues_stay_within_the_bounds(expression, seed):
    base = make(c=3, k=2, input=(2, 2), filter=(1, 1), dtype="f32")
    tensors = tuple(Tensor(n, "operand", "f32", base.y.dims, base.y.extents) for n in "ab")
    problem = with_epilogue(base, (ep.Assignment("y", expression),), *tensors)
    arrays = verify.random_inputs(problem, seed)
    sums = as_kernel(base, arrays)
    actual = np.empty(base.y.size, np.float32)
    with np.errstate(all="ignore"):
        for i in range(base.y.size):
            values = {"acc": sums[i]} | {n: arrays[n].reshape(-1)[i] for n in "ab"}
            actual[i] = in_float32(expression, values)
    report = verify.check(problem, arrays, actual.reshape(base.y.shape))
    assert report or "nothing of y could be checked" in report.message, report


def test_integers_that_float32_does_not_hold_are_rounded_ones():
    """A kernel converts an s32 operand as it converts acc: 2^24 + 1 becomes 2^24.  5 stays 5."""
    base = make(c=2, k=3, dtype="s8")
    base = dataclasses.replace(base, y=dataclasses.replace(base.y, dtype="s32"))
    z = Tensor("z", "operand", "s32", base.y.dims, base.y.extents)
    value = ep.Call("max", (ep.OperandRef("z"), ep.Acc()))
    problem = with_epilogue(base, (ep.Assignment("y", value),), z)
    arrays = {role: np.zeros(getattr(problem, role).shape, np.int8) for role in "xw"}
    for number, right, wrong in ((2**24 + 1, 2**24, 2**24 - 8), (5, 5, 6)):
        arrays["z"] = np.full(z.shape, number, np.int32)
        assert verify.check(problem, arrays, np.full(base.y.shape, right, np.int32))
        assert not verify.check(problem, arrays, np.full(base.y.shape, wrong, np.int32))


@pytest.mark.parametrize(("more", "results"), [(1, [0.0, 1.0, 2.0]), (2, [2.0])])
def test_numbers_that_float32_does_not_hold_are_rounded_ones(more, results):
    base = make(**SMALL)
    difference = ep.Binary("-", ep.Number(2.0**24 + more), ep.Number(2.0**24))
    problem = with_epilogue(base, (ep.Assignment("y", difference),))
    arrays = verify.random_inputs(problem, 16)
    for result in (0.0, 1.0, 2.0, 64.0):
        assert bool(verify.check(problem, arrays, np.full(base.y.shape, result, np.float16))) == (result in results)


def test_what_lies_beyond_a_domain_is_not_checked():
    """sqrt(acc) is a NaN for half of the elements: another value there counts for nothing; the other half is held to
    its bounds."""
    base = make(**SMALL)
    problem = with_epilogue(base, (ep.Assignment("y", ep.Call("sqrt", (ep.Acc(),))),))
    arrays = verify.random_inputs(problem, 11)
    right = rounded(problem, reference(problem, arrays))
    beyond = np.isnan(right)
    report = verify.check(problem, arrays, right)
    assert report and "domain" not in report.message
    report = verify.check(problem, arrays, np.where(beyond, right.dtype.type(1), right))
    assert report and f"{beyond.sum()} of {right.size} elements may be outside" in report.message
    assert not verify.check(problem, arrays, np.where(beyond, right, right * 2))
    assert not verify.check(problem, arrays, np.full_like(right, np.nan))


def test_a_result_of_which_nothing_can_be_checked_is_not_right():
    base = make(**SMALL)
    minus = ep.Binary("-", ep.Number(-1.0), ep.Binary("*", ep.Acc(), ep.Acc()))
    problem = with_epilogue(base, (ep.Assignment("y", ep.Call("sqrt", (minus,))),))
    arrays = verify.random_inputs(problem, 12)
    right = rounded(problem, reference(problem, arrays))
    assert np.isnan(right).all() and verify.check(problem, arrays, right)
    report = verify.check(problem, arrays, np.ones_like(right))
    assert not report and "nothing of y could be checked" in report.message


@pytest.mark.parametrize("wrong", [1.0, np.inf, -np.inf, np.nan])
def test_infinities_and_nans_of_inputs_are_checked(wrong):
    """What an infinity or NaN of x or of an operand leads to is as certain as any other value."""
    base = make(c=2, k=3, dtype="f32")
    z = Tensor("z", "operand", "f32", base.y.dims, base.y.extents)
    problem = with_epilogue(base, (ep.Assignment("y", ep.Binary("+", ep.Acc(), ep.OperandRef("z"))),), z)
    arrays = verify.random_inputs(problem, 14)
    arrays["x"][0, 0, 0, 0] = np.inf
    arrays["x"][0, 3, 3, 1] = np.nan
    arrays["z"][0, 0, 0, 0] = -np.inf
    arrays["z"][0, 0, 1, 1] = np.nan
    right = rounded(problem, reference(problem, arrays))
    special = ~np.isfinite(right)
    assert special.any() and not special.all()
    report = verify.check(problem, arrays, right)
    assert report and "unchecked" not in report.message
    for at in zip(*np.nonzero(special), strict=True):
        if not np.array_equal(right[at], wrong, equal_nan=True):
            changed = right.copy()
            changed[at] = wrong
            assert not verify.check(problem, arrays, changed)


def test_integers_have_zero_for_a_nan():
    """As PTX's cvt from f32 has it."""
    base = make(c=2, k=3, dtype="f32")
    problem = dataclasses.replace(base, y=dataclasses.replace(base.y, dtype="s8"))
    arrays = verify.random_inputs(problem, 15)
    arrays["x"][:] = np.nan
    assert verify.check(problem, arrays, np.zeros(problem.y.shape, np.int8))
    assert not verify.check(problem, arrays, np.ones(problem.y.shape, np.int8))


def test_what_is_clipped_to_a_domain_is_checked():
    """sqrt(relu(acc)), and log of it where it is positive."""
    positive = ep.Binary(">", ep.Acc(), ep.Number(0.5))
    for value in (
        ep.Call("sqrt", (ep.Call("relu", (ep.Acc(),)),)),
        ep.Call("select", (positive, ep.Call("log", (ep.Acc(),)), ep.Number(0.0))),
    ):
        problem = with_epilogue(make(**SMALL), (ep.Assignment("y", value),))
        arrays = verify.random_inputs(problem, 12)
        right = rounded(problem, reference(problem, arrays))
        assert "not checked" not in verify.check(problem, arrays, right).message
        assert verify.check(problem, arrays, right)
        assert not verify.check(problem, arrays, right + right.dtype.type(0.25))


@settings(max_examples=50, deadline=None)
@given(st.data(), SEEDS)
def test_epilogues_work_for_every_operator_and_layout(data, seed):
    """An operand broadcasts by name over the result, whatever the operator and the layouts."""

    @st.composite
    def bias(draw, result):
        b = draw(operands(result, "b"))
        return ep.Epilogue((b,), (ep.Assignment(result.name, ep.Binary("+", ep.Acc(), ep.OperandRef("b"))),))

    problem = data.draw(problems(work=500, epilogues=bias))
    arrays = verify.random_inputs(problem, seed)
    plain = accumulate(problem, arrays)
    b = problem.operands[0]
    expected = np.empty(plain.shape)
    for index in np.ndindex(plain.shape):
        at = dict(zip(problem.result.dims, index, strict=True))
        expected[index] = plain[index] + arrays["b"][tuple(at[d] for d in b.dims)]
    np.testing.assert_allclose(reference(problem, arrays), expected.reshape(problem.result.shape))
