"""direct's sources compile for every target that serves the problem, without warnings, spills or leftovers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from strategy_problems import direct_problems, meets_input, unused_names, with_types

from convgen import frontend
from convgen.ir.epilogue import FUNCTIONS, Acc, Assignment, Call, Epilogue, Number
from convgen.ir.problem import Op
from convgen.kernels import strategies
from convgen.runtime.nvrtc import compile_source
from convgen.targets import TARGETS

STRATEGY = strategies.STRATEGIES["direct"]
#: Bytes that ptxas spilled of a kernel for which it took 40 registers of 255: a choice of its own, not for want of any.
FEW = 8


@pytest.mark.parametrize("op", Op)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_compiles(op: Op, data: st.DataObject) -> None:
    problem = data.draw(direct_problems(op))
    assume(meets_input(problem))
    served = [t for t in TARGETS.values() if not STRATEGY.obstacles(problem, t, {})]
    target = data.draw(st.sampled_from(served))
    plan = STRATEGY.plan(problem, target, {})
    source = STRATEGY.render(plan)
    compiled = compile_source(source, target)
    assert "warning" not in compiled.log, compiled.log
    assert set(compiled.resources) == {launch.entry for launch in plan.launches}
    assert all(r.spill_stores <= FEW for r in compiled.resources.values())
    assert not unused_names(source), source


@pytest.mark.parametrize(("dtype", "number"), [("f32", 1e-60), ("f32", 1e-45), ("f64", 1e-60), ("f64", 5e-324)])
def test_numbers_may_be_as_small_as_they_like(dtype: str, number: float) -> None:
    base = make(dtype=dtype)
    body = (Assignment("y", Call("leaky_relu", (Acc(), Number(number)))),)
    problem = replace(base, epilogue=Epilogue((), body))
    target = TARGETS["sm_90a"]
    assert "warning" not in compile_source(STRATEGY.render(STRATEGY.plan(problem, target, {})), target).log


@pytest.mark.parametrize("op", [Op.FPROP, Op.DGRAD, Op.WGRAD])
@pytest.mark.parametrize("dtype", ["f16", "s8"])
def test_tiles_stay_in_registers(op: Op, dtype: str) -> None:
    problem = make(op, 32, 64, 64, (56, 56), (3, 3), pad=1, stride=2, dtype=dtype)
    target = TARGETS["sm_90a"]
    for tile in (1, 2, 4, 8):
        source = STRATEGY.render(STRATEGY.plan(problem, target, {"tile": tile}))
        (used,) = compile_source(source, target).resources.values()
        assert used.stack == used.spill_stores == 0


def test_every_function_compiles_in_f64() -> None:
    calls = [f"{f.name}({', '.join(['acc', '0.1', '0.7'][: f.arity])})" for f in FUNCTIONS.values()]
    (request,) = frontend.load(
        "conv a { input x: f64[n=2, h=8, w=8, c=4] filter w: f64[k=4, r=3, s=3, c=4] output y: f64[n, p, q, k]"
        f" epilogue {{ result s: f64[k] s = acc y = {' + '.join(calls)} + (acc > 0 && !acc) }} }}"
    )
    for target, tile in ((TARGETS["sm_80"], 1), (TARGETS["sm_90a"], 2)):
        compiled = compile_source(STRATEGY.render(STRATEGY.plan(request.problem, target, {"tile": tile})), target)
        assert "warning" not in compiled.log and all(r.spill_stores == 0 for r in compiled.resources.values())


def test_tensors_of_2_to_the_31_elements_count_in_64_bits() -> None:
    target = TARGETS["sm_90a"]
    for n, wide in ((65535, False), (65537, True)):  # of 2^15 elements an image
        problem = with_types(make("fprop", n, 32, 8, (32, 32), (3, 3), pad=1, dtype="s8"), y="f32")
        source = STRATEGY.render(STRATEGY.plan(problem, target, {}))
        assert ("const long long index = " in source) == wide
        assert ("const int n = " in source) != wide
        compile_source(source, target)


def test_fp8_needs_a_target_that_converts_it() -> None:
    problem = make("fprop", 1, 4, 4, (5, 5), (3, 3), dtype="e4m3")
    found = STRATEGY.obstacles(problem, TARGETS["sm_80"], {})
    assert found and all("e4m3" in o.message for o in found)
    assert not STRATEGY.obstacles(problem, TARGETS["sm_89"], {})


def test_a_tile_that_does_not_divide_is_an_obstacle() -> None:
    problem = make("fprop", 1, 4, 12, (5, 5), (3, 3), groups=2)
    target = TARGETS["sm_90a"]
    assert not STRATEGY.obstacles(problem, target, {"tile": 2})
    (found,) = STRATEGY.obstacles(problem, target, {"tile": 4})
    assert found.option == "tile"
