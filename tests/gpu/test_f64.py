"""float64 on a GPU: kernels beside torch's results, and torch's own checks of gradients."""

from __future__ import annotations

import cupy
import pytest

import convgen
from convgen.ir.verify import check, random_inputs

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen import functional as CF  # noqa: E402
from convgen.torch import ops  # noqa: E402
from convgen.torch.choices import Choices  # noqa: E402

DOUBLE = {"device": "cuda", "dtype": torch.float64}
#: Input, channels a group, filters, taps, and the arguments of conv1d to conv3d.
GEOMETRIES = [
    ((2, 4, 9), (6, 4, 3), dict(padding=1)),
    ((2, 4, 9), (6, 2, 3), dict(stride=2, padding=2, dilation=2, groups=2)),
    ((2, 4, 5, 6), (6, 4, 3, 3), dict(padding=1)),
    ((2, 4, 6, 5), (4, 2, 3, 2), dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)),
    ((1, 3, 7, 7), (3, 1, 3, 3), dict(stride=3, padding="valid", groups=3)),
    ((1, 2, 5, 6), (3, 2, 3, 3), dict(padding=1, padding_mode="reflect")),
    ((1, 2, 4, 5, 3), (2, 2, 3, 3, 2), dict(padding=1)),
    ((1, 4, 4, 5, 3), (4, 2, 2, 3, 2), dict(stride=(1, 2, 1), padding=(1, 1, 0), groups=2)),
]


@pytest.fixture(autouse=True)
def _convgen_computes_gradients(monkeypatch):
    """Whichever is faster."""
    monkeypatch.setattr(ops, "choices", Choices(measure=False))


def of(shape, bias=None):
    return torch.randn(shape, **DOUBLE, requires_grad=True)


@pytest.mark.parametrize(("x", "w", "arguments"), GEOMETRIES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_pass_torchs_checks(x, w, arguments, channels_last):
    if channels_last and len(x) == 3:
        pytest.skip("torch has no such format of three axes")
    function = (ct.conv1d, ct.conv2d, ct.conv3d)[len(x) - 3]
    form = torch.channels_last if len(x) == 4 else torch.channels_last_3d

    def convolution(x, w, b):
        return function(x.to(memory_format=form) if channels_last else x, w, b, **arguments)

    inputs = of(x), of(w), of(w[0])
    assert torch.autograd.gradcheck(convolution, inputs)
    assert torch.autograd.gradgradcheck(convolution, inputs)
    rows = list(ops.choices.report.rows)
    assert rows and all(row.kernel.startswith("direct") for row in rows), str(ops.choices.report)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_pass_torchs_checks(rank):
    function = (torch.nn.functional.conv_transpose1d, torch.nn.functional.conv_transpose2d,
                torch.nn.functional.conv_transpose3d)[rank - 1]  # fmt: skip
    inputs = of((2, 4, *(4, 3, 2)[:rank])), of((4, 2, *(3, 2, 3)[:rank])), of(4)
    arguments = dict(stride=2, padding=1, output_padding=1, groups=2)
    with ct.enabled(measure=False) as serving:
        for _ in range(2):  # aten computes until the kernels are built
            function(*inputs, **arguments).sum().backward()
            serving.wait()
        assert torch.autograd.gradcheck(lambda *given: function(*given, **arguments), inputs, nondet_tol=1e-12)
    assert any(row.kernel.startswith("direct") for row in serving.report.rows), str(serving.report)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_functional_is_torch_to_the_last_digits(rank):
    x, w = (torch.randn(2, 4, *(7, 6, 5)[:rank], **DOUBLE), torch.randn(6, 4, *(3, 2, 3)[:rank], **DOUBLE))
    with torch.no_grad():
        expected = getattr(torch.nn.functional, f"conv{rank}d")(x, w, stride=2, padding=1)
        found = getattr(CF, f"conv{rank}d")(x, w, stride=2, padding=1)
    assert found.dtype is torch.float64 and (found - expected).norm() <= 1e-14 * expected.norm()


def test_functions_and_sums_are_right_to_64_bits():
    kernel = convgen.compile("""
        conv a {
          input x: f64[n=8, h=20, w=20, c=6]  filter w: f64[k=10, r=3, s=3, c=6]  output y: f64[n, p, q, k]
          epilogue {
            operand b: f64[k]  result s: f64[k]
            t = gelu(acc + b) + gelu_tanh(acc) + silu(b) + log(abs(acc) + 1) + tanh(acc) + exp(min(acc, 1))
            s = t
            y = clamp(t, -3, 3)
          }
        }""")
    arrays = random_inputs(kernel.plan.problem, seed=0)
    found = kernel(*map(cupy.asarray, arrays.values()))
    assert (report := check(kernel.plan.problem, arrays, tuple(map(cupy.asnumpy, found)))), report
