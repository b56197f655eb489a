"""First layers: lines of x in shared memory (parts/lines.py), multiplied by mma.sync.

A lane's words of each k step, and which of their bits are the window's, stand in a table in shared memory, so
windows of any length and types of any size are served.  Each warp works on one class of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import lane_columns, line_cost, line_launch, line_limits, line_source, lines, output
from convgen.kernels.parts.limits import WARP, register_obstacles
from convgen.kernels.parts.line_kernel import LineKernel
from convgen.kernels.parts.mma import CHUNK_BYTES, COLUMNS, MMAS, ROWS, Mma, math_obstacles, maths, mma_obstacles
from convgen.kernels.parts.window_sum import window_sum
from convgen.kernels.stem_mma.config import Config
from convgen.targets import Target

#: Channels whose filters a warp loads at once: of two instructions.
PAIR = 2 * COLUMNS
#: The most accumulators of a warp; and if factors are split, whose slices have separate sums.
MOST_PART = 64 * 64
MOST_PART_APART = 32 * 64
#: Registers of a thread's accumulators, sums of channels, and operands of channels beside these: 256 were spilled.
MOST_WITH_SUMS = 192
#: Registers of the estimate that the compiler does without where a launch has fewer, as measured.
SPARED = 20
INSTRUCTION = 1.6  # cycles of a multiprocessor's tensor cores for 16 x 8 x 16


@dataclass(frozen=True)
class Layout(lines.Lines):
    """Everything that follows from a problem and a configuration."""

    @property
    def table_bytes(self) -> int:
        return self.phases * self.k_steps * 4 * CHUNK_BYTES

    @property
    def mma(self) -> Mma:
        return MMAS[self.problem.x.dtype, self.config.math]

    @property
    def apart(self) -> bool:
        """Whether factors are taken apart: an infinite one less its rounding is a NaN."""
        return self.config.math == "tf32x3"

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.problem.x.dtype, self.problem.w.dtype)
        return self.mma.function(*factors)

    @property
    def warp_rows(self) -> int:
        """Instructions of a warp along the pixels."""
        return self.config.warp_m // ROWS

    @property
    def warp_columns(self) -> int:
        """Instructions of a warp along the channels."""
        return self.config.tile_n // COLUMNS

    @property
    def threads(self) -> int:
        return WARP * self.config.warps_m


class StemMma(LineKernel[Config, Layout]):
    name = "stem_mma"
    config = Config
    unit = ROWS

    @property
    def rates(self) -> line_cost.LineRates:
        return line_cost.MMA_LINES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        return mma_obstacles(problem, target) or line_limits.unserved(problem)

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        root = self.root(problem, target, fixed)
        n, math = root.config.tile_n, root.config.math
        tiles = [(warp_m * warps, warps) for warp_m, warps in product((64, 48, 32, 16), (4, 8, 2))]
        fitting = [
            (m, warps) for m, warps in tiles if fixed.get("tile.m", m) == m and fixed.get("warps.m", warps) == warps
        ]
        if not fitting:
            warps = int(fixed.get("warps.m", 4))
            fitting = [(int(fixed.get("tile.m", 64 * warps)), warps)]
        for (m, warps), stages in product(fitting, considered(fixed, "stages", (2, 1))):
            layout = root.having(Config(m, n, warps, stages, math))
            for blocks in considered(fixed, "blocks", _blocks(layout)):
                yield layout.sibling(blocks=blocks)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c = layout.config
        found = [*math_obstacles(layout.problem, c.math), *line_limits.uneven_tile(c.tile_n, PAIR)]
        if found:
            return found
        if c.tile_m % (ROWS * c.warps_m):
            step = ROWS * c.warps_m
            found.append(Obstacle(f"tile m={c.tile_m} does not split into {c.warps_m} warps of a multiple of {ROWS}",
                                  f"a multiple of {step}", "tile.m"))  # fmt: skip
        if c.warps_m % layout.phases:
            found.append(Obstacle(f"{c.warps_m} warps do not split into {layout.phases} classes of columns",
                                  f"a multiple of {layout.phases}", "warps.m"))  # fmt: skip
        if c.warp_m * c.tile_n > (MOST_PART_APART if layout.apart else MOST_PART):
            found.append(Obstacle(f"a warp's part of {c.warp_m}x{c.tile_n} does not fit its registers",
                                  "more warps, or a smaller tile", "tile.n"))  # fmt: skip
        elif layout.sums and (held := c.warp_m * c.tile_n // WARP + _sums(layout)) > MOST_WITH_SUMS:
            found.append(Obstacle(f"a warp's part of {c.warp_m}x{c.tile_n} and its sums take {held} registers",
                                  "more warps, or a smaller tile", "tile.n"))  # fmt: skip
        found += register_obstacles(layout.target, c.blocks, layout.threads, _registers(layout) - SPARED)
        return found or line_limits.too_large(layout)

    def root(self, problem: ConvProblem, target: Target, fixed: Options) -> Layout:
        math = str(fixed.get("math", maths(problem.x.dtype)[0]))
        n = int(fixed.get("tile.n", lines.tile_channels(problem)))
        return Layout(problem, target, Config(ROWS, n, 1, 1, math)).knowing(*lines.OF_PROBLEM)

    def products(self, layout: Layout, pixels: int) -> float:
        instructions = pixels / ROWS * layout.config.tile_n / COLUMNS * (3 if layout.apart else 1)
        return layout.k_steps * instructions * INSTRUCTION

    def demands(self, layout: Layout) -> dict[str, Any]:
        c = layout.config
        return layout.demands(
            products=self.products(layout, c.warp_m),
            shared=layout.k_steps * (c.warp_m / 4 * layout.conflicts + c.tile_n / 4 + 1),
            steps=layout.k_steps * c.warp_m / ROWS,
            part=c.warp_m,
            workers=c.warps_m,
        )

    def plan(self, layout: Layout) -> Plan:
        launch, rows, limits = line_launch.launch(layout), line_launch.workspaces(layout), line_limits.limits(layout)
        return plan_of(layout, [launch], rows, arithmetic=layout.config.math, limits=limits)

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        problem = plan.problem
        return render(
            "stem_mma/kernel.cu.j2",
            plan,
            multiply=layout.multiply,
            window_sum=window_sum(problem, "gemm_m", output.pixel_dims(problem)) if layout.apart else None,
            lane_column=lane_columns.lane_column_text(layout.run, "place"),
            **line_source.values(layout),
        )


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    c = layout.config
    fragments = (c.warp_m // 4 + c.tile_n // 4) * (2 if layout.apart else 1)
    return c.warp_m * c.tile_n // WARP + fragments + _sums(layout) + c.warp_m // 8 + 44


def _sums(layout: Layout) -> int:
    """Registers for a thread's sums, and for the per-channel operands that the compiler keeps beside them."""
    return layout.lane_sums + (layout.operands_of_channels * layout.config.tile_n // 4 if layout.sums else 0)


def _blocks(layout: Layout) -> tuple[int, ...]:
    most = layout.target.register_blocks(_registers(layout), layout.threads)
    return tuple(b for b in (4, 3, 2, 1) if b <= max(most, 1))


KERNEL = StemMma()
