"""tma_patch: fprop with the input patch resident in shared memory, serving every tap.

An im2col load reads each input pixel once a tap; where channels are few, L2 cannot feed it.  Here tiled
TMA loads bring a patch of x with its halo once, and a tap is a shift of wgmma's descriptor by whole rows
of that patch (patch.py).  The patch is addressed as one line of pixels of padded width: the
outputs that fall on the halo are computed and dropped.  Weights of a block of output channels stay in
shared memory for the kernel's whole life, or stream through it tap by tap.
"""

from __future__ import annotations

from convgen.ir.plan import Launch, Param, Plan
from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.parts import prepare
from convgen.kernels.parts.cost import varied
from convgen.kernels.parts.hopper import MAX_ELEMENT_STRIDE, ROW_ALIGNMENT, memory_order, wgmma_obstacles
from convgen.kernels.tma_patch import source
from convgen.kernels.tma_patch.choice import choose, estimate, ranking
from convgen.kernels.tma_patch.config import OPTIONS, TmaPatchConfig
from convgen.kernels.tma_patch.geometry import as_read, geometry, threads
from convgen.kernels.tma_patch.legality import illegal
from convgen.kernels.tma_patch.maps import w_param, x_maps
from convgen.targets import Target


class TmaPatch:
    name = "tma_patch"
    summary = "the input patch stays in shared memory and serves every tap: few channels (sm_90a)"
    options = OPTIONS

    def obstacles(self, problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
        found = wgmma_obstacles(problem, target, ("f16", "bf16"))
        no = found.no
        x, y = problem.x, problem.y
        if problem.rank == 3:
            no("three spatial dims are not served")
        found += prepare.bundle_obstacle(problem, options)
        if max(problem.stride) > MAX_ELEMENT_STRIDE:
            no(f"stride {max(problem.stride)} is above a tensor map's {MAX_ELEMENT_STRIDE}")
        if problem.taps == 1:
            no("a filter of one tap has nothing to reuse")
        pixels = problem.spatial.output
        if not (memory_order(y, ("n", *pixels, "k")) or memory_order(y, ("n", "k", *pixels))):
            no(f"layout of {y.name} is {' '.join(y.dims)}", f"n {' '.join(pixels)} k or n k {' '.join(pixels)}")
        if problem.k * y.element.bytes % ROW_ALIGNMENT:
            no(f"a pixel of {y.name} is {problem.k * y.element.bytes} bytes (k={problem.k})",
               f"k must be a multiple of {ROW_ALIGNMENT // y.element.bytes}")  # fmt: skip
        if y.size >= 2**31 or x.size >= 2**31:
            no("a tensor of 2^31 elements or more")
        if found:
            return found
        config = choose(problem, target, options)
        return illegal(as_read(problem, config.bundle, config.fold).problem, target, config)

    def candidates(self, problem: ConvProblem, target: Target) -> list[Options]:
        """Configurations worth measuring, the most promising first."""

        def kind(c: TmaPatchConfig) -> object:
            return c.rows, c.schedule, c.consumers, c.weight_stages > 0, c.images > 1, c.bundle, c.fold

        return [c.options for c in varied(ranking(problem, target, ()), kind, of_a_kind=12, most=40)]

    def estimate(self, problem: ConvProblem, target: Target, options: Options) -> float:
        """Microseconds, by the cost model."""
        return estimate(problem, target, choose(problem, target, options))

    def plan(self, problem: ConvProblem, target: Target, options: Options) -> Plan:
        config = choose(problem, target, options)
        given, prepared = problem, as_read(problem, config.bundle, config.fold)
        problem = prepared.problem
        size = geometry(problem, config)
        params = [
            *(Param(name, "tensor_map", "x", map) for name, map in x_maps(problem, config, size.patch).values()),
            w_param(problem, config),
            Param("y", "pointer", "y"),
            *(Param(f"operand_{t.name}", "pointer", t.name) for t in problem.operands),
        ]
        launch = Launch(
            entry=f"convgen_{problem.name}",
            grid=(size.tiles * size.channel_tiles, 1, 1),
            block=threads(config),
            params=prepared.params(params),
            shared_bytes=size.total,
            persistent=True,
            dependent=True,
            multiple_of=size.channel_tiles,
        )
        steps = (*prepared.launches(), launch)
        notes = prepared.notes + ((prepare.SPREADS,) if config.fills else ())
        return Plan(given, target, self.name, config, steps, prepared.workspaces, notes=notes)

    def render(self, plan: Plan) -> str:
        return source.source(plan)


STRATEGY = TmaPatch()
