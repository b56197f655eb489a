"""Kernels that take sizes from a call: one source for all of them, the manifests of fixed sizes, and their limits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from dynamic_layers import LAYERS, TARGET
from dynamic_problems import all_sizes, at, manifest

from convgen.ir.size import Size
from convgen.kernels import strategies
from convgen.kernels.registry import KERNELS
from convgen.runtime import artifacts
from convgen.runtime.errors import WrongShape
from convgen.runtime.kernel import Kernel

SIZES = ({"n": 2, "h": 17, "w": 13}, {"n": 41, "h": 31, "w": 16}, {"n": 5, "h": 20, "w": 11})
IMAGES = [row.name for row in KERNELS if row.kernel.dynamic == {"n"}]


def kernel_text(source: str) -> str:
    return source[source.index("// ---- kernel") :]


@pytest.mark.costly
@pytest.mark.parametrize("name", LAYERS)
def test_the_source_does_not_depend_on_the_written_sizes(name: str):
    layer = LAYERS[name]
    problem = layer.problem()
    options = layer.plan(problem).options
    written = (layer.problem(**{d: sizes[d] for d in problem.dynamic}) for sizes in (*SIZES, {"n": 1, "h": 2, "w": 1}))
    plans = [layer.plan(other, **options) for other in (problem, *written)]
    assert len({kernel_text(strategies.STRATEGIES[layer.strategy].render(plan)) for plan in plans}) == 1


@pytest.mark.costly
@pytest.mark.parametrize("name", LAYERS)
def test_a_manifest_at_some_sizes_is_that_of_the_kernel_compiled_for_them(name: str):
    layer = LAYERS[name]
    problem = layer.problem()
    plan = layer.plan(problem)
    found = manifest(plan)
    for sizes in SIZES:
        sizes = all_sizes(problem, {d: sizes[d] for d in problem.dynamic})
        made, expected = found.at(sizes), manifest(layer.plan(at(problem, sizes), **plan.options))
        assert (made.reads, made.operands, made.results) == (expected.reads, expected.operands, expected.results)
        (launch,), (other,) = made.steps, expected.steps
        ints = {p.name: p.value for p in launch.params if p.kind == "int"}
        assert replace(launch, params=tuple(p for p in launch.params if p.kind != "int")) == other
        assert ints == {dim.upper(): size for dim, size in sizes.items()}
        assert not any(isinstance(number, Size) for number in (made.macs, *launch.grid, *made.result.extents))


@pytest.mark.costly
@pytest.mark.parametrize("name", LAYERS)
def test_a_call_beyond_32_bits_is_refused(name: str):
    layer = LAYERS[name]
    problem = layer.problem()
    kernel = Kernel(artifacts.uncompiled("", layer.plan(problem)))
    sizes = {d: 7 for d in problem.dynamic}
    kernel.at(**sizes)
    with pytest.raises(WrongShape, match=r"gives \d+ .+; it goes up to"):
        kernel.at(**sizes | {problem.dynamic[0]: 10**8})


@pytest.mark.parametrize("name", [name for name in LAYERS if name.split(",")[0] in IMAGES])
def test_kernels_that_take_images_alone_say_so(name: str):
    layer = LAYERS[name]
    kernel = name.split(",")[0]

    def message(text: str) -> str:
        problem = replace(layer, text=text).problem()
        obstacles = strategies.STRATEGIES[layer.strategy].obstacles(problem, TARGET, layer.options)
        return "\n".join(o.message for o in obstacles)

    assert f"kernel {kernel} is compiled for fixed sizes of `h` and `w`" in message(
        layer.text.replace("dynamic n", "dynamic n h w")
    )
    inside = re.sub(r"x: (\w+)\[(n=.+?), (.+?),", r"x: \1[\3, \2,", layer.text)
    assert "x needs fixed sizes, unless `n` is its outermost dim" in message(inside)
