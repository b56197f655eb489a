"""Networks that give a better image: larger, or sharper."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import interpolate, leaky_relu

from models.parts import LayerNorm2d


class _DenseBlock(nn.Module):
    """ESRGAN's: five layers, each of which reads all before it; a fifth of the last is added to the input."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width + i * growth, growth, 3, padding=1) for i in range(4))
        self.last = nn.Conv2d(width + 4 * growth, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.last(torch.cat(parts, 1))


class _DenseBlocks(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.2 * super().forward(x)


class Esrgan(nn.Module):
    """ESRGAN's generator (Wang et al., 2018), Real-ESRGAN's, too: four times the height and the width."""

    def __init__(self, width: int = 64, growth: int = 32, blocks: int = 23) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.trunk = nn.Sequential(
            *(_DenseBlocks(*(_DenseBlock(width, growth) for _ in range(3))) for _ in range(blocks)),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.up = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.last = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + self.trunk(x)
        for up in self.up:
            x = leaky_relu(up(interpolate(x, scale_factor=2)), 0.2)
        return self.last(x)


class Edsr(nn.Module):
    """EDSR's baseline with residuals halved (Lim et al., 2017): twice the height and the width."""

    def __init__(self, width: int = 64, blocks: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.behind = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = y = self.first(x)
        for block in self.blocks:
            y = y + 0.5 * block(y)
        return self.up(x + self.behind(y))


class _NafBlock(nn.Module):
    """NAFNet's: products of two halves of the channels are the only nonlinearity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial_norm = LayerNorm2d(width)
        self.spatial = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        )
        self.attention = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.spatial_last = nn.Conv2d(width, width, 1)
        self.channel_norm = LayerNorm2d(width)
        self.channel = nn.Conv2d(width, 2 * width, 1)
        self.channel_last = nn.Conv2d(width, width, 1)
        self.beta, self.gamma = (  # zeros when training starts
            nn.Parameter(torch.full((1, width, 1, 1), 0.1)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.spatial(self.spatial_norm(x)).chunk(2, 1)
        y = left * right
        x = x + self.spatial_last(y * self.attention(y)) * self.beta
        left, right = self.channel(self.channel_norm(x)).chunk(2, 1)
        return x + self.channel_last(left * right) * self.gamma


def _naf_blocks(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(_NafBlock(width) for _ in range(depth)))


class Nafnet(nn.Module):
    """NAFNet of width 32 (Chen et al., 2022), with the depths that sharpen blurred photographs."""

    def __init__(
        self, width: int = 32, down: tuple[int, ...] = (1, 1, 1, 28), middle: int = 1, up: tuple[int, ...] = (1,) * 4
    ) -> None:
        super().__init__()
        widths = [width << i for i in range(len(down))]
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.encoders = nn.ModuleList(_naf_blocks(c, depth) for c, depth in zip(widths, down, strict=True))
        self.down = nn.ModuleList(nn.Conv2d(c, 2 * c, 2, 2) for c in widths)
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * c, 4 * c, 1, bias=False), nn.PixelShuffle(2)) for c in reversed(widths)
        )
        self.decoders = nn.ModuleList(_naf_blocks(c, depth) for c, depth in zip(reversed(widths), up, strict=True))
        self.middle = _naf_blocks(2 * widths[-1], middle)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        skips = []
        for encoder, down in zip(self.encoders, self.down, strict=True):
            y = encoder(y)
            skips.append(y)
            y = down(y)
        y = self.middle(y)
        for up, decoder, skip in zip(self.up, self.decoders, reversed(skips), strict=True):
            y = decoder(up(y) + skip)
        return self.last(y) + x
