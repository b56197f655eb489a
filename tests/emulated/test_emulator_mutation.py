"""A sample of mutants of generated kernels: each is noticed.  tests/mutation.py runs them all.

A mutant is noticed when the emulator has a finding or the result is wrong.  Those that do no harm, and those that are
wrong but can't be noticed, stand in excuses.py with the reason; docs/emulator.md lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from excuses import excuse
from mutate import OPERATORS, Mutant, mutants
from mutation_cases import FAMILIES, MODES, UNNOTICED, case
from small_goldens import GEOMETRIES

#: A golden that is quick to emulate for some families.
SAMPLED = (
    "tma_im2col_1x1", "tma_im2col_pingpong", "tma_im2col_split_k", "tma_halo_streamed", "depthwise_stream",
    "implicit_gemm_s8",
)  # fmt: skip
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
