"""Networks that say what an image is, or which move a board asks for."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import gelu, relu

from models.parts import BasicBlock, LayerNorm2d


class CifarResnet18(nn.Module):
    """ResNet-18 (He et al., 2016) as it is trained on CIFAR-10: 32 x 32 images, no stride and no pool in the stem."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for c, k in zip((widths[0], *widths[:-1]), widths, strict=True):
            blocks += [BasicBlock(c, k, 1 if c == k else 2), BasicBlock(k, k)]
        self.layers = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _GlobalResponseNorm(nn.Module):
    """ConvNeXt V2's: channels compete by their norms over the image; channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((1, 1, 1, width), 0.1))  # zeros when training starts
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = x.float().norm(dim=(1, 2), keepdim=True)
        relative = norm / (norm.mean(-1, keepdim=True) + 1e-6)
        return self.gamma * (x * relative.to(x.dtype)) + self.beta + x


class _ConvnextBlock(nn.Module):
    """ConvNeXt V2's: a depthwise 7x7 convolution, then two linear layers of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.response = _GlobalResponseNorm(4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(self.response(gelu(self.widen(y)))).permute(0, 3, 1, 2)


class ConvnextV2(nn.Module):
    """ConvNeXt V2-T (Woo et al., 2023), but for the LayerNorm before the last layer."""

    def __init__(self, widths: tuple[int, ...] = (96, 192, 384, 768), depths: tuple[int, ...] = (3, 3, 9, 3)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0])]
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i:
                layers += [LayerNorm2d(widths[i - 1]), nn.Conv2d(widths[i - 1], width, 2, 2)]
            layers += [_ConvnextBlock(width) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(widths[-1], 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x).mean((2, 3)))


class _RepvggBlock(nn.Module):
    """RepVGG's: a 3x3 convolution, a 1x1 and, where shapes agree, the input itself, each normalized, and summed."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k))
        self.pointwise = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))
        self.identity = nn.BatchNorm2d(c) if c == k and stride == 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dense(x) + self.pointwise(x)
        return relu(y if self.identity is None else y + self.identity(x))


class Repvgg(nn.Module):
    """RepVGG-A0 (Ding et al., 2021) as it is trained, with its branches."""

    def __init__(
        self, widths: tuple[int, ...] = (48, 48, 96, 192, 1280), depths: tuple[int, ...] = (1, 2, 4, 14, 1)
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for (c, k), depth in zip(pairwise((3, *widths)), depths, strict=True):
            blocks += [_RepvggBlock(k if i else c, k, 1 if i else 2) for i in range(depth)]
        self.layers = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class AlphaZero(nn.Module):
    """AlphaZero's network for Go (Silver et al., 2017), which is AlphaGo Zero's: scores of moves, and who wins."""

    def __init__(self, width: int = 256, blocks: int = 20, side: int = 19) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(17, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.trunk = nn.Sequential(*(BasicBlock(width, width) for _ in range(blocks)))
        self.policy = nn.Sequential(
            nn.Conv2d(width, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(2 * side * side, side * side + 1),
        )  # fmt: skip
        self.value = nn.Sequential(
            nn.Conv2d(width, 1, 1), nn.BatchNorm2d(1), nn.ReLU(), nn.Flatten(),
            nn.Linear(side * side, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.trunk(self.first(x))
        return self.policy(x), self.value(x)
