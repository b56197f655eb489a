"""Which sums a thread looks at, to know of all that zeros have spoiled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convgen.kernels.parts.window_sum import witnesses

PARTS = st.frozensets(st.integers(0, 9), max_size=3)


@given(threads=st.lists(st.lists(PARTS, min_size=1, max_size=16), min_size=1, max_size=4), element=st.integers(0, 10))
def test_one_of_the_spoiled_is_looked_at(threads: list[list[frozenset[int]]], element: int) -> None:
    looked_at = set(witnesses(threads))
    for sums in threads:
        spoiled = {i for i, part in enumerate(sums) if element not in part}
        assert not spoiled or spoiled & looked_at


def test_few_are_looked_at() -> None:
    lanes = [[{(8 * j + 2 * lane + e) // 4} for j in range(8) for e in (0, 1)] for lane in range(4)]
    assert witnesses(lanes) == (0, 2)
    assert witnesses([[{0}] * 16]) == (0,)
    folded = [{row + tap for tap in range(3)} for row in range(8)]
    assert witnesses([folded]) == (0, 3)
