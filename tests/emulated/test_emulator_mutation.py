"""A sample of mutants of generated kernels: each is noticed.  tests/mutation.py runs them all.

A mutant is noticed when the emulator has a finding or the result is wrong.  Those that do no harm, and those that are
wrong but can't be noticed, stand in excuses.py with the reason; docs/emulator.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from excuses import excuse
from mutate import OPERATORS, Mutant, mutants
from mutation_cases import FAMILIES, MODES, NOT_COMPILED, UNNOTICED, WRONG_RESULT, case
from small_goldens import GEOMETRIES

from convgen.ir.plan import Launch

#: A golden that is quick to emulate for some families.
SAMPLED = (
    "tma_im2col_1x1", "tma_im2col_pingpong", "tma_im2col_split_k", "tma_halo_streamed", "depthwise_stream",
    "implicit_gemm_s8",
)  # fmt: skip
#: Goldens whose sizes a call decides.
DYNAMIC = ("direct_dynamic", "implicit_gemm_dynamic", "tma_halo_dynamic", "tma_im2col_dynamic")
#: Classes that have many mutants whose kernels are right at these sizes: a sample of them would change with the source.
OFTEN_HARMLESS = {"loop", "constant", "literal", "arithmetic", "argument", "statement", "condition", "function"}
#: Until a mutant counts as not noticed: most need one.
SEEDS = 4


@cache
def all_mutants(name: str) -> Sequence[Mutant]:
    return tuple(mutants(case(name).source))


def sample(name: str) -> list[Mutant]:
    """One mutant of each class: from the first for the first golden to the last for the last."""
    place = SAMPLED.index(name) / (len(SAMPLED) - 1)
    chosen = []
    for kind in sorted(OPERATORS.keys() - OFTEN_HARMLESS):
        candidates = [m for m in all_mutants(name) if m.kind == kind and not excuse(m)]
        if candidates:
            chosen.append(candidates[round(place * (len(candidates) - 1))])
    return chosen


@pytest.mark.parametrize("name", SAMPLED)
def test_mutants_are_noticed(name: str):
    one = case(name)
    assert one.verdict(one.source, range(SEEDS)) == UNNOTICED, "the kernel itself is not clean"
    missed = [m for m in sample(name) if one.isolated_verdict(m.text, range(SEEDS)) == UNNOTICED]
    assert not missed, "\n".join(["neither noticed nor in excuses.py:", *map(str, missed)])


@pytest.mark.parametrize(
    ("name", "was", "now", "kind"),
    [
        ("tma_im2col_pingpong", "const __grid_constant__ TensorMap", "const TensorMap", "launch"),
        ("tma_im2col_pingpong", "__launch_bounds__(threads, 1)", "", "launch"),
        ("tma_im2col_pingpong", 'extern "C" __global__', "__global__", NOT_COMPILED),
        ("tma_im2col_pingpong", "u64 opaque[16]", "u64 opaque[8]", NOT_COMPILED),
        ("tma_im2col_pingpong", "struct alignas(64) TensorMap", "struct TensorMap", NOT_COMPILED),
        (
            "tma_im2col_pingpong",
            "swizzle_base(shared_memory)",
            "swizzle_base(shared_memory + (1 << 20))",
            "out of bounds",
        ),
        ("tma_im2col_cluster", "__cluster_dims__(2, 1, 1)", "__cluster_dims__(1, 2, 1)", "launch"),
        ("tma_halo_streamed", "u32 x, y, z, w;", "u32 y, x, z, w;", NOT_COMPILED),
        ("tma_halo_streamed", "__forceinline__ void fence_proxy", "__noinline__ void fence_proxy", "instruction"),
        ("tma_halo_streamed", "#ifndef CONVGEN_EMULATE", "#if !defined(CONVGEN_EMULATE)", "instruction"),
        ("tma_halo_streamed", "setmaxnreg_inc", "if (threadIdx.x < 128) setmaxnreg_inc", "registers"),
        ("tma_im2col_pingpong", "__device__ __forceinline__ u32 swizzle_base", "inline u32 swizzle_base", NOT_COMPILED),
        ("tma_im2col_prologue", "max_nan_f32(given * value_scale + value_shift, 0.0f)", "given", WRONG_RESULT),
        ("tma_im2col_nchw", "int previous = -1;", "int previous;", "overwritten while read"),
        ("tma_halo_dgrad", "int use = 0;", "int use;", "uninitialized"),
        (
            "depthwise_gradient_sums",
            "total[i % 4] += acc[i / 16][i / 4 %",
            "total[i % 4] += acc[i / 16][i / 5 %",
            WRONG_RESULT,
        ),
        ("sums, split_k", "if (sharer == 0) sums[0] = sum;", "if (sharer == 0) sums[0] = 2 * sum;", WRONG_RESULT),
    ],
)
def test_what_a_gpu_refuses_or_computes_otherwise_is_noticed(name: str, was: str, now: str, kind: str):
    one = case(name)
    assert was in one.source
    behind = one.source.rpartition("#endif")[0] if was.startswith("setmaxnreg") else ""
    text = behind + one.source[len(behind) :].replace(was, now)
    assert one.isolated_verdict(text, range(SEEDS)) == kind


@pytest.mark.parametrize("name", ["tma_halo_streamed", "implicit_gemm_s8"])
def test_an_address_that_a_plan_promises_too_little_of_is_noticed(name: str):
    one = case(name)

    def promised(step: Launch) -> Launch:
        return replace(step, params=tuple(replace(p, alignment=1) for p in step.params))

    plan = replace(one.plan, steps=tuple(promised(s) if isinstance(s, Launch) else s for s in one.plan.steps))
    assert replace(one, plan=plan).isolated_verdict(one.source, range(SEEDS)) == "misaligned"


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_size_of_the_spec_in_the_place_of_a_call_s_is_noticed(name: str):
    one = case(name)
    before, declared, behind = one.source.partition(f"void {one.plan.launches[0].entry}(")
    sizes = re.findall(r"(?m)^ +int ([A-Z])(?=,?$)", behind.partition(") {")[0])
    assert sizes
    for size in (name for name in sizes if len(re.findall(rf"\b{name}\b", re.sub("//.*", "", behind))) > 1):
        extent = int(one.plan.problem.extent(size.lower()))
        given = re.sub(rf"(?m)^( +int {size})(?=,?$)", r"\1_given", behind, count=1)
        given = given.replace(") {\n", f") {{\n  constexpr int {size} = {extent};\n", 1)
        assert one.isolated_verdict(before + declared + given, [0]) != UNNOTICED, size


def test_every_golden_and_every_mode_has_a_family():
    names = [name for family in FAMILIES.values() for name in family]
    assert sorted(names) == sorted([*GEOMETRIES, *MODES])
    assert set(SAMPLED) <= set(names)


def test_every_class_has_mutants():
    """Generated text may change so that an operator finds nothing any more."""
    missing = set(OPERATORS)
    for name in SAMPLED:
        if missing:  # to find all mutants of a golden takes a second
            missing -= {m.kind for m in all_mutants(name)}
    assert not missing
