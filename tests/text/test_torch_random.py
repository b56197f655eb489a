"""Random networks: whatever is rewritten between convolutions, results are the model's own, on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
SIDE = 12
MODES = ("nearest", "bilinear", "aligned", "bicubic")


def resized(x, size, mode: str):
    if tuple(x.shape[2:]) == tuple(size):
        return x
    corners = {} if mode == "nearest" else {"align_corners": mode == "aligned"}
    return TF.interpolate(x, size=tuple(size), mode="bilinear" if mode == "aligned" else mode, **corners)


class Network(nn.Module):
    """Convolutions, pools, interpolation, concatenations, sums, gates and tokens, each of images that are there."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.layers = nn.ModuleList()
        self.steps: list[Callable] = []
        self.shapes = [(8, SIDE, SIDE)]
        self.convolution(0, 3)
        for _ in range(self.draw.randint(6, 14)):
            made = (self.convolution, self.convolution, self.pool, self.interpolation, self.concatenation)
            others = (self.concatenation, self.sum, self.gate, self.excitation, self.tokens, self.part, self.contiguous)
            self.draw.choice(made + others)(self.draw.randrange(max(0, len(self.shapes) - 4), len(self.shapes)))
        last = len(self.shapes) - 1
        self.results = sorted({last, self.draw.randrange(last), self.draw.randrange(last)})

    def add(self, step: Callable, channels: int, *size: int) -> None:
        self.steps.append(step)
        self.shapes.append((channels, *size))

    def convolution(self, i: int, taps: int = 0) -> None:
        channels, *size = self.shapes[i]
        k, taps = self.draw.choice((4, 5, 8, 12, 16)), taps or self.draw.choice((1, 1, 3))
        activation = self.draw.choice((TF.relu, TF.silu, nn.Identity()))
        norm = nn.BatchNorm2d(k) if self.draw.random() < 0.3 else nn.Identity()
        layer = nn.Sequential(nn.Conv2d(channels, k, taps, padding=taps // 2, bias=self.draw.random() < 0.7), norm)
        self.layers.append(layer)
        self.add(lambda seen: activation(layer(seen[i])), k, *size)

    def pool(self, i: int) -> None:
        channels, *size = self.shapes[i]
        window = self.draw.choice(((2, 2), (3, 3), (5, 5), (7, 7), (3, 9)))
        pads, stride = [n // 2 for n in window], self.draw.choice((1, 1, 2))
        pooled = [(n + 2 * pad - extent) // stride + 1 for n, pad, extent in zip(size, pads, window, strict=True)]
        if min(pooled) > 0:
            self.add(lambda seen: TF.max_pool2d(seen[i], window, stride, pads), channels, *pooled)

    def interpolation(self, i: int) -> None:
        channels, h, w = self.shapes[i]
        size, mode = self.draw.choice(((2 * h, 2 * w), (h, w), (h + 1, w + 3), (SIDE, SIDE))), self.draw.choice(MODES)
        if max(size) <= 3 * SIDE:
            self.add(lambda seen: resized(seen[i], size, mode), channels, *size)

    def concatenation(self, i: int) -> None:
        size, mode = self.shapes[i][1:], self.draw.choice(MODES)
        parts = [i, *(self.draw.randrange(len(self.shapes)) for _ in range(self.draw.randint(1, 3)))]
        channels = sum(self.shapes[part][0] for part in parts)
        self.add(lambda seen: torch.cat([resized(seen[part], size, mode) for part in parts], 1), channels, *size)
        if self.draw.random() < 0.7:
            self.convolution(len(self.shapes) - 1)

    def sum(self, i: int) -> None:
        channels, *size = self.shapes[i]
        other, mode = self.draw.randrange(len(self.shapes)), self.draw.choice(MODES)
        if self.shapes[other][0] == channels:
            self.add(lambda seen: seen[i] + resized(seen[other], size, mode), channels, *size)

    def gate(self, i: int) -> None:
        self.add(lambda seen: seen[i] * seen[i].mean((2, 3), keepdim=True).sigmoid(), *self.shapes[i])

    def excitation(self, i: int) -> None:
        """By linear layers over rows of channels, of which a half may be a shift (FiLM)."""
        channels, shifts = self.shapes[i][0], self.draw.random() < 0.3
        squeeze, excite = nn.Linear(channels, 4, bias=self.draw.random() < 0.7), nn.Linear(4, channels * (1 + shifts))
        self.layers.extend([squeeze, excite])

        def step(seen):
            rows = excite(TF.relu(squeeze(seen[i].mean((2, 3)))))[:, :, None, None]
            return seen[i] * rows[:, :channels].sigmoid() + (rows[:, channels:] if shifts else 0)

        self.add(step, *self.shapes[i])

    def contiguous(self, i: int) -> None:
        self.add(lambda seen: seen[i].contiguous(), *self.shapes[i])

    def part(self, i: int) -> None:
        channels, *size = self.shapes[i]
        half = channels // 8 * 4
        if half:
            self.add(lambda seen: seen[i][:, half : 2 * half], half, *size)

    def tokens(self, i: int) -> None:
        channels = self.shapes[i][0]
        norm, linear, packs = nn.LayerNorm(channels), nn.Linear(channels, channels), self.draw.random() < 0.5
        self.layers.extend([norm, linear])

        def step(seen):
            tokens = norm(seen[i].flatten(2).transpose(1, 2))
            image = (tokens + linear(tokens)).transpose(1, 2).reshape(seen[i].shape)
            return image.contiguous() if packs else image

        self.add(step, *self.shapes[i])

    def forward(self, x):
        seen = [x]
        for step in self.steps:
            seen.append(step(seen))
        return tuple(seen[i] for i in self.results)


def check(seed: int, inductor: bool, dtype=torch.float32) -> None:
    torch.manual_seed(seed)
    model, x = Network(seed).eval().to(dtype), torch.randn(2, 8, SIDE, SIDE).to(dtype)
    fast = ct.optimize(model, x, inductor=inductor)
    assert not [note for note in fast.report.notes if "fails" in note]
    with torch.no_grad():
        found, own = fast(x), model(x)
        exact = Network(seed).eval().double()
        exact.load_state_dict(model.state_dict())
        right = exact(x.double())
    for ours, theirs, expected in zip(found, own, right, strict=True):
        error, least = float((theirs - expected).abs().max()), (2e-4 if dtype is torch.float32 else 4e-3)
        assert float((ours - expected).abs().max()) <= least * max(1.0, float(expected.abs().max())) + 4 * error
        if theirs.untyped_storage().nbytes() == theirs.numel() * theirs.element_size():  # it is no part of something
            assert ours.stride() == theirs.stride()


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10**6))
def test_results_are_the_models_own(seed):
    check(seed, inductor=False)


@pytest.mark.parametrize(("seed", "dtype"), [(0, torch.float32), (2, torch.float32), (9, torch.float16)])
def test_results_are_the_models_own_by_inductor(seed, dtype):
    check(seed, inductor=True, dtype=dtype)
