"""Operands laid out anew: any layout and channel count of x and w before the kernels on TMA, emulated."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import PLAIN, SEEDS, check_emulated, compilation, halo_problems, im2col_problems, laid_out, serves, spec

from convgen import emulator
from convgen.codegen.render import render
from convgen.ir.integer import floordiv, symbol
from convgen.ir.plan import Plan, Workspace
from convgen.ir.problem import ConvProblem, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Options
from convgen.kernels.parts.copies import Copy, Transpose, transpose
from convgen.kernels.parts.prepare import Prepared, channels_last
from convgen.targets import TARGETS

SMALL: Options = {**PLAIN, "tile.m": 64, "tile.n": 16, "consumers": 1, "stages": 3}
PLANES = {"x": "ncdhw", "w": "kctrs", "y": "nkopq"}


def layer(c: int, size: tuple[int, ...], n: int = 2, filter: int = 3, **layouts: str) -> ConvProblem:
    pad = filter // 2
    return laid_out(make("fprop", n, c, 24, size, (filter,) * len(size), pad=pad), **(layouts or PLANES))


#: A problem, and the elements of a load of x; 0: element by element.
LAYOUTS: dict[str, tuple[ConvProblem, int]] = {
    "rows of 16 bytes": (layer(72, (16, 11)), 8),
    "several tiles of channels and pixels": (layer(136, (20, 20), 1, 1, x="nchw", w="kcrs"), 8),
    "rows of 8 bytes": (layer(72, (14, 14)), 4),
    "whole planes": (layer(136, (7, 7)), 8),
    "whole planes of a few channels": (layer(24, (9, 11), 3), 8),
    "planes too large for a tile": (layer(16, (51, 51), 1, 1), 1),
    "planes too large for a tile, rows of 4 bytes": (layer(16, (62, 27), 1, 1), 2),
    "whole planes of even rows": (layer(40, (6, 27), 2), 8),
    "3 channels": (layer(3, (16, 16)), 8),
    "3 channels, odd planes": (layer(3, (13, 9)), 1),
    "1 channel": (layer(1, (12, 12)), 8),
    "13 channels, innermost": (layer(13, (9, 7), x="nhwc", w="krsc"), 0),
    "images innermost": (layer(24, (6, 5), 8, x="chwn", w="rsck", y="kpqn"), 8),
    "one image": (layer(24, (6, 5), 1, x="chwn", w="crsk"), 8),
    "rows of channels": (layer(24, (9, 24), x="nhcw", w="crsk", y="npkq"), 8),
    "columns before rows": (layer(24, (9, 7), x="nwhc", w="ksrc"), 0),
    "one axis": (layer(24, (40,)), 8),
    "three axes": (layer(24, (4, 5, 6), 1), 8),
}


def strided(c: int, size: tuple[int, ...], stride: int | tuple[int, ...], **layouts: str) -> ConvProblem:
    made = make("fprop", 2, c, 24, size, (1,) * len(size), stride=stride)
    return laid_out(made, **(layouts or PLANES))


#: 1x1 filters with strides: of x, the pixels that they read.
LAYOUTS |= {
    "every second pixel": (strided(24, (16, 16), 2), 8),
    "every second row, rows of 8 bytes": (strided(72, (28, 12), (2, 1)), 8),
    "every third column": (strided(24, (9, 22), (1, 3)), 8),
    "every second pixel of whole planes": (strided(40, (7, 7), 2), 8),
    "one pixel of a plane": (strided(40, (2, 2), 2), 8),
    "every second pixel, images innermost": (
        laid_out(make("fprop", 8, 24, 24, (6, 5), (1, 1), stride=(2, 3)), x="chwn", y="kpqn"), 8,
    ),
    "every second pixel, channels innermost": (strided(13, (8, 7), 2, x="nhwc"), 0),
    "every second step of one axis": (strided(24, (90,), 2), 8),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str) -> None:
    problem, vector = LAYOUTS[name]
    copy = next(c for c in channels_last(problem).copies if c.target.role == "x")
    found = transpose(copy)
    assert (found.vector if found else 0) == vector
    made = check_emulated(spec(problem, "tma_im2col", SMALL), 1)
    assert [w.bytes for w in made.plan.workspaces] == [c.target.bytes for c in channels_last(problem).copies]
    if serves(problem, "tma_halo", {}):
        check_emulated(spec(problem, "tma_halo", {}), 1)


def test_what_lies_right_is_not_copied() -> None:
    for problem in (
        make("fprop", 2, 24, 40, (9, 7), (3, 3)),
        laid_out(make("fprop", 2, 24, 40, (9, 7), (1, 1)), w="kcrs", y="nkpq"),
        laid_out(make("fprop", 2, 24, 40, (1, 1), (1, 1)), x="nchw"),
        laid_out(make("fprop", 2, 24, 40, (9, 7), (3, 3)), w="rskc"),
    ):
        assert not channels_last(problem).copies
    planes = laid_out(make("fprop", 2, 24, 40, (8, 7), (1, 1)), w="ckrs", x="nchw", y="nkpq")
    assert [c.target.role for c in channels_last(planes, copy_x=False).copies] == ["w"]
    outside = laid_out(make("fprop", 2, 24, 40, (9, 7), (3, 3)), w="rskc")
    assert [c.target.role for c in channels_last(outside, taps_outside=False).copies] == ["w"]


@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_layout(data: st.DataObject, seed: int) -> None:
    strategy = data.draw(st.sampled_from(("tma_im2col", "tma_halo")))
    drawn = data.draw(im2col_problems() if strategy == "tma_im2col" else halo_problems())
    c = data.draw(st.integers(1, 40))
    x, w = (data.draw(st.permutations(t.dims)) for t in (drawn.x, drawn.w))
    problem = laid_out(_of_channels(drawn, c), x="".join(x), w="".join(w))
    problem = replace(problem, padding=data.draw(st.sampled_from(fills(problem))))
    assume(serves(problem, strategy, {}))
    check_emulated(spec(problem, strategy, {}, "residual" if problem.epilogue is None else ""), seed, (3,))


def fills(problem: ConvProblem) -> list[Padding]:
    """What its padding may be made of."""
    pads = [max(p) for p in zip(problem.pad_lo, problem.pad_hi, strict=True)]
    most = {Padding.REFLECT: -1, Padding.CIRCULAR: 0}
    fitting = [p for p in Padding if all(n <= e + most.get(p, n) for n, e in zip(pads, problem.input, strict=True))]
    return fitting if any(pads) else [Padding.ZERO]


def _of_channels(p: ConvProblem, c: int) -> ConvProblem:
    made = make(
        "fprop", p.n, c, p.k, p.input, p.filter, p.stride, tuple(zip(p.pad_lo, p.pad_hi, strict=True)), p.dilation,
        dtype=p.x.dtype,
    )  # fmt: skip
    return laid_out(made, y="".join(p.y.dims))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_tensors_of_2_to_the_31_elements_count_in_64_bits(layout: str) -> None:
    problem = make("fprop", 1024, 3, 64, (1024, 1024), (3, 3), stride=8, pad=1)
    source = compilation(spec(laid_out(problem, x=layout), "tma_im2col", {})).source
    offsets = re.findall(r"const (.*) (?:n|h|w|c|batch) = .*(?:number|block|first)", _function(source, "prepare_x"))
    assert offsets and set(offsets) == {"long long"}, source
    assert "long long" not in _function(source, "prepare_w")


def _function(source: str, name: str) -> str:
    """The text of a function of generated source."""
    return source.partition(f" {name}(")[2].partition("\n}\n")[0]


def test_a_channel_may_be_a_formula() -> None:
    """Filters of groups as one filter of all channels: zero off the group's block."""
    k_a_group, c_a_group, groups = 6, 4, 4
    source = Tensor("w", "w", "f16", ("k", "c", "s"), (k_a_group * groups, c_a_group, 3))
    target = Tensor("w", "w", "f16", ("k", "s", "c"), (k_a_group * groups, 3, c_a_group * groups))
    copy = Copy(source, target, symbol("c") - floordiv(symbol("k"), k_a_group) * c_a_group)
    prepared = Prepared(make("fprop", 1, 16, 24, (9,), (3,)), (copy,))
    plan = Plan(prepared.problem, TARGETS["sm_90a"], "tma_im2col", "", prepared.launches(), prepared.workspaces)
    w = np.random.default_rng(1).standard_normal(source.extents).astype(np.float16)
    out = np.full(target.extents, np.nan, np.float16)
    emulator.emulate(
        render("prepare/kernel.cu.j2", plan, prepare=prepared.kernel), plan.steps, {"w": w, "workspace.w": out}
    )
    expected = np.zeros(target.extents, np.float16)
    for k in range(source.extent("k")):
        first = k // k_a_group * c_a_group
        expected[k, :, first : first + c_a_group] = w[k].T
    np.testing.assert_array_equal(out, expected)
    assert prepared.workspaces == (Workspace("workspace.w", target.bytes),)
    assert not isinstance(prepared.kernel.parts[0], Transpose)  # type: ignore[union-attr]
