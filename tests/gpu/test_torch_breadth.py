"""Models as people write them, optimized on a GPU: of one and of three axes, with views, numbers and norms around."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

nn, TF = torch.nn, torch.nn.functional
pytestmark = pytest.mark.usefixtures("torch_cuda", "torch_draws")


class Vocoder(nn.Module):
    """Of one-dimensional convolutions, whose weights are computed."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first, self.up = norm(nn.Conv1d(16, 64, 7, padding=3)), norm(nn.ConvTranspose1d(64, 32, 4, 2, padding=1))
        self.blocks = nn.ModuleList([norm(nn.Conv1d(32, 32, 3, padding=d, dilation=d)) for d in (1, 3)])
        self.last = nn.Conv1d(64, 1, 7)

    def forward(self, x):
        x = self.up(TF.leaky_relu(self.first(x), 0.1))
        for block in self.blocks:
            x = x + block(TF.leaky_relu(x, 0.1))
        return torch.tanh(self.last(TF.pad(torch.cat([x, x.flip(2)], 1), (6, 0))))


class Video(nn.Module):
    """BatchNorm behind an activation, a number of the CPU, a GroupNorm over pixels in a row, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv3d(8, 32, 3, padding=1), nn.BatchNorm3d(32), nn.Conv3d(32, 32, 3, padding=1)
        self.rows = nn.GroupNorm(4, 32)
        nn.init.uniform_(self.norm.running_mean, -1, 1)

    def forward(self, x):
        y = self.a(x)
        y = self.b(self.norm(torch.where(y > 0, y, 0.1 * y)) * torch.tensor(2.0).sqrt())
        rows = self.rows(y.permute(0, 2, 3, 4, 1).flatten(1, 3).transpose(1, 2))
        return rows.reshape(y.shape), torch.exp(-torch.square(self.b(y)))


class Wave(nn.Module):
    """A causal layer of WaveNet: a gate, and sums of a residual and of what is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated, self.both = nn.Conv1d(64, 128, 3, padding=4, dilation=2), nn.Conv1d(64, 128, 1)

    def forward(self, x):
        y = self.dilated(x)[:, :, :-4]
        y = self.both(torch.tanh(y[:, :64].contiguous()) * torch.sigmoid(y[:, 64:]))
        return TF.leaky_relu(self.dilated(x + y[:, :64])[:, :, :-4].contiguous()), TF.relu(x + y[:, 64:])


class Gates(nn.Module):
    """GLU, a gate behind a depthwise convolution, which reads halves of its input, and an image without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(32, 128, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(32, 32, 3)

    def forward(self, x):
        u, v = self.b(TF.glu(self.a(x), 1)).chunk(2, 1)
        return TF.silu(self.c(u * v)), TF.relu(self.c(x[0])) + 1


KINDS = [(Vocoder, (2, 16, 96)), (Video, (1, 8, 4, 12, 12)), (Wave, (2, 64, 200)), (Gates, (2, 32, 20, 20))]


@pytest.mark.parametrize("inductor", [False, True])
@pytest.mark.parametrize(("kind", "shape"), KINDS)
def test_models_as_people_write_them(kind, shape, inductor):
    model = kind().eval().half().cuda()
    x = torch.randn(shape, device="cuda").half()
    ready = ct.optimize(model, x, measure=False, inductor=inductor)
    served = [row for row in ready.report if row.kernel != "aten"]
    assert len(served) == len(ready.report), str(ready.report)
    with torch.no_grad():
        exact, own = copy.deepcopy(model).double()(x.double()), model(x)
        found = ready(x)
    for f, e, o in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, exact, own)), strict=True):
        assert (f.double() - e).norm() <= 1.5 * (o.double() - e).norm() + 1e-4 * e.norm()
        assert f.stride() == o.stride()
