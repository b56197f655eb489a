"""The launches and the source of winograd: its transforms, around another kernel's products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Matrix

from convgen.codegen.render import environment
from convgen.ir.plan import Launch, Plan, Workspace
from convgen.ir.winograd import TAPS, transforms
from convgen.kernels.winograd.layout import Layout, M, U, V
from convgen.kernels.winograd.threads import filters, inputs, outputs

#: The product's tensors are workspaces.
BUFFERS = {"x": V, "w": U, "y": M}


@dataclass(frozen=True)
class Transform:
    """A device function that transforms the named values along an axis, in place: C text for each row of the matrix."""

    name: str
    formula: str
    values: tuple[str, ...]
    rows: tuple[str, ...]


def steps(layout: Layout) -> tuple[tuple[Launch, ...], tuple[Workspace, ...]]:
    """The launches, in order, and their workspaces."""
    of_filters, of_inputs, of_outputs = (
        replace(kernel.launch(), params=tuple(p.vector_param for p in kernel.pointers))
        for kernel in (filters(layout), inputs(layout), outputs(layout))
    )
    plan = layout.product.kernel.plan(layout.made_by)
    products = (replace(launch, params=tuple(p.over(BUFFERS) for p in launch.params)) for launch in plan.launches)
    return (of_filters, of_inputs, *products, of_outputs), (*layout.workspaces, *plan.workspaces)


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source: the kernel for the products, followed by the transforms."""
    f = transforms(layout.config.tile)
    text = (
        environment()
        .get_template("winograd/transforms.cu.j2")
        .render(
            m=f.m,
            size=f.size,
            taps=TAPS,
            transforms=(
                _transform("transform_filter", "G", f.filters, "tap{}"),
                _transform("transform_input", "B^T", f.inputs, "d{}"),
                _transform("transform_output", "A^T", f.outputs, "sum{}"),
            ),
            filters=filters(layout),
            inputs=inputs(layout),
            outputs=outputs(layout),
        )
    )
    return layout.product.kernel.source(replace(plan, layout=layout.made_by, behind=f"{text}\n\n{plan.behind}"))


def _transform(name: str, formula: str, matrix: Matrix, value: str) -> Transform:
    rows = tuple(weighted(matrix.row(i), value) for i in range(matrix.rows))
    return Transform(name, formula, tuple(value.format(i) for i in range(matrix.cols)), rows)


def weighted(weights: Sequence[Expr], term: str) -> str:
    """C text of a weighted sum of numbered terms: `d{}` for d0, d1 and so on."""
    text = ""
    for i, weight in enumerate(weights):
        if weight == 0:
            continue
        factor = "" if abs(weight) == 1 else f"{_number(abs(weight))} * "
        sign = ("-" if weight < 0 else "") if not text else " - " if weight < 0 else " + "
        text += f"{sign}{factor}{term.format(i)}"
    return text


def _number(value: Expr) -> str:
    """The nearest float32."""
    text = f"{float(value):.9g}"
    return f"{text}f" if "." in text else f"{text}.0f"
