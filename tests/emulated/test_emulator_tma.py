"""TMA loads and stores against the documentation read once more, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from fidelity import (
    PATTERN,
    WINDOW,
    TmaCase,
    emulate_stores,
    emulate_tma,
    noise,
    random_stores,
    random_tma,
    store_source,
    tma_source,
)
from handwritten import kernel_source, run, tiled

from convgen.emulator.tensor_map import NAN_FILL
from convgen.ir.dtypes import DTYPES

# ---- loads ---------------------------------------------------------------------------------------


def swizzled(offset: int, span: int) -> int:
    """Bits 4 and up are exchanged with what bits 7 and up say, as many as the span has units of 16 bytes."""
    units = max(span // 16, 1)
    return offset ^ (offset // 128 % units) * 16


def positions(case: TmaCase) -> Iterator[tuple[int, ...]]:
    """Coordinates of the box's elements in the order in which they lie in shared memory."""
    m = case.map
    if m.mode == "tiled":
        steps = (1, *m.element_strides[1:])
        axes = [range(c, c + b, s) for c, b, s in zip(case.coords, m.box, steps, strict=True)]
        for index in itertools.product(*reversed(axes)):
            yield index[::-1]
        return
    first = [m.lower[i] for i in range(case.rank - 2)]
    last = [m.dims[i + 1] - 1 + m.upper[i] for i in range(case.rank - 2)]
    walk = [range(a, b + 1, s) for a, b, s in zip(first, last, m.element_strides[1:-1], strict=True)]
    n = case.coords[-1]
    every = ((*p[::-1], image) for image in itertools.count(n) for p in itertools.product(*reversed(walk)))
    from_start = itertools.dropwhile(lambda p: p != case.coords[1:], every)
    for *pixel, image in itertools.islice(from_start, m.pixels):
        moved = [p + o for p, o in zip(pixel, case.offsets, strict=True)]
        for c in range(m.channels):
            yield (case.coords[0] + c, *moved, image)


def places(case: TmaCase) -> Iterator[int]:
    """Where the box's elements lie in the window, in the same order."""
    size = DTYPES[case.map.dtype].bytes
    for row, column in itertools.product(range(case.rows), range(case.row_elements)):
        pitch = case.map.swizzle or case.row_elements * size
        yield swizzled(case.destination + row * pitch + column * size, case.map.swizzle)


def expected(case: TmaCase) -> np.ndarray:
    m = case.map
    size = DTYPES[m.dtype].bytes
    window = np.full(WINDOW, PATTERN, np.uint8)
    tensor = case.tensor()
    fill = np.array([NAN_FILL[m.dtype] if m.fill == "nan" else 0], np.uint32).view(np.uint8)[:size]
    for at, where in zip(positions(case), places(case), strict=True):
        inside = all(0 <= p < d for p, d in zip(at, m.dims, strict=True))
        offset = sum(p * s for p, s in zip(at, (size, *m.strides), strict=True))
        window[where : where + size] = tensor[offset : offset + size] if inside else fill
    return window


def test_any_box(some):
    cases = [c for c in random_tma(11, 168) if c.rows * c.row_bytes <= 8192]  # the check is slow
    assert len(cases) > 80
    cases = some(cases)
    right = [expected(case) for case in cases]
    for seed in (0, 1):
        for case, out, window in zip(cases, emulate_tma(cases, tma_source(), seed), right, strict=True):
            assert (out[:-1].view(np.uint8) == window).all(), case


# ---- stores --------------------------------------------------------------------------------------


def test_a_store_writes_what_lies_inside_to_the_end_of_its_unit_and_nothing_else(some):
    cases = [c for c in random_stores(12, 120) if c.rows * c.row_bytes <= 8192]
    assert len(cases) > 60
    cases = some(cases)
    for seed in (0, 1):
        for case, out in zip(cases, emulate_stores(cases, store_source(), seed), strict=True):
            size, tensor, window = DTYPES[case.map.dtype].bytes, case.tensor(), case.window().view(np.uint8)
            dims = (-(-case.map.dims[0] * size // 16) * 16 // size, *case.map.dims[1:])
            for at, where in zip(positions(case), places(case), strict=True):
                if all(0 <= p < d for p, d in zip(at, dims, strict=True)):
                    offset = sum(p * s for p, s in zip(at, (size, *case.map.strides), strict=True))
                    tensor[offset : offset + size] = window[where : where + size]
            assert (out == tensor).all(), case


# ---- multicast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_multicast_reaches_the_chosen_blocks(seed: int):
    x = noise(seed, 4 * 64 * 16 // 4).view(np.uint16).reshape(4 * 64, 16)
    y = np.zeros((4, 64, 16), np.uint16)
    x_map = tiled("x", "f16", (16, 4 * 64), (16, 64), swizzle=32)
    run(kernel_source("multicast.cu"), "multicast", (x_map, "y"), {"x": x, "y": y}, cluster=4, grid=4, block=32,
        shared_bytes=8192, seed=seed)  # fmt: skip
    # blocks 0 and 2 have block 0's rows, 1 and 3 block 1's
    for block in range(4):
        rows = x[64 * (block % 2) : 64 * (block % 2 + 1)]
        image = np.zeros(2048, np.uint8)
        for i, v in enumerate(rows.reshape(-1)):
            where = swizzled(2 * i, 32)
            image[where : where + 2] = np.array([v]).view(np.uint8)
        assert (y[block].reshape(-1).view(np.uint8) == image).all()
