"""The 1-D convolution of "[TIL] Understanding IM2COL" (Retep), over a grid of sizes, and docs/conv1d.md."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from convgen import driver
from convgen.ir.reference import reference
from convgen.spec import Spec, read

ROOT = Path(__file__).parents[2]
SIZES = list(product((3,), (64, 250), (4, 16), (32, 64)))  # N, L, KL, F


def compilation(n: int, length: int, taps: int, filters: int) -> driver.Compilation:
    defines = {"n": n, "length": length, "taps": taps, "filters": filters}
    text, path = read(ROOT / "specs" / "examples" / "tl_conv1d_im2col.conv")
    (found,) = driver.load(Spec(text, path, defines, target="sm_90a"))
    return found


def arrays(sizes: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, K and O[i, j] = sum over m of X[i, j + m] K[m], zeros behind the end of X."""
    n, length, taps, filters = sizes
    random = np.random.default_rng(seed)
    x, k = random.integers(-4, 5, (n, length)), random.integers(-4, 5, (taps, filters))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, taps - 1))), taps, 1)
    return x.astype(np.float16), k.astype(np.float16), windows @ k


@pytest.mark.parametrize("sizes", SIZES)
def test_every_size_has_a_plan_and_the_formula_s_result(sizes, seed):
    found = compilation(*sizes)
    assert found.plan.strategy != "direct"
    x, k, expected = arrays(sizes, seed)
    np.testing.assert_array_equal(reference(found.request.problem, {"x": x, "w": k}), expected)


def test_the_kernel(seed):
    sizes = 2, 250, 7, 40
    x, k, expected = arrays(sizes, seed)
    np.testing.assert_array_equal(compilation(*sizes).uncompiled().emulate(x, k), expected)


def test_the_page_quotes_the_generated_source():
    page = (ROOT / "docs" / "conv1d.md").read_text(encoding="utf-8")
    source = (ROOT / "generated" / "tl_conv1d_im2col.cu").read_text(encoding="utf-8")
    quoted = re.findall(r"^```cuda\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(quoted) == 6 and [text for text in quoted if text not in source] == []
