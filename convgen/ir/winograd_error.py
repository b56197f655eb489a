"""How far rounding may take a convolution by Winograd's transforms.

A kernel transforms filters and tiles in float32, rounds both to the tensors' type, multiplies and adds over the
channels, and transforms the sums back in float32.  Its errors follow the magnitudes of whole tiles, not of an output's
own window alone: they are bounded tile by tile, by transforms of magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from sympy import Matrix

from convgen.ir.dtypes import DType, numpy_dtype
from convgen.ir.problem import ConvProblem
from convgen.ir.reference import Array, as_result, values_over
from convgen.ir.winograd import TAPS, transforms

#: Of float32: half the distance from one to the next number.
EPS = 2.0**-24


@dataclass(frozen=True)
class _Transformed:
    """Values, exact, and the same transform of magnitudes: what the magnitudes of all addends add up to."""

    value: Array
    most: Array

    def along(self, matrix: Array, axis: int, step: int, count: int) -> Iterator[_Transformed]:
        """Multiplies by a matrix along an axis: each row sums `count` values that are `step` apart."""
        for row in matrix.tolist():
            taken = [
                (weight, (*(slice(None),) * axis, slice(a, a + (count - 1) * step + 1, step)))
                for a, weight in enumerate(row)
            ]
            value = sum(weight * self.value[at] for weight, at in taken)
            yield _Transformed(value, sum(abs(weight) * self.most[at] for weight, at in taken))

    def largest(self, element: DType, rounding: float, tiny: int = 1) -> Array:
        """The magnitude that may be stored in a type, after a transform that is off by so much of the magnitudes.
        `tiny`: roundings of numbers below the least normal one, which are off by as much as that one."""
        import ml_dtypes

        least = float(ml_dtypes.finfo(numpy_dtype(element.name)).smallest_normal)
        computed = abs(self.value) + rounding * self.most
        return computed + 2.0 ** -(element.mantissa_bits + 1) * (computed + tiny * least)


def slack(
    problem: ConvProblem, arrays: Mapping[str, Array], m: int, of_sums: Callable[[Array], Array], xp: Any = numpy
) -> Array:
    """Bound on the error of each sum, one axis a dim of y, for tiles of m x m outputs.

    `of_sums` bounds the error of sums over the channels by the sums of their products' magnitudes.  Infinities and NaNs
    count as zero: what meets them is made once more, by the definition.
    """
    f, element = transforms(m), problem.x.element
    inputs, filters, outputs = (_array(matrix) for matrix in (f.inputs, f.filters, f.outputs))
    # along an axis there are at most `size` products, as many sums, and a rounded coefficient to each product
    rounding = 2 * (f.size + 1) * EPS
    p, q = (-(-extent // m) for extent in problem.output)
    x = _finite(problem, "x", ("n", "h", "w", "c"), arrays, xp)
    x = _padded(problem, (p * m + TAPS - 1, q * m + TAPS - 1), x, xp)
    w = _finite(problem, "w", ("k", "r", "s", "c"), arrays, xp)
    found = xp.zeros((problem.n, p, m, q, m, problem.k))
    of_rows = zip(_given(x).along(inputs, 1, m, p), _given(w).along(filters, 1, 1, 1), strict=True)
    for i, (x_rows, w_rows) in enumerate(of_rows):
        of_tiles = zip(x_rows.along(inputs, 2, m, q), w_rows.along(filters, 2, 1, 1), strict=True)
        for j, (v, u) in enumerate(of_tiles):
            exact, most = (abs(v.value), abs(u.value)), (v.largest(element, rounding), u.largest(element, rounding))
            magnitudes, widest = (xp.matmul(a, b[:, 0, 0].T) for a, b in (exact, most))
            error = widest - magnitudes + of_sums(widest) + rounding * widest
            by = numpy.abs(numpy.multiply.outer(outputs[:, i], outputs[:, j])).reshape(m, 1, m, 1)
            found += error[:, :, None, :, None, :] * xp.asarray(by)
    whole = found.reshape(problem.n, p * m, q * m, problem.k)[:, : problem.output[0], : problem.output[1]]
    return as_result(problem, whole[None], ("n", "p", "q", "k"), "k", xp)


def slack_along_w(
    problem: ConvProblem, arrays: Mapping[str, Array], m: int, of_sums: Callable[[Array], Array], xp: Any = numpy
) -> Array:
    """The same for tiles of m outputs along w, for filters of any height, whose tiles are transformed in the tensors'
    type: inputs are halved, then added or subtracted.  `of_sums` is of sums over filter rows and channels."""
    f, element = transforms(m), problem.x.element
    inputs, filters, outputs = (_array(matrix) for matrix in (f.inputs, f.filters, f.outputs))
    rounding = 2 * (f.size + 1) * EPS
    p = problem.output[0] if problem.rank > 1 else 1
    dilation = problem.dilation[0] if problem.rank > 1 else 1
    q = -(-problem.output[-1] // m)
    w = _finite(problem, "w", ("k", "r", "s", "c"), arrays, xp)
    x = _finite(problem, "x", ("n", "h", "w", "c"), arrays, xp)
    x = _padded(problem, (p + (w.shape[1] - 1) * dilation, q * m + TAPS - 1), x, xp)

    def sums(v: Array, u: Array) -> Array:
        rows = (slice(r * dilation, r * dilation + p) for r in range(w.shape[1]))
        return sum(xp.matmul(v[:, at], u[:, r, 0].T) for r, at in enumerate(rows))

    found = xp.zeros((problem.n, p, q, m, problem.k))
    points = zip(_given(x).along(inputs, 2, m, q), _given(w).along(filters, 2, 1, 1), strict=True)
    for i, (v, u) in enumerate(points):
        magnitudes = sums(abs(v.value), abs(u.value))
        widest = sums(v.largest(element, 0.0, tiny=2), u.largest(element, rounding))
        error = widest - magnitudes + of_sums(widest) + rounding * widest
        found += error[:, :, :, None, :] * xp.asarray(numpy.abs(outputs[:, i]).reshape(m, 1))
    whole = found.reshape(problem.n, p, q * m, problem.k)[:, :, : problem.output[-1]]
    dims = ("n", *problem.spatial.output, "k")
    return as_result(problem, whole[None], dims, "k", xp)


def _given(values: Array) -> _Transformed:
    return _Transformed(values, abs(values))


def _array(matrix: Matrix) -> numpy.ndarray:
    return numpy.array(matrix.tolist(), numpy.float64)


def _finite(problem: ConvProblem, role: str, dims: tuple[str, ...], arrays: Mapping[str, Array], xp: Any) -> Array:
    values = values_over(problem.tensor(role), arrays[role], dims, xp)
    return xp.where(xp.isfinite(values), values, 0.0)


def _padded(problem: ConvProblem, extents: tuple[int, int], x: Array, xp: Any) -> Array:
    """The input with its padding, as far as windows reach, then zeros up to whole tiles."""
    padded = xp.zeros((problem.n, *extents, problem.c))
    # a convolution over w alone has images one row high
    (top, left), (h, w) = (0, *problem.pad_lo)[-2:], (1, *problem.input)[-2:]
    to = (slice(None), slice(top, top + h), slice(left, left + w))
    _, rows, columns, _ = padded[to].shape
    padded[to] = x[:, :rows, :columns]
    return padded
