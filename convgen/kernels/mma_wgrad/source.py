"""The text of mma_wgrad: finished values for templates/mma_wgrad/kernel.cu.j2."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, Symbol

from convgen.codegen.c_expr import NO_NAMES, Names, c_expr
from convgen.codegen.render import render
from convgen.ir import integer
from convgen.ir.index_map import Access, decompose, derive
from convgen.ir.integer import symbol
from convgen.ir.plan import Plan
from convgen.kernels.mma_wgrad.layout import CHUNK, ELEMENT, Layout
from convgen.kernels.parts import gradient
from convgen.kernels.parts.constants import Constants, Definition
from convgen.kernels.parts.elementwise import Pointer, window_formulas
from convgen.kernels.parts.lowering import coordinate_name, drop_unused, index_type
from convgen.kernels.parts.mma import MMAS


def pointers(layout: Layout) -> list[Pointer]:
    """The product's parameters."""
    problem = layout.problem
    of_y = gradient.y_sum_pointer(problem, layout.config.slices)
    return [Pointer("x", problem.x.dtype, "x"), Pointer("y", problem.y.dtype, "y"), layout.result, *of_y]


@dataclass(frozen=True)
class Walk:
    """C text of a pixel of y by its number `pixel`, of the pixel of x under a tap, and of where both lie in memory."""

    index: str
    taps: tuple[str, ...]  # lines that name the tap of a thread's chunk, and where it begins along x's dims
    pixel: tuple[str, ...]
    inside: tuple[str, ...]
    x: str
    y: str
    x_element: str  # of the element `e` of a chunk, from the chunk's first
    y_element: str
    c: str  # extents of x's and y's channels
    k: str
    constants: tuple[Definition, ...]  # definitions of what all of these mention


def walk(layout: Layout) -> Walk:
    # long: each name's range goes into the next one's formula
    problem, sp = layout.problem, layout.problem.spatial
    pixel, tap, c, k = (symbol(name) for name in ("pixel", "load_tap", "load_c", "load_k"))
    index = index_type(problem, ())
    ranges: dict[Symbol, tuple[int, int]] = {pixel: (0, problem.output_pixels - 1), tap: (0, problem.taps - 1)}

    def extent(dim: str) -> Expr:
        return Integer(problem.extent(dim))

    constants = Constants()
    of_pixel = constants.of_index(("n", *sp.output), problem.extent)
    of_tap = constants.of_index(sp.filter, problem.extent)

    def text(e: Expr, names: Names = NO_NAMES) -> str:
        return c_expr(integer.simplify(e, ranges), ranges, index, names)

    taps, coordinates, inside = [], [], []
    at: dict[str, Expr] = {}
    for f, value in decompose(tap, sp.filter, extent).items():
        at[f] = integer.simplify(value, ranges)
    outputs = decompose(pixel, ("n", *sp.output), extent)
    loop = derive(problem, (), {d: symbol(d) for d in (*sp.output, *sp.filter)}).loop
    for i, f, o in zip(sp.input, sp.filter, sp.output, strict=True):
        start = loop[i].subs({symbol(o): Integer(0)})
        first = integer.simplify(start.subs({symbol(f): at[f]}), ranges)
        bounds = integer.bounds(first, ranges)
        taps.append(f"const int first_{i} = {text(first, of_tap)};")
        stride = problem.stride[sp.input.index(i)]
        ranges[symbol(f"first_{i}")] = bounds
        name = coordinate_name(i)
        value = integer.simplify(outputs[o] * stride + symbol(f"first_{i}"), ranges)
        coordinates.append(f"const {index} {name} = {text(value, of_pixel)};")
        low, high = integer.bounds(value, ranges)
        inside += [f"{name} >= 0"] * (low < 0) + (
            [f"{name} < {constants.extent(i, problem.extent(i))}"] if high >= problem.extent(i) else []
        )
        ranges[symbol(name)] = (0, problem.extent(i) - 1)
    coordinates.insert(0, f"const {index} n = {text(outputs['n'], of_pixel)};")
    e = symbol("e")
    ranges |= {symbol("n"): (0, problem.n - 1), c: (0, problem.c - 1), k: (0, problem.k - 1), e: (0, CHUNK - 1)}
    places = {d: symbol(coordinate_name(d)) for d in ("n", *sp.input)} | {"c": c}
    of_x, of_y = constants.strides(problem.x), constants.strides(problem.y, index=of_pixel)
    x = text(Access(problem.x, {d: places[d] for d in problem.x.dims}).offset, of_x)
    own = {**outputs, "k": k}
    y = text(Access(problem.y, {d: own[d] for d in problem.y.dims}).offset, of_y)
    x_element, y_element = (
        text(e * max(tensor.stride(dim), 1), names)
        for tensor, dim, names in ((problem.x, "c", of_x), (problem.y, "k", of_y))
    )
    lines = drop_unused(["const int load_tap = (first_chunk + x_chunk) / tap_chunks;", *taps, *coordinates],
                        " ".join([*inside, x]))  # fmt: skip
    of_pixels = tuple(line for line in lines if line in coordinates)
    of_taps = tuple(line for line in lines if line not in coordinates)
    c_extent, k_extent = (constants.extent(d, problem.extent(d)) for d in ("c", "k"))
    mentioned = constants.within("\n".join([*lines, *inside, x, y, x_element, y_element, c_extent, k_extent]))
    return Walk(index, of_taps, of_pixels, tuple(inside), x, y, x_element, y_element, c_extent, k_extent, mentioned)


def source(plan: Plan, layout: Layout) -> str:
    """The CUDA source of a plan."""
    problem, config = layout.problem, layout.config
    rows, columns = layout.fragments
    vectors = {role: layout.vector(role) for role in "xy"}
    return render(
        "mma_wgrad/kernel.cu.j2",
        plan,
        config=config,
        layout=layout,
        launch=plan.launch(),
        pointers=pointers(layout),
        formulas=window_formulas(problem),
        walk=walk(layout),
        chunk=CHUNK,
        row_mmas=rows,
        column_mmas=columns,
        vectors=vectors,
        vector_bytes={role: ELEMENT * vector for role, vector in vectors.items()},
        multiply=MMAS[problem.x.dtype, ""].function(problem.x.dtype, problem.x.dtype),
        one=gradient.ones(problem.x.dtype),
        y_sum=gradient.y_sum(problem),
        y_sum_mmas=-(-rows // config.warps_n),
        stored=gradient.stored(layout),
        sum=gradient.gradient_sum(plan, layout),
        zeros=gradient.zeros(plan, layout),
    )
