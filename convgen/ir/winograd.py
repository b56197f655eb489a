"""Winograd's minimal filtering F(m, r): m outputs of a filter of r taps by m + r - 1 products.

    y = A^T [(G g) * (B^T d)]             along one axis: d are m + r - 1 inputs, g are the filter's taps
    Y = A^T [(G g G^T) * (B^T d B)] A     of tiles of m x m outputs, F(m x m, r x r)

Filter and inputs are polynomials: they are evaluated at m + r - 2 points and at infinity and multiplied there; the
product is interpolated (Toom and Cook), and all of this transposed.  See S. Winograd, "Arithmetic Complexity of
Computations" (1980), and A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).

Rows of B^T and G are scaled by powers of two, which A's columns take back: the magnitudes of a row add up to more than
a half and at most one, so that transformed tiles and filters are no larger than what they are made of, in any type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sympy import Expr, Matrix, Rational, Symbol, ceiling, diag, expand, log, prod

#: Of a filter along an axis.
TAPS = 3
#: The finite points by a tile's outputs along an axis: small numbers, so that few digits are lost.  Of four, these lose
#: a third less than 0, 1, -1, 2, -2 (see B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
#: Convolution for Deep Neural Networks", 2020).
POINTS: Mapping[int, tuple[Rational, ...]] = {
    2: (Rational(0), Rational(1), Rational(-1)),
    4: (Rational(0), Rational(1), Rational(-1), Rational(1, 2), Rational(-2)),
}


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, 3), of rational numbers: `inputs` is B^T, `filters` G, `outputs` A^T."""

    m: int
    inputs: Matrix
    filters: Matrix
    outputs: Matrix

    @property
    def size(self) -> int:
        """Inputs of a tile along an axis; its square is the number of products."""
        return self.m + TAPS - 1


@cache
def transforms(m: int) -> Transforms:
    """The matrices of F(m, 3).  Raises KeyError where there are no points for such tiles."""
    points, size, x = POINTS[m], m + TAPS - 1, Symbol("x")
    # B^T's rows have the coefficients of polynomials that are zero at every point but one; G divides by the value there
    nodes = [prod([x - other for other in points if other != point]) for point in points]
    every = prod([x - point for point in points])  # the row of infinity
    inputs = Matrix([[expand(node).coeff(x, power) for power in range(size)] for node in (*nodes, every)])
    values = [node.subs(x, point) for node, point in zip(nodes, points, strict=True)]
    filters = Matrix(
        [[point**tap / value for tap in range(TAPS)] for point, value in zip(points, values, strict=True)]
        + [[0] * (TAPS - 1) + [1]]
    )
    outputs = Matrix([[*(point**i for point in points), int(i == m - 1)] for i in range(m)])
    of_inputs, of_filters = _scales(inputs), _scales(filters)
    return Transforms(m, of_inputs.inv() * inputs, of_filters.inv() * filters, outputs * of_inputs * of_filters)


def _scales(matrix: Matrix) -> Matrix:
    """A diagonal matrix: of each row the least power of two that the sum of its magnitudes does not exceed."""
    return diag(*(_power_of_two(sum(map(abs, matrix.row(i)))) for i in range(matrix.rows)))


def _power_of_two(value: Expr) -> Expr:
    return Rational(2) ** ceiling(log(value, 2))
