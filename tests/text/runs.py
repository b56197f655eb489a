"""Runs a strategy's plan in the emulator and holds the result against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from convgen import emulator
from convgen.ir import dynamic, verify
from convgen.ir import epilogue as ep
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.strategies import Strategy
from convgen.runtime.manifest import Manifest
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]


def emulated(
    strategy: Strategy, problem: ConvProblem, options: Mapping[str, int | str], arrays: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, str]:
    """The result of a plan on poisoned memory, and its source."""
    obstacles = strategy.obstacles(problem, TARGET, options)
    assert not obstacles, obstacles
    plan = strategy.plan(problem, TARGET, options)
    source = strategy.render(plan)
    return emulated_plan(plan, source, arrays), source


def emulated_plan(plan: Plan, source: str, arrays: Mapping[str, np.ndarray], seed: int = 0, sms: int = 2) -> np.ndarray:
    """The result of a plan's source on poisoned memory, or a tuple of several; seed and sms as for `emulate`."""
    outs = {t.buffer: verify.poisoned(t) for t in plan.problem.results}
    buffers = {name: np.asarray(a) for name, a in arrays.items()} | outs
    fixed = Manifest.of(plan, {}, "", ())
    if plan.problem.dynamic:  # emulated at the sizes that the spec has
        fixed = fixed.at({dim: int(plan.problem.extent(dim)) for dim in dynamic.varying(plan.problem)})
    emulator.emulate(source, fixed.steps, buffers, workspaces=fixed.workspaces, inputs=list(arrays), seed=seed, sms=sms)
    return tuple(outs.values()) if plan.problem.further else outs[plan.problem.result.role]


def check_plan(strategy: Strategy, problem: ConvProblem, options: Mapping[str, int | str], seed: int) -> str:
    """Fails unless every element of the result is within rounding of the reference; gives the source."""
    arrays = verify.random_inputs(problem, seed)
    out, source = emulated(strategy, problem, options, arrays)
    report = verify.check(problem, arrays, out, arithmetic=strategy.plan(problem, TARGET, options).arithmetic)
    assert report, f"{report}\nseed {seed}, options {dict(options)}\n{problem}\n{source}"
    return source


def with_sums(problem: ConvProblem) -> ConvProblem:
    """The problem with sums of each channel's values and squares, of values that an operand is part of where there is
    more than one image."""
    result, channel = problem.result, {"y": "k", "x": "c"}[problem.result.role]
    operands = (Tensor("z", "operand", "f16", result.dims, result.shape),) if problem.n > 1 else ()
    value: ep.Expr = ep.Binary("+", ep.Acc(), ep.OperandRef("z")) if operands else ep.Acc()
    v = ep.LocalRef("v")
    body = {"v": ep.Call("relu", (value,)), "s": v, "t": ep.Binary("*", v, v), result.role: v}
    sums = tuple(Tensor(name, "result", "f32", (channel,), (problem.extent(channel),)) for name in "st")
    epilogue = ep.Epilogue(operands, tuple(ep.Assignment(name, value) for name, value in body.items()), sums)
    return replace(problem, epilogue=epilogue)


def check_channel_sums(
    strategy: Strategy, problem: ConvProblem, options: Mapping[str, int | str], given: Mapping[str, np.ndarray],
    seed: int,
) -> None:  # fmt: skip
    """Fails unless the kernel makes partial sums of channels itself, and they are right and the same bits whatever
    comes when: on a GPU of three multiprocessors, where blocks have several tiles.  `given` are x, w and y."""
    problem = with_sums(problem)
    plan = strategy.plan(problem, replace(TARGET, gpu=replace(TARGET.gpu, sms=3)), options)
    assert {w.name for w in plan.workspaces} == {"partial.s", "partial.t"}
    source, arrays = strategy.render(plan), {**verify.random_inputs(problem, seed), **given}
    outs = emulated_plan(plan, source, arrays, seed)
    report = verify.check(problem, arrays, outs, arithmetic=plan.arithmetic)
    assert report, f"{report}\nseed {seed}, options {dict(options)}\n{problem}\n{source}"
    again = emulated_plan(plan, source, arrays, seed + 1, sms=1)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(outs, again, strict=True))
