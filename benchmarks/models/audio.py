"""Networks of sound: speech made, separated, and recognized."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, leaky_relu, pad, relu
from torch.nn.utils.parametrizations import weight_norm


class _Residuals(nn.Module):
    """HiFi-GAN's: a dilated and a plain filter, one after the other, three times, each time added."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, taps, padding=taps // 2 * d, dilation=d)) for d in (1, 3, 5)
        )
        self.plain = nn.ModuleList(weight_norm(nn.Conv1d(width, width, taps, padding=taps // 2)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(leaky_relu(dilated(leaky_relu(x, 0.1)), 0.1))
        return x


class HifiGan(nn.Module):
    """HiFi-GAN's V1 generator (Kong et al., 2020): 256 samples for a frame of 80 mel bands."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(80, width, 7, padding=3))
        widths = [width >> i for i in range(5)]
        self.up = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(c, k, 2 * step, step, step // 2))
            for c, k, step in zip(widths, widths[1:], (8, 8, 2, 2), strict=False)
        )
        self.blocks = nn.ModuleList(nn.ModuleList(_Residuals(k, taps) for taps in (3, 7, 11)) for k in widths[1:])
        self.last = weight_norm(nn.Conv1d(widths[-1], 1, 7, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x = up(leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(leaky_relu(x)))


class Wav2vec2Features(nn.Module):
    """wav2vec 2.0's feature encoder (Baevski et al., 2020): a vector of 512 for 320 samples."""

    def __init__(self) -> None:
        super().__init__()
        taps, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
        self.layers = nn.ModuleList(
            nn.Conv1d(512 if i else 1, 512, r, step, bias=False)
            for i, (r, step) in enumerate(zip(taps, strides, strict=True))
        )
        self.norm = nn.GroupNorm(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = gelu(x if i else self.norm(x))
        return x


class Wavenet(nn.Module):
    """WaveNet (van den Oord et al., 2016) on all samples at once, as it is trained: two stacks of ten causal layers."""

    def __init__(self, width: int = 64, skip: int = 256, layers: int = 20, levels: int = 256) -> None:
        super().__init__()
        self.first = nn.Conv1d(levels, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 10)) for i in range(layers))
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in range(layers))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        skips: torch.Tensor | int = 0
        for dilated, residual, skip in zip(self.dilated, self.residual, self.skip, strict=True):
            signal, gate = dilated(pad(x, (dilated.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(signal) * torch.sigmoid(gate)
            skips = skips + skip(y)
            x = x + residual(y)
        return self.last(skips)


class _SeparableBlock(nn.Module):
    """Conv-TasNet's: a dilated depthwise filter between 1x1 ones; what goes on, and what skips all that follows."""

    def __init__(self, width: int, hidden: int, taps: int, dilation: int) -> None:
        super().__init__()
        depthwise = nn.Conv1d(hidden, hidden, taps, padding=dilation, dilation=dilation, groups=hidden)
        self.layers = nn.Sequential(
            nn.Conv1d(width, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden),
            depthwise, nn.PReLU(), nn.GroupNorm(1, hidden),
        )  # fmt: skip
        self.residual, self.skip = nn.Conv1d(hidden, width, 1), nn.Conv1d(hidden, width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        return x + self.residual(y), self.skip(y)


class ConvTasnet(nn.Module):
    """Conv-TasNet (Luo and Mesgarani, 2019): the voices of two who speak at once, as two channels."""

    def __init__(
        self, basis: int = 512, width: int = 128, hidden: int = 512, blocks: int = 8, repeats: int = 3
    ) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, basis, 16, 8, bias=False)
        self.first = nn.Sequential(nn.GroupNorm(1, basis), nn.Conv1d(basis, width, 1))
        self.blocks = nn.ModuleList(
            _SeparableBlock(width, hidden, 3, 2**i) for _ in range(repeats) for i in range(blocks)
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, 2 * basis, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encoded = relu(self.encoder(x))
        y = self.first(encoded)
        skips: torch.Tensor | int = 0
        for block in self.blocks:
            y, skip = block(y)
            skips = skips + skip
        masks = self.mask(skips).unflatten(1, (2, -1))
        voices = (masks * encoded[:, None]).flatten(0, 1)
        return self.decoder(voices).unflatten(0, (x.shape[0], 2)).flatten(1, 2)


class _TimeDelay(nn.Module):
    """ECAPA-TDNN's layer: normalized behind the activation."""

    def __init__(self, c: int, k: int, taps: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c, k, taps, padding=dilation * (taps // 2), dilation=dilation)
        self.norm = nn.BatchNorm1d(k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(relu(self.conv(x)))


class _Res2Block(nn.Module):
    """ECAPA-TDNN's: parts of the channels, each filtered with what the part before it gave; squeeze and excite."""

    def __init__(self, width: int, parts: int, dilation: int) -> None:
        super().__init__()
        self.parts = parts
        part = width // parts
        self.first = _TimeDelay(width, width, 1)
        self.filters = nn.ModuleList(_TimeDelay(part, part, 3, dilation) for _ in range(parts - 1))
        self.last = _TimeDelay(width, width, 1)
        self.scale = nn.Sequential(nn.Conv1d(width, 128, 1), nn.ReLU(), nn.Conv1d(128, width, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *rest = self.first(x).chunk(self.parts, 1)
        found = [first]
        for i, (layer, part) in enumerate(zip(self.filters, rest, strict=True)):
            found.append(layer(part + found[-1] if i else part))
        y = self.last(torch.cat(found, 1))
        return x + y * self.scale(y.mean(2, keepdim=True))


class EcapaTdnn(nn.Module):
    """ECAPA-TDNN (Desplanques et al., 2020): a vector of 192 for whoever speaks, from frames of 80 mel bands."""

    def __init__(self, width: int = 1024, parts: int = 8, pooled: int = 1536) -> None:
        super().__init__()
        self.first = _TimeDelay(80, width, 5)
        self.blocks = nn.ModuleList(_Res2Block(width, parts, dilation) for dilation in (2, 3, 4))
        self.join = _TimeDelay(3 * width, pooled, 1)
        self.attention = nn.Sequential(nn.Conv1d(3 * pooled, 128, 1), nn.Tanh(), nn.Conv1d(128, pooled, 1))
        self.last = nn.Sequential(nn.BatchNorm1d(2 * pooled), nn.Linear(2 * pooled, 192))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        found = []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = self.join(torch.cat(found, 1))
        mean = x.mean(2, keepdim=True)
        deviation = x.var(2, keepdim=True, unbiased=False).clamp_min(1e-6).sqrt()
        weights = self.attention(torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], 1)).softmax(2)
        mean = (x * weights).sum(2)
        deviation = ((x * x * weights).sum(2) - mean * mean).clamp_min(1e-6).sqrt()
        return self.last(torch.cat([mean, deviation], 1))
