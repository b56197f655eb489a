"""Digits to learn: drawn here, or MNIST's from files.  Images are (n, 1, 28, 28) in [0, 1], labels 0 to 9."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

SIZE = 28
#: Five columns by seven rows each.
_GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""


def glyphs() -> np.ndarray:
    """(10, 7, 5)."""
    rows = [line.split() for line in _GLYPHS.strip().splitlines()]
    return np.array([[[float(bit) for bit in rows[r][digit]] for r in range(7)] for digit in range(10)])


def draw(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Glyphs turned, sheared, scaled and moved a little, with noise."""
    labels = random.integers(0, 10, count)
    angle, shear = random.uniform(-0.25, 0.25, (2, count, 1, 1))
    width, height = random.uniform(2.4, 3.6, (2, count, 1, 1))  # pixels of an image for one of a glyph
    left, top = random.uniform(-3, 3, (2, count, 1, 1))
    v, u = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    u, v = u - left, v - top
    column = (np.cos(angle) * u + np.sin(angle) * v + shear * v) / width + 2
    row = (np.cos(angle) * v - np.sin(angle) * u) / height + 3
    padded = np.pad(glyphs(), ((0, 0), (1, 2), (1, 2)))  # what is left and above lies in the padding
    column, row = np.clip(column + 1, 0, 6), np.clip(row + 1, 0, 8)
    i, j = row.astype(int), column.astype(int)
    y, x, which = row - i, column - j, labels[:, None, None]
    image = (1 - y) * ((1 - x) * padded[which, i, j] + x * padded[which, i, j + 1])
    image += y * ((1 - x) * padded[which, i + 1, j] + x * padded[which, i + 1, j + 1])
    image = np.clip(image + random.normal(0, 0.1, image.shape), 0, 1)
    return image[:, None].astype(np.float32), labels


def mnist(folder: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's files in a folder, packed or not; `kind` is "train" or "t10k"."""
    images, labels = _idx(folder / f"{kind}-images-idx3-ubyte"), _idx(folder / f"{kind}-labels-idx1-ubyte")
    return (images[:, None] / 255).astype(np.float32), labels.astype(np.int64)


def _idx(path: Path) -> np.ndarray:
    """The array of a file in MNIST's format: its rank in byte 3, extents of 4 bytes, then the elements.  Raises
    OSError, EOFError, ValueError."""
    packed = path.with_name(f"{path.name}.gz")
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is no file of MNIST's")
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
