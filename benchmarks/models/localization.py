"""Networks that say what is where in an image: segmentation, detection, poses."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import gelu, interpolate, max_pool2d, relu, scaled_dot_product_attention

from models.parts import BasicBlock


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


class _Fusion(nn.Module):
    """HRNet's: each resolution gets the sum of all, brought to its size."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        branches = range(len(widths))
        self.rows = nn.ModuleList(
            nn.ModuleList(self._resized(widths, source, target) for source in branches) for target in branches
        )

    @staticmethod
    def _resized(widths: tuple[int, ...], source: int, target: int) -> nn.Module:
        c, k = widths[source], widths[target]
        if source == target:
            return nn.Identity()
        if source > target:
            up = nn.Upsample(scale_factor=2 ** (source - target))
            return nn.Sequential(nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k), up)
        layers: list[nn.Module] = []
        for _ in range(source + 1, target):
            layers += [nn.Conv2d(c, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(c, k, 3, 2, 1, bias=False), nn.BatchNorm2d(k))

    def forward(self, branches: list[torch.Tensor]) -> list[torch.Tensor]:
        return [relu(sum(layer(x) for layer, x in zip(row, branches, strict=True))) for row in self.rows]


class Hrnet(nn.Module):
    """HRNet-W32's third stage (Sun et al., 2019), three resolutions that are fused four times, behind a plain stem;
    17 heat maps."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), modules: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, widths[0], 3, 2, 1), nn.ReLU()
        )
        self.down = nn.ModuleList(nn.Conv2d(c, k, 3, 2, 1) for c, k in pairwise(widths))
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Sequential(*(BasicBlock(c, c) for _ in range(4))) for c in widths) for _ in range(modules)
        )
        self.fusions = nn.ModuleList(_Fusion(widths) for _ in range(modules))
        self.last = nn.Conv2d(widths[0], 17, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.stem(x)]
        for down in self.down:
            parts.append(relu(down(parts[-1])))
        for branches, fusion in zip(self.branches, self.fusions, strict=True):
            parts = fusion([branch(part) for branch, part in zip(branches, parts, strict=True)])
        return self.last(parts[0])


class _MixFeedForward(nn.Module):
    """Two linear layers with a depthwise convolution between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.depthwise = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width)

    def forward(self, tokens: torch.Tensor, height: int) -> torch.Tensor:
        image = self.into(tokens).transpose(1, 2).unflatten(2, (height, -1))
        return self.out(gelu(self.depthwise(image).flatten(2).transpose(1, 2)))


class _MixBlock(nn.Module):
    """A transformer's block whose keys and values are of an image that is smaller by `reduction`."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads, self.reduction = heads, reduction
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.both, self.project = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        if reduction > 1:
            self.reduce, self.norm = nn.Conv2d(width, width, reduction, reduction), nn.LayerNorm(width)
        self.feed = _MixFeedForward(width)

    def forward(self, tokens: torch.Tensor, height: int) -> torch.Tensor:
        x = self.before(tokens)
        n, length, width = x.shape
        query = self.query(x).reshape(n, length, self.heads, -1).permute(0, 2, 1, 3)
        if self.reduction > 1:
            image = x.permute(0, 2, 1).reshape(n, width, height, -1)
            x = self.norm(self.reduce(image).flatten(2).permute(0, 2, 1))
        key, value = self.both(x).reshape(n, -1, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(n, length, width)
        tokens = tokens + self.project(attended)
        return tokens + self.feed(self.between(tokens), height)


class Segformer(nn.Module):
    """SegFormer-B0 with its decoder, for 150 classes (Xie et al., 2021)."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 160, 256), depth: int = 2, decoded: int = 256) -> None:
        super().__init__()
        stages = zip((3, *widths[:-1]), widths, (1, 2, 5, 8), (8, 4, 2, 1), (7, 3, 3, 3), strict=True)
        self.stages = nn.ModuleList()
        for i, (c, k, heads, reduction, taps) in enumerate(stages):
            embed = nn.Conv2d(c, k, taps, 2 if i else 4, taps // 2)
            blocks = nn.ModuleList(_MixBlock(k, heads, reduction) for _ in range(depth))
            self.stages.append(nn.ModuleList([embed, nn.LayerNorm(k), blocks, nn.LayerNorm(k)]))
        self.decode = nn.ModuleList(nn.Linear(k, decoded) for k in widths)
        self.fuse = nn.Sequential(nn.Conv2d(len(widths) * decoded, decoded, 1, bias=False), nn.BatchNorm2d(decoded))
        self.last = nn.Conv2d(decoded, 150, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        for (embed, norm, blocks, end), decode in zip(self.stages, self.decode, strict=True):
            x = embed(x)
            height = x.shape[2]
            tokens = norm(x.flatten(2).transpose(1, 2))
            for block in blocks:
                tokens = block(tokens, height)
            x = end(tokens).transpose(1, 2).unflatten(2, (height, -1)).contiguous()
            seen = decode(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (height, -1))
            size = found[0].shape[2:] if found else seen.shape[2:]
            found.append(interpolate(seen, size=size, mode="bilinear", align_corners=False))
        return self.last(relu(self.fuse(torch.cat(found[::-1], 1))))
