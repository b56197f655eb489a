"""Problems and settings for tma_im2col and tma_halo, and the way through spec text to a compilation or a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from problems import make, sliced
from runs import emulated_plan
from strategy_problems import epilogues

import convgen
from convgen import driver
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.epilogue import Epilogue
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import decode, references
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.parts.lowering import used_body, used_operands
from convgen.runtime.kernel import Kernel
from convgen.spec import read
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
SEEDS = st.integers(0, 2**32 - 1)

#: Epilogues by what is particular about them; {pixels} are the output's spatial dims, {y} is its type.
EPILOGUES: dict[str, str] = {
    "none": "",
    "no operand": "y = relu(acc)",
    "bias f32": "operand b: f32[k]  y = relu(acc + b)",
    "bias f16": "operand b: f16[k]  y = leaky_relu(acc + b, 0.1)",
    "bias bf16": "operand b: bf16[k]  y = max(acc, b)",
    "bias s8": "operand b: s8[k]  y = acc + b",
    "scalar": "operand s: f32[]  y = acc * s",
    "residual": "operand b: f32[k]  operand z: {y}[n, {pixels}, k]  y = relu(acc + b + z)",
    "an image's channel": "operand e: f16[n, k]  y = acc * sigmoid(e)",
    "pixel": "operand e: f32[{pixels}]  y = acc - e",
    "other order": "operand e: f32[k, n, {pixels}]  y = clamp(acc + e, -2, 2)",
    "locals": (
        "operand scale: f32[k]  operand shift: bf16[k]  operand z: {y}[n, {pixels}, k]  operand keep: f32[n] "
        "t = acc * scale + shift  u = gelu(t) + z  y = select(keep > 0, u, t)"
    ),
}
#: Rows of the above, and texts with several operands of one kind at once.
SEVERAL_OPERANDS = {
    "no operand": "no operand",
    "channels of every type": (
        "operand a: f32[k]  operand b: f16[k]  operand c: bf16[k]  operand d: s8[k]  y = relu(acc * a + b) + c * d"
    ),
    "coordinates": (
        "operand s: f32[]  operand e: f16[n, k]  operand f: bf16[p, q]  operand g: f32[q, k, n]  operand h: s8[k, p] "
        "y = acc * s + e + f * g + h"
    ),
    "locals": "locals",
}


def in_turn(*ways: int) -> list[tuple[str, int]]:
    """Every epilogue in one of the ways, in turn, and those that hold the most registers in all of them."""
    each = ((name, way) for i, name in enumerate(EPILOGUES) for j, way in enumerate(ways) if i % len(ways) == j)
    return list(dict.fromkeys([*each, *product(("residual", "locals"), ways)]))


#: tma_im2col's schedules, for a tile of 16 channels over three taps or more; PLAIN is what a row does not say, so
#: that no cost model does.
PLAIN: Options = {
    "schedule": "cooperative", "order": "channels_inner", "blocks": 1, "k_blocks": 1, "split_k": 1,
    "swap_ab": 0, "cluster": 1, "raster": 1, "stream_k": 0, "resident": 0,
}  # fmt: skip
SCHEDULES: dict[str, Options] = {
    "one consumer": {"tile.m": 64, "tile.k": 64, "consumers": 1, "stages": 2},
    "two consumers": {"tile.m": 128, "tile.k": 32, "consumers": 2, "stages": 3},
    "three consumers": {"tile.m": 192, "tile.k": 64, "consumers": 3, "stages": 4},
    "two of 128 rows": {"tile.m": 256, "tile.k": 16, "consumers": 2, "stages": 5},
    "one of 192 rows": {"tile.m": 192, "tile.k": 64, "consumers": 1, "stages": 3},
    "taps inside": {"tile.m": 128, "tile.k": 64, "consumers": 2, "order": "taps_inner", "stages": 4},
    "ping-pong": {"tile.m": 64, "tile.k": 64, "consumers": 2, "schedule": "pingpong", "stages": 4},
    "ping-pong of three": {"tile.m": 64, "tile.k": 32, "consumers": 3, "schedule": "pingpong", "stages": 5},
    "ping-pong of 128 rows": {"tile.m": 128, "tile.k": 16, "consumers": 2, "schedule": "pingpong", "stages": 3},
    "ping-pong, merged, taps inside": {
        "tile.m": 64, "tile.k": 32, "consumers": 2, "schedule": "pingpong", "k_blocks": 3, "order": "taps_inner",
        "stages": 2,
    },
    "merged": {"tile.m": 64, "tile.k": 16, "consumers": 1, "k_blocks": 5, "stages": 3},
    "two blocks": {"tile.m": 64, "tile.k": 64, "consumers": 1, "blocks": 2, "stages": 3},
    "three blocks, ping-pong": {
        "tile.m": 64, "tile.k": 32, "consumers": 2, "schedule": "pingpong", "blocks": 3, "stages": 3,
    },
    "split in two": {"tile.m": 64, "tile.k": 64, "consumers": 1, "split_k": 2, "stages": 3},
    "split in two, taps inside": {
        "tile.m": 128, "tile.k": 32, "consumers": 2, "split_k": 2, "order": "taps_inner", "stages": 3,
    },
    "split in two, merged": {"tile.m": 64, "tile.k": 16, "consumers": 1, "split_k": 2, "k_blocks": 3, "stages": 2},
    "two share w": {"tile.m": 64, "tile.k": 64, "consumers": 1, "cluster": 2, "multicast": "b", "stages": 3},
    "two share x": {"tile.m": 128, "tile.k": 32, "consumers": 2, "cluster": 2, "multicast": "a", "stages": 3},
    "four share x, merged": {
        "tile.m": 64, "tile.k": 16, "consumers": 1, "k_blocks": 3, "cluster": 4, "multicast": "a", "stages": 2,
    },
    "two share w, ping-pong": {
        "tile.m": 64, "tile.k": 32, "consumers": 2, "schedule": "pingpong", "cluster": 2, "multicast": "b", "stages": 3,
    },
    "channels as rows": {"swap_ab": 1, "tile.m": 48, "tile.n": 64, "tile.k": 64, "consumers": 1, "stages": 3},
    "channels as rows, two consumers": {
        "swap_ab": 1, "tile.m": 112, "tile.n": 128, "tile.k": 16, "consumers": 2, "stages": 3,
    },
    "channels as rows, ping-pong": {
        "swap_ab": 1, "tile.m": 32, "tile.n": 64, "tile.k": 32, "consumers": 2, "schedule": "pingpong",
        "k_blocks": 3, "stages": 2,
    },
    "channels as rows, ping-pong, two share x": {
        "swap_ab": 1, "tile.m": 80, "tile.n": 64, "tile.k": 64, "consumers": 2, "schedule": "pingpong",
        "cluster": 2, "multicast": "a", "stages": 2,
    },
    "channels as rows, four share w": {
        "swap_ab": 1, "tile.m": 16, "tile.n": 64, "tile.k": 64, "consumers": 1, "cluster": 4, "multicast": "b",
        "stages": 3,
    },
    "channels as rows, split in three": {
        "swap_ab": 1, "tile.m": 96, "tile.n": 64, "tile.k": 32, "consumers": 1, "split_k": 3, "stages": 3,
    },
    "channels as rows, 128 each": {
        "swap_ab": 1, "tile.m": 32, "tile.n": 128, "tile.k": 64, "consumers": 1, "raster": 4, "stages": 2,
    },
    "in bands": {"tile.m": 64, "tile.k": 64, "consumers": 1, "raster": 2, "stages": 3},
    "in bands, two share w": {
        "tile.m": 64, "tile.k": 32, "consumers": 1, "raster": 3, "cluster": 2, "multicast": "b", "stages": 3,
    },
}  # fmt: skip
#: Where a block keeps B, for tiles of all of up to 64 output channels.
RESIDENT: dict[str, Options] = {
    "one consumer": {"tile.m": 64, "tile.n": 40, "tile.k": 64, "consumers": 1, "stages": 2},
    "two consumers, merged": {
        "tile.m": 128, "tile.n": 40, "tile.k": 16, "consumers": 2, "k_blocks": 3, "stages": 2,
    },
    "two blocks, taps inside": {
        "tile.m": 64, "tile.n": 48, "tile.k": 32, "consumers": 1, "blocks": 2, "order": "taps_inner", "stages": 3,
    },
    "ping-pong": {"tile.m": 64, "tile.n": 40, "tile.k": 64, "consumers": 2, "schedule": "pingpong", "stages": 3},
    "channels as rows": {"swap_ab": 1, "tile.m": 48, "tile.n": 64, "tile.k": 32, "consumers": 1, "stages": 3},
    "channels as rows, ping-pong of three": {
        "swap_ab": 1, "tile.m": 32, "tile.n": 64, "tile.k": 64, "consumers": 3, "schedule": "pingpong", "stages": 2,
    },
}  # fmt: skip
#: So many stages, beside epilogue tiles and those of an operand, that a split's sums have to take their place.
IN_PLACE: dict[str, Options] = {
    "split in two, sums in place": {
        "tile.m": 64, "tile.n": 256, "tile.k": 64, "consumers": 1, "split_k": 2, "stages": 4,
    },
    "split in four, sums in place, two consumers": {
        "tile.m": 128, "tile.n": 128, "tile.k": 64, "consumers": 2, "split_k": 4, "stages": 5,
    },
    "split in four, sums in place, two share w": {
        "tile.m": 64, "tile.n": 128, "tile.k": 64, "consumers": 1, "split_k": 4, "cluster": 2, "multicast": "b",
        "stages": 7,
    },
    "split in two, sums in place, two share x as columns": {
        "tile.m": 128, "tile.n": 64, "tile.k": 64, "consumers": 1, "split_k": 2, "cluster": 2, "multicast": "a",
        "swap_ab": 1, "stages": 7,
    },
}  # fmt: skip
#: Splits want a wider tile, since a tile's channels are shared out in eights.
WIDE_SPLITS: dict[str, Options] = {
    "split in three": {"tile.m": 64, "tile.n": 48, "tile.k": 64, "consumers": 1, "split_k": 3, "stages": 2},
    "split in five, two consumers": {
        "tile.m": 128,
        "tile.n": 40,
        "tile.k": 32,
        "consumers": 2,
        "split_k": 5,
        "stages": 2,
    },
    "split in four": {"tile.m": 64, "tile.n": 32, "tile.k": 64, "consumers": 1, "split_k": 4, "stages": 2},
    "split in four, unevenly": {"tile.m": 128, "tile.n": 32, "tile.k": 16, "consumers": 2, "split_k": 4, "stages": 3},
    "split in eight": {"tile.m": 64, "tile.n": 64, "tile.k": 64, "consumers": 1, "split_k": 8, "stages": 2},
    **IN_PLACE,
}
#: Blocks share all k steps evenly; a second kernel finishes the tiles of which several have a part.
STREAMS: dict[str, Options] = {
    "one consumer": {"tile.m": 64, "tile.n": 24, "tile.k": 64, "consumers": 1, "stages": 3},
    "two consumers": {"tile.m": 256, "tile.n": 16, "tile.k": 32, "consumers": 2, "stages": 2, "raster": 2},
    "merged, taps inside": {
        "tile.m": 64, "tile.n": 32, "tile.k": 16, "consumers": 1, "k_blocks": 3, "order": "taps_inner", "stages": 2,
    },
    "channels as rows": {"swap_ab": 1, "tile.m": 112, "tile.n": 64, "tile.k": 64, "consumers": 1, "stages": 3},
    "channels as rows, two consumers": {
        "swap_ab": 1, "tile.m": 48, "tile.n": 128, "tile.k": 32, "consumers": 2, "stages": 3,
    },
}  # fmt: skip


def spec(problem: ConvProblem, strategy: str, options: Options, epilogue: str = "", target: str = TARGET.name) -> str:
    """A spec of the problem; `epilogue` names a row of EPILOGUES, or is the text of one."""
    text = EPILOGUES.get(epilogue, epilogue).format(pixels=", ".join(problem.spatial.output), y=problem.y.dtype)
    settings = [f"{name.replace('.', ' ')}{'=' if '.' in name else ' '}{v}" for name, v in options.items()]
    lines = [
        str(problem).removesuffix("}"),
        f"  epilogue {{ {text} }}\n" if text else "",
        f"  strategy {strategy} {{ {'  '.join(settings)} }}\n",
        f"  target {target}\n}}",
    ]
    return "".join(lines)


def compilation(text: str) -> driver.Compilation:
    """The only convolution of a spec.  Raises SpecError."""
    (only,) = driver.choose_all(driver.Spec(text))
    return only


def kernel(text: str) -> Kernel:
    """The kernel of a spec of one convolution."""
    made = convgen.compile(text)
    assert isinstance(made, Kernel)
    return made


def serves(problem: ConvProblem, strategy: str, options: Options) -> bool:
    return not strategies.STRATEGIES[strategy].obstacles(problem, TARGET, options)


# ---- random problems -------------------------------------------------------------------------------


def in_order(tensor: Tensor, dims: Sequence[str]) -> Tensor:
    """The tensor in another layout."""
    held = tuple(d for d in dims if d in tensor.dims)
    return replace(tensor, dims=held, extents=tuple(tensor.extent(d) for d in held))


def laid_out(problem: ConvProblem, **layouts: str) -> ConvProblem:
    """The problem with some tensors in other layouts, by role: laid_out(problem, y="nkpq")."""
    moved = {role: in_order(problem.tensor(role), dims) for role, dims in layouts.items()}
    return replace(problem, **moved)  # type: ignore[arg-type]


def reordered(draw, problem: ConvProblem, roles: str, rarity: int = 2) -> ConvProblem:
    """Each of some tensors in any layout, once in `rarity` + 1 times."""
    for role in roles:
        if draw(st.integers(0, rarity)) == 0:
            problem = laid_out(problem, **{role: draw(st.permutations(problem.tensor(role).dims))})  # type: ignore[arg-type]
    return problem


def typed(problem: ConvProblem, **dtypes: str) -> ConvProblem:
    """The problem with other element types, by role."""
    return replace(problem, **{r: replace(problem.tensor(r), dtype=t) for r, t in dtypes.items()})  # type: ignore[arg-type]


GROUPS = st.sampled_from((1, 1, 1, 2, 3, 4, 5, 8, 9, 16))


@st.composite
def _of_groups(draw, groups: int, tails: bool = False) -> tuple[int, int]:
    """Channels of groups that wgmma may multiply one by one, or in packs of several; with `tails`, also of packs
    that end inside a product, or are fewer."""
    if tails and (groups % 2 or draw(st.booleans())):
        return groups * 4 * draw(st.integers(1, 8)), groups * 4 * draw(st.integers(1, 8))
    least = max(16 // groups, 1)
    return groups * least * draw(st.integers(1, 3)), groups * least * draw(st.integers(1, 3))


@st.composite
def im2col_problems(draw, ranks: Sequence[int] = (1, 2, 3), pixels: int = 300) -> ConvProblem:
    """What tma_im2col serves: any geometry within TMA's limits, both layouts of w, any layout and type of y."""
    rank = draw(st.sampled_from(ranks))
    axes = []
    longest = {1: pixels // 2, 2: 16, 3: 7}[rank]
    for _ in range(rank):
        taps, dilation, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
        reach = (taps - 1) * dilation
        low, high = draw(st.integers(0, reach + 1)), draw(st.integers(0, reach + 1))
        extent = draw(st.integers(max(1, reach + 1 - low - high), longest + reach))
        axes.append((extent, taps, stride, dilation, (low, high)))
    inputs, filters, strides, dilations, pads = zip(*axes, strict=True)
    dtype = draw(st.sampled_from(("f16", "bf16")))
    groups = draw(GROUPS)
    c, k = draw(_of_groups(groups, True)) if groups > 1 else (8 * draw(st.integers(1, 12)), draw(st.integers(1, 80)))
    problem = make(
        "fprop", 2, c, k, inputs, filters, strides, pads, dilations, groups, dtype, name="random",
    )  # fmt: skip
    problem = _with_images(draw, problem, 4, pixels)
    problem = reordered(draw, reordered(draw, problem, "w", 1), "y", 3)
    problem = typed(problem, y=draw(st.sampled_from(("f16", "bf16", "f32"))))
    return _with_epilogue(draw, problem)


@st.composite
def dgrad_problems(draw, pixels: int = 300, strided: bool = False) -> ConvProblem:
    """A dgrad of any geometry within TMA's limits; `strided`: with a stride above 1."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    strides = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    assume(max(strides) > 1 or not strided)
    axes = []
    for _ in strides:
        taps, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        reach = (taps - 1) * dilation
        low, high = draw(st.integers(0, reach + 1)), draw(st.integers(0, reach + 1))
        extent = draw(st.integers(max(1, reach + 1 - low - high), {1: 60, 2: 12, 3: 5}[rank] + reach))
        axes.append((extent, taps, dilation, (low, high)))
    inputs, filters, dilations, pads = zip(*axes, strict=True)
    dtype = draw(st.sampled_from(("f16", "bf16")))
    groups = draw(GROUPS)
    alone = st.tuples(st.integers(1, 80), st.one_of(st.integers(1, 12).map(lambda i: 8 * i), st.integers(1, 96)))
    c, k = draw(_of_groups(groups, True) if groups > 1 else alone)
    problem = make("dgrad", draw(st.integers(1, 3)), c, k, inputs, filters, strides, pads, dilations, groups, dtype)
    assume(problem.x.size // c <= pixels)
    problem = reordered(draw, problem, "wx")
    problem = typed(problem, x=draw(st.sampled_from(("f16", "bf16", "f32"))))
    return _with_epilogue(draw, problem)


@st.composite
def mma_dgrads(draw) -> ConvProblem:
    """The same by mma.sync: groups of any channels, and y in any layout, too."""
    problem = draw(dgrad_problems())
    groups, channels = draw(st.sampled_from((1, 1, 2, 3))), st.sampled_from((1, 2, 3, 4, 5, 8, 12, 16, 40, 64))
    if groups > 1:
        pads = tuple(zip(problem.pad_lo, problem.pad_hi, strict=True))
        problem = make(
            "dgrad", problem.n, groups * draw(channels), groups * draw(channels), problem.input, problem.filter,
            problem.stride, pads, problem.dilation, groups, problem.y.dtype,
        )  # fmt: skip
        problem = _with_epilogue(draw, reordered(draw, problem, "wx"))
    return reordered(draw, problem, "y", 3)


@st.composite
def depthwise_dgrads(draw, pixels: int = 300) -> ConvProblem:
    """A dgrad of any geometry with a filter per channel; channels that are vectors for most."""
    problem = draw(dgrad_problems(pixels))
    assume(problem.rank < 3)
    c = draw(st.sampled_from((16, 16, 32, 96, 10, 3)))
    problem = make(
        "dgrad", problem.n, c, c, problem.input, problem.filter, problem.stride,
        tuple(zip(problem.pad_lo, problem.pad_hi, strict=True)), problem.dilation, c, problem.y.dtype, name="random",
    )  # fmt: skip
    return _with_epilogue(draw, typed(problem, x=draw(st.sampled_from(("f16", "bf16", "f32")))))


@st.composite
def halo_problems(draw, pixels: int = 300) -> ConvProblem:
    """What tma_halo serves: one to three axes, strides by phase."""
    planes = ((3, 3), (3, 3), (1, 3), (3, 1), (2, 2), (5, 3), (5, 5), (1, 7))
    taps = draw(st.sampled_from((*planes, (7, 7), (3,), (5,), (33,), (3, 3, 3), (2, 3, 3), (1, 2, 3))))
    dilation = tuple(draw(st.integers(1, 2)) for _ in taps)
    stride = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in taps)
    reach = [(t - 1) * d for t, d in zip(taps, dilation, strict=True)]
    pads = tuple((draw(st.integers(0, r + 1)), draw(st.integers(0, r + 1))) for r in reach)
    extents = tuple(
        draw(st.integers(max(1, r + 1 - sum(p)), {1: 120, 2: 16, 3: 7}[len(taps)] * t + r))
        for r, p, t in zip(reach, pads, stride, strict=True)
    )
    groups = draw(GROUPS)
    if groups > 1 and (groups % 2 or draw(st.booleans())):  # in packs of two, the last one alone, or one by one
        c, k = groups * 8 * draw(st.integers(1, 9)), groups * 4 * draw(st.integers(1, 17))
    elif groups > 1:
        c, k = draw(_of_groups(groups))
    else:
        c, k = 8 * draw(st.integers(1, 10)), draw(st.sampled_from((8, 1))) * draw(st.integers(1, 10))
    problem = make(
        "fprop", 2, c, k, extents, taps, stride, pads, dilation, groups, draw(st.sampled_from(("f16", "bf16"))),
        name="random",
    )  # fmt: skip
    problem = _with_images(draw, problem, 4, pixels)
    if draw(st.integers(0, 3)) == 0:
        problem = laid_out(problem, y=("n", "k", *problem.spatial.output))  # type: ignore[arg-type]
    problem = reordered(draw, problem, "w")
    return _with_epilogue(draw, typed(problem, y=draw(st.sampled_from(("f16", "bf16")))))


@st.composite
def halo_dgrad_problems(draw, pixels: int = 300) -> ConvProblem:
    """What tma_halo serves of dgrad: strides along one or two axes, by the phases that they make."""
    p = draw(halo_problems(pixels))
    stride = tuple(draw(st.sampled_from((1, 1, 2, 2, 4))) if p.rank < 3 else 1 for _ in p.input)
    assume(math.prod(stride) <= 8)
    pads = tuple(zip(p.pad_lo, p.pad_hi, strict=True))
    problem = make(
        "dgrad", p.n, p.k, p.c, p.input, p.filter, stride, pads, p.dilation, p.groups, p.x.dtype, name="random",
    )  # fmt: skip
    assume(problem.x.size // problem.c <= pixels)
    return _with_epilogue(draw, reordered(draw, problem, "w"))


@st.composite
def wgrad_problems(draw, pixels: int = 300) -> ConvProblem:
    """What tma_wgrad serves: any geometry within TMA's limits, any layouts, channels and groups."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    axes = []
    for _ in range(rank):
        taps, dilation, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.sampled_from((1, 1, 2, 3)))
        reach = (taps - 1) * dilation
        low, high = draw(st.integers(0, reach + 1)), draw(st.integers(0, reach + 1))
        extent = draw(st.integers(max(1, reach + 1 - low - high), {1: pixels // 2, 2: 16, 3: 7}[rank] + reach))
        axes.append((extent, taps, stride, dilation, (low, high)))
    inputs, filters, strides, dilations, pads = zip(*axes, strict=True)
    groups = draw(GROUPS)
    unit = draw(st.sampled_from((1, 4))) if groups % 2 else 1  # in packs of two, the last one alone
    c, k = (groups * unit * draw(st.integers(1, 80 // groups // unit or 1)) for _ in range(2))
    dtype = draw(st.sampled_from(("f16", "bf16")))
    problem = make(
        "wgrad", 2, c, k, inputs, filters, strides, pads, dilations, groups, dtype, name="random",
    )  # fmt: skip
    problem = reordered(draw, _with_images(draw, problem, 6, pixels), "xyw")
    return _with_epilogue(draw, typed(problem, w=draw(st.sampled_from(("f16", "bf16", "f32")))))


@st.composite
def depthwise_wgrad_problems(draw, pixels: int = 300) -> ConvProblem:
    """What depthwise_wgrad serves: any geometry and alignment, channels innermost, a group each."""
    p, m = draw(wgrad_problems(pixels)), draw(st.sampled_from((1, 1, 1, 2, 3)))
    c = draw(st.integers(1, 48) | st.sampled_from((16, 32, 48)))  # TMA brings multiples of 16 bytes
    pads = tuple(zip(p.pad_lo, p.pad_hi, strict=True))
    found = make("wgrad", p.n, c, c * m, p.input, p.filter, p.stride, pads, p.dilation, c, p.x.dtype)
    return _with_epilogue(draw, typed(found, w=p.w.dtype))


@st.composite
def stem_wgrad_problems(draw, pixels: int = 300) -> ConvProblem:
    """What stem_wgrad serves: few channels, two axes, any layouts."""
    axes = []
    for _ in range(2):
        taps, stride = draw(st.integers(1, 9)), draw(st.integers(1, 5))
        low, high = draw(st.integers(0, taps)), draw(st.integers(0, taps))
        axes.append((draw(st.integers(max(1, taps - low - high), 16 * stride + taps)), taps, stride, (low, high)))
    inputs, filters, strides, pads = zip(*axes, strict=True)
    c, k, dtype = draw(st.integers(1, 7)), draw(st.integers(1, 160)), draw(st.sampled_from(("f16", "bf16")))
    problem = make("wgrad", 2, c, k, inputs, filters, strides, pads, dtype=dtype, name="random")
    problem = reordered(draw, _with_images(draw, problem, 5, pixels), "xyw")
    return _with_epilogue(draw, typed(problem, w=draw(st.sampled_from(("f16", "bf16", "f32")))))


@st.composite
def winograd_problems(draw, pixels: int = 200) -> ConvProblem:
    """What winograd serves: 3x3 filters of unit stride, with any borders, channels, layouts and slices."""
    pads = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(2))
    inputs = tuple(draw(st.integers(max(1, 3 - sum(pad)), 12)) for pad in pads)
    c, k, dtype = draw(st.integers(1, 70)), draw(st.integers(1, 40)), draw(st.sampled_from(("f16", "bf16", "f32")))
    problem = make("fprop", 2, c, k, inputs, (3, 3), pad=pads, dtype=dtype, name="random")
    problem = _with_images(draw, problem, 3, pixels)
    problem = reordered(draw, problem, "xwy")
    return draw(sliced(_with_epilogue(draw, typed(problem, y=draw(st.sampled_from(("f16", "bf16", "f32")))))))


@st.composite
def winograd_fused_problems(draw, pixels: int = 300) -> ConvProblem:
    """What winograd_fused serves: filters three taps wide, of unit stride, along one axis or two."""
    pads = [(draw(st.integers(0, 3)), draw(st.integers(0, 3)))]
    inputs, filters, dilations = [draw(st.integers(max(1, 3 - sum(pads[0])), 40))], [3], [1]
    if draw(st.integers(0, 3)):
        taps, dilation, pad = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
        inputs.insert(0, draw(st.integers(max(1, (taps - 1) * dilation + 1 - pad), 16)))
        filters.insert(0, taps)
        dilations.insert(0, dilation)
        pads.insert(0, (pad, 0))
    c, k, dtype = draw(st.integers(1, 150)), draw(st.integers(1, 140)), draw(st.sampled_from(("f16", "bf16")))
    problem = make(
        "fprop", 2, c, k, tuple(inputs), tuple(filters), pad=tuple(pads),
        dilation=tuple(dilations), dtype=dtype, name="random",
    )  # fmt: skip
    problem = _with_images(draw, problem, 4, pixels)
    problem = reordered(draw, problem, "xw")
    if draw(st.integers(0, 3)) == 0:
        problem = laid_out(problem, y=("n", "k", *problem.spatial.output))  # type: ignore[arg-type]
    return draw(sliced(_with_epilogue(draw, typed(problem, y=draw(st.sampled_from(("f16", "bf16")))))))


def _with_images(draw, problem: ConvProblem, most: int, pixels: int) -> ConvProblem:
    """The problem, of two images, with as many as it has room for, `most` at most."""
    fit = 2 * pixels // problem.output_pixels
    assume(fit)
    return problem.with_images(draw(st.integers(1, min(most, fit))))


def _with_epilogue(draw, problem: ConvProblem) -> ConvProblem:
    """The problem, half of the time with an epilogue, which uses all that it declares, as the language asks."""
    if draw(st.booleans()):
        return problem
    problem = replace(problem, epilogue=draw(epilogues(problem.result)))
    return replace(problem, epilogue=Epilogue(used_operands(problem), used_body(problem), problem.further))


#: By strategy, and by kernel for gradients of the filter.
PROBLEMS: Mapping[str, st.SearchStrategy[ConvProblem]] = {
    "tma_im2col": im2col_problems(),
    "tma_halo": halo_problems(),
    "tma_wgrad": wgrad_problems(),
    "mma_wgrad": wgrad_problems(),
    "depthwise_wgrad": depthwise_wgrad_problems(),
    "stem_wgrad": stem_wgrad_problems(),
    "dgrad": dgrad_problems(),
    "mma_dgrad": mma_dgrads(),
    "halo_dgrad": halo_dgrad_problems(),
    "depthwise_dgrad": depthwise_dgrads(),
    "winograd": winograd_problems(),
    "winograd_fused": winograd_fused_problems(),
}


@st.composite
def some_options(draw, strategy: str, most: int = 3, kernel: str = "") -> Options:
    """A few of the options of a strategy, or of one kernel, with values that the language allows."""
    rows = [row for row in strategies.STRATEGIES[strategy].options if not kernel or kernel in row.kernels]
    chosen = draw(st.lists(st.sampled_from(rows), unique_by=lambda row: row.name, max_size=most))
    return {
        row.name: draw(st.sampled_from(row.choices) if row.choices else st.integers(row.low, min(row.high, 64)))
        for row in chosen
    }


@st.composite
def served_options(
    draw, problem: ConvProblem, strategy: str, kernel: str, target: str = "sm_90a", given: Options | None = None
) -> Options:
    """A kernel, which `given` may name otherwise, and a few of its options with which it serves the problem: of those
    drawn, as many as go together."""
    serving, found = strategies.STRATEGIES[strategy], dict({"kernel": kernel} if given is None else given)
    assume(not serving.obstacles(problem, TARGETS[target], found))
    for name, value in draw(some_options(strategy, kernel=kernel)).items():
        if not serving.obstacles(problem, TARGETS[target], {**found, name: value}):
            found[name] = value
    return found


# ---- layers of networks ----------------------------------------------------------------------------

SPECS = Path(__file__).parents[2] / "specs"
#: What first layers read.
IMAGE_CHANNELS = 3


def first_choices(
    strategy: str, some: Callable[[list[ConvProblem]], list[ConvProblem]]
) -> dict[str, tuple[ConvProblem, Options]]:
    """What the cost model chooses for some of every twelfth layer of the shipped specs, at 8 or 64 images.
    First layers are left out: they have kernels of their own, and one of 11x11 taps takes half of the compiler's time.
    """
    serving = strategies.STRATEGIES[strategy]
    found: dict[str, tuple[ConvProblem, Options]] = {}
    specs = (driver.Spec(*read(path), defines={"n": n}) for path, n in product(sorted(SPECS.glob("*.conv")), (8, 64)))
    layers = [one.request.problem for spec in specs for one in driver.load(spec)]
    served = [p for p in layers[::12] if p.c > IMAGE_CHANNELS and serves(p, strategy, {})]
    assert len(served) > 10
    for problem in some(served):
        best = serving.candidates(problem, TARGET)[0]  # type: ignore[attr-defined]
        found.setdefault(str(best), (problem, best))
    return {f"{problem.name}, n={problem.n}": (problem, options) for problem, options in found.values()}


# ---- the emulator ----------------------------------------------------------------------------------


def integers(problem: ConvProblem, seed: int) -> dict[str, np.ndarray]:
    """Integers so small that every sum of products is exact in float32."""
    random = np.random.default_rng(seed)
    given = {t.buffer: t for t in problem.arguments}
    return {name: random.integers(-2, 3, t.shape, np.int8).astype(numpy_dtype(t.dtype)) for name, t in given.items()}


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values of float64, rounded to a type."""
    return values.astype(numpy_dtype(dtype)).astype(np.float64)


def check_exact(text: str, seed: int, sms: int = 2) -> driver.Compilation:
    """Fails unless a spec's kernel, emulated, gives the sums of integers exactly."""
    made = compilation(text)
    problem = made.plan.problem
    arrays = integers(problem, seed)
    out = emulated_plan(made.plan, made.source, arrays, seed, sms)
    outs = out if isinstance(out, tuple) else (out,)
    for t, array, right in zip(problem.results, outs, references(problem, arrays), strict=True):
        wrong = decode(array, t.dtype) != rounded(right, t.dtype)
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size} are wrong\nseed {seed}\n{text}\n{made.source}"
    return made


def check_emulated(text: str, seed: int, sms: Sequence[int] = (2,)) -> driver.Compilation:
    """Fails unless every element of a spec's kernel, emulated on each number of multiprocessors, is within rounding
    of the reference, and the same to the bit whatever comes when, but for atomic additions: as late as it may on the
    first number, and in an order of the seed's on each."""
    made = compilation(text)
    plan, source = made.plan, made.source
    arrays = verify.random_inputs(plan.problem, seed)
    expected = verify.expect_all(plan.problem, arrays, arithmetic=plan.arithmetic)
    results = []
    for count, time in ((sms[0], 0), *((count, seed) for count in sms)):
        out = emulated_plan(plan, source, arrays, time, count)
        outs = out if isinstance(out, tuple) else (out,)
        report = verify.worst(map(verify.compare_tensor, plan.problem.results, outs, expected))
        assert report, f"{report}\nseed {seed}, {count} multiprocessors\n{text}\n{source}"
        results.append(b"".join(array.tobytes() for array in outs))
    assert strategies.varies(plan.options) or len(set(results)) == 1, f"the result depends on time\nseed {seed}\n{text}"
    return made
