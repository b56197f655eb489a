"""tma_im2col: fprop as an implicit GEMM on Hopper, fed by TMA's im2col mode.

gemm_m runs over output pixels (n, p, q), gemm_n over output channels, gemm_k over taps and channels.
One producer thread asks TMA for a tile of x (a walk of the im2col box, shifted by the tap) and a tile of
w for each k step; consumer warpgroups multiply them with wgmma; a tile of y leaves through shared memory
and a TMA store.  Blocks are persistent: each takes tiles until none is left.
"""

from __future__ import annotations

from convgen.ir.plan import Launch, Param, Plan, Workspace
from convgen.ir.problem import ConvProblem, Op
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.parts import operand_tiles, prepare
from convgen.kernels.parts.hopper import wgmma_obstacles
from convgen.kernels.tma_im2col import source
from convgen.kernels.tma_im2col.choice import choose, estimate, ranking
from convgen.kernels.tma_im2col.config import OPTIONS
from convgen.kernels.tma_im2col.legality import illegal, map_obstacles
from convgen.kernels.tma_im2col.maps import w_map, x_map, y_map
from convgen.kernels.tma_im2col.tiles import as_read, footprint, k_stages, plane, stores_by_tma, threads, tile_count
from convgen.targets import Target

LARGEST_TILE = 256  # pixels


class TmaIm2col:
    name = "tma_im2col"
    summary = "implicit GEMM on TMA im2col loads and wgmma: warp-specialised, persistent, any layout (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = wgmma_obstacles(problem, target, ("f16", "bf16", "f32"))
        found += prepare.bundle_obstacle(problem, options)
        if problem.output_pixels + LARGEST_TILE >= 2**31:
            found.no(f"{problem.output_pixels} output pixels do not fit 32 bits, counted by whole tiles")
        if problem.op is Op.FPROP:
            found += map_obstacles(problem)
        if not found:
            config = choose(problem, target, options)
            found += illegal(as_read(problem, config.bundle).problem, target, config)
        return found

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""
        return [c.options for c in ranking(problem, target, ())[:40]]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
        given, prepared = problem, as_read(problem, config.bundle)
        problem = prepared.problem
        prefix = f"convgen_{problem.name}"
        size = footprint(problem, config)
        params = [
            Param("x_map", "tensor_map", "x", x_map(problem, config)),
            Param("w_map", "tensor_map", "w", w_map(problem, config)),
        ]
        if stores_by_tma(problem):
            params.append(Param("y_map", "tensor_map", "y", y_map(problem, size)))
        else:
            params.append(Param("y", "pointer", "y"))
        by_tma = size.arriving if stores_by_tma(problem) else ()
        params += operand_tiles.params(problem, by_tma, plane(problem))
        blocks = tile_count(problem, config) * config.split
        workspaces = prepared.workspaces
        if config.stream:
            blocks = min(target.sms, blocks * k_stages(problem, config))
            parts = Param("partials", "pointer", "workspace.partials")
            workspaces = (*workspaces, Workspace("workspace.partials", 2 * blocks * config.m * config.n * 4))
            params.insert(len(params) - len(problem.operands), parts)
        launch = Launch(
            entry=prefix,
            grid=(blocks, 1, 1),
            block=threads(problem, config),
            params=prepared.params(params),
            shared_bytes=size.total,
            cluster=config.split * config.cluster,
            persistent=not config.stream,  # the second kernel must know how many blocks there are
            dependent=True,
            blocks_per_sm=config.blocks,
        )
        steps: tuple[Launch, ...] = (*prepared.launches(), launch)
        if config.stream:
            operands = (Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands)
            finish = Launch(
                entry=f"{prefix}_finish",
                grid=(max(blocks - 1, 1), config.m * config.n // (64 * config.columns), 1),
                block=128,
                params=(parts, Param("y", "pointer", "y"), *operands),
                dependent=True,
            )
            steps = (*steps, finish)
        notes = prepared.notes + ((prepare.SPREADS,) if config.bundle > 1 else ())
        return Plan(given, target, self.name, config, steps, workspaces, notes=notes)

    def render(self, plan: Plan) -> str:
        return source.source(plan)


STRATEGY = TmaIm2col()
