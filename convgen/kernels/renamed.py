"""Former names in the language, so that old specs and measurements can still be read.

A spec with a former name gets a warning; a row is removed one release after the name changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convgen.kernels.config import Options

#: Strategies: the old name and the new one.
STRATEGIES: Mapping[str, str] = {"tma_patch": "tma_halo"}


@dataclass(frozen=True)
class Renamed:
    """A renamed option: its strategy (by the present name), both names, and old values with the new ones."""

    strategy: str
    old: str
    new: str
    values: Mapping[int | str, int | str] = field(default_factory=dict)


OPTIONS: tuple[Renamed, ...] = (
    Renamed(
        "implicit_gemm", "kernel", "kernel",
        {"gather": "mma_gemm", "rows": "stem_mma", "rows_wgmma": "stem_wgmma", "grouped": "small_groups"},
    ),
    Renamed("implicit_gemm", "split", "split_k"),
    Renamed("tma_im2col", "merge", "k_blocks"),
    Renamed("tma_im2col", "split", "split_k"),
    Renamed("tma_im2col", "rows", "swap_ab", {"pixels": 0, "channels": 1}),
    Renamed("tma_im2col", "shares", "multicast", {"x": "a", "w": "b"}),
    Renamed("tma_im2col", "stream", "stream_k"),
    Renamed("tma_im2col", "bundle", "group_pack"),
    Renamed("tma_halo", "rows", "swap_ab", {"pixels": 0, "channels": 1}),
    Renamed("tma_halo", "bundle", "group_pack"),
    Renamed("tma_halo", "pixels", "tile.m"),
    Renamed("tma_halo", "channels", "tile.n"),
    Renamed("depthwise", "kernel", "kernel", {"patches": "depthwise_direct", "stream": "depthwise_stream"}),
)  # fmt: skip
_BY_OLD = {(row.strategy, row.old): row for row in OPTIONS}  # a tuning database asks for every option of its rows


def strategy(name: str) -> str:
    """A strategy by its present name."""
    return STRATEGIES.get(name, name)


def option(of: str, name: str) -> str:
    """An option of a strategy by its present name."""
    row = _BY_OLD.get((strategy(of), name))
    return row.new if row else name


def value(of: str, name: str, given: int | str) -> int | str:
    """The present name of an option's value, which may be given by its former name."""
    row = _BY_OLD.get((strategy(of), name))
    return row.values.get(given, given) if row else given


def options(of: str, given: Options) -> dict[str, int | str]:
    """Options and their values by their present names."""
    return {option(of, name): value(of, name, v) for name, v in given.items()}
