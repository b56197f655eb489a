"""Every kernel, emulated, on random calls: epilogues, prologues, several results, operands in place, channel slices,
layouts, and sizes that the call decides; and on infinities and NaNs."""

from __future__ import annotations

import numpy as np
import pytest
from dynamic_problems import at
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_calls import arrays_of, assert_right, outputs, own_arrays
from kernel_problems import OF_KERNEL, ROWS, Case, asked, bare_problems, cases
from runs import emulated
from special_values import expected, with_specials
from tma_specs import SEEDS, TARGET, compilation, served_options, spec

from convgen.ir import verify
from convgen.kernels import strategies


def check_call(case: Case, seed: int) -> None:
    """Fails unless a call's results are right, and the same to the bit in whatever order things happen."""
    text = spec(case.problem, case.strategy, case.options)
    made = compilation(text)
    assert made.plan.kernel == case.kernel
    problem = at(made.plan.problem, case.sizes) if case.sizes else made.plan.problem
    own = own_arrays(made.plan.problem.in_place, np.random.default_rng(seed))
    given, results = arrays_of(problem, seed, case.whole), []
    for time in (0, seed):
        arrays = arrays_of(problem, seed, case.whole)
        outs = outputs(problem, arrays, own)
        made.uncompiled().emulate(*arrays.values(), out=tuple(outs) if problem.further else outs[0], seed=time)
        results.append(b"".join(array.tobytes() for array in outs))
    where = f"seed {seed}, {case.sizes}\n{text}\n{made.source}"
    varies = strategies.varies(case.options)  # atomic additions come in the order of threads
    assert varies or len(set(results)) == 1, f"the results depend on time\n{where}"
    assert_right(case, problem, given, outs, made.plan.arithmetic, where)


@pytest.mark.parametrize("kernel", OF_KERNEL)
@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_any_call(kernel: str, data: st.DataObject, seed: int) -> None:
    check_call(data.draw(cases(kernel)), seed)


@pytest.mark.parametrize("kernel", OF_KERNEL)
@settings(max_examples=2, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_infinities_and_nans_stay_in_their_windows(kernel: str, data: st.DataObject, seed: int) -> None:
    problem, strategy = data.draw(bare_problems(kernel)), ROWS[kernel].strategy
    role = data.draw(st.sampled_from(problem.reads)).role
    assume(problem.tensor(role).element.is_float and problem.tensor(role).size >= 5)
    options = data.draw(served_options(problem, strategy, kernel, given=asked(kernel)))
    arrays = with_specials(problem, role, seed)
    serving = strategies.STRATEGIES[strategy]
    out, source = emulated(serving, problem, options, arrays)
    right = expected(problem, arrays, serving.plan(problem, TARGET, options).arithmetic)
    assume(bool((right.special | ~np.isnan(right.low)).any()))  # of a small gradient, padding may decide all
    report = verify.compare(problem, out, right)
    assert report, f"{report}\nspecial values in {role}, seed {seed}\n{spec(problem, strategy, options)}\n{source}"


def test_all_kernels_are_tested() -> None:
    assert set(OF_KERNEL) == set(ROWS)
