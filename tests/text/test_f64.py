"""f64: `direct` serves it alone, and its results are checked to the bounds of two roundings to 53 bits."""

from __future__ import annotations

import numpy as np
import pytest
from problems import make

from convgen import frontend
from convgen.ir.problem import Op
from convgen.ir.reference import reference
from convgen.ir.verify import check, random_inputs, tolerance
from convgen.kernels import strategies
from convgen.planner import choose
from convgen.targets import TARGETS

PROBLEM = make(Op.FPROP, 2, 8, 16, (9, 8), (3, 3), pad=1, dtype="f64")


@pytest.mark.parametrize("op", Op)
def test_direct_alone_serves_it(op):
    (request,) = frontend.load(
        "conv a { input x: f64[n=2, c=8, h=9, w=8] filter w: f64[k=16, r=3, s=3, c=8] output y: f64[n, k, p, q]"
        f" {'lowered m: f64[rows, cols]' if 'col' in str(op) else ''} op {op} }}"
    )
    problem, target = request.problem, TARGETS["sm_90a"]
    assert choose(problem, target, "auto", {}).strategy.name == "direct"
    for name, strategy in strategies.STRATEGIES.items():
        found = [o.message for o in strategy.obstacles(problem, target, {})]
        assert (found == []) == (name == "direct")
        assert all("does not compute in f64" in message for message in found), found


def test_inputs_use_all_digits():
    for array in random_inputs(PROBLEM, seed=0).values():
        assert array.dtype == np.float64 and (array != array.astype(np.float32)).all()


def test_sums_in_another_order_are_right_and_wider_errors_are_wrong(seed):
    arrays = random_inputs(PROBLEM, seed)
    expected = reference(PROBLEM, arrays)
    x = np.pad(arrays["x"], ((0, 0), (1, 1), (1, 1), (0, 0)))
    other = np.zeros(expected.shape)
    for r in reversed(range(3)):
        for s in reversed(range(3)):
            for c in reversed(range(8)):
                other += x[:, r : r + 9, s : s + 8, c, None] * arrays["w"][:, r, s, c]
    assert (other != expected).any() and check(PROBLEM, arrays, other)
    for factor in (1 + 1e-12, 1 + 2.0**-23):
        assert not check(PROBLEM, arrays, other * factor)
    assert tolerance(PROBLEM).slack(1.0) < 1e-14
