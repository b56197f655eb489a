"""The frontend's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convgen.diagnostics import Span
from convgen.ir.problem import ConvProblem

AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """One convolution, one operator, and how the spec wants it done.

    `conv` names the block; `problem` has the same name, with the operator behind it (`name_dgrad`) where
    the spec asks for several.  `strategy` is `auto` and `target` None where the spec says nothing;
    `options` are the strategy block's, flattened: {"tile.m": 128, "stages": 5}.  `spans` tells later
    passes where the spec said a thing: conv, a setting's keyword, strategy.<option>; only what is stated
    is there.  `outdated`: the file has names that are no longer the language's, of which it was warned.
    """

    conv: str
    problem: ConvProblem
    strategy: str
    options: Mapping[str, int | str]
    target: str | None
    spans: Mapping[str, Span]
    outdated: bool = False
