"""The text of the kernel: finished values for templates/stem_wgrad/kernel.cu.j2."""

from __future__ import annotations

from convgen.codegen.render import render
from convgen.ir.plan import Plan
from convgen.kernels.parts import gradient
from convgen.kernels.parts.constants import Constants
from convgen.kernels.parts.elementwise import window_formulas
from convgen.kernels.parts.lowering import index_type, linear
from convgen.kernels.parts.window_sum import filter_sum
from convgen.kernels.stem_wgrad.layout import A_ROW_BYTES, A_SPAN, BUILDERS, VECTOR_BYTES, Layout


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    problem, config = layout.problem, layout.config
    x, index = problem.x, index_type(problem, ())
    names = {"n": "n", "h": "in_h", "w": "pixel", "c": "c"}
    of_x = Constants()
    strides = of_x.strides(x)
    return render(
        "stem_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        builders=BUILDERS,
        a_span=A_SPAN,
        a_row_bytes=A_ROW_BYTES,
        vector_bytes=VECTOR_BYTES,
        in_type=x.dtype,
        index=index,
        offset=linear([(name, x.stride(d)) for d, name in names.items() if d in x.dims], index, strides),
        of_x=of_x,
        prepare=layout.prepared.kernel,
        formulas=window_formulas(problem),
        one=gradient.one(x.dtype),
        y_sum=gradient.y_sum(problem) if layout.sums_y else None,
        m_tail=problem.k % config.tile_m != 0,
        stored=gradient.stored(layout, lower_rows=True),
        sum=gradient.gradient_sum(plan, layout),
        factors=layout.factors[1:],
        filter_sum=filter_sum(problem) if layout.own_zeros else None,
        nan_cause=layout.nan_cause,
    )
