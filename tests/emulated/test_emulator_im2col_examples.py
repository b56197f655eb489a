"""The five examples of "TMA im2col mode" (Triton Gluon's tutorial 08): its pixel tables, number by number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from handwritten import kernel_source, run, tiled

from convgen.emulator import EmulationError
from convgen.ir.plan import TensorMap

PIXELS, CHANNELS = 16, 32
BYTES = PIXELS * CHANNELS * 4


@dataclass(frozen=True)
class Example:
    """Corners, start (n, h, w, c) and offsets (h, w) as in the tutorial; images of 4 x 4 numbered from 1."""

    name: str
    images: int
    lower: tuple[int, int]
    upper: tuple[int, int]
    start: tuple[int, int, int, int]
    offsets: tuple[int, int]
    table: tuple[int, ...]


EXAMPLES = (
    Example("basic", 1, (0, 0), (0, 0), (0, 0, 0, 0), (0, 0), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)),
    Example(
        "padded", 1, (-1, -1), (-1, -1), (0, -1, -1, 0), (0, 0), (0, 0, 0, 0, 0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11)
    ),
    Example("offset", 1, (-1, -1), (-1, -1), (0, -1, -1, 0), (1, 1), tuple(range(1, 17))),
    Example("multi-batch", 2, (0, 0), (0, 0), (0, 1, 3, 0), (0, 0), tuple(range(8, 24))),
    Example(
        "padded multi-batch", 2, (-1, -1), (-1, -1), (0, 1, 2, 0), (0, 0),
        (7, 0, 9, 10, 11, 0, 0, 0, 0, 0, 17, 18, 19, 0, 21, 22),
    ),
)  # fmt: skip


def pixels(example: Example, seed: int) -> np.ndarray:
    """What the load of an example brings: the numbers of its pixels."""
    values = np.arange(1, 16 * example.images + 1, dtype=np.float32)
    x = np.repeat(values, CHANNELS).reshape(example.images, 4, 4, CHANNELS)
    y = np.full((PIXELS, CHANNELS), np.nan, np.float32)
    x_map = TensorMap(
        "x", "im2col", "f32", (CHANNELS, 4, 4, example.images), (128, 512, 2048), (1, 1, 1, 1),
        lower=example.lower[::-1], upper=example.upper[::-1], channels=CHANNELS, pixels=PIXELS, swizzle=128,
    )  # fmt: skip
    y_map = tiled("y", "f32", (CHANNELS, PIXELS), (CHANNELS, PIXELS), swizzle=128)
    source = kernel_source("im2col_box.cu", {"TILE_BYTES": BYTES})
    parameters = (x_map, y_map, *example.start, *example.offsets)
    run(source, "im2col_box", parameters, {"x": x, "y": y}, block=32, shared_bytes=1024 + BYTES + 8, seed=seed)
    assert (y == y[:, :1]).all()
    return y[:, 0].astype(int)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_pixel_table(example: Example, seed: int):
    assert tuple(pixels(example, seed)) == example.table


@pytest.mark.parametrize("start", [(0, 3, 0, 0), (0, 0, 3, 0), (0, -2, 0, 0)])
def test_a_start_outside_the_box_of_legal_windows(start: tuple[int, int, int, int]):
    """An illegal instruction on an H200, where it is behind the upper corner."""
    padded = replace(EXAMPLES[1], start=start)
    with pytest.raises(EmulationError, match="legal windows begin at -1 to 2"):
        pixels(padded, seed=0)


def test_a_start_behind_the_last_image():
    assert not pixels(replace(EXAMPLES[1], start=(1, 0, 0, 0)), seed=0).any()


def test_an_offset_has_eight_bits_along_each_of_two_axes() -> None:
    basic = EXAMPLES[0]
    assert not pixels(replace(basic, offsets=(255, 255)), 0).any()  # outside of the image
    with pytest.raises(EmulationError, match="moved by 256 along dim 2: in a tensor of 4 dims, offsets have 8 bits"):
        pixels(replace(basic, offsets=(256, 0)), 0)
