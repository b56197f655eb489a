"""convgen.torch's functions and modules on a CPU: aten's results, and good manners towards the rest of torch."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
TF = torch.nn.functional
LAST = dict(memory_format=torch.channels_last)


def near(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_functions_are_torchs(rank, padding):
    x, w, b = torch.randn(2, 4, *[6] * rank), torch.randn(6, 2, *[2] * rank), torch.randn(6)
    expected = getattr(TF, f"conv{rank}d")(x, w, b, padding=padding, groups=2)
    near(getattr(ct, f"conv{rank}d")(x, w, b, padding=padding, groups=2), expected)
    near(getattr(ct, f"conv{rank}d")(x[0], w, b, padding=padding, groups=2), expected[0])


@pytest.mark.parametrize("record", [False, True])
def test_residual_and_activation(record):
    x, w, b, z = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 1, 1)
    w.requires_grad_(record)
    found = ct.conv2d(x, w, b, residual=z, activation=("leaky_relu", 0.2))
    near(found, TF.leaky_relu(TF.conv2d(x, w, b) + z, 0.2))
    assert found.requires_grad is record


MODES = ["zeros", "reflect", "replicate", "circular"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [[1, 1], [0, 1, 1, 1], [2, 0, 0, 3], [0, 0]])
def test_gradients_of_first_and_second_order(padding, mode):
    kinds = dict(dtype=torch.float64, requires_grad=True)
    tensors = torch.randn(2, 4, 5, 6, **kinds), torch.randn(6, 2, 3, 3, **kinds), torch.randn(6, **kinds)

    def conv(x, w, b):
        return torch.ops.convgen.conv(x, w, b, [1, 2], padding, [1, 1], 2, mode)

    assert torch.autograd.gradcheck(conv, tensors) and torch.autograd.gradgradcheck(conv, tensors)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("padding", [[1, 1], [0, 1, 1, 1], [2, 0, 0, 1, "reflect"]])
def test_operators_pass_opcheck(channels_last, padding):
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(6, 2, 3, 3, requires_grad=True), torch.randn(6, requires_grad=True)
    x = (x.to(**LAST) if channels_last else x).requires_grad_()
    *padding, mode = padding if "reflect" in padding else [*padding, "zeros"]
    geometry = [1, 2], padding, [1, 1], 2, mode
    torch.library.opcheck(torch.ops.convgen.conv.default, (x, w, b, *geometry))
    torch.library.opcheck(torch.ops.convgen.conv.default, (x, w, None, *geometry))
    x, w, b = x.detach(), w.detach(), b.detach()
    z = torch.ops.convgen.conv(x, w, None, *geometry)
    arguments = x, w, [b.view(6, 1, 1), z], "add silu add clamp:-1.0,1.0", *geometry
    torch.library.opcheck(torch.ops.convgen.fused_conv.default, arguments)


@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("w_last", [False, True])
def test_channels_are_last_where_torchs_are(x_last, w_last):
    x, w = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    x, w = x.to(**LAST) if x_last else x, w.to(**LAST) if w_last else w
    assert ct.conv2d(x, w).stride() == TF.conv2d(x, w).stride()


def test_autocast_casts_as_for_torchs_convolutions():
    x, w = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert ct.conv2d(x, w, activation="relu").dtype is torch.bfloat16


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(padding="same", dilation=2),
        *[dict(padding=p, padding_mode=m) for m in MODES[1:] for p in (1, "same")],
    ],
)
def test_modules_take_torchs_modules_over(rank, options):
    theirs = getattr(torch.nn, f"Conv{rank}d")(4, 6, 3, groups=2, **options)
    ours = getattr(ct, f"Conv{rank}d").from_module(theirs)
    x = torch.randn(2, 4, *[7] * rank)
    near(ours(x), theirs(x))
    assert ours.weight is theirs.weight and ours.state_dict().keys() == theirs.state_dict().keys()
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        near(made(x), theirs(x))
    ours(x).sum().backward()
    assert theirs.weight.grad is not None


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_batches_may_be_absent_or_empty(rank, mode):
    theirs = getattr(torch.nn, f"Conv{rank}d")(4, 6, 3, padding=1, padding_mode=mode)
    ours = getattr(ct, f"Conv{rank}d").from_module(theirs, activation="relu")
    for shape in ((4, *[5] * rank), (0, 4, *[5] * rank)):
        x, given = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
        expected, found = torch.relu(theirs(x)), ours(given)
        near(found, expected)
        gradients = torch.autograd.grad(expected.sum(), (x, *theirs.parameters()))
        for mine, other in zip(torch.autograd.grad(found.sum(), (given, *ours.parameters())), gradients, strict=True):
            near(mine, other)
        with torch.no_grad():
            near(ours(x), expected)


def test_padding_that_cannot_be_is_refused():
    x, w = torch.randn(1, 2, 3, 4), torch.randn(2, 2, 3, 3)
    with pytest.raises(ConvgenError, match="padding_mode is 'mirror': expected 'zeros', 'reflect'"):
        ct.conv2d(x, w, padding=1, padding_mode="mirror")
    with pytest.raises(ConvgenError, match="axis 0: padding 3 by 'reflect' of 3 pixels: expected at most 2"):
        ct.conv2d(x, w, padding=3, padding_mode="reflect")


def test_a_module_with_an_activation_shows_it():
    made = ct.Conv2d(3, 4, 3, activation="relu")
    assert "activation='relu'" in repr(made) and (made(torch.randn(1, 3, 5, 5)) >= 0).all()
    with pytest.raises(ConvgenError, match="there is no activation 'rleu'"):
        ct.Conv2d(3, 4, 3, activation="rleu")


def test_modules_can_be_exported():
    made = ct.Conv2d(3, 4, 3, activation="relu").eval()
    x = torch.randn(2, 3, 5, 6)
    with torch.no_grad():
        program = torch.export.export(made, (x,))
    assert torch.ops.convgen.fused_conv.default in [node.target for node in program.graph.nodes]
    near(program.module()(x), made(x))


def test_modules_compile_without_graph_breaks():
    made, x = ct.Conv2d(3, 4, 3, activation="relu"), torch.randn(2, 3, 5, 6)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    near(compiled(x), made(x))
    compiled(x).sum().backward()
    assert made.weight.grad is not None


class TestEnabled:
    def test_results_stay_and_reasons_are_told(self):
        model, x = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 6)
        expected = model(x)
        with ct.enabled() as serving:
            assert torch.equal(model(x), expected)
            model(x).sum().backward()
            torch.nn.ConvTranspose2d(3, 4, 3)(x)
            with ct.enabled() as inner:
                assert inner is serving
        assert [(row.layer, row.why_not) for row in serving.report] == [
            ("(2, 3, 5, 6) by (4, 3, 3, 3)", "not on a GPU"),
            ("(2, 3, 5, 6) by (3, 4, 3, 3)", "transposed"),
        ]
        model(x[:1])
        assert len(serving.report) == 2
