"""mma_gemm's dgrad, emulated: exact on integers over every kind of geometry, layout, alignment and tile."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mma_dgrad_specs import GEOMETRIES, KERNEL, LAYOUTS, TILES
from problems import make
from tma_specs import (
    SEEDS,
    TARGET,
    check_emulated,
    check_exact,
    laid_out,
    mma_dgrads,
    served_options,
    serves,
    spec,
    typed,
)

from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.mma_gemm import kernel  # noqa: F401 - has seen the true limit of integers before a test lowers it
from convgen.kernels.parts import lowering

GEMM = strategies.STRATEGIES["implicit_gemm"]


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    check_exact(spec(GEOMETRIES[name], "implicit_gemm", KERNEL), seed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, stride: int, seed: int) -> None:
    problem = laid_out(make("dgrad", 2, 40, 24, (9, 8), (3, 3), stride, pad=1), **LAYOUTS[name])
    check_exact(spec(problem, "implicit_gemm", KERNEL), seed)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("c", [1, 2, 3, 4, 6, 8, 12, 20])
def test_every_alignment(c: int, groups: int, seed: int) -> None:
    for k, stride in ((c, 2), (32, 1)):
        problem = make("dgrad", 1, c * groups, k * groups, (7, 6), (3, 2), stride, pad=1, groups=groups)
        check_exact(spec(problem, "implicit_gemm", KERNEL), seed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", TILES)
def test_tile(name: str, stride: int, seed: int) -> None:
    """Channels are columns of one stride, rows of the other, and the next tile has it the other way round."""
    options, layouts = {**KERNEL, **TILES[name]}, {"x": "nchw"} if (list(TILES).index(name) + stride) % 2 else {}
    # within a tap, and across taps
    for k in (64, 40):
        problem = laid_out(make("dgrad", 2, 136, k, (9, 8), (3, 3), stride, pad=1), **layouts)
        check_exact(spec(problem, "implicit_gemm", options), seed)


@pytest.mark.parametrize("k", [40, 64])
def test_slices_of_gemm_k(k: int, seed: int) -> None:
    problem = make("dgrad", 2, 72, k, (9, 8), (3, 3), pad=1)
    check_exact(spec(problem, "implicit_gemm", {**KERNEL, "split_k": 3}), seed)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("k", [40, 128])
def test_blocks_of_channels_with_taps_inside(k: int, stride: int, seed: int) -> None:
    problem = make("dgrad", 2, 40, k, (9, 8), (3, 2), stride, pad=1)
    check_exact(spec(problem, "implicit_gemm", {**KERNEL, "order": "taps_inner"}), seed)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "s8"])
@pytest.mark.parametrize("stride", [1, 2])
def test_types_of_the_result(dtype: str, stride: int, seed: int) -> None:
    problem = typed(make("dgrad", 2, 64, 40, (9, 8), (3, 3), stride, pad=1), x=dtype)
    check_emulated(spec(problem, "implicit_gemm", KERNEL), seed)


EPILOGUES = {
    "residual and mask": "operand g: f16[n, h, w, c]  operand m: s8[n, h, w, c]  x = select(m > 0, acc + g, 0)",
    "channels, images, pixels": (
        "operand b: f32[c]  operand e: f16[n, c]  operand t: bf16[h, w]  operand u: f32[w, c, n] "
        "x = (acc + b) * e + t * u"
    ),
    "further results": "operand b: f32[c]  result s: f32[c]  result t: f16[n, h, w, c]  t = acc + b  s = acc  x = t",
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("x", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name: str, x: str, stride: int, seed: int) -> None:
    """Of a stride, phases without taps have one, too."""
    problem = laid_out(make("dgrad", 3, 72, 24, (9, 12), (1, 3), stride, pad=(0, 1)), x=x)
    check_emulated(spec(problem, "implicit_gemm", KERNEL, EPILOGUES[name]), seed)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), problem=mma_dgrads(), seed=SEEDS)
def test_any_problem(data: st.DataObject, problem: ConvProblem, seed: int) -> None:
    assert serves(problem, "implicit_gemm", {})
    options = data.draw(served_options(problem, "implicit_gemm", "mma_gemm", given=KERNEL))
    check = check_emulated if problem.epilogue else check_exact
    check(spec(problem, "implicit_gemm", options), seed)


@settings(max_examples=3, deadline=None)
@given(problem=mma_dgrads(), seed=SEEDS)
def test_64_bit_indices_give_the_same(problem: ConvProblem, seed: int) -> None:
    limit, lowering.INT_LIMIT = lowering.INT_LIMIT, 0
    try:
        made = check_emulated(spec(problem, "implicit_gemm", KERNEL), seed)
    finally:
        lowering.INT_LIMIT = limit
    assert "const long long first_m" in made.source


@pytest.mark.parametrize("groups", [1, 4])
def test_transposed_convolution(groups: int, seed: int) -> None:
    check_emulated(
        f"""conv up {{
          input  x: f16[n=3, h=6, w=5, c=32]
          filter w: f16[c, k={40 // groups}, r=4, s=3]
          output y: f16[n, p=12, q=12, k=40]  # one further pixel along q
          stride 2  pad h=1  groups {groups}  op transposed
          epilogue {{ operand b: f32[k]  operand z: f16[n, p, q, k]  y = relu(acc + b + z) }}
          strategy implicit_gemm
        }}""",
        seed,
    )


STRIDED = make("dgrad", 2, 16, 16, (8, 8), (3, 3), stride=2, pad=1)
REFUSED: list[tuple[ConvProblem, Options, str, str]] = [
    (make("dgrad", 1, 8, 8, (5, 5), (3, 3), dtype="f32"), {}, "f16 and bf16 are", ""),
    (make("dgrad", 1, 8, 8, (5, 5), (3, 3)), {"kernel": "stem_mma"}, "op dgrad", "kernel"),
    (make("dgrad", 1, 8, 8, (99, 99), (3, 3), stride=40), {}, "1600 phases", ""),
    (STRIDED, {"split_k": 2}, "unit strides", "split_k"),
    (STRIDED, {"order": "channel_last"}, "phase to phase", "order"),
]


@pytest.mark.parametrize(("problem", "options", "says", "option"), REFUSED)
def test_refusals_say_which_constraint_failed(problem: ConvProblem, options: Options, says: str, option: str) -> None:
    found = GEMM.obstacles(problem, TARGET, {**KERNEL, **options})
    assert any(says in o.message and o.option == option for o in found), found
