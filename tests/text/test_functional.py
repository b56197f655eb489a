"""convgen.functional beside torch.nn.functional in float64: results, layouts, and what is refused."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import ConvgenError
from convgen import functional as F
from convgen.functional import call
from convgen.functional.kernels import Once
from convgen.functional.pointwise import ACTIVATIONS
from convgen.runtime.errors import CompileError, DriverError, Overlap, WrongShape, WrongType

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RANDOM = np.random.default_rng()


@pytest.fixture(autouse=True)
def random(seed, monkeypatch, torch_draws):
    """Each test draws the same arrays, whichever tests came before it."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(seed))


@pytest.fixture(autouse=True)
def _by_the_reference(monkeypatch):
    """Results by the reference, which takes no compiler: the emulator's tests are tests/emulated/test_functional.py."""
    monkeypatch.setattr(call, "EMULATED", -1)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def exact(a: np.ndarray):
    return torch.from_numpy(np.array(a)).double()


def check(found: np.ndarray, expected) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), expected.numpy(), rtol=1e-5, atol=1e-5)


@st.composite
def convolutions(draw):
    """Shapes and parameters of a convolution that torch takes, of any rank."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    filter, stride, dilation = ([draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    padding = draw(
        st.one_of(st.lists(st.integers(0, 2), min_size=rank, max_size=rank), st.sampled_from([0, 2, "valid"]))
    )
    spans = [d * (r - 1) + 1 for r, d in zip(filter, dilation, strict=True)]
    x = draw(st.integers(1, 2)), groups * draw(st.integers(1, 3)), *(s + draw(st.integers(0, 4)) for s in spans)
    w = groups * draw(st.integers(1, 3)), x[1] // groups, *filter
    return rank, x, w, stride, padding, dilation, groups


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.booleans())
def test_convolutions_and_gradients_are_torchs(drawn, channels_last):
    rank, x_shape, w_shape, *parameters = drawn
    x, w, b = array(*x_shape), array(*w_shape), array(w_shape[0])
    if channels_last:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    expected = getattr(TF, f"conv{rank}d")(exact(x), exact(w), exact(b), *parameters)
    found = getattr(F, f"conv{rank}d")(x, w, b, *parameters)
    check(found, expected)
    if min(x.shape[1:]) > 1:
        assert found.strides[1] == found.itemsize if channels_last else found.strides[-1] == found.itemsize

    y = array(*expected.shape)
    stride, padding, dilation, groups = parameters
    padding = 0 if padding == "valid" else padding
    expected = getattr(torch.nn.grad, f"conv{rank}d_input")(
        x_shape, exact(w), exact(y), stride, padding, dilation, groups
    )
    check(getattr(F, f"conv{rank}d_input")(x_shape, w, y, *parameters), expected)
    expected = getattr(torch.nn.grad, f"conv{rank}d_weight")(
        exact(x), w_shape, exact(y), stride, padding, dilation, groups
    )
    check(getattr(F, f"conv{rank}d_weight")(x, w_shape, y, *parameters), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@settings(max_examples=20, deadline=None)
@given(drawn=convolutions())
def test_padding_modes_are_torchs(mode, drawn):
    rank, x_shape, w_shape, stride, padding, dilation, groups = drawn
    padding = 0 if isinstance(padding, str) else padding
    pads = [padding] * rank if isinstance(padding, int) else padding
    most = {"reflect": -1, "circular": 0}.get(mode, 2)
    pads = [min(p, extent + most) for p, extent in zip(pads, x_shape[2:], strict=True)]
    x, w = array(*x_shape), array(*w_shape)
    given, filters = exact(x).requires_grad_(), exact(w).requires_grad_()
    padded = TF.pad(given, [p for p in reversed(pads) for _ in range(2)], mode=mode)
    expected = getattr(TF, f"conv{rank}d")(padded, filters, None, stride, 0, dilation, groups)
    parameters = stride, pads, dilation, groups
    check(getattr(F, f"conv{rank}d")(x, w, None, *parameters, padding_mode=mode), expected.detach())
    y = array(*expected.shape)
    dx, dw = torch.autograd.grad(expected, (given, filters), exact(y))
    check(getattr(F, f"conv{rank}d_input")(x_shape, w, y, *parameters, padding_mode=mode), dx)
    check(getattr(F, f"conv{rank}d_weight")(x, w_shape, y, *parameters, padding_mode=mode), dw)


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.data())
def test_transposed_convolutions_are_torchs(drawn, data):
    rank, y_shape, (c, _, *filter), stride, padding, dilation, groups = drawn
    y, w = array(*y_shape), array(y_shape[1], c // groups, *filter)
    padding = 0 if isinstance(padding, str) else padding
    pads = [padding] * rank if isinstance(padding, int) else padding
    extents = zip(y_shape[2:], stride, filter, dilation, pads, strict=True)
    least = [max(0, 2 * p - (e - 1) * s - d * (r - 1)) for e, s, r, d, p in extents]
    extra = [data.draw(st.integers(low, s - 1)) if low < s else None for low, s in zip(least, stride, strict=True)]
    if None in extra:
        return  # torch, too, wants a result of at least one pixel
    arguments = (stride, padding, extra, groups, dilation)
    expected = getattr(TF, f"conv_transpose{rank}d")(exact(y), exact(w), None, *arguments)
    check(getattr(F, f"conv_transpose{rank}d")(y, w, None, *arguments), expected)


def test_an_output_padding_beyond_the_stride_takes_the_place_of_padding():
    x, w = array(1, 4, 5, 6), array(4, 2, 3, 3)
    arguments = dict(stride=1, padding=2, output_padding=2, dilation=3)
    check(F.conv_transpose2d(x, w, **arguments), TF.conv_transpose2d(exact(x), exact(w), **arguments))
    with pytest.raises(ConvgenError, match=r"output_padding 2 on axis [HW] adds pixels that no convolution") as error:
        F.conv_transpose2d(x, w, **(arguments | {"padding": 0}))
    assert "append pixels that are the bias, or 0 without one" in str(error.value)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 3)] * 2), st.integers(1, 2), st.integers(0, 2), st.tuples(*[st.integers(1, 3)] * 2))
def test_im2col_and_col2im_are_unfold_and_fold(kernel_size, dilation, padding, stride):
    x = array(2, 3, 9, 8)
    expected = TF.unfold(exact(x), kernel_size, dilation, padding, stride)
    check(F.im2col(x, kernel_size, dilation, padding, stride), expected)
    m = array(*expected.shape)
    expected = TF.fold(exact(m), (9, 8), kernel_size, dilation, padding, stride)
    check(F.col2im(m, (9, 8), kernel_size, dilation, padding, stride), expected)


#: torch's function of each activation's name, with these numbers.
_TORCH = {
    **{
        name: (getattr(TF, name), ())
        for name in ("relu", "relu6", "silu", "hardswish", "hardsigmoid", "softplus", "mish")
    },
    "hardtanh": (TF.hardtanh, (-0.5, 0.25)),
    "clamp": (torch.clamp, (-0.5, 0.25)),
    "clamp_min": (torch.clamp_min, (-0.5,)),
    "clamp_max": (torch.clamp_max, (0.5,)),
    "leaky_relu": (TF.leaky_relu, (0.2,)),
    "elu": (TF.elu, (0.5,)),
    "gelu": (TF.gelu, ()),
    "gelu_tanh": (lambda t: TF.gelu(t, approximate="tanh"), ()),
    "sigmoid": (torch.sigmoid, ()),
    "tanh": (torch.tanh, ()),
    "softsign": (TF.softsign, ()),
    "exp": (torch.exp, ()),
    "sqrt": (torch.sqrt, ()),
    "square": (torch.square, ()),
    "abs": (torch.abs, ()),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs(name):
    function, numbers = _TORCH[name]
    x, w, b, z = array(2, 3, 5, 6), array(4, 3, 3, 3), array(4), array(2, 4, 5, 6)
    w *= 1 if name == "exp" else 8
    found = F.conv2d(x, w, b, padding="same", activation=(name, *numbers), residual=z)
    expected = TF.conv2d(exact(x), exact(w), exact(b), padding="same") + exact(z)
    check(found, function(expected, *numbers))


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (4, 1, 1), (2, 4, 1, 1), (1, 1, 5, 6), (1,), (6,), ()])
def test_a_residual_broadcasts_as_torchs_tensors_do(shape):
    x, w, z = array(2, 3, 5, 6), array(4, 3, 1, 1), array(*shape)
    check(F.conv2d(x, w, residual=z), TF.conv2d(exact(x), exact(w)) + exact(z))
    expanded = np.broadcast_to(z, (2, 4, 5, 6))
    check(F.conv2d(x, w, residual=expanded), TF.conv2d(exact(x), exact(w)) + exact(expanded))


def test_padding_may_differ_on_the_sides_of_an_axis():
    x, w = array(2, 3, 5, 6), array(4, 3, 3, 3)
    padded = TF.pad(exact(x), (0, 2, 1, 0))
    check(F.conv2d(x, w, padding=[[1, 0], (0, 2)]), TF.conv2d(padded, exact(w)))


def test_arrays_that_are_not_packed_are_copied():
    x, w = array(2, 6, 11, 12)[:, ::2, 1:-1], array(8, 3, 3, 3)[::2]
    check(F.conv2d(x, w, residual=array(2, 4, 7, 10)[..., ::-1] * 0), TF.conv2d(exact(x), exact(w)))


def test_batches_may_be_absent_or_empty():
    x, w = array(3, 5, 6), array(4, 3, 3, 3)
    check(F.conv2d(x, w), TF.conv2d(exact(x), exact(w)))
    assert F.conv2d(x[None][:0], w, padding=1).shape == (0, 4, 5, 6)
    assert F.conv_transpose2d(array(0, 4, 5, 6), w).shape == (0, 3, 7, 8)
    assert F.conv2d_input((0, 3, 5, 6), w, array(0, 4, 3, 4)).shape == (0, 3, 5, 6)
    check(F.conv2d_weight(array(0, 3, 5, 6), (4, 3, 3, 3), array(0, 4, 3, 4)), torch.zeros(4, 3, 3, 3))
    assert F.im2col(array(0, 3, 5, 6), 3).shape == (0, 27, 12) and F.col2im(array(0, 27, 12), (5, 6), 3).size == 0


def test_columns_have_no_batch_where_the_input_has_none():
    x, m = array(3, 5, 6), array(27, 12)
    check(F.im2col(x, (3, 3)), TF.unfold(exact(x), (3, 3)))
    check(F.col2im(m, (5, 6), 3), TF.fold(exact(m), (5, 6), 3))
    assert F.im2col(x, 3).shape == (3, 15, 4)  # a batch of one axis


def test_out_is_returned_and_may_be_empty():
    w = array(4, 3, 3, 3)
    for shape in ((3, 5, 6), (2, 3, 5, 6), (0, 3, 5, 6)):
        x = array(*shape)
        out = np.empty((*shape[:-3], 4, 3, 4), np.float32)
        assert F.conv2d(x, w, out=out) is out
        check(out, TF.conv2d(exact(x), exact(w)))
    empty = np.lib.stride_tricks.as_strided(out, out.shape, (0, 0, 0, 0))
    assert F.conv2d(x, w, out=empty) is empty


def test_autograd_knows_that_out_was_written():
    x, w = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 1, 1)
    for write in (lambda out: F.conv2d(x, w, out=out), lambda out: torch.add(x, 1, out=out)):
        out, factor = torch.zeros(1, 4, 6, 6), torch.ones(1, 4, 6, 6, requires_grad=True)
        loss = (factor * out).sum()
        write(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        out = torch.zeros(1, 4, 6, 6)  # has no version
        F.conv2d(x, w, out=out)
    F.conv2d(x, w, out=out)
    check(out, TF.conv2d(x, w))


def test_tensors_without_memory_are_refused():
    x, w = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    for sparse, said in ((x.to_sparse(), "sparse_coo"), (x.to_mkldnn(), "_mkldnn")):
        with pytest.raises(WrongType, match=rf"input has layout torch.{said}\nhint: pass input.to_dense\(\)"):
            F.conv2d(sparse, w)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    transforms = {
        "vmap": lambda: torch.vmap(lambda x: F.conv2d(x[None], w))(x),
        "jvp": lambda: torch.func.jvp(lambda x: F.conv2d(x, w), (x,), (x,)),
        "fake": lambda: F.conv2d(fake, w),
        "nested": lambda: F.conv2d(torch.nested.nested_tensor([x[0], x[0]]), w),
    }
    for run in transforms.values():
        with pytest.raises(WrongType, match=r"input has no memory of its own.*\nhint: call convgen.torch"):
            run()


def test_negative_views_are_read_as_torch_reads_them_and_not_written():
    whole, w, z = torch.randn(2, 5, 6, 8), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 3, 4)
    x = whole.permute(0, 3, 1, 2)[:, 2:5]  # a slice of channels, read as it lies
    negative = torch._neg_view
    check(F.conv2d(negative(x), negative(w), residual=negative(z)), TF.conv2d(x, w) - z)
    check(F.conv2d(negative(x.contiguous()), w), -TF.conv2d(x, w))
    with pytest.raises(ConvgenError, match="out is a negative view"):
        F.conv2d(x, w, out=negative(z))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_torchs_tensors_on_the_host_give_torchs_tensors(dtype):
    dtype = getattr(torch, dtype)
    x = torch.randn(2, 3, 5, 6).to(dtype).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3).to(dtype)
    found = F.conv2d(x, w)
    assert found.dtype is dtype and found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, TF.conv2d(x.double(), w.double()).to(dtype))  # a step of the type apart at most


def test_int8_sums_are_int32():
    x, w = (RANDOM.integers(-128, 128, shape).astype(np.int8) for shape in ((1, 4, 5, 5), (2, 4, 3, 3)))
    found = F.conv2d(x, w)
    assert found.dtype == np.int32
    check(found, TF.conv2d(exact(x), exact(w)))


def test_layouts_of_the_kernel_are_those_of_the_arrays():
    x, w = torch.zeros(2, 16, 8, 8), torch.zeros(32, 16, 3, 3)
    last = dict(memory_format=torch.channels_last)
    for x_format, w_format, dims in [
        ({}, {}, ["nchw", "kcrs"]),
        (last, {}, ["nhwc", "kcrs"]),
        (last, last, ["nhwc", "krsc"]),
        ({}, last, ["nchw", "krsc"]),
    ]:
        kernel = F.kernel(F.conv2d, x.to(**x_format), w.to(**w_format))
        assert ["".join(t.dims) for t in kernel.manifest.reads] == dims


def test_a_kernel_is_built_once_whichever_thread_asks_first():
    made = []
    meet = threading.Barrier(8)

    def make(key: str) -> str:
        made.append(key)
        return key.upper()

    once = Once(make)

    def ask(key: str) -> str:
        meet.wait()
        return once(key)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, "abababab")) == list("ABABABAB")
    assert sorted(made) == ["a", "b"]


@pytest.mark.parametrize(("error", "times"), [(CompileError("no"), 1), (DriverError("out of memory"), 2)])
def test_a_verdict_is_kept_as_a_kernel_is_and_a_fault_is_not(error, times):
    made = []

    def make(key: int) -> int:
        made.append(key)
        raise error

    once = Once(make)
    for _ in range(2):
        with pytest.raises(type(error)):
            once(1)
    assert len(made) == times


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(input=array(1, 4, 5, 5)), "input has 4 channels in 1 group, and weight (4, 3, 3, 3) takes 3 per group"),
        (dict(input=array(1, 3, 5, 5).astype(np.int64)), "input has elements of int64"),
        (dict(input=array(1, 3, 5, 5).astype(">f4")), "input has elements of >f4, whose bytes are in another order"),
        (dict(input=array(1, 3, 5, 5).astype(np.float64)), "input has elements of f64, weight of f32: expected one"),
        (dict(bias=array(4).astype(np.float64)), "bias has elements of f64, input of f32: expected one type"),
        (dict(residual=array(1).astype(np.float64)), "residual has elements of f64, input of f32: expected one type"),
        (dict(input=array(1, 3, 5, 5).astype(np.int32), weight=array(4, 3, 3, 3).astype(np.int32)),
         "input has elements of int32, which only operands and results have\nhint: convert input to one of float16, "),
        (dict(input=[[1.0]]), "input is of type list"),
        (dict(input=np.ma.masked_array(array(1, 3, 5, 5))), "input is of type numpy.MaskedArray: expected a NumPy, "),
        (dict(input=array(3, 5)), "expected 4 axes, the last 2 of them spatial"),
        (dict(weight=torch.zeros(4, 3, 3, 3)), "weight is of type torch.Tensor on cpu"),
        (dict(input=torch.zeros(1, 3, 5, 5), weight=torch.zeros(4, 3, 3, 3, requires_grad=True)), "convgen.torch"),
        (dict(bias=array(5)), "bias has shape (5,): expected 4 values, one for each channel"),
        (dict(bias=array(4, 1)), "expected one value per channel"),
        (dict(stride=0), "stride is 0: expected at least 1"),
        (dict(stride=(1, 2, 3)), "expected one number or 2"),
        (dict(dilation="two"), "dilation is 'two': expected a whole number"),
        (dict(padding="full"), 'numbers, "same" or "valid"'),
        (dict(padding="same", stride=2), "needs a stride of 1"),
        (dict(padding=((1, 2), 1)), "expected a number, or (low, high) of 2 axes"),
        (dict(padding=((1, 2, 3), (1, 2))), "expected a number, or (low, high) of 2 axes"),
        (dict(padding=((1, -2), (1, 2))), "expected at least 0"),
        (dict(padding_mode="wrap"), "padding_mode is 'wrap': expected 'zeros', 'reflect', 'replicate', 'circular'"),
        (dict(padding=5, padding_mode="reflect"), "axis H: padding 5 by 'reflect' of 5 pixels: expected at most 4"),
        (dict(groups=2), "does not divide 3 channels"),
        (dict(dilation=5), "axis H: the window spans 11 pixels, and the padded input has 5"),
        (dict(activation="swish"), "did you mean `silu`?"),
        (dict(activation=("relu", 1)), "takes no numbers"),
        (dict(activation=("elu", math.nan)), "takes at most 1 finite number"),
        (dict(activation=("elu", True)), "takes at most 1 finite number, not True"),
        (dict(activation=("elu", 10**400)), "takes at most 1 finite number"),
        (dict(activation=("elu", -1e99)), "activation 'elu' computes with float32, which does not hold -1e+99"),
        (dict(input=array(1, 3, 0, 5)), "input has shape (1, 3, 0, 5): a batch may be empty, and nothing else"),
        (dict(input=array(1, 0, 5, 5), weight=array(4, 0, 3, 3), bias=array(4)), "input has shape (1, 0, 5, 5)"),
        (dict(input=array(0, 3, 5, 5)), "an empty batch takes no kernel"),
        (dict(weight=array(4, 3, 0, 3)), "weight has shape (4, 3, 0, 3): a batch may be empty, and nothing else"),
        (dict(residual=array(1, 4, 2, 2)),
         "residual has shape (1, 4, 2, 2), which does not broadcast to the result's (1, 4, 3, 3)"),
        (dict(strategy="gemm"), "unknown strategy 'gemm'"),
        (dict(groups="two"), "groups is 'two': expected a whole number"),
        (dict(groups=True), "groups is True: expected a whole number"),
        (dict(stride=(1.0, 1)), "stride is 1.0: expected a whole number"),
        (dict(groups={1}), "groups is of type set: expected whole numbers"),
        (dict(stride=slice(2)), "stride is of type slice: expected whole numbers"),
        (dict(strategy=3), "strategy is of type int: expected text"),
        (dict(padding_mode=array(2)), "padding_mode is of type ndarray: expected text"),
        (dict(tune=array(2)), "unknown tuning array("),
        (dict(activation=()), "activation has no name in front: (): expected one such as 'relu', or None"),
        (dict(bias=1.0), "bias is of type float: expected a NumPy, CuPy or torch array"),
        (dict(bias=False), "bias is of type bool: expected a NumPy, CuPy or torch array"),
        (dict(activation="none"), "there is no activation 'none'\nhint: did you mean `None`?"),
        (dict(activation=torch.relu), "activation is of type builtin_function_or_method: expected a name"),
        (dict(stride=2**31), "stride is 2147483648: expected at most 2147483647"),
        (dict(input=torch.zeros(1, 3, 5, 5, device="meta"), weight=torch.zeros(4, 3, 3, 3, device="meta")),
         "input is of type torch.Tensor on meta"),
    ],
)  # fmt: skip
def test_mistakes_are_named(arguments, message):
    good = dict(input=array(1, 3, 5, 5), weight=array(4, 3, 3, 3))
    with pytest.raises(ConvgenError) as raised:
        F.kernel(F.conv2d, **(good | arguments))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("strategy", "message"), [("gemm", "unknown strategy 'gemm'"), ("depthwise", "depthwise cannot serve")]
)
def test_a_strategy_is_checked_where_the_reference_computes(strategy, message):
    """As it is where a kernel runs."""
    with pytest.raises(ConvgenError, match=message):
        F.conv2d(array(1, 3, 5, 5), array(4, 3, 3, 3), strategy=strategy)


def test_fields_of_records_are_copied():
    """Their elements lie no whole elements apart, so that strides in elements said that they were packed."""
    records = np.zeros(4, np.dtype([("bias", "f4"), ("used", "?")]))
    records["bias"] = array(4)
    x, w = array(1, 3, 5, 5), array(4, 3, 3, 3)
    check(F.conv2d(x, w, records["bias"]), TF.conv2d(*map(exact, (x, w, records["bias"]))))
    pixels = np.zeros((1, 5, 5), np.dtype([("channels", "f4", (3,)), ("flag", "u1")]))
    pixels["channels"] = x.transpose(0, 2, 3, 1)
    check(F.conv2d(pixels["channels"].transpose(0, 3, 1, 2), w), TF.conv2d(*map(exact, (x, w))))


def test_what_has_a_public_name_is_public():
    """`unfold` had been what makes a call of `im2col`, under the name of torch's function."""
    here = {n for n, f in vars(F).items() if inspect.isfunction(f) and f.__module__ == F.__name__ and n[0] != "_"}
    assert here == set(F.__all__)
    assert all(pickle.loads(pickle.dumps(getattr(F, name))) is getattr(F, name) for name in F.__all__)


WRONG = [
    None, True, -1, 0, 2, 1.5, math.nan, 2**70, "same", "x", b"x", (), (1, 2), ((1, 2), 3), [[1]], {1}, {1: 2},
    slice(1), object(), int, np.array(2), np.ones(2), np.ones((1, 4, 3, 3), object), torch.tensor([1, 2]), iter("ab"),
]  # fmt: skip


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_passed_the_answer_is_a_sentence(data):
    """A call that nothing is wrong with ends at its strategy."""
    good = dict(
        input=np.ones((1, 4, 6, 6)), weight=np.ones((8, 4, 3, 3)), grad_output=np.ones((1, 8, 4, 4)),
        input_size=(1, 4, 6, 6), weight_size=(8, 4, 3, 3), kernel_size=3, output_size=6, strategy="none such",
    )  # fmt: skip
    called = [F.conv2d, F.conv2d_input, F.conv2d_weight, F.conv_transpose2d, F.im2col, F.col2im]
    function = data.draw(st.sampled_from(called))
    names = inspect.signature(function).parameters
    wrong = data.draw(st.dictionaries(st.sampled_from(sorted(names)), st.sampled_from(WRONG), max_size=3))
    with pytest.raises(ConvgenError):
        F.kernel(function, **{name: good[name] for name in names if name in good} | wrong | {"strategy": "none such"})


def test_numbers_may_be_of_any_kind():
    x, w = array(1, 2, 5, 5), array(2, 1, 3, 3)
    kinds = dict(stride=torch.tensor([2, 1]), padding=np.int64(1), dilation=torch.tensor(1), groups=np.array(2))
    check(F.conv2d(x, w, **kinds), TF.conv2d(exact(x), exact(w), stride=(2, 1), padding=1, groups=2))
    steep = TF.leaky_relu(TF.conv2d(exact(x), exact(w), groups=2), 0.5)
    for slope in (np.float32(0.5), np.float64(0.5), Fraction(1, 2)):
        check(F.conv2d(x, w, groups=2, activation=("leaky_relu", slope)), steep)
    columns = array(1, 4, 9)
    check(F.col2im(columns, 4, 2), TF.fold(exact(columns), 4, 2))


def test_true_and_fractions_are_no_numbers_before_and_after_a_call_that_has_the_same_in_whole_numbers():
    x, w = array(1, 2, 5, 5), array(2, 2, 3, 3)
    wrong = (dict(groups=True), dict(stride=True), dict(stride=1.0), dict(padding=0.0), dict(dilation=(1, True)))
    for _ in range(2):
        for arguments in wrong:
            with pytest.raises(ConvgenError, match="expected a whole number"):
                F.conv2d(x, w, **arguments)
        check(F.conv2d(x, w), TF.conv2d(exact(x), exact(w)))


def test_an_array_in_a_size_s_place_is_not_shown_in_full():
    with pytest.raises(ConvgenError, match=r"^input_size is of type ndarray: expected whole numbers$"):
        F.conv2d_input(array(1, 3, 5, 5), array(4, 3, 3, 3), array(1, 4, 3, 3))


def test_a_size_that_is_none_is_named():
    w, y = array(4, 3, 3, 3), array(1, 4, 3, 3)
    with pytest.raises(ConvgenError, match=r"^input_size has 5.0: expected whole numbers$"):
        F.conv2d_input((1, 3, 5.0, 5), w, y)
    for wrong in ((4, 3, -3, 3), (0, 3, 3, 3)):
        with pytest.raises(ConvgenError, match=rf"^weight_size is {re.escape(str(wrong))}: expected extents of at"):
            F.conv2d_weight(array(1, 3, 5, 5), wrong, y)


def test_every_function_says_which_elements_it_reads():
    whole = array(1, 4, 3, 3).astype(np.int32)
    for wrong, name in (
        (lambda: F.conv2d_weight(whole, (4, 4, 1, 1), whole), "input"),
        (lambda: F.conv2d_input((1, 4, 3, 3), whole[:, :, :1, :1], whole[:, :1]), "grad_output"),
        (lambda: F.conv_transpose2d(whole, whole.transpose(1, 0, 2, 3)), "input"),
        (lambda: F.im2col(whole, 2), "input"),
        (lambda: F.col2im(whole[..., 0], 3, 1), "input"),
    ):
        with pytest.raises(ConvgenError, match=f"^{name} has elements of int32, which only operands and results have"):
            wrong()


@pytest.mark.parametrize("function", (F.conv2d, F.conv2d_input, F.conv_transpose1d, F.im2col, F.conv2d_tma_im2col))
@pytest.mark.parametrize("call", (lambda function: function(), lambda function: F.kernel(function, pad=1)))
def test_missing_and_unknown_arguments_are_those_of_the_function_that_was_called(function, call):
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\): (missing a required|got an unexpected)"):
        call(function)


def test_only_functions_of_the_module_have_kernels():
    with pytest.raises(ConvgenError, match="is not a function"):
        F.kernel(len, 1)


def test_a_filter_in_another_order_is_shown_as_it_was_passed():
    x, w = np.zeros((1, 8, 8, 16), np.float16), np.zeros((32, 16, 3, 3), np.float16)
    with pytest.raises(WrongShape, match=r"weight \(32, 16, 3, 3\), of \(k, r, s, c\), takes 3"):
        F.conv2d_tma_im2col(x, w)


@pytest.mark.parametrize("pixels", [4, 64], ids=["emulated", "by the reference"])
def test_a_result_that_overlaps_an_argument_is_refused_at_any_size(pixels):
    whole = np.ones((1, 80, pixels, pixels), np.float16)
    w, x = np.ones((64, 64, 3, 3), np.float16), whole[:, :64].copy()
    for read, out in ((x, x), (whole[:, :64], whole[:, 16:])):
        with pytest.raises(Overlap, match="out overlaps x in memory"):
            F.conv2d(read, w, padding=1, out=out)


@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (1, 8, 4, 4), (1, 8, 1, 4), (1, 8, 1, 1)])
def test_a_residual_may_be_the_results_own_array_whatever_its_extents(shape):
    x, z, w = array(*shape), array(*shape), array(8, 8, 1, 1)
    expected = F.conv2d(x, w, residual=z.copy())
    assert F.conv2d(x, w, residual=z, out=z) is z
    np.testing.assert_array_equal(z, expected)


def test_hints_name_what_there_is():
    x, w = array(1, 8, 4, 4), array(8, 8, 1, 1)
    with pytest.raises(ConvgenError, match="no activation 'nope'\\nhint: known are relu"):
        F.conv2d(x, w, activation="nope")
    with pytest.raises(ConvgenError, match="no activation 'None'\\nhint: did you mean `None`"):
        F.conv2d(x, w, activation="None")
    swapped = x.astype(x.dtype.newbyteorder(">"))
    with pytest.raises(ConvgenError, match="hint: convert input to float32, in the machine's own order of bytes"):
        F.conv2d(swapped, w)
