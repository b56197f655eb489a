"""The emulator gives the bytes that an H200 gave (fidelity.json, made by benchmarks/record_fidelity.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fidelity import (
    digest,
    emulate_stores,
    emulate_tma,
    emulate_wgmma,
    random_stores,
    random_tma,
    random_wgmma,
    store_source,
    tma_case,
    tma_source,
    wgmma_case,
    wgmma_source,
)

from convgen.emulator.tensor_map import problems
from convgen.runtime import nvrtc
from convgen.targets import TARGETS

RECORD = Path(__file__).parent / "fidelity.json"
LEAST_TMA, LEAST_STORES, LEAST_WGMMA = 500, 120, 200


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


def assert_same(rows: Sequence[dict[str, Any]], cases: Sequence[Any], outs: Sequence[np.ndarray]) -> None:
    different = [c for row, c, out in zip(rows, cases, outs, strict=True) if digest(out) != row["digest"]]
    assert not different, f"{len(different)} of {len(cases)} differ, the first: {different[0]}"


def split(rows: Sequence[dict[str, Any]], make: Callable[[dict[str, Any]], Any]) -> list[Any]:
    return [make({key: value for key, value in row.items() if key != "digest"}) for row in rows]


def test_boxes(record):
    rows = record["tma"]
    cases = split(rows, tma_case)
    assert len(cases) >= LEAST_TMA
    assert {c.map.swizzle for c in cases} == {0, 32, 64, 128}
    kinds = {(c.map.mode, c.rank) for c in cases}
    assert kinds == {*(("tiled", r) for r in (2, 3, 4, 5)), *(("im2col", r) for r in (3, 4, 5))}
    assert_same(rows, cases, emulate_tma(cases, tma_source()))


def test_stores(record):
    rows = record["store"]
    cases = split(rows, tma_case)
    assert len(cases) >= LEAST_STORES
    assert {(c.map.swizzle, c.rank) for c in cases} == {(s, r) for s in (0, 32, 64, 128) for r in (2, 3, 4, 5)}
    assert_same(rows, cases, emulate_stores(cases, store_source()))


def test_tiles(record, some):
    rows = record["wgmma"]
    assert len(rows) >= LEAST_WGMMA
    rows = some(rows)
    cases = split(rows, wgmma_case)
    assert {c.a_type for c in cases} == {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8"}
    assert_same(rows, cases, emulate_wgmma(cases, wgmma_source(cases)))


def test_what_is_recorded_can_be_read_back():
    boxes, tiles = random_tma(3, 24), random_wgmma(3, 24)
    assert [tma_case(json.loads(json.dumps(c.as_dict()))) for c in boxes] == boxes
    assert [wgmma_case(json.loads(json.dumps(c.as_dict()))) for c in tiles] == tiles


def test_random_maps_are_maps():
    for case in [*random_tma(5, 120), *random_stores(5, 40)]:
        assert not list(problems(case.map, case.tensor().nbytes)), case


def test_the_recorder_s_kernels_compile(some):
    nvrtc.compile_source(tma_source(), TARGETS["sm_90a"])
    nvrtc.compile_source(store_source(), TARGETS["sm_90a"])
    nvrtc.compile_source(wgmma_source(some(random_wgmma(4, 24))), TARGETS["sm_90a"])
