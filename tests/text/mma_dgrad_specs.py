"""What mma_gemm's dgrad is tried on: geometries with tails in every direction, layouts, tiles, and layers."""

from __future__ import annotations

from problems import make
from tma_specs import laid_out

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options

KERNEL: Options = {"kernel": "mma_gemm"}
UNEVEN = ((2, 0), (1, 3))

GEOMETRIES: dict[str, ConvProblem] = {
    "3x3": make("dgrad", 2, 64, 64, (9, 10), (3, 3), pad=1),
    "uneven padding": make("dgrad", 2, 24, 40, (9, 10), (3, 2), pad=UNEVEN),
    "dilated": make("dgrad", 2, 24, 40, (9, 10), (3, 3), pad=2, dilation=(2, 1), dtype="bf16"),
    "dilated far": make("dgrad", 1, 24, 40, (230,), (2,), dilation=200),
    "more padding than filter": make("dgrad", 2, 16, 16, (5, 4), (2, 3), pad=((3, 4), 5)),
    "one axis": make("dgrad", 3, 40, 24, (33,), (7,), pad=3),
    "three axes": make("dgrad", 2, 24, 16, (4, 5, 6), (3, 2, 3), pad=1),
    "1x1": make("dgrad", 2, 72, 40, (9, 7), (1, 1)),
    "groups": make("dgrad", 2, 48, 72, (7, 9), (2, 3), pad=UNEVEN, groups=3),
    "3 groups of 5 channels": make("dgrad", 2, 15, 15, (7, 9), (3, 3), pad=1, groups=3),
    "groups of one channel": make("dgrad", 2, 8, 8, (7, 9), (3, 3), pad=1, groups=8),
    "3x3, stride 2": make("dgrad", 3, 40, 72, (12, 13), (3, 3), stride=2, pad=1),
    "1x1, stride 2": make("dgrad", 3, 64, 64, (9, 12), (1, 1), stride=2),
    "4x4, stride 2": make("dgrad", 2, 72, 24, (14, 12), (4, 4), stride=2, pad=1),
    "even filter, strides 2 and 3": make("dgrad", 3, 40, 40, (11, 10), (2, 4), stride=(2, 3), pad=((0, 2), (3, 1))),
    "one axis strided": make("dgrad", 3, 40, 40, (9, 14), (3, 3), stride=(1, 2), pad=1),
    "stride above the filter": make("dgrad", 3, 24, 40, (13, 9), (2, 1), stride=(4, 3), pad=((1, 0), 0)),
    "stride above x": make("dgrad", 40, 24, 40, (2, 3), (2, 3), stride=5, pad=1),
    "padding alone under the windows": make("dgrad", 3, 24, 40, (1, 9), (1, 3), stride=2, pad=((1, 0), 1)),
    "no tap at all": make("dgrad", 3, 24, 40, (1, 1), (1, 1), stride=2, pad=((1, 0), 0)),
    "strided and dilated": make("dgrad", 3, 40, 24, (15, 13), (3, 3), stride=(2, 3), dilation=(3, 2), pad=2),
    "dilated by the stride": make("dgrad", 3, 40, 24, (12, 13), (3, 2), stride=(2, 4), dilation=(2, 6), pad=2),
    "one axis, 20 taps, stride 10": make("dgrad", 2, 40, 72, (60,), (20,), stride=10, pad=5),
    "three axes, strided": make("dgrad", 2, 24, 40, (4, 5, 6), (3, 2, 3), stride=(2, 1, 3), pad=1),
    "few channels, more taps than a step": make("dgrad", 2, 8, 4, (12, 13), (5, 4), stride=(2, 3), pad=2),
    "one channel, taps of which some are dilated by the stride": make(
        "dgrad", 2, 1, 1, (5, 6, 9), (3, 2, 2), stride=(1, 1, 2), dilation=(1, 1, 2)
    ),
    "strided groups": make("dgrad", 2, 48, 36, (9, 8), (3, 3), stride=2, pad=1, groups=3),
}

#: dgrad's filters lie with their input channels innermost, dgrad's columns; these have other neighbors, or none.
LAYOUTS = {
    "planes": {"x": "nchw", "w": "kcrs", "y": "nkpq"},
    "x in planes": {"x": "nchw"},
    "y in planes": {"y": "nkpq"},
    "output channels innermost": {"w": "crsk"},
    "taps outside": {"w": "rskc"},
    "taps outside, output channels innermost": {"w": "rsck"},
    "images innermost": {"x": "chwn", "y": "kpqn"},
}

#: Panels of 64, 32 and 16 channels; a warp multiplies several, one, or a part of one.
TILES: dict[str, Options] = {
    "two panels a warp": {"tile.m": 32, "tile.n": 128, "warps.m": 2, "warps.n": 1, "stages": 2},
    "a panel a warp": {"tile.m": 64, "tile.n": 128, "tile.k": 32, "warps.m": 2, "warps.n": 2, "stages": 3},
    "half a panel a warp": {"tile.m": 64, "tile.n": 64, "warps.m": 2, "warps.n": 2, "stages": 4},
    "a quarter of a panel a warp": {"tile.m": 32, "tile.n": 64, "warps.m": 1, "warps.n": 4, "stages": 2},
    "panels of 32": {"tile.m": 64, "tile.n": 96, "tile.k": 32, "warps.m": 2, "warps.n": 3, "stages": 3},
    "panels of 16": {"tile.m": 96, "tile.n": 48, "warps.m": 2, "warps.n": 1, "stages": 3},
    "threads without work": {"tile.m": 16, "tile.n": 80, "tile.k": 32, "warps.m": 1, "warps.n": 5, "stages": 3},
    "more chunks than threads": {"tile.m": 16, "tile.n": 384, "tile.k": 32, "warps.m": 1, "warps.n": 1, "stages": 2},
}

#: At their sizes.
LAYERS: dict[str, ConvProblem] = {
    "resnet50/res3_3x3": make("dgrad", 8, 128, 128, (28, 28), (3, 3), pad=1),
    "resnet50/res3_3x3_s2": make("dgrad", 64, 128, 128, (56, 56), (3, 3), stride=2, pad=1),
    "resnet50/res4_1x1_c": make("dgrad", 8, 256, 1024, (14, 14), (1, 1)),
    "resnet50/res3_ds": make("dgrad", 8, 256, 512, (56, 56), (1, 1), stride=2),
    "resnet50/conv1": make("dgrad", 8, 3, 64, (224, 224), (7, 7), stride=2, pad=3),
    "vgg16/conv3_2": make("dgrad", 64, 256, 256, (56, 56), (3, 3), pad=1),
    "resnext50/res2_3x3": make("dgrad", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32, dtype="bf16"),
    "channels off 8": make("dgrad", 8, 60, 50, (28, 28), (5, 5), pad=2),
    "planes": laid_out(make("dgrad", 8, 64, 64, (28, 28), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
    "three axes": make("dgrad", 8, 64, 32, (16, 16, 16), (3, 3, 3), stride=2, pad=1),
    "one axis": make("dgrad", 8, 256, 512, (1000,), (16,), stride=8, pad=4),
    "groups of 3 channels, a phase": laid_out(
        make("dgrad", 3, 32, 48, (3, 4, 3), (2, 1, 1), stride=(1, 1, 2), pad=(1, 0, 0), groups=16), x="ndhcw"
    ),
    "groups of a channel, two rows of taps": make("dgrad", 3, 32, 16, (4, 3), (2, 1), groups=16),
}
