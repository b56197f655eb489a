"""`optimize` where values are NaN, infinite or denormal: what a model makes of them, on a CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
NAN = float("nan")


class Behind(nn.Module):
    """A function of a convolution's result."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(2, 2, 1, bias=False), function
        nn.init.dirac_(self.conv.weight)

    def forward(self, x):
        return self.function(self.conv(x))


@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (lambda y: torch.where(y > 0, y, 0.0), False),
        (lambda y: torch.where(y > 0, y, torch.zeros_like(y)), False),
        (lambda y: torch.where(y <= 0, 0.0, y), True),
        (lambda y: y.masked_fill(y <= 0, 0.0), True),
        (lambda y: torch.maximum(y, torch.zeros_like(y)), True),
        (lambda y: torch.where(y > 0, y, 0.1 * y), True),
    ],
)
def test_an_activation_that_is_written_out_keeps_nan_or_hides_it(function, fused):
    model = Behind(function).eval()
    x = torch.tensor([NAN, -1.0, 0.0, 2.0, 30.0, -30.0]).repeat(2).reshape(1, 2, 2, 3)
    ready = ct.optimize(model, x, inductor=False)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), equal_nan=True)
    (row,) = ready.report
    assert bool(row.fused) is fused, row


@pytest.mark.parametrize("divisor", [1e-40, 1e-38, 2e-38, -1e-45, 3.0])
def test_a_small_divisor(divisor):
    model = Behind(lambda y: y / divisor).eval()
    x = torch.tensor([0.0, -0.0, 1.0, -1e-42, 1e-38, 3e-30]).repeat(2).reshape(1, 2, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(ct.optimize(model, x, inductor=False)(x), model(x))


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)])
def test_a_model_that_writes_its_input_is_optimized_in_inference_mode(first):
    model = nn.Sequential(first, nn.Conv2d(2, 3, 1)).eval()
    with torch.inference_mode():
        given = [torch.linspace(-2, 2, 18).reshape(1, 2, 3, 3) for _ in range(3)]
        ready = ct.optimize(model, given[0], inductor=False)
        assert len(ready.report) == 1 and not any("parts" in note for note in ready.report.notes)
        torch.testing.assert_close(ready(given[1]), model(given[2]))
        torch.testing.assert_close(given[1], given[2])
        assert given[0].min() == -2  # preparing writes nothing
