"""Few channels on Hopper: the kernel `rows` with wgmma in place of mma.sync.

A window still begins anywhere, so pixels go from shared memory into registers word by word, as wgmma's factor
A; filters stay in shared memory as its factor B.  A warpgroup multiplies 64 pixels at a time; while the tensor
cores work on one warpgroup's pixels, the others load theirs and store their results.

Words of gemm_k lie as in `rows`, line after line.  Every place is known when the kernel is compiled but for
the lane's part of it, so a load is one instruction with an offset: a quad of lanes reads four neighbouring
words, of two lines at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.implicit_gemm import cost, lines
from convgen.targets import Target

WARPGROUP = 128
#: Pixels of one wgmma.
UNIT = 64
#: Words of a line that a quad of lanes reads.
QUAD = 4
TYPES = frozenset({"f16", "bf16"})
#: Registers of a thread that hold pixels: k steps, four each, twice.
MOST_CHUNK, RING_CHUNK = 6, 4


@dataclass(frozen=True)
class RowsWgmmaConfig:
    """Output pixels and channels of a tile, warpgroups, patches in shared memory, blocks a multiprocessor."""

    m: int
    n: int
    warpgroups: int
    stages: int
    blocks: int

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        return {
            "kernel": "rows_wgmma",
            "tile.m": self.m,
            "tile.n": self.n,
            "warps.m": 4 * self.warpgroups,
            "stages": self.stages,
            "blocks": self.blocks,
        }

    def __str__(self) -> str:
        return (
            f"rows_wgmma: tile {self.m}x{self.n}, {self.warpgroups} warpgroup{'s' if self.warpgroups > 1 else ''}, "
            f"{self.stages} patch{'es' if self.stages > 1 else ''}, "
            f"{self.blocks} block{'s' if self.blocks > 1 else ''} a multiprocessor"
        )


@dataclass(frozen=True)
class Layout(lines.Lines):
    """What follows from a problem and a configuration."""

    config: RowsWgmmaConfig

    @property
    def threads(self) -> int:
        return WARPGROUP * self.config.warpgroups

    @property
    def multiply(self) -> str:
        dtype = self.problem.x.dtype
        return f"wgmma_m64n{self.config.n}k16_f32_{dtype}_{dtype}_rs"

    @property
    def chunk(self) -> int:
        """k steps whose pixels are loaded at once: half of all where registers hold all."""
        half = -(-self.k_steps // 2)
        return half if half <= MOST_CHUNK else RING_CHUNK

    def masks(self, word: int) -> tuple[int, ...] | None:
        """Of word 0 or -1 of a line, for each phase, the bits that are the window's; None where all are."""
        place = word % self.run_words
        found = tuple(
            sum(
                0xFFFF << 16 * e
                for e in range(self.per_word)
                if 0 <= place * self.per_word + e - self.shift(phase) < self.window.run
            )
            for phase in range(self.phases)
        )
        return None if all(bits == 0xFFFFFFFF for bits in found) else found


def choose(problem: ConvProblem, target: Target, options: Options) -> RowsWgmmaConfig | None:
    """The configuration that `options` fix, the rest by estimate; None where none fits."""
    return next(iter(candidates(problem, target, options)), None)


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[RowsWgmmaConfig]:
    """Configurations that run and that `options` allow, the most promising first."""
    if unserved(problem, target):
        return []
    fitting = [c for c in _configs(problem, options) if _fits(Layout(problem, c), target)]
    return sorted(fitting, key=lambda c: time(problem, target, c))


def _configs(problem: ConvProblem, options: Options) -> Iterator[RowsWgmmaConfig]:
    def given(name: str, values: tuple[int, ...]) -> tuple[int, ...]:
        return (int(options[name]),) if name in options else values

    (n,) = given("tile.n", (lines.tile_channels(problem),))
    for m in given("tile.m", (128, 256, 384, 512, 768, 1024)):
        for warps in given("warps.m", (4, 8, 16)):
            for stages in given("stages", (2, 1)):
                for blocks in given("blocks", (4, 3, 2, 1)):
                    yield RowsWgmmaConfig(m, n, warps // 4, stages, blocks)


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    return layout.config.n // 2 + 8 * layout.chunk + 36


def _fits(layout: Layout, target: Target) -> bool:
    c = layout.config
    return (
        c.m % (UNIT * layout.phases) == 0
        and c.n % 8 == 0
        and c.n <= 256
        and c.warpgroups > 0
        and c.warpgroups % layout.phases == 0
        and c.m >= UNIT * c.warpgroups
        and c.blocks <= target.register_blocks(_registers(layout), layout.threads)
        and layout.shared_bytes <= target.shared_limit(c.blocks)
    )


def time(problem: ConvProblem, target: Target, config: RowsWgmmaConfig) -> float:
    """Estimated microseconds."""
    layout, c = Layout(problem, config), config
    return layout.time(
        target,
        cost.WGMMA_LINES,
        products=layout.k_steps * max(c.n / 2, 16),
        reads=layout.k_steps * (16 * layout.conflicts + c.n / 4),
        steps=layout.k_steps,
        part=UNIT,
        workers=c.warpgroups,
    )


def unserved(problem: ConvProblem, target: Target) -> list[Obstacle]:
    """What stands against this kernel, whatever the configuration."""
    found = []

    def no(message: str) -> None:
        found.append(Obstacle(f"kernel rows_wgmma: {message}", "kernel rows serves it", "kernel"))

    if "wgmma" not in target.features:
        no(f"target {target} has no wgmma")
    if problem.x.dtype not in TYPES:
        no(f"{problem.x.dtype} factors, f16 and bf16 are served")
    elif (window := lines.window(problem)) and window.run * problem.x.element.bytes <= (QUAD - 1) * lines.WORD:
        no(f"a window's row has {window.run} elements, less than the words that a quad of lanes reads")
    return found or lines.unserved(problem)


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    found = unserved(problem, target) or lines.uneven_tile(options, 8)
    return found or ([lines.no_fit(problem)] if choose(problem, target, options) is None else [])


def serves_well(problem: ConvProblem, target: Target, options: Options) -> bool:
    """Whether this kernel is the default: as for `rows`."""
    return lines.short_taps(problem) and "math" not in options and not obstacles(problem, target, options)


def plan(problem: ConvProblem, target: Target, config: RowsWgmmaConfig, strategy: str) -> Plan:
    return lines.plan(Layout(problem, config), target, strategy)


def source(plan_: Plan) -> str:
    assert isinstance(plan_.config, RowsWgmmaConfig)
    layout = Layout(plan_.problem, plan_.config)
    return render("implicit_gemm/rows_wgmma.cu.j2", plan_, **lines.values(plan_, layout))


CONFIG = RowsWgmmaConfig
