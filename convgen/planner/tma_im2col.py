"""Default tiles of tma_im2col: enough tiles to fill the GPU, as large as that leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convgen.ir.problem import ConvProblem
from convgen.targets import Target


@dataclass(frozen=True)
class Tile:
    m: int
    n: int
    k: int
    consumers: int
    schedule: str = "cooperative"
    blocks: int = 1
    merge: int = 1
    split: int = 1


def default_tile(problem: ConvProblem, target: Target, fixed: Mapping[str, int | str]) -> Tile:
    """A tile for a problem; `fixed` are options that the spec sets, which the rest must go with."""
    size = problem.x.element.bytes
    k = next((k for k in (64, 32, 16) if problem.c % k == 0), 64 if problem.c > 32 else 32 if problem.c > 16 else 16)
    k = int(fixed.get("tile.k", k * 2 // size))
    best: tuple[float, Tile] | None = None
    for m, consumers in ((64, 1), (128, 2), (192, 3), (256, 2)):
        for n in (16, 32, 48, 64, 96, 128, 160, 192, 256):
            if ((m, consumers) == (256, 2) and n > 128) or (consumers == 3 and n > 192):
                continue
            if ("tile.m" in fixed and m != fixed["tile.m"]) or ("tile.n" in fixed and n != fixed["tile.n"]):
                continue
            if "consumers" in fixed and consumers != fixed["consumers"]:
                continue
            tiles = -(-problem.output_pixels // m) * -(-problem.k // n)
            waves = -(-tiles // target.sms)
            # a k step costs its MMA (or the shared-memory reads behind it) and a share of what is fixed
            step = max(m * n, 64 * 64) + 24 * (m + n)
            cost = waves * (step * problem.taps * -(-problem.c // k) + 60000)
            tile = Tile(m, n, k, consumers)
            if best is None or cost < best[0]:
                best = (cost, tile)
    if best:
        return best[1]
    m = int(fixed.get("tile.m", 128))
    return Tile(m, int(fixed.get("tile.n", 128)), k, int(fixed.get("consumers", max(m // 64 if m < 256 else 2, 1))))
