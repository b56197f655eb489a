"""The launches of tma_im2col: preparing its operands, the product, and finishing tiles that blocks share."""

from __future__ import annotations

from convgen.ir.plan import Launch, Param, Workspace
from convgen.kernels.parts import operand_tiles, partial_sums
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.elementwise import factor_pointers, size_params
from convgen.kernels.tma_im2col import ends
from convgen.kernels.tma_im2col.layout import Layout
from convgen.kernels.tma_im2col.maps import a_map, b_map, c_map

PARTIALS = Param("partials", "pointer", "workspace.partials")


def _assigned(layout: Layout, params: list[Param]) -> tuple[Param, ...]:
    """Parameters for the tensors of the given problem, or for their prepared copies."""
    return layout.gemm.assigned.params(layout.gemm.prepared.params(params))


def _maps(layout: Layout) -> list[Param]:
    """The maps of A and B, and those of their last boxes, where these have fewer rows."""
    a, b = ends.of_a(layout), ends.of_b(layout)
    params = [
        Param("a_map", "tensor_map", "x", a_map(layout, a.box)),
        Param("b_map", "tensor_map", "w", b_map(layout, b.box)),
    ]
    if a.differs:
        params.append(Param("a_last_map", "tensor_map", "x", a_map(layout, a.last)))
    if b.differs and not layout.gemm.b_columns:
        params.append(Param("b_last_map", "tensor_map", "w", b_map(layout, b.last)))
    return params


def launches(layout: Layout) -> tuple[Launch, ...]:
    g, config, problem = layout.gemm, layout.config, layout.gemm.problem
    prefix, blocks = f"convgen_{problem.name}", layout.launched
    result = Param("c_map", "tensor_map", "y", c_map(layout)) if g.stores_by_tma else Param("y", "pointer", "y")
    params = [
        *_maps(layout),
        result,
        *([PARTIALS] if config.stream_k else []),
        *operand_tiles.params(problem, (*layout.arriving, *layout.leaving) if g.stores_by_tma else (), g.plane),
    ]
    params += partial_sums.params(problem)
    # of sums that have to be made once more: x and w as they were given
    factors = factor_pointers(assignment(layout.problem).problem) if layout.gemm.own_zeros else ()
    given = g.assigned.params(p.param for p in factors)
    main = Launch(
        entry=prefix,
        grid=(blocks, 1, 1),
        block=layout.threads,
        params=(*_assigned(layout, params), *given, *size_params(layout.problem)),
        shared_bytes=layout.shared_bytes,
        cluster=config.split_k * config.cluster,
        persistent=not config.stream_k,  # the second kernel must know how many blocks there are
        # so that a block's tiles have the same channels
        multiple_of=layout.n_tiles * config.cluster if config.resident else 1,
        dependent=True,
        blocks_per_sm=config.blocks,
    )
    prepares = g.assigned.launches(g.prepared.launches())
    if not config.stream_k:
        return (*prepares, main)
    others = operand_tiles.pointers(problem)
    finish = Launch(
        entry=f"{prefix}_finish",
        grid=(max(blocks - 1, 1), config.tile_m * config.tile_n // (64 * config.columns), 1),
        block=128,
        params=(*_assigned(layout, [PARTIALS, Param("y", "pointer", "y"), *others]), *given),
        dependent=True,
    )
    return (*prepares, main, finish)


def workspaces(layout: Layout) -> tuple[Workspace, ...]:
    """Prepared operands, and parts of tiles."""
    config, found = layout.config, layout.gemm.prepared.workspaces
    found += partial_sums.workspaces(layout.gemm.problem, layout.partial_bytes)
    if not config.stream_k:
        return found
    return (*found, Workspace(PARTIALS.buffer, 2 * layout.launched * config.tile_m * config.tile_n * 4))
