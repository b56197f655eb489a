"""The extents of a convolution."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import SPATIAL, Padding, SpatialDims


@dataclass(frozen=True)
class Geometry:
    """All of ConvProblem's extents.  Spatial tuples are outermost first."""

    n: int
    c: int
    k: int
    input: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_lo: tuple[int, ...]
    pad_hi: tuple[int, ...]
    groups: int
    padding: Padding

    @property
    def spatial(self) -> SpatialDims:
        return SPATIAL[len(self.input)]

    def extents(self, role: str) -> dict[str, int]:
        """Extent of every dim that the tensor of a role, or the lowered matrix, may have."""
        sp = self.spatial
        own = {
            "x": (("n", "c", *sp.input), (self.n, self.c, *self.input)),
            "w": (("k", "c", *sp.filter), (self.k, self.c // self.groups, *self.filter)),
            "y": (("n", "k", *sp.output), (self.n, self.k, *self.output)),
            "lowered": (
                ("n", *sp.output, "c", *sp.filter),
                (self.n, *self.output, self.c, *self.filter),
            ),
        }
        return dict(zip(*own[role], strict=True))
