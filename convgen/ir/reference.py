"""A convolution's result in float64, from the definition and nothing else.

This is what kernels are tested against, so it shares nothing with `index_map`: pixels are gathered by
strided slices of an explicitly padded array, one slice a tap, and multiplied by the array library's
matrix product.  Every operator is one of gather, scatter and a product:

    fprop  y = gather(x) w^T      dgrad  x = scatter(y w)      wgrad  w = y^T gather(x)
    im2col lowered = gather(x)    col2im x = scatter(lowered)

`xp` is NumPy, or CuPy for problems that are too large for a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy

from convgen.ir import epilogue as ep
from convgen.ir.dtypes import DTYPES, DType, numpy_dtype
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor

#: A NumPy or CuPy array.
Array = Any

#: Elements of the gathered matrix that are held at a time (32 MiB of float64: larger ones are slower on a CPU).
_CHUNK = 1 << 22


def reference(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy) -> Array:
    """The operator's result in float64, in the shape of `problem.result`.

    `arrays` holds what the operator reads by role (x, w, y, lowered) and the epilogue's operands by name,
    as the kernel sees them: values in the tensor's element type, or its raw bits as unsigned integers.
    """
    return references(problem, arrays, xp)[0]


def references(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy) -> tuple[Array, ...]:
    """The same of all of `problem.results`, each in its shape."""
    values = apply_epilogue(problem, accumulate(problem, arrays, xp), arrays, xp)
    return tuple(v.reshape(t.shape) for v, t in zip(values, problem.results, strict=True))


def accumulate(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy, magnitudes: bool = False) -> Array:
    """The sums of products before the epilogue, one axis a dim of `problem.result`.

    With `magnitudes`, the sums of the products' absolute values: the scale of rounding errors.
    """
    sp, g, factors = problem.spatial, problem.groups, _factors(problem, arrays, xp)

    def read(role: str, dims: tuple[str, ...], channels: str) -> Array:
        """The tensor over dims, its channels' dim split in (group, channel) with the group in front."""
        a = values_over(problem.tensor(role), factors[role], dims, xp)
        a = xp.abs(a) if magnitudes else a
        at = dims.index(channels)
        return xp.moveaxis(a.reshape(*a.shape[:at], g, a.shape[at] // g, *a.shape[at + 1 :]), at, 0)

    def x() -> Array:
        return read("x", ("n", *sp.input, "c"), "c")

    def y() -> Array:
        return read("y", ("n", *sp.output, "k"), "k").reshape(g, problem.n, -1, problem.k_per_group)

    def w() -> Array:
        return read("w", ("k", *sp.filter, "c"), "k").reshape(g, problem.k_per_group, -1)

    pixels, c, k = math.prod(problem.output), problem.c_per_group, problem.k_per_group
    window = problem.taps * c
    result: Array
    if problem.op is Op.FPROP:
        source, filters = x(), w()
        result = xp.zeros((g, problem.n, pixels, k))
        for images, part, at in _chunks(problem):
            rows = _gather(problem, source[:, images], part, xp).reshape(g, -1, window)
            sums = xp.matmul(rows, filters.swapaxes(1, 2))
            result[:, images, at] = sums.reshape(g, -1, at.stop - at.start, k)
        return as_result(problem, result, ("n", *sp.output, "k"), "k", xp)
    if problem.op is Op.DGRAD:
        source, filters = y(), w()
        result = xp.zeros((g, problem.n, *problem.input, c))
        for images, part, at in _chunks(problem):
            rows = xp.matmul(source[:, images, at].reshape(g, -1, k), filters)
            rows = rows.reshape(g, -1, *_counts(problem, part), *problem.filter, c)
            result[:, images] += _scatter(problem, rows, part, xp)
        return as_result(problem, result, ("n", *sp.input, "c"), "c", xp)
    if problem.op is Op.WGRAD:
        source, errors = x(), y()
        result = xp.zeros((g, k, window))
        for images, part, at in _chunks(problem):
            rows = _gather(problem, source[:, images], part, xp).reshape(g, -1, window)
            result += xp.matmul(errors[:, images, at].reshape(g, -1, k).swapaxes(1, 2), rows)
        return as_result(problem, result, ("k", *sp.filter, "c"), "k", xp)
    lowered_dims = ("n", *sp.output, *sp.filter, "c")
    if problem.op is Op.IM2COL:
        return as_result(problem, _gather(problem, x(), _everywhere(problem), xp), lowered_dims, "c", xp)
    result = _scatter(problem, read("lowered", lowered_dims, "c"), _everywhere(problem), xp)
    return as_result(problem, result, ("n", *sp.input, "c"), "c", xp)


def _factors(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any) -> Mapping[str, Array]:
    """The factors of the product, by role."""
    return {**arrays, "x": apply_prologue(problem, arrays, xp)} if problem.prologue else arrays


def decode(array: Array, dtype: str, xp: Any = numpy) -> Array:
    """Values in float64 of an array of element type `dtype`, or of its raw bits as unsigned integers."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 2:
        array = array.view(numpy_dtype(dtype))
    if array.dtype.kind == "u":  # by table, since CuPy has no bf16 and fp8
        bits = numpy.arange(1 << 8 * array.dtype.itemsize, dtype=array.dtype.str)
        with numpy.errstate(invalid="ignore"):  # signalling NaNs
            values = bits.view(numpy_dtype(dtype)).astype(numpy.float64)
        return xp.take(xp.asarray(values), xp.asarray(array).astype(numpy.int32))
    if isinstance(array, numpy.ndarray):
        array = array.astype(numpy.float64)  # first: other libraries do not know bf16 and fp8
    return xp.asarray(array).astype(xp.float64)


def values_over(tensor: Tensor, array: Array, dims: tuple[str, ...], xp: Any) -> Array:
    """A tensor's values over the given dims; a dim that it does not have has extent 1."""
    held = [d for d in dims if d in tensor.dims]
    a = decode(array, tensor.dtype, xp).reshape(tensor.extents)
    a = a.transpose([tensor.dims.index(d) for d in held])
    return a.reshape(tuple(tensor.extent(d) for d in dims))


def as_result(problem: ConvProblem, a: Array, dims: tuple[str, ...], channels: str, xp: Any) -> Array:
    """The inverse of `read`: from (group, *dims) to the dims of the result in their order."""
    tensor = problem.result
    at = dims.index(channels)
    extents = [problem.extent(d) for d in dims]
    extents[at] //= problem.groups
    if "k" in dims and "c" in dims:
        extents[dims.index("c")] = problem.c_per_group  # the filter's c is the channel within the group
    a = xp.moveaxis(a.reshape(problem.groups, *extents), 0, at)
    full = [e * problem.groups if i == at else e for i, e in enumerate(extents)]
    a = a.reshape([e for e, d in zip(full, dims, strict=True) if d in tensor.dims])
    held = [d for d in dims if d in tensor.dims]
    return a.transpose([held.index(d) for d in tensor.dims])


def _chunks(problem: ConvProblem) -> Iterator[tuple[slice, range, slice]]:
    """Runs of images, of positions along the first axis of their output, and of pixels there, whose gathered matrix
    fits in a chunk."""
    positions, row = problem.output[0], math.prod(problem.output[1:])
    held = max(1, _CHUNK // max(row * problem.taps * problem.c, 1))
    images, step = max(1, held // positions), min(held, positions)
    for image in range(0, problem.n, images):
        for first in range(0, positions, step):
            part = range(first, min(first + step, positions))
            yield slice(image, min(image + images, problem.n)), part, slice(part.start * row, part.stop * row)


def _everywhere(problem: ConvProblem) -> range:
    """All positions along the first axis of the output."""
    return range(problem.output[0])


def _counts(problem: ConvProblem, part: range) -> tuple[int, ...]:
    """The extents of that part of the output."""
    return len(part), *problem.output[1:]


def _seen(
    problem: ConvProblem, part: range, extents: tuple[int, ...], low: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Each tap, the outputs of a part under which it lies inside of an array of these extents with that padding before
    it, and the pixels that it sees there.  The padding, which may be far larger, is not gone through."""
    parts = part, *map(range, problem.output[1:])
    for tap in product(*map(range, problem.filter)):
        outputs, pixels = [], []
        axes = zip(tap, problem.dilation, problem.stride, parts, extents, low, strict=True)
        for t, dilation, stride, positions, extent, before in axes:
            start = t * dilation - before  # the pixel under the first output
            first = max(-(start // stride), positions.start)
            end = max(min((extent - 1 - start) // stride + 1, positions.stop), first)
            outputs.append(slice(first - positions.start, end - positions.start))
            pixels.append(slice(start + first * stride, start + end * stride, stride) if end > first else slice(0))
        yield tap, tuple(outputs), tuple(pixels)


#: What numpy.pad calls padding that repeats pixels.
_MODES: dict[Padding, dict[str, Any]] = {
    Padding.REFLECT: {"mode": "reflect"},
    Padding.REPLICATE: {"mode": "edge"},
    Padding.CIRCULAR: {"mode": "wrap"},
}
_ALL = (slice(None), slice(None))


def _gather(problem: ConvProblem, x: Array, part: range, xp: Any) -> Array:
    """(g, n, *input, c) to (g, n, *output, *filter, c), of a part of the output."""
    g, n, c, low = x.shape[0], x.shape[1], x.shape[-1], problem.pad_lo
    if problem.padding.repeats:
        amounts = ((0, 0), (0, 0), *zip(problem.pad_lo, problem.pad_hi, strict=True), (0, 0))
        x, low = xp.pad(x, amounts, **_MODES[problem.padding]), (0,) * problem.rank
    fill = math.nan if problem.padding is Padding.NAN else 0.0
    rows = xp.full((g, n, *_counts(problem, part), *problem.filter, c), fill)
    for tap, outputs, pixels in _seen(problem, part, x.shape[2:-1], low):
        rows[(*_ALL, *outputs, *tap)] = x[(*_ALL, *pixels)]
    return rows


def _scatter(problem: ConvProblem, rows: Array, part: range, xp: Any) -> Array:
    """(g, n, *output, *filter, c), of a part of the output, summed into (g, n, *input, c)."""
    g, n, c, repeats = rows.shape[0], rows.shape[1], rows.shape[-1], problem.padding.repeats
    extents, low = (problem.padded, (0,) * problem.rank) if repeats else (problem.input, problem.pad_lo)
    x = xp.zeros((g, n, *extents, c))
    for tap, outputs, pixels in _seen(problem, part, extents, low):
        x[(*_ALL, *pixels)] += rows[(*_ALL, *outputs, *tap)]
    for axis in range(problem.rank) if repeats else ():
        x = _folded(problem, x, axis, xp)
    return x


def _folded(problem: ConvProblem, padded: Array, axis: int, xp: Any) -> Array:
    """The sum, for each pixel along an axis, of what stands where padding repeats it."""
    amounts = problem.pad_lo[axis], problem.pad_hi[axis]
    pixels = numpy.pad(numpy.arange(problem.input[axis]), amounts, **_MODES[problem.padding])
    padded = xp.moveaxis(padded, axis + 2, 0)
    folded = xp.zeros((problem.input[axis], *padded.shape[1:]))
    for place, pixel in enumerate(pixels):
        folded[pixel] += padded[place]
    return xp.moveaxis(folded, 0, axis + 2)


def round_to(values: Array, element: DType, xp: Any = numpy) -> Array:
    """float64 values rounded to nearest even in an element type, still as float64.

    Integers and fp8 saturate, as the conversions of generated code do; others overflow to infinity.
    """
    if element.name == "f64":
        return values
    if not element.is_float:
        limit = float(1 << 8 * element.bytes - 1)
        return xp.clip(xp.rint(values), -limit, limit - 1)
    import ml_dtypes

    info = ml_dtypes.finfo(numpy_dtype(element.name))
    _, exponent = xp.frexp(values)
    quantum = xp.ldexp(xp.ones_like(values), xp.maximum(exponent - 1, int(info.minexp)) - element.mantissa_bits)
    rounded = xp.where(xp.isfinite(values), xp.rint(values / quantum) * quantum, values)
    largest = float(info.max)
    if element.bytes == 1:
        return xp.clip(rounded, -largest, largest)
    return xp.where(abs(rounded) > largest, xp.copysign(xp.inf, rounded), rounded)


# ---- the prologue and the epilogue -------------------------------------------------------------


def _erf(x: Array, xp: Any) -> Array:
    if xp is not numpy:
        from cupyx.scipy.special import erf

        return erf(x)
    return numpy.asarray(numpy.frompyfunc(math.erf, 1, 1)(x)).astype(numpy.float64)


def _gelu_tanh(xp: Any, x: Array) -> Array:
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


#: What each function of the language computes.  A NaN passes through all of them.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "relu": lambda xp, x: xp.maximum(x, 0.0),
    "leaky_relu": lambda xp, x, slope: xp.where(x > 0, x, slope * x),
    "gelu": lambda xp, x: x * (1 + _erf(x / math.sqrt(2), xp)) / 2,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda xp, x: x / (1 + xp.exp(-x)),
    "sigmoid": lambda xp, x: 1 / (1 + xp.exp(-x)),
    "tanh": lambda xp, x: xp.tanh(x),
    "exp": lambda xp, x: xp.exp(x),
    "log": lambda xp, x: xp.log(x),
    "sqrt": lambda xp, x: xp.sqrt(x),
    "abs": lambda xp, x: xp.abs(x),
    "min": lambda xp, x, y: xp.minimum(x, y),
    "max": lambda xp, x, y: xp.maximum(x, y),
    "clamp": lambda xp, x, low, high: xp.minimum(xp.maximum(x, low), high),
    "select": lambda xp, condition, x, y: xp.where(condition != 0, x, y),
    "round_f16": lambda xp, x: round_to(x, DTYPES["f16"], xp),
    "round_bf16": lambda xp, x: round_to(x, DTYPES["bf16"], xp),
}

OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "<": lambda a, b: (a < b) * 1.0,
    "<=": lambda a, b: (a <= b) * 1.0,
    ">": lambda a, b: (a > b) * 1.0,
    ">=": lambda a, b: (a >= b) * 1.0,
    "==": lambda a, b: (a == b) * 1.0,
    "!=": lambda a, b: (a != b) * 1.0,
    "&&": lambda a, b: ((a != 0) & (b != 0)) * 1.0,
    "||": lambda a, b: ((a != 0) | (b != 0)) * 1.0,
}


def operand_values(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy) -> dict[str, Array]:
    """The values of each operand of the epilogue over the dims of the result, extent 1 where it broadcasts."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    return {t.name: values_over(t, arrays[t.name], problem.result.dims, xp) for t in operands}


def input_values(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy) -> dict[str, Array]:
    """The inputs of a prologue: x and the operands, over the dims of x."""
    operands = problem.prologue.operands if problem.prologue else ()
    values = {t.name: values_over(t, arrays[t.name], problem.x.dims, xp) for t in operands}
    return values | {problem.x.name: values_over(problem.x, arrays["x"], problem.x.dims, xp)}


def apply_prologue(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy) -> Array:
    """x as it is multiplied, rounded to its type; one axis a dim."""
    assert problem.prologue
    with numpy.errstate(all="ignore"):
        values = _evaluate(problem.prologue.body, input_values(problem, arrays, xp), None, xp)
        return round_to(xp.broadcast_to(values[problem.x.name], problem.x.extents), problem.x.element, xp)


def over_dims(problem: ConvProblem, tensor: Tensor, values: Array, reduce: Callable[..., Array]) -> Array:
    """Values that have one axis a dim of the tensor that one of the results is like, as that result has them: reduced
    over dims that it lacks, in its order of dims."""
    dims = problem.like(tensor).dims
    kept = [d for d in dims if d in tensor.dims]
    lacking = tuple(i for i, d in enumerate(dims) if d not in tensor.dims)
    found = reduce(values, axis=lacking) if lacking else values
    return found.transpose([kept.index(d) for d in tensor.dims])


def summed_values(problem: ConvProblem, tensor: Tensor, arrays: Mapping[str, Array], xp: Any = numpy) -> Array | None:
    """The tensor that a result sums up, if the operator reads it, with one axis per dim; else None."""
    read = problem.like(tensor)
    return None if read is problem.result else decode(arrays[read.role], read.dtype, xp).reshape(read.extents)


def apply_epilogue(problem: ConvProblem, acc: Array, arrays: Mapping[str, Array], xp: Any = numpy) -> tuple[Array, ...]:
    """All results of the epilogue of sums that have one axis a dim of the operator's result; axes are dims."""
    if problem.epilogue is None:
        return (acc,)
    with numpy.errstate(all="ignore"):
        values = _evaluate(problem.epilogue.pointwise, operand_values(problem, arrays, xp), acc, xp)
        found = []
        for t in problem.results:
            read = summed_values(problem, t, arrays, xp)
            full = xp.broadcast_to(values[t.name], acc.shape) if read is None else read
            found.append(over_dims(problem, t, full, xp.sum))
        return tuple(found)


def _evaluate(
    body: Iterable[ep.Assignment], values: Mapping[str, Array], acc: Array | None, xp: Any
) -> dict[str, Array]:
    """The values with what the assignments give, by name."""
    found = dict(values)

    def go(e: ep.Expr) -> Array:
        match e:
            case ep.Number():
                return xp.full((), e.value)
            case ep.Acc():
                return acc
            case ep.OperandRef() | ep.LocalRef() | ep.TensorRef():
                return found[e.name]
            case ep.Unary("-"):
                return -go(e.operand)
            case ep.Unary("!"):
                return (go(e.operand) == 0) * 1.0
            case ep.Binary():
                return OPERATORS[e.op](go(e.left), go(e.right))
            case ep.Call():
                return FUNCTIONS[e.function](xp, *map(go, e.arguments))
        raise TypeError(f"not an epilogue expression: {e!r}")

    for assignment in body:
        found[assignment.name] = go(assignment.value)
    return found
