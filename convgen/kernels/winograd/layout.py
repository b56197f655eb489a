"""What follows from a problem and a configuration of winograd: tiles, workspaces, the products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.ir.plan import Workspace
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.ir.winograd import TAPS
from convgen.kernels import base
from convgen.kernels.config import Options
from convgen.kernels.registry import kernel
from convgen.kernels.search import Search, search
from convgen.kernels.winograd.config import Config

#: Transformed filters, transformed tiles, and their products: Lavin and Gray's U, V and M.
U, V, M = "workspace.u", "workspace.v", "workspace.m"
#: Channels are filled up with zeros to these multiples, which suit every kernel that multiplies them.
C_MULTIPLE, K_MULTIPLE = 16, 8
#: Values that a thread of a transform keeps of a tile: of as many channels as its registers hold.
MOST_VALUES = 72


@dataclass(frozen=True)
class Layout(base.Layout[Config]):
    """A configuration of a problem.

    The points' products are a convolution of their own, which another kernel makes: 1x1, its pixels the tiles, its
    groups the points."""

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis."""
        return self.config.tile + TAPS - 1

    @property
    def points(self) -> int:
        """Products of an input and an output channel of a tile."""
        return self.size**2

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Tiles per image, along p and q."""
        p, q = (-(-extent // self.config.tile) for extent in self.problem.output)
        return p, q

    @property
    def tile_count(self) -> int:
        return self.problem.n * math.prod(self.tiles)

    @property
    def channels(self) -> int:
        """Channels of V and U."""
        return -(-self.problem.c // C_MULTIPLE) * C_MULTIPLE

    @property
    def columns(self) -> int:
        """Output channels of U and M."""
        return -(-self.problem.k // K_MULTIPLE) * K_MULTIPLE

    @cached_property
    def product_problem(self) -> ConvProblem:
        """M[tile, point, k] = sum over c of V[tile, point, c] U[point, k, c]."""
        problem, tiles, points, dtype = self.problem, self.tile_count, self.points, self.problem.x.dtype
        c, k = points * self.channels, points * self.columns
        return ConvProblem(
            problem.name, Op.FPROP, 1, c, k, (tiles,), (1,), (tiles,), (1,), (1,), (0,), (0,), points,
            Tensor("v", "x", dtype, ("w", "c"), (tiles, c)),
            Tensor("u", "w", dtype, ("k", "c"), (k, self.channels)),
            Tensor("m", "y", "f32", ("q", "k"), (tiles, k)),
        )  # fmt: skip

    @cached_property
    def product(self) -> Search:
        """The configurations of the kernel that makes the products."""
        options: Options = {"math": self.config.math} if self.config.math else {}
        return search(kernel(self.config.product), self.product_problem, self.target, options)

    @property
    def made_by(self) -> base.Layout:
        """The fastest kernel for the products."""
        found = self.product.best
        assert found is not None, "obstacles are asked for first"
        return found.layout

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        made = self.product_problem
        return tuple(Workspace(name, t.bytes) for name, t in ((U, made.w), (V, made.x), (M, made.y)))

    def channels_at_once(self, tensor: Tensor, channel: str) -> int:
        """Neighboring channels of x or y that a thread transforms: those of a vector, as its registers allow."""
        if tensor.stride(channel) != 1:
            return 1
        return math.gcd(MOST_VALUES // self.points, tensor.extent(channel), tensor.pitch or 0)
