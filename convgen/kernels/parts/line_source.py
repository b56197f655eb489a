"""The text that the kernels with lines of x in shared memory share: finished values for templates/parts/lines.j2."""

from __future__ import annotations

from sympy import Integer

from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.problem import ConvProblem
from convgen.kernels.parts import lane_columns, lowering, output, runs
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.digits import advance
from convgen.kernels.parts.elementwise import epilogue_formulas, sizes, window_formulas
from convgen.kernels.parts.line_launch import launch, pointers
from convgen.kernels.parts.lines import MOST_HELD, Lines
from convgen.kernels.parts.walk import Digit, loop_map, number


def values(layout: Lines) -> dict[str, object]:
    """Finished values for the templates (templates/parts/lines.j2)."""
    problem, config, run = layout.problem, layout.config, layout.run
    along = layout.columns
    bits_type = runs.bits_type(problem.x.element)
    index = lowering.index_type(problem, (layout.tiles * config.tile_m,))
    maps = output.product_map(problem)
    digits = [
        *([Digit("c", problem.c, 0)] if layout.window.planes else []),
        Digit("row", layout.halo_rows, 0),
        Digit("vector", layout.line_copies, 0, constant="line_copies"),
    ]
    digits = [d for i, d in enumerate(digits) if i == 0 or d.extent > 1 or d.name != "c"]

    of_x, of_w = Constants(), Constants()
    result = output.result(problem, maps, along, along.index, run, problem.accumulate)
    return {
        "config": config,
        "layout": layout,
        "window": layout.window,
        "launch": launch(layout),
        "formulas": [*window_formulas(problem), *epilogue_formulas(problem)],
        "pointers": pointers(layout),
        "sizes": list(sizes(problem)),
        "index": index,
        "bits_type": bits_type,
        "x_source": runs.as_bits(problem.x, bits_type),
        "w_source": runs.as_bits(problem.w, bits_type),
        "run": run,
        "run_pairs": run // 2,
        "column_of": lane_columns.column_of(run),
        "accumulator": lowering.ACCUMULATORS[problem.accumulate].c_type,
        "result": result,
        "row_pitch": f"({layout.row_stride} * pitch)" if layout.row_stride > 1 else "pitch",
        "held": 0 < len(result.channels) * config.tile_n // 4 <= MOST_HELD,
        "next_copy": advance(digits, number(digits, layout.threads)),
        "x_offset": _x_offset(problem, layout, index, of_x),
        "height": of_x.extent("h", layout.height),
        "w_offset": _w_offset(problem, layout, of_w),
        "of_x": of_x,
        "of_w": of_w,
    }


def _x_offset(problem: ConvProblem, layout: Lines, index: str, constants: Constants) -> str:
    """C text of a vector's offset in x, from image, c (of planes), h and vector."""
    x = problem.x
    terms = [("image", x.stride("n")), ("h", x.stride("h"))]
    if layout.window.planes:
        terms.insert(1, ("c", x.stride("c")))
    start = lowering.linear(terms, index, constants.strides(x))
    return f"{start} + {lowering.linear([('vector', layout.vector)], index)}"


def _w_offset(problem: ConvProblem, layout: Lines, constants: Constants) -> str:
    """C text of a filter element's offset in w, from channel `k`, `line` and `at` in the run."""
    maps = loop_map(problem)
    scope = lowering.Scope("int")
    k = scope.declare("k", problem.k)
    line = scope.declare("line", layout.window.lines)
    at = scope.declare("at", layout.window.run)
    rows = Integer(layout.filter_rows)
    if layout.window.planes:
        values = {"c_in_group": floordiv(line, rows), "r": mod(line, rows), "s": at}
    else:
        c = Integer(problem.c)
        values = {"c_in_group": mod(at, c), "s": floordiv(at, c), "r": line}
    values["k_in_group"] = k
    offset = maps.offset("w").subs({symbol(name): e for name, e in values.items()}, simultaneous=True)
    return scope.text(offset, constants.strides(problem.w))
