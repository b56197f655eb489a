"""A search by branch and bound finds what timing every layout would."""

from __future__ import annotations

import itertools
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import AnyKernel, Options, Part
from convgen.kernels.registry import kernel
from convgen.kernels.search import Search, _Look, _search, fastest, search
from convgen.planner import untuned
from convgen.targets import TARGETS

TARGET = TARGETS["sm_90a"]
#: The kernels whose spaces have parts.
BOUNDED = ("tma_im2col", "tma_halo", "tma_wgrad", "depthwise_wgrad", "mma_gemm")


@st.composite
def problems(draw: st.DrawFn, ops: tuple[str, ...], depthwise: bool = False) -> ConvProblem:
    """Dense layers, groups and depthwise ones, or these alone, of few and of many tiles; their gradients."""
    groups = draw(st.sampled_from((3, 32, 384) if depthwise else (1, 1, 3, 32, 384)))
    of_group = (1,) if depthwise else (1, 4, 8, 24, 64) if groups > 1 else (3, 8, 72, 512)
    c, k = (groups * draw(st.sampled_from(of_group)) for _ in "ck")
    op = draw(st.sampled_from(ops))
    filter, stride, dilation = (
        draw(st.sampled_from((1, 3, 5))),
        draw(st.integers(1, 2)),
        draw(st.sampled_from((1, 1, 9))),
    )
    size, n = draw(st.integers(filter * dilation, 60)), draw(st.sampled_from((1, 8, 64)))
    pad = draw(st.integers(0, filter // 2)) * dilation
    return make(op, n, c, k, (size, size), (filter, filter), stride=stride, pad=pad, dilation=dilation, groups=groups)


def least_time(row: AnyKernel, part: Part[Any]) -> float:
    """Of its layouts, and of those of smaller parts, whose bounds are checked, too."""
    found = [math.inf]
    for each in part.within:
        found.append(least_time(row, each) if isinstance(each, Part) else row.time(each))
        assert not isinstance(each, Part) or each.least <= found[-1]
    return min(found)


@pytest.mark.costly
@settings(max_examples=40)
@given(data=st.data(), first=st.integers(0, 30))
@pytest.mark.parametrize("name", BOUNDED)
def test_no_layout_takes_less_than_the_bound_of_its_part(name: str, data: st.DataObject, first: int) -> None:
    row = kernel(name)
    ops = ("wgrad",) if "wgrad" in name else ("fprop", "fprop", "dgrad")
    problem = data.draw(problems(ops, depthwise=name.startswith("depthwise")))
    assume(not row.unserved(problem, TARGET, {}))
    for part in itertools.islice(row.parts(problem, TARGET, {}), first, None, 31):
        assert part.least <= least_time(row, part)


@pytest.mark.parametrize("name", BOUNDED)
def test_parts_may_be_made_in_any_order(name: str) -> None:
    groups = 64 if name.startswith("depthwise") else 1
    problem = make("wgrad" if "wgrad" in name else "fprop", 2, 64, 64, (14, 14), (3, 3), pad=1, groups=groups)
    row = kernel(name)
    as_they_come = [layout.config for part in row.parts(problem, TARGET, {}) for layout in part.layouts]
    later = [[layout.config for layout in part.layouts] for part in reversed([*row.parts(problem, TARGET, {})])]
    assert [*itertools.chain(*reversed(later))] == as_they_come


#: Kernels that are compared with one another.
COMPARED = (*BOUNDED, "mma_wgrad", "depthwise_stream", "stem_wgmma", "direct")


@settings(max_examples=25)
@given(problem=problems(("fprop", "dgrad", "wgrad")))
def test_the_fastest_of_several_kernels_is_found_by_what_the_others_do_not_go_below(problem: ConvProblem) -> None:
    serving = [row for name in COMPARED if search(row := kernel(name), problem, TARGET, {}).serves]
    assume(serving)
    looked_at, whole = ([Search(row, problem, TARGET, {}) for row in serving] for _ in range(2))
    found, least = fastest(looked_at), min(s.us for s in whole)
    assert (found.us if found else math.inf) == least
    for some, all_ in zip(looked_at, whole, strict=True):
        assert some.least <= all_.us, some.kernel.name
        assert not some.settled or some.best == all_.best


def test_kernels_that_are_slower_for_sure_are_not_looked_through() -> None:
    """A first layer: tma_halo copies x, for longer than a stem takes."""
    problem = make("fprop", 8, 3, 24, (224, 224), (3, 3), stride=2, pad=1)
    searches = [Search(kernel(name), problem, TARGET, {}) for name in ("tma_halo", "stem_wgmma")]
    assert fastest(searches) is searches[1]
    assert not searches[0].settled
    assert "tma_halo at least " in untuned(problem, TARGET, "auto", {}).reason


def test_what_is_known_of_a_search_does_not_get_less() -> None:
    """A thread that has looked through less of it than another does not take back what the other has found out."""
    search = Search(kernel("tma_halo"), make("fprop", 3, 232, 248, (28, 28), (3, 3), pad=1), TARGET, {})
    one, other = _Look(search), _Look(search)
    one.approach(0.9 * Search(search.kernel, search.problem, TARGET, {}).us)
    known = search.least
    other.approach(0.0)
    assert not search.settled and search.least == known > 0


@pytest.mark.parametrize(("n", "c", "k", "size", "taps"), [(3, 232, 248, 28, 3), (6, 264, 56, 49, 1)])
def test_threads_that_plan_the_same_problem_get_the_same_plan(n: int, c: int, k: int, size: int, taps: int) -> None:
    """They have searches in common, from the cache, and switch in the midst of one.  Of the second, it is not the cost
    model's own choice."""
    switching = sys.getswitchinterval()
    problem = make("fprop", n, c, k, (size, size), (taps, taps), pad=taps // 2)
    together = threading.Barrier(6)

    def plan(_: int) -> str:
        together.wait()
        choice = untuned(problem, TARGET, "auto", {})
        return f"{choice.reason} {choice.strategy.plan(problem, TARGET, choice.options).options}"

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as threads:
            found = set(threads.map(plan, range(6)))
    finally:
        sys.setswitchinterval(switching)
    assert len({text.partition("(")[0] + text.partition(")")[2] for text in found}) == 1


@pytest.mark.parametrize("kernel", ["tma_im2col", "direct"])
@pytest.mark.parametrize("layer", [(3, 232, 248, 28, 3), (6, 264, 56, 49, 1)])
def test_a_search_that_another_thread_settles_between_two_looks(
    layer: tuple[int, ...], kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever that is: just after somebody has asked what its best takes at least."""
    n, c, k, size, taps = layer
    least = Search.least.fget

    def plan(look: int) -> str:
        asked = itertools.count(1)

        def meanwhile(search: Search) -> float:
            known = least(search)
            if search.kernel.name == kernel and next(asked) == look:
                assert search.best or search.us == math.inf
            return known

        _search.cache_clear()
        monkeypatch.setattr(Search, "least", property(meanwhile))
        choice = untuned(make("fprop", n, c, k, (size, size), (taps, taps), pad=taps // 2), TARGET, "auto", {})
        return f"{choice.strategy.name} {choice.options} {choice.reason.partition('(')[0]}"

    assert {plan(look) for look in range(1, 13)} == {plan(0)}


#: Options that the bounds hold with, or must not be asked for with.
FIXED: list[tuple[str, Options]] = [
    ("tma_im2col", {}),
    ("tma_im2col", {"cluster": 2}),
    ("tma_im2col", {"stream_k": 1}),
    ("tma_im2col", {"k_blocks": 3, "order": "taps_inner"}),
    ("tma_halo", {}),
    ("tma_halo", {"weight_stages": 3}),
    ("tma_halo", {"images": 1, "stages": 1}),
    ("tma_wgrad", {}),
    ("tma_wgrad", {"cluster": 2}),
    ("tma_wgrad", {"sums": "atomic", "stages": 3}),
    ("depthwise_wgrad", {}),
    ("depthwise_wgrad", {"loads": "own", "band": 3}),
    ("depthwise_wgrad", {"slices": 7}),
]
LAYERS = {
    "dense": make("fprop", 8, 192, 200, (14, 14), (3, 3), pad=1),
    "dilated": make("fprop", 1, 64, 64, (65, 65), (3, 3), pad=36, dilation=36),
    "groups": make("fprop", 8, 256, 256, (28, 28), (3, 3), pad=1, groups=32),
    "strided dgrad": make("dgrad", 8, 64, 64, (28, 28), (3, 3), stride=2, pad=1),
    "wgrad": make("wgrad", 8, 192, 200, (14, 14), (3, 3), pad=1),
    "depthwise wgrad": make("wgrad", 8, 144, 144, (28, 28), (3, 3), pad=1, groups=144),
}


SERVED = [
    (layer, name, fixed)
    for (name, fixed), layer in itertools.product(FIXED, LAYERS)
    if not search(kernel(name), LAYERS[layer], TARGET, fixed).unserved
]


@pytest.mark.costly
@pytest.mark.parametrize(("layer", "name", "fixed"), SERVED)
def test_a_ranking_is_all_of_the_space_the_fastest_first(layer: str, name: str, fixed: Options) -> None:
    row, problem = kernel(name), LAYERS[layer]
    ranked = list(search(row, problem, TARGET, fixed).ranked())
    assert [t.us for t in ranked] == sorted(t.us for t in ranked)
    configs = {t.layout.config for t in ranked}
    assert len(configs) == len(ranked)
    assert {x.config for x in row.space(problem, TARGET, fixed) if not row.illegal(x)} <= configs


def test_the_parts_of_a_space_that_are_slower_than_its_best_layout_are_not_laid_out() -> None:
    row, problem = kernel("tma_halo"), LAYERS["groups"]
    best = search(row, problem, TARGET, {}).us
    bounds = [part.least for part in row.parts(problem, TARGET, {})]
    assert sum(bound > best for bound in bounds) > 0.75 * len(bounds)


def test_tiles_of_groups_are_of_one_group() -> None:
    """Unless the options ask for others, whose obstacle is shown."""
    row, problem = kernel("tma_im2col"), LAYERS["groups"]
    assert all(x.gemm.group_columns % x.config.tile_n == 0 for x in row.space(problem, TARGET, {}))
    asked = search(row, problem, TARGET, {"tile.n": 48})
    assert any("tile n=48 does not divide" in o.message for o in asked.obstacles)
