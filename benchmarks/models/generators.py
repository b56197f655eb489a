"""Networks that draw: images from numbers, from other images, and the frame that comes next."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import conv2d, interpolate, leaky_relu


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


def _norm_relu(conv: nn.Module, width: int) -> list[nn.Module]:
    return [conv, nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]


class _ReflectedResidual(nn.Module):
    """CycleGAN's: two convolutions of reflected edges, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1), *_norm_relu(nn.Conv2d(width, width, 3), width),
            nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class CycleGan(nn.Module):
    """CycleGAN's generator (Zhu et al., 2017), with nine residual blocks."""

    def __init__(self, width: int = 64, blocks: int = 9) -> None:
        super().__init__()
        down = [(width, 2 * width), (2 * width, 4 * width)]
        layers = [nn.ReflectionPad2d(3), *_norm_relu(nn.Conv2d(3, width, 7), width)]
        for c, k in down:
            layers += _norm_relu(nn.Conv2d(c, k, 3, 2, 1), k)
        layers += [_ReflectedResidual(4 * width) for _ in range(blocks)]
        for c, k in reversed(down):
            layers += _norm_relu(nn.ConvTranspose2d(k, c, 3, 2, 1, output_padding=1), c)
        self.layers = nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Pix2pix(nn.Module):
    """pix2pix's generator (Isola et al., 2017): a U-Net of eight levels, down to one pixel of 256 x 256; no dropout."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 512, 512, 512, 512)) -> None:
        super().__init__()
        pairs = [*pairwise((3, *widths))]
        last = len(pairs) - 1
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for i, (c, k) in enumerate(pairs):
            before = [nn.LeakyReLU(0.2)] if i else []
            behind = [nn.BatchNorm2d(k)] if 0 < i < last else []
            self.down.append(nn.Sequential(*before, nn.Conv2d(c, k, 4, 2, 1, bias=False), *behind))
        for i, (k, c) in reversed([*enumerate(pairs)]):
            conv = nn.ConvTranspose2d(c if i == last else 2 * c, k, 4, 2, 1, bias=i == 0)
            self.up.append(nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(k) if i else nn.Tanh()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        for i, (up, skip) in enumerate(zip(self.up, reversed(skips), strict=True)):
            x = up(torch.cat([x, skip], 1) if i else x)
        return x


class Stylegan2(nn.Module):
    """The convolutions of StyleGAN2's synthesis (Karras et al., 2020), from 16 x 16 to 256 x 256: filters are scaled by
    the image's style, so that each image is a group of its own.  One for each size, without noise and biases."""

    def __init__(self, widths: tuple[int, ...] = (512, 512, 512, 256, 128), style: int = 512) -> None:
        super().__init__()
        self.filters = nn.ParameterList(nn.Parameter(torch.randn(k, c, 3, 3)) for c, k in pairwise(widths))
        self.styles = nn.ModuleList(nn.Linear(style, c) for c in widths[:-1])
        self.last = nn.Conv2d(widths[-1], 3, 1)
        self.start = nn.Parameter(torch.randn(1, widths[0], 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latent = x.flatten(1)
        images = latent.shape[0]
        x = self.start.expand(images, -1, -1, -1)
        for filters, style in zip(self.filters, self.styles, strict=True):
            scale = style(latent) + 1
            w = filters[None] * scale[:, None, :, None, None]
            w = w * (w.float().square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt().to(w.dtype)
            x = interpolate(x, scale_factor=2, mode="bilinear")
            _, c, height, width = x.shape
            x = conv2d(x.reshape(1, images * c, height, width), w.flatten(0, 1), padding=1, groups=images)
            x = leaky_relu(x.reshape(images, -1, height, width), 0.2) * 1.414
        return self.last(x)


class _LstmCell(nn.Module):
    """An LSTM's step whose products are a convolution."""

    def __init__(self, c: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(c + width, 4 * width, 3, padding=1)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        write, keep, read, new = self.gates(torch.cat([x, hidden], 1)).chunk(4, 1)
        cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
        return read.sigmoid() * cell.tanh(), cell


class ConvLstm(nn.Module):
    """Two layers of ConvLSTM (Shi et al., 2015): the frame behind a clip, whose frames are the input's channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.lower, self.upper = _LstmCell(1, width), _LstmCell(width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(x.shape[0], self.width, *x.shape[2:])
        lower, upper = (zeros, zeros), (zeros, zeros)
        for t in range(x.shape[1]):
            lower = self.lower(x[:, t : t + 1], *lower)
            upper = self.upper(lower[0], *upper)
        return self.last(upper[0])
