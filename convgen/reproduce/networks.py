"""The convolutions of seven networks, with multiplicities: all of each network, as its authors describe it.

AlexNet (Krizhevsky, 2014, one tower), ZFNet (Zeiler and Fergus, 2014), VGG-16 (Simonyan and Zisserman, 2015),
GoogLeNet (Szegedy et al., 2015, without auxiliary classifiers), ResNet-50 (He et al., 2016, stride in the 3x3 layers),
DenseNet-121 (Huang et al., 2017), YOLOv2 (Redmon and Farhadi, 2017, 416 x 416).  Images and filters are square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A convolution: C channels of h x h pixels to K channels, r x r taps; `projection` where it is a shortcut's."""

    c: int
    h: int
    k: int
    r: int = 1
    stride: int = 1
    pad: int = 0
    projection: bool = False

    @property
    def p(self) -> int:
        """Rows, and columns, of the output."""
        return (self.h + 2 * self.pad - self.r) // self.stride + 1

    @property
    def input_elements(self) -> int:
        """Elements of one image."""
        return self.c * self.h * self.h

    @property
    def lowered_elements(self) -> int:
        """Elements of one image's matrix of windows, p*q x c*r*s; also for a 1x1 layer."""
        return self.p * self.p * self.c * self.r * self.r

    @property
    def macs(self) -> int:
        """Multiply-adds of one image, halo included."""
        return self.lowered_elements * self.k

    def spec(self, name: str, n: int, dtype: str = "f16") -> str:
        """The layer in the language, n images, NHWC."""
        lines = [
            f"conv {name} {{",
            f"  input  x: {dtype}[n={n}, h={self.h}, w={self.h}, c={self.c}]",
            f"  filter w: {dtype}[k={self.k}, r={self.r}, s={self.r}, c={self.c}]",
            f"  output y: {dtype}[n, p, q, k]",
            f"  stride {self.stride}  pad {self.pad}",
            "}",
        ]
        return "\n".join(lines)


def _same(c: int, h: int, k: int, r: int, stride: int = 1) -> Layer:
    """Padded so that the output has ceil(h / stride) rows."""
    return Layer(c, h, k, r, stride, r // 2)


def _alexnet() -> Iterator[Layer]:
    yield Layer(3, 224, 64, 11, 4, 2)
    yield _same(64, 27, 192, 5)
    yield from (_same(c, 13, k, 3) for c, k in ((192, 384), (384, 256), (256, 256)))


def _zfnet() -> Iterator[Layer]:
    yield Layer(3, 224, 96, 7, 2, 1)
    yield Layer(96, 55, 256, 5, 2)
    yield from (_same(c, 13, k, 3) for c, k in ((256, 384), (384, 384), (384, 256)))


def _vgg16() -> Iterator[Layer]:
    c = 3
    for h, k, layers in ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)):
        for _ in range(layers):
            yield _same(c, h, k, 3)
            c = k


#: GoogLeNet's blocks: rows, C, and the outputs of 1x1, 3x3's reduction, 3x3, 5x5's reduction, 5x5, pool's projection.
_INCEPTION = (
    (28, 192, 64, 96, 128, 16, 32, 32),
    (28, 256, 128, 128, 192, 32, 96, 64),
    (14, 480, 192, 96, 208, 16, 48, 64),
    (14, 512, 160, 112, 224, 24, 64, 64),
    (14, 512, 128, 128, 256, 24, 64, 64),
    (14, 512, 112, 144, 288, 32, 64, 64),
    (14, 528, 256, 160, 320, 32, 128, 128),
    (7, 832, 256, 160, 320, 32, 128, 128),
    (7, 832, 384, 192, 384, 48, 128, 128),
)


def _googlenet() -> Iterator[Layer]:
    yield _same(3, 224, 64, 7, 2)
    yield Layer(64, 56, 64)
    yield _same(64, 56, 192, 3)
    for h, c, one, three_in, three, five_in, five, pool in _INCEPTION:
        yield from (Layer(c, h, k) for k in (one, three_in, five_in, pool))
        yield _same(three_in, h, three, 3)
        yield _same(five_in, h, five, 5)


def _resnet50() -> Iterator[Layer]:
    yield _same(3, 224, 64, 7, 2)
    c, h = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            if block == 0:
                yield Layer(c, h, 4 * width, stride=stride, projection=True)
            yield Layer(c, h, width)
            yield _same(width, h, width, 3, stride)
            c, h = 4 * width, h // stride
            yield Layer(width, h, c)


def _densenet121(growth: int = 32) -> Iterator[Layer]:
    yield _same(3, 224, 64, 7, 2)
    c, h = 64, 56
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            yield Layer(c, h, 4 * growth)
            yield _same(4 * growth, h, growth, 3)
            c += growth
        if h > 7:
            yield Layer(c, h, c // 2)
            c, h = c // 2, h // 2


def _yolov2() -> Iterator[Layer]:
    #: rows, and the outputs of layers there, those of 1x1 ones below 0
    trunk = (
        (416, (32,)), (208, (64,)), (104, (128, -64, 128)), (52, (256, -128, 256)), (26, (512, -256, 512, -256, 512)),
        (13, (1024, -512, 1024, -512, 1024, 1024, 1024)),
    )  # fmt: skip
    c = 3
    for h, outputs in trunk:
        for k in outputs:
            yield _same(c, h, abs(k), 3 if k > 0 else 1)
            c = abs(k)
    yield Layer(512, 26, 64)  # the passthrough, whose 2 x 2 pixels become channels
    yield _same(1024 + 4 * 64, 13, 1024, 3)
    yield Layer(1024, 13, 425)


_NETWORKS: dict[str, Callable[[], Iterator[Layer]]] = {
    "alexnet": _alexnet,
    "zfnet": _zfnet,
    "vgg16": _vgg16,
    "googlenet": _googlenet,
    "resnet50": _resnet50,
    "densenet121": _densenet121,
    "yolov2": _yolov2,
}
NAMES = tuple(_NETWORKS)


def layers(network: str, projections: bool = True) -> dict[Layer, int]:
    """Each distinct convolution of a network and how many of it there are, in the order in which they first run."""
    return dict(Counter(layer for layer in _NETWORKS[network]() if projections or not layer.projection))
