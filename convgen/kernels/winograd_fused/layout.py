"""What follows from a problem and a configuration: the halo tile, tiles, the transformed filters, shared memory.

Outputs are counted in quads, four neighbors of a row: a quad's outputs are two tiles of F(2, 3), which read six
neighbors of x.  The halo tile has a phase for each of four neighboring pixels, every fourth pixel of a row, so that
rows of eight quads lie on eight neighbors, in different banks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.ir.plan import Param, TensorMap, Workspace
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.ir.winograd import transforms
from convgen.kernels.parts import prepare
from convgen.kernels.parts.hopper import aligned, block_threads, products
from convgen.kernels.parts.window_axis import WindowAxis
from convgen.kernels.tma_halo.halo import Halo, Phase, windows
from convgen.kernels.tma_halo.rings import RingLayout
from convgen.kernels.winograd_fused.config import QUAD, Config
from convgen.targets import Target

#: Outputs of a tile of the transform.
M = 2
#: Products of a tile: the points of F(2, 3).
POINTS = transforms(M).size
#: The workspace of the transformed filters.
U = "workspace.u"
#: Channels of a row of U, which TMA loads, are a multiple of this.
C_MULTIPLE = 8
#: Pixels of an epilogue tile: rows of a fragment.
EPI_TILE_PIXELS = 64


def quads_before(h: WindowAxis, config: Config) -> int:
    """Quads of a row before a tile's first one, at most."""
    quads = config.quads
    return quads - math.gcd(config.tile_quads, quads) if h.output * quads > config.tile_quads else 0


def halo_of(h: WindowAxis, config: Config, span: int) -> Halo:
    """The halo tile: for each of four neighboring pixels a phase with the rows that a tile's quads read."""
    quads, width = config.quads, config.quads + 1
    line = h.output * quads
    rows = min((quads_before(h, config) + config.tile_quads - 1) // quads + 1, h.output)
    height = rows + h.reach()
    box = height * width * span
    phases = tuple(Phase(0, i, height, i * aligned(box), box, box) for i in range(QUAD))
    return Halo(width, 0, line, phases)


@dataclass(frozen=True)
class Layout(RingLayout[Config]):
    """The layout of winograd_fused.  Sizes in bytes."""

    @property
    def last_products(self) -> int:
        """Products of 16 channels each, of a single block; several are whole."""
        return products(self.read.c if self.blocks == 1 else self.config.tile_k)

    @property
    def rows(self) -> WindowAxis:
        """The window along h."""
        return windows(self.read)[0]

    @cached_property
    def halo(self) -> Halo:
        return halo_of(self.rows, self.config, self.span)

    @property
    def phase_bytes(self) -> int:
        """Bytes from a phase of the halo tile to the next."""
        return self.halo.bytes // QUAD

    @property
    def lane_rows(self) -> tuple[int, int]:
        """Rows of outputs that a tile's quads span at most, and those that a halo tile serves."""
        before, quads = quads_before(self.rows, self.config), self.config.quads
        return (before + self.config.tile_quads - 1) // quads + 1, self.halo.tallest - self.rows.reach()

    @property
    def filter_box(self) -> int:
        """Bytes of a filter row's points."""
        return POINTS * self.config.tile_n * self.span

    @property
    def filter_boxes(self) -> int:
        return self.blocks * len(self.rows.offsets)

    @property
    def epi_tile_shape(self) -> tuple[int, int]:
        return EPI_TILE_PIXELS, self.config.tile_n

    @property
    def strips(self) -> int:
        return -(-self.read.output[-1] // self.config.strip)

    @property
    def line_tiles(self) -> int:
        """Tiles down a strip."""
        return -(-self.halo.line // self.config.tile_quads)

    @property
    def own_tiles(self) -> int:
        """Tiles of pixels, in all images."""
        return self.read.n * self.strips * self.line_tiles

    @property
    def tiles(self) -> int:
        """Tiles of whole clusters, whose blocks load in step."""
        return -(-self.own_tiles // self.config.cluster) * self.config.cluster

    @property
    def channel_tiles(self) -> int:
        return -(-self.read.k // self.config.tile_n)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return block_threads(self.config.consumers)

    @property
    def filter_rows(self) -> int:
        return self.problem.taps // self.problem.filter[-1]

    @property
    def channels(self) -> int:
        """Input channels of U."""
        return -(-self.problem.c // C_MULTIPLE) * C_MULTIPLE

    @property
    def u(self) -> Tensor:
        """The transformed filters: [filter row, point, k, c]."""
        dims, w = ("r", "point", "k", "c"), self.problem.w
        return Tensor("u", "workspace", w.dtype, dims, (self.filter_rows, POINTS, self.problem.k, self.channels))

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        return (Workspace(U, self.u.bytes), *self.prepared.workspaces)

    @property
    def a_map(self) -> Param:
        """Boxes of a phase: every fourth pixel of a row."""
        p, size, (h, w) = self.read, self.read.x.element.bytes, windows(self.read)
        pixel = (p.x.pitch or p.c) * size
        tensor_map = TensorMap(
            "x", "tiled", p.x.dtype, (p.x.extent("c"), w.extent, h.extent, p.n),  # others are filled up with zeros
            (pixel, pixel * w.extent, pixel * w.extent * h.extent), (1, QUAD, 1, 1),
            box=(self.config.tile_k, self.halo.width * QUAD, self.halo.tallest, 1), swizzle=self.span,
        )  # fmt: skip
        return Param("a_map", "tensor_map", "x", tensor_map)

    @property
    def b_map(self) -> Param:
        """Boxes of a filter row's points, by a tile's output channels, by a block of input channels."""
        row = self.channels * self.u.element.bytes
        tensor_map = TensorMap(
            U, "tiled", self.u.dtype, (self.channels, self.problem.k, self.filter_rows * POINTS),
            (row, row * self.problem.k), (1, 1, 1),
            box=(self.config.tile_k, self.config.tile_n, POINTS // self.config.cluster), swizzle=self.span,
        )  # fmt: skip
        return Param("b_map", "tensor_map", U, tensor_map)


def layout_of(problem: ConvProblem, target: Target, config: Config) -> Layout:
    return Layout(problem, target, config, prepare.channels_last(problem, copy_w=False))
