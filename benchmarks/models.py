"""Networks that people run and torchvision does not have, written out: each class makes a whole model."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import gelu, interpolate, leaky_relu, max_pool2d
from torch.nn.utils.parametrizations import weight_norm


def _norm_block_3d(c: int, k: int, stride: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, step in ((c, stride), (k, 1)):
        layers += [nn.Conv3d(width, k, 3, step, 1), nn.InstanceNorm3d(k, affine=True), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers)


class Unet3d(nn.Module):
    """A 3-D U-Net with nnU-Net's default widths (Isensee et al., 2021): strided down, transposed up, skips
    concatenated."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256, 320)) -> None:
        super().__init__()
        pairs = [*zip((1, *widths[:-1]), widths, strict=True)]
        self.down = nn.ModuleList(_norm_block_3d(c, k, 1 + (i > 0)) for i, (c, k) in enumerate(pairs))
        self.up = nn.ModuleList(nn.ConvTranspose3d(k, c, 2, 2) for c, k in reversed(pairs[1:]))
        self.join = nn.ModuleList(_norm_block_3d(2 * c, c) for c, _ in reversed(pairs[1:]))
        self.last = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.last(x)


def _norm_block(c: int, k: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (c, k):
        layers += [nn.Conv2d(width, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """The U-Net of segmentation (Ronneberger et al., 2015) as it is written today: padded, with BatchNorm."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        pairs = [*zip((3, *widths[:-1]), widths, strict=True)]
        self.down = nn.ModuleList(_norm_block(c, k) for c, k in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(k, c, 2, 2) for c, k in reversed(pairs[1:]))
        self.join = nn.ModuleList(_norm_block(2 * c, c) for c, _ in reversed(pairs[1:]))
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.last(x)


def _cbs(c: int, k: int, r: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, k, r, stride, r // 2, bias=False), nn.BatchNorm2d(k), nn.SiLU())


class _C2f(nn.Module):
    """YOLOv8's block: a split, bottlenecks in a row, everything concatenated."""

    def __init__(self, c: int, k: int, repeats: int, shortcut: bool = False) -> None:
        super().__init__()
        half = k // 2
        self.shortcut = shortcut
        self.first, self.last = _cbs(c, k), _cbs((2 + repeats) * half, k)
        self.rest = nn.ModuleList(nn.Sequential(_cbs(half, half, 3), _cbs(half, half, 3)) for _ in range(repeats))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [*self.first(x).chunk(2, 1)]
        for block in self.rest:
            found = block(parts[-1])
            parts.append(parts[-1] + found if self.shortcut else found)
        return self.last(torch.cat(parts, 1))


class Yolov8s(nn.Module):
    """Backbone, neck and head of YOLOv8-s (Jocher et al., 2023), as its configuration file lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_cbs(3, 32, 3, 2), _cbs(32, 64, 3, 2), _C2f(64, 64, 1, True))
        self.p3 = nn.Sequential(_cbs(64, 128, 3, 2), _C2f(128, 128, 2, True))
        self.p4 = nn.Sequential(_cbs(128, 256, 3, 2), _C2f(256, 256, 2, True))
        self.p5 = nn.Sequential(_cbs(256, 512, 3, 2), _C2f(512, 512, 1, True))
        self.before_pool, self.behind_pool = _cbs(512, 256), _cbs(1024, 512)
        self.up4, self.up3 = _C2f(768, 256, 1), _C2f(384, 128, 1)
        self.down4, self.down5 = _cbs(128, 128, 3, 2), _cbs(256, 256, 3, 2)
        self.out4, self.out5 = _C2f(384, 256, 1), _C2f(768, 512, 1)
        widths = (128, 256, 512)
        self.boxes = nn.ModuleList(nn.Sequential(_cbs(c, 64, 3), _cbs(64, 64, 3), nn.Conv2d(64, 64, 1)) for c in widths)
        self.classes = nn.ModuleList(
            nn.Sequential(_cbs(c, 128, 3), _cbs(128, 128, 3), nn.Conv2d(128, 80, 1)) for c in widths
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        pooled = [self.before_pool(self.p5(p4))]
        for _ in range(3):
            pooled.append(max_pool2d(pooled[-1], 5, 1, 2))
        p5 = self.behind_pool(torch.cat(pooled, 1))
        up4 = self.up4(torch.cat([interpolate(p5, scale_factor=2), p4], 1))
        out3 = self.up3(torch.cat([interpolate(up4, scale_factor=2), p3], 1))
        out4 = self.out4(torch.cat([self.down4(out3), up4], 1))
        outs = (out3, out4, self.out5(torch.cat([self.down5(out4), p5], 1)))
        heads = zip(self.boxes, self.classes, outs, strict=True)
        return [torch.cat([box(out), classes(out)], 1) for box, classes, out in heads]


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


class Dcgan(nn.Module):
    """DCGAN's generator (Radford et al., 2015): 64 x 64 images from 100 numbers."""

    def __init__(self) -> None:
        super().__init__()
        widths = (100, 512, 256, 128, 64)
        layers: list[nn.Module] = []
        for i, (c, k) in enumerate(pairwise(widths)):
            up = nn.ConvTranspose2d(c, k, 4, 1 + (i > 0), int(i > 0), bias=False)
            layers += [up, nn.BatchNorm2d(k), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Residuals(nn.Module):
    """HiFi-GAN's: a dilated and a plain filter behind one another, three times, each time added."""

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
