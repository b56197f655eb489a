"""What networks of several fields are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu


class BasicBlock(nn.Module):
    """A residual block of two 3x3 convolutions (He et al., 2016), its shortcut projected where shapes differ."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k))
        self.second = nn.Sequential(nn.Conv2d(k, k, 3, padding=1, bias=False), nn.BatchNorm2d(k))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or c != k:
            self.shortcut = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return relu(self.shortcut(x) + self.second(relu(self.first(x))))


class LayerNorm2d(nn.Module):
    """LayerNorm over an image's channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
