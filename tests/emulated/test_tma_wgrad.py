"""tma_wgrad, emulated: geometries, layouts, groups and ways to share the pixels, exact on integers."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import SEEDS, check_emulated, check_exact, serves, some_options, spec, typed, wgrad_problems
from wgrad_specs import ATOMIC, ATOMIC_GEOMETRIES, GEOMETRIES, PLAIN, ROWS, bias

from convgen.kernels.base import Options


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name: str, seed: int) -> None:
    problem, options = GEOMETRIES[name]
    check_exact(spec(problem, "tma_im2col", {**PLAIN, **options}, bias(name)), seed)


@pytest.mark.parametrize("name", ATOMIC_GEOMETRIES)
def test_slices_are_added_as_they_come(name: str, seed: int) -> None:
    problem, options = ATOMIC_GEOMETRIES[name]
    made = check_exact(spec(problem, "tma_im2col", {**PLAIN, **options}, bias(name)), seed)
    written = [launch.params[0].buffer for launch in made.plan.launches if launch.entry.endswith("_zeros")]
    assert written == ["w" if name.startswith("to w,") or name == "to w" else "workspace.partials"]


LAYER = make("wgrad", 6, 40, 72, (9, 8), (3, 3), pad=1)
EPILOGUES: dict[str, tuple[str, Options]] = {
    "added to a gradient": ("operand g: {w}[k, r, s, c]  w = acc + 0.5 * g", {}),
    "by channel, of several slices": ("operand b: f32[k]  operand g: f16[c, k]  w = acc * b - g", {"slices": 3}),
    "added to a gradient, of slices as they come": (
        "operand g: {w}[k, r, s, c]  result db: f32[k]  db = y  w = acc + 0.5 * g",
        {**ATOMIC, "slices": 3},
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name: str, seed: int) -> None:
    text, options = EPILOGUES[name]
    problem = typed(LAYER, w="f32")
    check_exact(spec(problem, "tma_im2col", {**PLAIN, "tile.n": 192, **options}, text.format(w="f32")), seed)


def test_sums_are_added_in_one_order(seed: int) -> None:
    """Slices of two blocks each, whose sums four threads of the second kernel share."""
    problem = typed(make("wgrad", 20, 40, 40, (9, 8), (3, 3), pad=1), w="f32")
    options: Options = {**PLAIN, **ROWS, "tile.n": 192, "split_k": 2, "slices": 16, "tile.k": 32}
    made = check_emulated(spec(problem, "tma_im2col", options), seed)
    assert made.plan.launches[-1].shared_bytes, "threads share the slices"


@settings(max_examples=6, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_problem(data: st.DataObject, seed: int) -> None:
    problem = data.draw(wgrad_problems(200))
    kernel: Options = {"kernel": "tma_wgrad"}
    options = {**kernel, **data.draw(some_options("tma_im2col"))}
    if not serves(problem, "tma_im2col", options):
        options = kernel
        assume(serves(problem, "tma_im2col", options))
    check_emulated(spec(problem, "tma_im2col", options), seed)
