"""First layers on Hopper: as stem_mma, with wgmma in place of mma.sync.

A window still begins anywhere, so pixels go from shared memory into registers word by word, as wgmma's factor
A; filters stay in shared memory as its factor B.  A warpgroup multiplies 64 pixels at a time; while the tensor
cores work on one warpgroup's pixels, the others load theirs and store their results.

Words of gemm_k lie as in stem_mma, line after line.  Every place is known when the kernel is compiled but for
the lane's part of it, so a load is one instruction with an offset: a quad of lanes reads four neighboring
words, of two lines at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from convgen import plurals
from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Obstacles, plan_of
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import line_cost, line_launch, line_limits, line_source, lines
from convgen.kernels.parts.limits import register_obstacles
from convgen.kernels.parts.line_kernel import LineKernel
from convgen.kernels.parts.mma import mma_obstacles
from convgen.kernels.stem_wgmma.config import Config
from convgen.targets import Target

WARPGROUP = 128
#: Pixels of one wgmma.
UNIT = 64
#: Words of a line that a quad of lanes reads.
QUAD = 4
TYPES = frozenset({"f16", "bf16"})
#: Registers of a thread that hold pixels: k steps, four each, twice.
MOST_HELD_STEPS, RING_HELD_STEPS = 6, 4


@dataclass(frozen=True)
class Layout(lines.Lines):
    """Everything that follows from a problem and a configuration."""

    @property
    def threads(self) -> int:
        return WARPGROUP * self.config.warpgroups

    @property
    def multiply(self) -> str:
        dtype = self.problem.x.dtype
        return f"wgmma_m64n{self.config.tile_n}k16_f32_{dtype}_{dtype}_rs"

    @property
    def line_ends_early(self) -> bool:
        """Whether the number of words of a line is not a multiple of 4."""
        return self.words % 4 > 0

    @property
    def waits(self) -> bool:
        """Whether the registers of a part of the loop are those of an earlier one."""
        return self.k_steps > 2 * self.held_steps

    @property
    def held_steps(self) -> int:
        """k steps whose pixels are loaded at once: half of all where registers hold all."""
        half = -(-self.k_steps // 2)
        return half if half <= MOST_HELD_STEPS else RING_HELD_STEPS

    def masks(self, word: int) -> tuple[int, ...] | None:
        """For each phase, which bits of word 0 or -1 of a line belong to the window; None if all do."""
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


class StemWgmma(LineKernel[Config, Layout]):
    name = "stem_wgmma"
    config = Config
    unit = UNIT

    @property
    def rates(self) -> line_cost.LineRates:
        return line_cost.WGMMA_LINES

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = Obstacles(mma_obstacles(problem, target))

        def no(message: str) -> None:
            found.no(f"kernel stem_wgmma: {message}", "kernel stem_mma", "kernel")

        if "wgmma" not in target.features:
            no(f"target {target} has no wgmma")
        if problem.x.dtype not in TYPES:
            no(f"{problem.x.dtype} factors: only f16 and bf16 are served")
        elif (window := lines.window(problem)) and window.run * problem.x.element.bytes <= (QUAD - 1) * lines.WORD:
            run = plurals.counted(window.run, "element")
            no(f"a window's row has {run}, less than the words that a quad of lanes reads")
        return found or line_limits.unserved(problem)

    def space(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Layout]:
        given = partial(considered, fixed)
        root = self.root(problem, target, fixed)
        for m, warps, stages, blocks in product(
            given("tile.m", (128, 256, 384, 512, 768, 1024)),
            given("warps.m", (4, 8, 16)), given("stages", (2, 1)), given("blocks", (4, 3, 2, 1)),
        ):  # fmt: skip
            yield root.having(Config(m, root.config.tile_n, warps, stages, blocks))

    def illegal(self, layout: Layout) -> list[Obstacle]:
        c, found = layout.config, Obstacles()
        if c.tile_m % (UNIT * layout.phases):
            step = UNIT * layout.phases
            found.no(f"tile m={c.tile_m} is not a multiple of {step} pixels", f"m={step} or a multiple", "tile.m")
        if c.warpgroups % layout.phases:
            found.no(f"{c.warpgroups} warpgroups do not split into {layout.phases} classes of columns",
                     f"warps m={4 * layout.phases} or a multiple", "warps.m")  # fmt: skip
        if c.tile_m < UNIT * c.warpgroups:
            found.no(f"tile m={c.tile_m} leaves some of {c.warpgroups} warpgroups without {UNIT} pixels",
                     f"m={UNIT * c.warpgroups} or more", "tile.m")  # fmt: skip
        found += register_obstacles(layout.target, c.blocks, layout.threads, _registers(layout))
        return found or line_limits.too_large(layout)

    def root(self, problem: ConvProblem, target: Target, fixed: Options) -> Layout:
        n = int(fixed.get("tile.n", lines.tile_channels(problem)))
        return Layout(problem, target, Config(UNIT, n, 4, 1)).knowing(*lines.OF_PROBLEM)

    def products(self, layout: Layout, pixels: int) -> float:
        return pixels / UNIT * layout.k_steps * max(layout.config.tile_n / 2, 16)

    def demands(self, layout: Layout) -> dict[str, Any]:
        c = layout.config
        return layout.demands(
            products=self.products(layout, UNIT),
            shared=layout.k_steps * (16 * layout.conflicts + c.tile_n / 4),
            steps=layout.k_steps,
            part=UNIT,
            workers=c.warpgroups,
        )

    def plan(self, layout: Layout) -> Plan:
        launch, rows = line_launch.launch(layout), line_launch.workspaces(layout)
        return plan_of(layout, [launch], rows, limits=line_limits.limits(layout))

    def source(self, plan: Plan) -> str:
        layout = plan.layout
        assert isinstance(layout, Layout)
        return render("stem_wgmma/kernel.cu.j2", plan, **line_source.values(layout))


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs, in the loop and while it stores its two pixels: for both of them the
    compiler reads operands by channel once, and all of them before the first is stored.  Too many would be spilled:
    168 bytes made 87 us of a layer with a residual 140 (H100)."""
    problem, tile_n = layout.problem, layout.config.tile_n
    by_channel = layout.operands_of_channels
    storing = by_channel * tile_n // 4 + 8 * (len(problem.operands) - by_channel) + 24
    return tile_n // 2 + layout.lane_sums + max(8 * layout.held_steps + 36, storing)


KERNEL = StemWgmma()
