"""The text of mma_gemm: finished values for templates/mma_gemm/kernel.cu.j2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convgen.codegen.render import render
from convgen.ir.plan import Launch, Plan
from convgen.kernels.mma_gemm.launches import pointers, reduce_pointers, reduce_run
from convgen.kernels.mma_gemm.layout import Layout
from convgen.kernels.mma_gemm.phases import phase_text, windows
from convgen.kernels.parts import lane_columns, lowering, output
from convgen.kernels.parts.elementwise import Pointer, epilogue_formulas, sizes
from convgen.kernels.parts.k_rows import KRowsReader
from convgen.kernels.parts.mma import COLUMNS, ROWS
from convgen.kernels.parts.reader import Reader
from convgen.kernels.parts.window_sum import WindowSum, window_sum

ORDER_DOCS = {
    "channel_first": "taps (outer) and channels (inner)",
    "channel_last": "channels (outer) and taps (inner)",
    "taps_inner": "blocks of channels (outer), taps, and a block's channels (inner)",
}


@dataclass(frozen=True)
class Part:
    """Rows `first` to `last` of a thread's share, loaded among the products of one slice of a step."""

    slice: int
    reader: Reader | KRowsReader
    first: int
    last: int


def dealt(readers: Sequence[Reader | KRowsReader], slices: int) -> tuple[Part, ...]:
    """A step's copies over its slices but the last, which waits; none where a reader needs more than a copy a row."""
    if not all(r.divisible for r in readers):
        return ()
    rows = [(r, i) for r in readers for i in range(r.share.rows)]
    share = -(-len(rows) // (slices - 1))
    found = []
    for k in range(slices - 1):
        for r in readers:
            if own := [i for owner, i in rows[k * share : (k + 1) * share] if owner is r]:
                found.append(Part(k, r, own[0], own[-1] + 1))
    return tuple(found)


def source(plan: Plan, layout: Layout) -> str:
    problem, config = layout.read, layout.config
    along, run, index = layout.columns, layout.run, layout.index
    maps = output.product_map(problem, layout.phases)
    accumulator = layout.mma.accumulator
    readers = [layout.reader("x"), layout.reader("w")]
    finishes = config.split_k == 1
    if not finishes:
        result = output.partial_result(problem, output.product_map(problem.packed), run, accumulator)
    else:
        result = output.result(problem, maps, along, along.index, run, accumulator)
    return render(
        "mma_gemm/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        prepare=layout.prepared.kernel,
        columns=along,
        pixel_dims=output.pixel_dims(problem),
        order_doc=ORDER_DOCS[config.order],
        formulas=[*windows(layout), *epilogue_formulas(problem)],
        phases=phase_text(layout),
        row_mmas=layout.warp_rows // ROWS,
        column_mmas=layout.warp_columns // COLUMNS,
        run=run,
        run_pairs=run // 2,
        column_of=lane_columns.column_of(run),
        lane_column=lane_columns.lane_column_text(run, "place"),
        window_sum=window_sum(problem, "gemm_m", output.pixel_dims(problem)) if finishes and layout.apart else None,
        readers=readers,
        bytewise=any(isinstance(r, Reader) and r.piece_bytes == 1 for r in readers),
        copies=dealt(readers, layout.slices),
        pointers=pointers(layout),
        sizes=list(sizes(problem)),
        gemm_m=lowering.number_text(layout.pixels),
        index=index,
        accumulator=lowering.ACCUMULATORS[accumulator].c_type,
        result=result,
        reduction=_reduction(plan, layout) if not finishes else None,
    )


@dataclass(frozen=True)
class Reduction:
    """The kernel that adds the sums of gemm_k's parts, in order, and finishes y."""

    launch: Launch
    pointers: tuple[Pointer, ...]
    split_k: int
    size: int
    run: int
    index: str
    accumulator: str
    result: output.Result
    window_sum: WindowSum | None


def _reduction(plan: Plan, layout: Layout) -> Reduction:
    problem, config, accumulator = layout.read, layout.config, layout.mma.accumulator
    run = reduce_run(problem)
    index = lowering.index_type(problem, (problem.y.size * config.split_k,))
    maps = output.element_map(problem)
    result = output.result(problem, maps, output.columns(problem), output.OFFSET, run, accumulator)
    return Reduction(
        plan.launch("reduce"), reduce_pointers(layout), config.split_k, problem.y.size, run, index,
        lowering.ACCUMULATORS[accumulator].c_type, result,
        window_sum(problem, "offset", problem.y.dims, whole=True) if layout.apart else None,
    )  # fmt: skip
