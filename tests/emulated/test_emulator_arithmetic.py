"""Conversions, warps and matrix products against NumPy and the fragment layouts of the PTX ISA."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from fidelity import A_BYTES, K_OF, Operand, WgmmaCase, emulate_wgmma, random_wgmma, wgmma_source
from handwritten import kernel_source, run, whole_source
from ptx_calls import ALL_N, FAMILIES, wgmma_functions

from convgen.ir.dtypes import numpy_dtype

# ---- conversions ---------------------------------------------------------------------------------


def floats() -> np.ndarray:
    """Every f16 and its neighbors, ties of each type, what saturates, overflows and vanishes."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    near = finite.view(np.uint32)[:, None] + np.array([-1, 1, 0x1000, 0x0FFF, 0x8000], np.int64)
    extreme = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 65519.9, 65520, 464, 465, 61440, 127.5, -128.5]
    )
    spread = np.random.default_rng(0).standard_normal(1 << 14) * 10.0 ** np.random.default_rng(1).integers(
        -12, 12, 1 << 14
    )
    return np.concatenate([finite, near.astype(np.uint32).view(np.float32).reshape(-1)[::7], extreme, spread]).astype(
        np.float32
    )


def saturating(values: np.ndarray, kind) -> np.ndarray:
    largest = float(ml_dtypes.finfo(kind).max)
    with np.errstate(invalid="ignore"):
        clipped = np.where(np.isnan(values), values, np.clip(values, -largest, largest)).astype(np.float32)
        return clipped.astype(kind).view(np.uint8)


def test_conversions():
    values = floats()
    count = len(values)
    blocks = -(-max(count, 1 << 16) // 256)
    wide = np.zeros((blocks * 256, 4), np.float32)
    narrow = np.zeros((count, 7), np.uint32)
    run(kernel_source("conversions.cu"), "conversions", ("values", "wide", "narrow", count),
        {"values": values, "wide": wide, "narrow": narrow}, grid=blocks, block=256)  # fmt: skip

    codes = np.arange(1 << 16, dtype=np.uint16)
    small = codes.astype(np.uint8)
    kinds = (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    for column, (kind, bits) in enumerate(zip(kinds, (codes, codes, small, small), strict=True)):
        np.testing.assert_array_equal(wide[: 1 << 16, column], bits.view(kind).astype(np.float32))

    number = ~np.isnan(values)
    with np.errstate(over="ignore", invalid="ignore"):
        f16 = values.astype(np.float16).view(np.uint16)
        bf16 = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert (narrow[number, 0] == f16[number]).all() and (narrow[~number, 0] == 0x7FFF).all()
    assert (narrow[number, 1] == bf16[number]).all() and (narrow[~number, 1] == 0x7FFF).all()
    for column, kind in ((2, ml_dtypes.float8_e4m3fn), (3, ml_dtypes.float8_e5m2)):
        assert (narrow[number, column] == saturating(values, kind)[number]).all()
        assert (narrow[~number, column] == 0x7F).all()
    s8 = np.clip(np.rint(np.where(number, values, 0)), -128, 127).astype(np.int32)
    assert (narrow[:, 4].view(np.int32) == s8).all()
    # to nearest in 10 bits, ties away from zero
    away = values.astype(np.float64)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(away)
        quantum = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
        rounded = np.sign(away) * np.floor(np.abs(away) / quantum + 0.5) * quantum
    ordinary = np.isfinite(values)
    np.testing.assert_array_equal(narrow[ordinary, 5].copy().view(np.float32), rounded[ordinary].astype(np.float32))
    pair = narrow[:, 0] | (narrow[:, 0] ^ 0x8000) << 16
    other = (narrow[:, 1] ^ 0x8000) | narrow[:, 1] << 16
    assert (narrow[number, 6] == (pair ^ other)[number]).all()


def test_arithmetic_of_pairs(seed: int) -> None:
    """Of any bits: infinities, numbers below the least normal one, what overflows; a NaN is one whatever its bits."""
    random = np.random.default_rng(seed)
    count = 1 << 14
    a, b = (random.integers(0, 1 << 32, count, np.uint32) for _ in range(2))
    out = np.zeros((count, 6), np.uint32)
    run(kernel_source("pairs.cu"), "pairs", ("a", "b", "out", count), {"a": a, "b": b, "out": out},
        grid=count // 256, block=256)  # fmt: skip
    columns = [(kind, op) for kind in (np.float16, ml_dtypes.bfloat16) for op in (np.add, np.subtract, np.multiply)]
    for column, (kind, op) in enumerate(columns):
        found = out[:, column].copy().view(kind).astype(np.float64)
        with np.errstate(all="ignore"):  # products and sums of these are exact in float64, or far from a tie
            exact = op(*(values.view(kind).astype(np.float64) for values in (a, b)))
            np.testing.assert_array_equal(found, exact.astype(kind).astype(np.float64))


# ---- warps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_warp(seed: int):
    out = np.zeros(800, np.uint32)
    run(kernel_source("warp.cu"), "warp", ("out",), {"out": out}, block=32, shared_bytes=1024, seed=seed)
    lane = np.arange(32)
    rows = out[:224].reshape(7, 32)
    assert (rows[0] == 105).all()
    assert (rows[1] == np.where(lane < 3, lane, lane - 3)).all()
    assert (rows[2] == np.where(lane % 16 > 12, lane, lane + 3)).all()
    assert (rows[3] == lane ^ 9).all()
    assert (rows[4] == sum(1 << i for i in range(0, 32, 3))).all()
    assert (rows[5] == 3).all()
    assert (rows[6] == (lane ^ 1) * 3).all()
    assert (out[256:272] == 15 - np.arange(16)).all()
    matrices = (256 * np.arange(4)[:, None, None] + 8 * np.arange(8)[:, None] + np.arange(8)).astype(np.uint16)
    stored = out[512:768].view(np.uint16).reshape(2, 4, 8, 8)
    assert (stored[0] == matrices).all()
    assert (stored[1] == matrices.transpose(0, 2, 1)).all()
    assert (out[768:] == 1).all()


# ---- mma.sync ------------------------------------------------------------------------------------

MMA = re.compile(r"mma_m16n8k(\d+)_(f32|s32)_(\w+?)_(\w+)")


def element(name: str):
    return np.dtype(np.float32) if name == "tf32" else numpy_dtype(name)


@pytest.mark.parametrize("function", FAMILIES["mma"])
def test_mma(function: str):
    k_text, d_type, a_type, b_type = MMA.fullmatch(function).groups()
    k, r = int(k_text), np.random.default_rng(len(function))
    a, b, d = (r.integers(-4, 5, shape) for shape in ((16, k), (k, 8), (16, 8)))
    per = 4 // element(a_type).itemsize
    registers = k // per // 2
    # lane 4 g + t holds rows g and g + 8 of a, column g of b, `per` neighbors along k
    a_fragments = np.zeros((32, registers, per), element(a_type))
    b_fragments = np.zeros((32, registers // 2, per), element(b_type))
    out = np.zeros((32, 4), np.int32 if d_type == "s32" else np.float32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for j in range(registers):
            first = per * t + 4 * per * (j // 2)
            a_fragments[lane, j] = a[g + 8 * (j % 2), first : first + per]
        for j in range(registers // 2):
            first = per * t + 4 * per * j
            b_fragments[lane, j] = b[first : first + per, g]
        out[lane] = [d[g, 2 * t], d[g, 2 * t + 1], d[g + 8, 2 * t], d[g + 8, 2 * t + 1]]
    macros = {"ENTRY": "entry", "CALL": f"{function}(d, a, b)", "A_REGISTERS": registers}
    source = kernel_source("mma.cu", macros | {"ACCUMULATOR": "int" if d_type == "s32" else "float"})
    buffers = {"a": a_fragments.view(np.uint32), "b": b_fragments.view(np.uint32), "out": out}
    run(source, "entry", ("a", "b", "out"), buffers, block=32)
    result = a @ b + d
    for lane in range(32):
        g, t = divmod(lane, 4)
        assert (
            out[lane] == [result[g, 2 * t], result[g, 2 * t + 1], result[g + 8, 2 * t], result[g + 8, 2 * t + 1]]
        ).all()


# ---- wgmma ---------------------------------------------------------------------------------------


def address(o: Operand, row: int, k: int, size: int) -> int:
    """Byte offset of element (row, k) in the operand's region: the canonical layouts, one element at a time."""
    span = o.swizzle or 16
    if o.major:
        per = span // size
        units = (row % per) * size + (row // per) * (o.leading if o.swizzle else o.stride)
        at = o.start + units + k % 8 * span + k // 8 * (o.stride if o.swizzle else o.leading)
    else:
        chunk, rest = divmod(k * size, 16)
        at = o.start + row % 8 * span + row // 8 * o.stride + chunk * (16 if o.swizzle else o.leading) + rest
    return at ^ (at // 128 % (span // 16)) * 16


def operand(case: WgmmaCase, o: Operand, rows: int, image: np.ndarray, kind) -> np.ndarray:
    at = np.array([[address(o, row, k, kind.itemsize) for k in range(case.k)] for row in range(rows)])
    return np.ascontiguousarray(image[at[..., None] + np.arange(kind.itemsize)]).view(kind)[..., 0].astype(np.float64)


def expected(case: WgmmaCase) -> np.ndarray:
    inputs = case.inputs()
    image = inputs["image"].view(np.uint8)
    b = operand(case, case.b, case.n, image[A_BYTES:], element(case.b_type))
    if case.a:
        a = operand(case, case.a, 64, image, element(case.a_type))
    else:
        per = 4 // element(case.a_type).itemsize
        registers = inputs["a_registers"].view(element(case.a_type)).reshape(128, 4, per).astype(np.float64)
        a = np.zeros((64, case.k))
        for thread in range(128):
            warp, g, t = thread // 32, thread % 32 // 4, thread % 4
            for j in range(4):
                first = per * t + 4 * per * (j // 2)
                a[16 * warp + g + 8 * (j % 2), first : first + per] = registers[thread, j]
    product = a @ b.T
    kind = np.int32 if case.integer else np.float32
    before = inputs["out"].view(kind).reshape(128, case.n // 2).astype(np.float64)
    thread, i = np.arange(128)[:, None], np.arange(case.n // 2)
    rows = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
    columns = 8 * (i // 4) + 2 * (thread % 4) + i % 2
    return (product[rows, columns] + (before if case.accumulate else 0)).astype(kind).view(np.uint32).reshape(-1)


def check(cases: list[WgmmaCase]) -> None:
    for case, out in zip(cases, emulate_wgmma(cases, wgmma_source(cases), seed=1), strict=True):
        assert (out == expected(case)).all(), case


def test_random_tiles():
    cases = random_wgmma(17, 48)
    assert {(c.a.major if c.a else None, c.b.major) for c in cases} == {(x, y) for x in (0, 1, None) for y in (0, 1)}
    check(cases)


@pytest.mark.parametrize("first", ALL_N[::8])
def test_every_n(first: int):
    """Every function of eight widths, one of them of each type."""
    cases = []
    for n in range(first, first + 64, 8):
        for i, name in enumerate(wgmma_functions(n)):
            a_type, b_type = re.match(r"wgmma_m64n\d+k\d+_\w\d+_([a-z0-9]+)_([a-z0-9]+)", name).groups()
            if (n // 8 + i) % 4:  # a quarter of them at each width, all of them over four widths
                continue
            size = 32 // K_OF[a_type]
            b = Operand(0, 16, 1024, 128, 0)
            a = None if name.endswith("_rs") else Operand(32, 16, 1024, 128, 0)
            assert size in (1, 2, 4)
            cases.append(WgmmaCase(n, a_type, b_type, a, b, 1, 1000 * n + i))
            assert cases[-1].function == name
    check(cases)


def test_extremes_of_zeros_and_nans():
    """-0 is below +0, and a NaN is the canonical one (PTX ISA, "max", "min")."""
    body = """
extern "C" __global__ void extremes(const float* __restrict__ a, const float* __restrict__ b, u32* __restrict__ found) {
  const int i = threadIdx.x;
  found[2 * i] = __float_as_uint(max_nan_f32(a[i], b[i]));
  found[2 * i + 1] = __float_as_uint(min_nan_f32(a[i], b[i]));
}
"""
    a, b = (
        np.array(v, np.float32) for v in ([0.0, -0.0, -0.0, np.nan, 1.0, -2.0], [-0.0, 0.0, -0.0, 1.0, np.nan, 3.0])
    )
    found = np.zeros((6, 2), np.uint32)
    run(whole_source(body), "extremes", ("a", "b", "found"), {"a": a, "b": b, "found": found}, block=6)
    minus, nan, two, three = 0x80000000, 0x7FFFFFFF, 0xC0000000, 0x40400000
    assert found.tolist() == [[0, minus], [0, minus], [minus, minus], [nan, nan], [nan, nan], [three, two]]
