"""Problems of strategy winograd, and data on which it is exact."""

from __future__ import annotations

import numpy as np
from problems import make
from tma_specs import laid_out, typed

from convgen.ir.dtypes import numpy_dtype
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options

#: What the coefficients of filters of F(m, 3) are fractions of.
DENOMINATORS = {2: 4, 4: 15}

_TAILS = make("fprop", 2, 20, 19, (9, 7), (3, 3), pad=((1, 1), (0, 2)))
_SINGLES = typed(_TAILS, x="f32", w="f32", y="f32")
#: By what is particular about them: tails of tiles, of channels and of vectors, borders, layouts, both products.
GEOMETRIES: dict[str, tuple[ConvProblem, Options]] = {
    "float32, tile 4": (_SINGLES, {"tile": 4}),
    "float32, tile 2, planes": (laid_out(_SINGLES, x="nchw", w="kcrs", y="nkpq"), {"tile": 2}),
    "float16 by TMA, tile 2": (typed(_TAILS, y="f32"), {"tile": 2, "product": "tma_im2col"}),
    "float16 by TMA, tile 4": (
        typed(make("fprop", 3, 40, 24, (12, 13), (3, 3), pad=1), y="f32"), {"tile": 4, "product": "tma_im2col"},
    ),
    "bfloat16, tile 2, one pixel": (make("fprop", 1, 3, 1, (3, 3), (3, 3), dtype="bf16"), {"tile": 2}),
    "float16, tile 4, less than a tile, one vector": (
        typed(make("fprop", 2, 8, 2, (1, 2), (3, 3), pad=((2, 3), (1, 1))), y="f32"), {"tile": 4},
    ),
    "fused, pingpong, a short row": (
        typed(make("fprop", 2, 40, 72, (11, 21), (3, 3), pad=((1, 1), (0, 2))), y="f16"),
        {"form": "fused", "strip": 8, "schedule": "pingpong", "stages": 2, "weight_stages": 0},
    ),
    "fused, streamed, planes": (
        laid_out(make("fprop", 3, 72, 33, (14, 18), (5, 3), pad=1, dilation=(2, 1)), x="nchw", w="kcrs", y="nkpq"),
        {"form": "fused", "strip": 20, "schedule": "cooperative", "stages": 1, "weight_stages": 2, "cluster": 2},
    ),
    "fused, along w, bfloat16, less than a tile": (
        make("fprop", 2, 3, 8, (9,), (3,), pad=1, dtype="bf16"), {"form": "fused", "schedule": "cooperative"},
    ),
}  # fmt: skip


def exact_inputs(problem: ConvProblem, m: int, seed: int) -> dict[str, np.ndarray]:
    """Integers whose transforms are exact in any type: of w, multiples of what the coefficients are fractions of."""
    random = np.random.default_rng(seed)
    unit = DENOMINATORS[m] ** 2
    x = random.integers(-2, 3, problem.x.shape)
    w = random.integers(-1, 2, problem.w.shape) * unit
    return {t.role: a.astype(numpy_dtype(t.dtype)) for t, a in ((problem.x, x), (problem.w, w))}
