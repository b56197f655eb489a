"""Few channels: lines of x in shared memory (lines.py), multiplied by mma.sync.

A lane's words of each k step, and which of their bits are the window's, stand in a table in shared memory, so
windows of any length and types of any size are served.  Each warp works on one class of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.implicit_gemm import cost, lines
from convgen.kernels.implicit_gemm.mma import CHUNK_BYTES, COLUMNS, MMAS, ROWS, Mma, maths
from convgen.targets import Target

WARP = 32
#: Channels whose filters a warp loads at once: of two instructions.
PAIR = 2 * COLUMNS


@dataclass(frozen=True)
class RowsConfig:
    """Output pixels of a warp, output channels of a tile, warps, patches in shared memory, arithmetic,
    blocks a multiprocessor."""

    warp_m: int
    n: int
    warps: int
    stages: int
    math: str
    blocks: int

    @property
    def m(self) -> int:
        return self.warp_m * self.warps

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        said: dict[str, int | str] = {
            "kernel": "rows",
            "tile.m": self.m,
            "tile.n": self.n,
            "warps.m": self.warps,
            "stages": self.stages,
            "blocks": self.blocks,
        }
        return {**said, "math": self.math} if self.math else said

    def __str__(self) -> str:
        math_ = f", {self.math}" if self.math else ""
        return (
            f"rows: tile {self.m}x{self.n}, {self.warps} warps, {self.stages} patch{'es' if self.stages > 1 else ''}"
            f"{math_}, {self.blocks} block{'s' if self.blocks > 1 else ''} a multiprocessor"
        )


@dataclass(frozen=True)
class Layout(lines.Lines):
    """What follows from a problem and a configuration."""

    config: RowsConfig

    @property
    def table_bytes(self) -> int:
        return self.phases * self.k_steps * 4 * CHUNK_BYTES

    @property
    def mma(self) -> Mma:
        return MMAS[self.problem.x.dtype, self.config.math]

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.problem.x.dtype, self.problem.w.dtype)
        return self.mma.function(*factors)

    @property
    def threads(self) -> int:
        return WARP * self.config.warps


def choose(problem: ConvProblem, target: Target, options: Options) -> RowsConfig | None:
    """The configuration that `options` fix, the rest by estimate; None where none fits."""
    return next(iter(candidates(problem, target, options)), None)


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[RowsConfig]:
    """Configurations that run and that `options` allow, the most promising first."""
    if lines.unserved(problem) or lines.uneven_tile(options, PAIR):
        return []
    fitting = [c for c in _configs(problem, target, options) if not _unfit(Layout(problem, c), target)]
    return sorted(fitting, key=lambda c: time(problem, target, c))


def _configs(problem: ConvProblem, target: Target, options: Options) -> Iterator[RowsConfig]:
    math_ = str(options.get("math", maths(problem.x.dtype)[0]))
    n = int(options.get("tile.n", lines.tile_channels(problem)))
    for warp_m in (64, 48, 32, 16):
        for warps in (4, 8, 2):
            for stages in (2, 1):
                config = RowsConfig(warp_m, n, warps, stages, math_, 1)
                if "tile.m" in options and config.m != options["tile.m"]:
                    continue
                if "warps.m" in options and warps != options["warps.m"]:
                    continue
                if "stages" in options and stages != options["stages"]:
                    continue
                layout = Layout(problem, config)
                for blocks in (int(options["blocks"]),) if "blocks" in options else _blocks(layout, target):
                    yield RowsConfig(warp_m, n, warps, stages, math_, blocks)


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    c = layout.config
    return c.warp_m * c.n // WARP + (c.warp_m // 4 + c.n // 4) * (2 if c.math == "tf32x3" else 1) + c.warp_m // 8 + 44


def _blocks(layout: Layout, target: Target) -> tuple[int, ...]:
    most = target.register_blocks(_registers(layout), layout.threads)
    return tuple(b for b in (4, 3, 2, 1) if b <= most)


def _unfit(layout: Layout, target: Target) -> str:
    """Why a configuration cannot run; empty where it can."""
    c = layout.config
    if c.warps % layout.phases:
        return f"{c.warps} warps do not split into {layout.phases} classes of columns"
    if layout.shared_bytes > target.shared_limit(c.blocks):
        return f"filters and patches take {layout.shared_bytes} bytes of shared memory, {c.blocks} times"
    if c.warp_m * c.n > 64 * 64:
        return f"a warp's part of {c.warp_m}x{c.n} does not fit its registers"
    return ""


def time(problem: ConvProblem, target: Target, config: RowsConfig) -> float:
    """Estimated microseconds."""
    layout, c = Layout(problem, config), config
    instructions = c.warp_m / ROWS * c.n / COLUMNS * (3 if c.math == "tf32x3" else 1)
    return layout.time(
        target,
        cost.MMA_LINES,
        products=layout.k_steps * instructions * 1.6,
        reads=layout.k_steps * (c.warp_m / 4 * layout.conflicts + c.n / 4 + 1),
        steps=layout.k_steps * c.warp_m / ROWS,
        part=c.warp_m,
        workers=c.warps,
    )


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    if found := lines.unserved(problem) or lines.uneven_tile(options, PAIR):
        return found
    return [lines.no_fit(problem)] if choose(problem, target, options) is None else []


def serves_well(problem: ConvProblem, target: Target, options: Options) -> bool:
    """Whether this kernel is the default."""
    return lines.short_taps(problem) and not obstacles(problem, target, options)


def plan(problem: ConvProblem, target: Target, config: RowsConfig, strategy: str) -> Plan:
    return lines.plan(Layout(problem, config), target, strategy)


def source(plan_: Plan) -> str:
    assert isinstance(plan_.config, RowsConfig)
    layout = Layout(plan_.problem, plan_.config)
    return render("implicit_gemm/rows.cu.j2", plan_, multiply=layout.multiply, **lines.values(plan_, layout))


CONFIG = RowsConfig
