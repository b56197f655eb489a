"""Convolution problems from other projects' own tests (tests/data/peers.json), in channels-last layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from problems import make

from convgen.ir.problem import ConvProblem

_FILE = Path(__file__).parent.parent / "data" / "peers.json"


@cache
def cases() -> dict[str, Mapping[str, Any]]:
    """Cases by id."""
    return {case["id"]: case for case in json.loads(_FILE.read_text())["cases"]}


def flop(problem: ConvProblem) -> int:
    return 2 * problem.output_pixels * problem.k * problem.taps * problem.c_per_group


def problem(case: Mapping[str, Any], most_flop: float = 1e15) -> ConvProblem:
    """The problem of a case, with fewer images where it would be more work than `most_flop`."""
    pads = tuple(zip(case["pad_lo"], case["pad_hi"], strict=True))
    lowered = {1: "n*q,s*c", 2: "n*p*q,r*s*c", 3: "n*o*p*q,t*r*s*c"}[len(case["input"])]

    def images(n: int) -> ConvProblem:
        return make(
            case["op"], n, case["c"], case["k"], tuple(case["input"]), tuple(case["filter"]), tuple(case["stride"]),
            pads, tuple(case["dilation"]), case["groups"], case["dtype"],
            lowered=lowered if case["op"] == "im2col" else "", name=case["id"].replace("-", "_"),
        )  # fmt: skip

    whole = images(case["n"])
    assert whole.output == tuple(case["out"]), f"{case['id']}: output {whole.output}, the case says {case['out']}"
    found = images(max(1, min(case["n"], int(most_flop * case["n"] / flop(whole)))) if flop(whole) else case["n"])
    return replace(found, lowered=replace(found.lowered, name="m")) if found.lowered else found


def gradients() -> list[str]:
    """Ids of the cases that are gradients of 16-bit tensors."""
    return [
        name for name, row in cases().items() if row["op"] in ("dgrad", "wgrad") and row["dtype"] in ("f16", "bf16")
    ]
