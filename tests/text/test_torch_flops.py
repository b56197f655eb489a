"""torch's FLOP counter counts convgen's operators as it counts torch's own convolutions."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convgen.torch as ct  # noqa: E402

torch.set_num_threads(1)
nn, TF = torch.nn, torch.nn.functional


def flops(run) -> dict:
    """Of what each module does, and of all."""
    with FlopCounterMode(display=False) as counter:
        run()
    return {name: sum(each.values()) for name, each in counter.get_flop_counts().items()}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2},
        {"groups": 2, "padding": 1},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers_count_as_torchs(rank, options, device):
    layer = getattr(nn, f"Conv{rank}d")(4, 6, 3, **options, device=device)
    own = getattr(ct, f"Conv{rank}d").from_module(layer)
    x = torch.randn(2, 4, *(7, 8, 9)[:rank], device=device, requires_grad=True)
    for run in (lambda of: of(x.detach()), lambda of: of(x).sum().backward()):
        expected = flops(lambda run=run: run(layer))
        assert expected["Global"] > 0
        assert flops(lambda run=run: run(own)) == expected


def test_gradients_count_by_themselves():
    tensors = torch.randn(2, 4, 7, 8), torch.randn(6, 4, 3, 3), torch.randn(6)
    for wanted in itertools.product([False, True], repeat=3):
        if any(wanted):
            given = [tensor.clone().requires_grad_(wants) for tensor, wants in zip(tensors, wanted, strict=True)]
            counts = [flops(lambda conv=conv: conv(*given).sum().backward()) for conv in (TF.conv2d, ct.conv2d)]  # noqa: B023
            assert counts[0] == counts[1]


def test_operators_of_networks_count_as_convolutions():
    x, w, out = torch.randn(2, 4, 7, 8), torch.randn(6, 4, 3, 3), torch.empty(2, 6, 5, 6)
    ops, geometry = torch.ops.convgen, ([1, 1], [0, 0], [1, 1], 1)
    expected = flops(lambda: TF.conv2d(x, w))
    assert flops(lambda: ops.fused_conv(x, w, [], "relu", *geometry)) == expected
    assert flops(lambda: ops.fused_conv_into(out, x, w, [], "relu", *geometry)) == expected
    assert flops(lambda: ops.conv_sums(x, w, [], "", "value square", *geometry)) == expected
    up = flops(lambda: TF.conv_transpose2d(out, w))
    assert flops(lambda: ops.fused_conv(out, w, [], "relu", *geometry, "zeros", True)) == up
    assert flops(lambda: ops.fused_conv_into(x, out, w, [], "", *geometry, transposed=True)) == up
    assert flops(lambda: ops.conv_input_sums(out, w, [], "", "value", x.shape, *geometry)) == up


@pytest.mark.parametrize("inductor", [False, pytest.param(True, marks=pytest.mark.costly)])
def test_an_optimized_model_counts_as_its_model(inductor):
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(8, 4, 1)
    ).eval()
    x = torch.randn(2, 4, 9, 9)
    fast = ct.optimize(model, x, inductor=inductor)
    with torch.no_grad():
        assert flops(lambda: fast(x))["Global"] == flops(lambda: model(x))["Global"]
