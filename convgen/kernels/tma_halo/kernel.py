"""tma_halo: fprop or dgrad with the input tile and its halo in shared memory, serving every tap.

An im2col load reads each input pixel once per tap; where channels are few, L2 cannot feed it.  Here tiled
TMA loads bring a tile of x with its halo once, and a tap is a shift of wgmma's descriptor by whole rows
of that tile (halo.py).  It is addressed as one line of pixels of padded width: the outputs that fall on the
halo are computed and dropped.  A strided dgrad computes the pixels of all phases together.  Weights of a
block of output channels stay in shared memory for the kernel's whole life, or stream through it tap by tap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from convgen.ir.plan import Launch, Limit, Param, Plan
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.size import Size
from convgen.kernels import base
from convgen.kernels.base import Obstacle, Part, plan_of
from convgen.kernels.config import Options
from convgen.kernels.parts import lowering, operand_tiles, partial_sums, prepare
from convgen.kernels.parts.assignment import forward
from convgen.kernels.parts.elementwise import factor_pointers, size_params
from convgen.kernels.parts.hopper import MAX_ELEMENT_STRIDE, memory_order, wgmma_obstacles
from convgen.kernels.parts.lowering import INT_LIMIT
from convgen.kernels.tma_halo import cost
from convgen.kernels.tma_halo.config import Config
from convgen.kernels.tma_halo.constraints import illegal
from convgen.kernels.tma_halo.layout import Layout
from convgen.kernels.tma_halo.maps import a_maps, b_param
from convgen.kernels.tma_halo.source import source
from convgen.kernels.tma_halo.space import FOLDS, demands, parts
from convgen.targets import Target


class TmaHalo(base.Kernel[Config, Layout]):
    name = "tma_halo"
    paddings = frozenset(Padding)
    config = Config
    slice_roles = base.ANY_SLICES
    further = corrected = True
    dynamic = base.ANY_SIZES

    def adds_up(self, problem: ConvProblem, fixed: Options) -> tuple[str, ...]:
        """Sums of channels, of all images or of each: a tile's pixels, which are columns of fragments, make a row."""
        if problem.dynamic or not int(fixed.get("swap_ab", 1)):
            return ()
        return partial_sums.summed(problem, of_images=int(fixed.get("images", 1)) == 1)

    def unserved(self, problem: ConvProblem, target: Target, fixed: Options) -> list[Obstacle]:
        found = wgmma_obstacles(problem, target, ("f16", "bf16"), also=(Op.DGRAD,))
        no = found.no
        if problem.op is Op.DGRAD:
            _unserved_dgrad(problem, found)
        given, backward = problem, problem.op is Op.DGRAD
        problem = forward(problem)
        x, y = problem.x, problem.y
        found += prepare.pack_obstacle(problem, fixed, prepare.VECTOR, backward=backward)
        if max(problem.stride) > MAX_ELEMENT_STRIDE:
            no(f"stride {max(problem.stride)} is above a tensor map's {MAX_ELEMENT_STRIDE}")
        if math.prod(problem.filter[-2:]) == 1:
            no(f"with one tap{' in a plane' * (problem.rank == 3)} there is nothing to reuse")
        pixels = problem.spatial.output
        if not (memory_order(y, ("n", *pixels, "k")) or memory_order(y, ("n", "k", *pixels))):
            lies, c, own = (given.x, "c", given.spatial.input) if backward else (y, "k", pixels)
            inner = " ".join(own)
            no(f"layout of {lies.name} is {' '.join(lies.dims)}", f"n {inner} {c} or n {c} {inner}")
        if any(t.span >= INT_LIMIT for t in (x, y, *problem.operands)):
            no("a tensor of 2^31 elements or more")
        return found

    def parts(self, problem: ConvProblem, target: Target, fixed: Options) -> Iterable[Part[Layout]]:
        return parts(problem, target, fixed)

    def illegal(self, layout: Layout) -> list[Obstacle]:
        return illegal(layout)

    def kind(self, layout: Layout) -> object:
        c = layout.config
        return c.swap_ab, c.schedule, c.consumers, c.weight_stages > 0, c.images > 1, c.group_pack, c.fold

    def time(self, layout: Layout) -> float:
        return layout.us(cost.time(rates=cost.H200, **demands(layout)))

    def traits(self, layout: Layout) -> Mapping[str, Any]:
        return demands(layout)

    def plan(self, layout: Layout) -> Plan:
        problem, config, prepared = layout.read, layout.config, layout.prepared
        factors = [
            *(Param(name, "tensor_map", "x", map) for name, map in a_maps(layout).values()), b_param(problem, config)
        ]  # fmt: skip
        # of sums that have to be made once more: x and w as they were given
        x, w = ([p.param] if layout.own_zeros else [] for p in factor_pointers(problem))
        params = [
            *prepared.params(factors), *([] if config.lays_out_filters else w), Param("y", "pointer", "y"),
            *operand_tiles.pointers(problem), *partial_sums.params(problem), *x,
        ]  # fmt: skip
        launch = Launch(
            entry=f"convgen_{problem.name}",
            grid=(layout.tiles * layout.channel_tiles, 1, 1),
            block=layout.threads,
            params=(*layout.assigned.params(params), *size_params(problem)),
            shared_bytes=layout.shared_bytes,
            persistent=True,
            dependent=True,
            multiple_of=layout.channel_tiles,
        )
        launches = (*layout.assigned.launches(prepared.launches()), launch)
        notes = (*layout.assigned.notes, *prepared.notes)
        parts = partial_sums.workspaces(problem, layout.partial_bytes)
        return plan_of(layout, launches, (*prepared.workspaces, *parts), notes=notes, limits=limits(layout))

    def source(self, plan: Plan) -> str:
        assert isinstance(plan.layout, Layout)
        return source(plan, plan.layout)


def _unserved_dgrad(problem: ConvProblem, found: base.Obstacles) -> None:
    """Phases that are not to be folded, and sizes."""
    phases, no = math.prod(problem.stride), found.no
    if phases > 1 and problem.rank == 3:
        no("op dgrad with a stride needs one or two spatial dims")
    if phases > 1 and phases not in FOLDS:
        no(f"the stride makes {phases} phases of dgrad; served are {', '.join(map(str, FOLDS[1:]))}")
    if set(problem.dynamic) - base.IMAGES:
        no("op dgrad needs fixed sizes of images", "`dynamic n` alone")


def limits(layout: Layout) -> tuple[Limit, ...]:
    """Limits on sizes that a call decides."""
    found, line = lowering.index_limits(layout.problem, "int"), layout.halo.line
    return (*found, Limit("pixels of a strip", line, INT_LIMIT - 1)) if isinstance(line, Size) else found


KERNEL = TmaHalo()
