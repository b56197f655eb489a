"""Whether a kernel's result is right: random inputs, poison, and bounds on rounding.

A kernel evaluates a prologue in float32 and rounds it to the input's type, multiplies exactly, accumulates in
float32 (or s32), evaluates the epilogue in float32 and rounds once to the result's type.  (Of f64, it
computes in float64, as the reference does: both are off, and bounds are of their difference.)  `expect` follows
that with intervals: an element of the input may be rounded to a neighbor of the exact prologue's, the
accumulator be off by what `tolerance` allows, every operation of the epilogue widens its interval by its own
rounding, and since rounding to the result's type is monotone, a right result lies between the rounded ends.
An element outside of them is wrong; nothing is averaged away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy

from convgen.hypertext import preformatted
from convgen.ir.dtypes import numpy_dtype
from convgen.ir.interval import ROUNDING, Interval, epilogue_interval, prologue_interval
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.reference import (
    Array,
    accumulate,
    apply_epilogue,
    apply_prologue,
    decode,
    operand_values,
    over_dims,
    round_to,
    summed_values,
)
from convgen.ir.tensor import Tensor

# ---- inputs and poison -------------------------------------------------------------------------


def random_inputs(problem: ConvProblem, seed: int) -> dict[str, numpy.ndarray]:
    """Normal data for every tensor that the problem reads (by role) and every operand (by name).

    s8 and s32 tensors get integers in [-8, 8], and one element of 16 of s8 any that there is, so that sums take more
    than 16 bits and float32 still has them all.  Inputs of an fp8 result are scaled down by powers of two so that sums
    stay within its range.  A channel slice is one of a tensor that is poison elsewhere.
    """
    rng = numpy.random.default_rng(seed)
    narrow = any(t.element.is_float and t.element.bytes == 1 for t in problem.results)
    spread = math.sqrt(accumulation_length(problem)) / 8
    scale = 2.0 ** -math.ceil(max(0.0, math.log2(spread)) / 2) if narrow else 1.0
    arrays = {}
    for tensor, factor in [*((t, scale) for t in problem.reads), *((t, 1.0) for t in problem.operands)]:
        if tensor.element.is_float:
            drawn: Any = numpy.float64 if tensor.dtype == "f64" else numpy.float32
            values: Array = rng.standard_normal(tensor.shape, dtype=drawn) * drawn(factor)
        else:
            values = rng.integers(-8, 9, tensor.shape)
            if tensor.dtype == "s8":
                values = numpy.where(rng.random(tensor.shape) < 1 / 16, rng.integers(-128, 128, tensor.shape), values)
        array = numpy.asarray(values, numpy_dtype(tensor.dtype))  # without dims, values is not an array
        if tensor.pitch:
            values, array = array, poisoned(tensor)
            array[...] = values
        arrays[tensor.buffer] = array
    return arrays


def poisoned(tensor: Tensor) -> numpy.ndarray:
    """An array of a tensor's shape and type, filled with what no kernel writes by chance: of a slice, a view."""
    whole = poison(numpy.empty(tensor.whole.size, numpy_dtype(tensor.dtype))).reshape(tensor.whole.shape)
    return whole[..., : tensor.row] if tensor.pitch else whole


def poison(array: Array) -> Array:
    """Fill an array, in place, with what no kernel writes by chance, and return it.

    Floats (or raw bits, as unsigned integers) become NaN; signed integers 0xA5 in every byte.
    """
    if array.dtype.kind == "i":
        array.view("u1").fill(0xA5)
    else:
        array.view("u1").fill(0xFF)
    return array


# ---- how far rounding may take a result --------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """How an accumulator rounds: relative error of one addition and of one product.  `winograd`: the outputs of a tile
    along an axis, where tiles and filters are transformed (`winograd_error`), along all axes or along `w_alone`."""

    addition: float
    product: float
    winograd: int = 0
    w_alone: bool = False


#: float32 covers f16, bf16 and fp8 products, which float32 holds exactly.  tf32 keeps 10 bits of each
#: factor, two tf32 numbers together 21.  Hopper's tensor cores align fp8 products to about 14 bits
#: (DeepSeek-V3 report, 3.3.2).
#: Of float64, kernel and reference both round, to 53 bits, each product and each sum: their errors add up.
ARITHMETIC: dict[str, Arithmetic] = {
    "exact": Arithmetic(0.0, 0.0),
    "f32": Arithmetic(2.0**-24, 0.0),
    "f64": Arithmetic(2.0**-52, 2.0**-53),
    "tf32": Arithmetic(2.0**-24, 2.0**-9),
    "tf32x3": Arithmetic(2.0**-24, 2.0**-21),
    "fp8": Arithmetic(2.0**-13, 0.0),
}
#: Winograd's, by the arithmetic of its products.
ARITHMETIC |= {
    f"winograd{m} {name}": replace(ARITHMETIC[name], winograd=m) for m in (2, 4) for name in ("f32", "tf32", "tf32x3")
} | {"winograd2 along w": replace(ARITHMETIC["f32"], winograd=2, w_alone=True)}


@dataclass(frozen=True)
class Tolerance:
    """Bound on an accumulator's error, for sums of `length` products."""

    arithmetic: Arithmetic
    length: int

    def slack(self, magnitude: Array, xp: Any = numpy) -> Array:
        """Bound for sums whose products' magnitudes add up to `magnitude`.

        Partial sums of products of random sign grow like magnitude / sqrt(length); four times that also
        covers the ends of the distribution, and magnitude itself covers short sums in full.  Rounding to
        nearest walks randomly (sqrt), truncation in tensor cores drifts (once in 16 products).
        """
        steps = self.length - 1
        partial = magnitude * min(1.0, 4 / math.sqrt(self.length))
        additions = self.arithmetic.addition * (8 * math.sqrt(steps) + steps / 16)
        return partial * (additions + 2 * self.arithmetic.product)


def accumulation_length(problem: ConvProblem) -> int:
    """Number of products (of addends, for col2im) in the longest sum."""
    places = math.prod(map(problem.extent, problem.places))  # of a pixel, where padding repeats it
    match problem.op:
        case Op.FPROP:
            return problem.taps * problem.c_per_group
        case Op.DGRAD:
            return places * problem.taps * problem.k_per_group
        case Op.WGRAD:
            return problem.output_pixels
        case Op.IM2COL:
            return 1
        case Op.COL2IM:
            return places * problem.taps
    raise ValueError(f"unknown operator {problem.op!r}")


def tolerance(problem: ConvProblem, arithmetic: str = "") -> Tolerance:
    """The bound for a problem.  `arithmetic` is a row of ARITHMETIC, by default the one of its types:
    a strategy that multiplies in tf32, or by Winograd's transforms, has to name its own."""
    if not arithmetic:
        inputs = [t.element for t in problem.reads]
        if problem.op is Op.IM2COL or problem.accumulate == "s32":
            arithmetic = "exact"
        elif any(t.is_float and t.bytes == 1 for t in inputs):
            arithmetic = "fp8"
        else:
            arithmetic = problem.number
    return Tolerance(ARITHMETIC[arithmetic], max(1, accumulation_length(problem)))


# ---- comparing ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expectation:
    """The result in float64 and the ends of what rounding allows, before the last rounding.

    `special` is true where the sum or an operand is infinite or NaN: there the result is as infinite, or as
    much a NaN, as the value is.  `copied`: the elements are a tensor's own, as im2col's are, and are not rounded.
    """

    value: Array
    low: Array
    high: Array
    special: Array
    copied: bool = False


def expect(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy, arithmetic: str = "") -> Expectation:
    """The results that a correct kernel may give, in the shape of `problem.result`.  Arrays as for `reference`."""
    return expect_all(problem, arrays, xp, arithmetic)[0]


def expect_all(
    problem: ConvProblem, arrays: Mapping[str, Array], xp: Any = numpy, arithmetic: str = ""
) -> tuple[Expectation, ...]:
    """The same of all of `problem.results`, each in its shape."""
    bound = tolerance(problem, arithmetic)
    with numpy.errstate(all="ignore"):  # inputs may hold infinities
        acc = accumulate(problem, arrays, xp)
        slack = xp.zeros_like(acc)
        if bound.arithmetic != ARITHMETIC["exact"]:
            slack = bound.slack(accumulate(problem, arrays, xp, magnitudes=True), xp)
        if bound.arithmetic.winograd:
            slack = slack + _winograd_slack(problem, arrays, bound.arithmetic, xp)
        if problem.prologue:
            slack = slack + _prologue_slack(problem, arrays, xp)
        slack = xp.where(xp.isfinite(acc), slack, 0.0)
        around = Interval(acc - slack, acc + slack)
        ends = epilogue_interval(problem, around, arrays, xp)
        values = apply_epilogue(problem, acc, arrays, xp)
    special = ~xp.isfinite(acc)
    for operand in operand_values(problem, arrays, xp).values():
        special = special | ~xp.isfinite(operand)
    found = []
    for tensor, value, end in zip(problem.results, values, ends, strict=True):
        read = summed_values(problem, tensor, arrays, xp)
        own = special if read is None else ~xp.isfinite(read)
        all_of = (value, end.low, end.high, over_dims(problem, tensor, own, xp.any))
        value, low, high, wide = (xp.broadcast_to(a, value.shape).reshape(tensor.shape) for a in all_of)
        found.append(Expectation(value, low, high, wide, copied=problem.op is Op.IM2COL))
    return tuple(found)


def _winograd_slack(problem: ConvProblem, arrays: Mapping[str, Array], arithmetic: Arithmetic, xp: Any) -> Array:
    """How far transforms, and the rounding of their results, may move the sums."""
    from convgen.ir import winograd_error

    if arithmetic.w_alone:
        sums = Tolerance(arithmetic, accumulation_length(problem) // problem.filter[-1])
        return winograd_error.slack_along_w(problem, arrays, arithmetic.winograd, lambda s: sums.slack(s, xp), xp)
    over_channels = Tolerance(arithmetic, problem.c)
    return winograd_error.slack(problem, arrays, arithmetic.winograd, lambda sums: over_channels.slack(sums, xp), xp)


def _prologue_slack(problem: ConvProblem, arrays: Mapping[str, Array], xp: Any) -> Array:
    """How far sums may be off because a prologue in float32 rounds to a neighbor of the element that it would give
    exactly: the distances of these elements, multiplied by the weights' magnitudes."""
    exact, ends = apply_prologue(problem, arrays, xp), prologue_interval(problem, arrays, xp)
    low, high = (round_to(end, problem.x.element, xp) for end in (ends.low, ends.high))
    distance = xp.where(low == high, 0.0, xp.maximum(exact - low, high - exact))
    return accumulate(replace(problem, prologue=None), {**arrays, "x": distance}, xp, magnitudes=True)


@dataclass(frozen=True)
class Report:
    """The outcome of a comparison; true where the result is right.

    `max_error` is the greatest |actual - expected|; `rel_l2` the norm of the difference over the norm of
    the expected; `worst_index` the element furthest outside of its bounds (or of greatest error).
    """

    ok: bool
    max_error: float
    rel_l2: float
    worst_index: tuple[int, ...]
    message: str

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        return preformatted(f"{'right' if self.ok else 'WRONG'}: {self.message}")


def check(
    problem: ConvProblem,
    arrays: Mapping[str, Array],
    actual: Array | tuple[Array, ...],
    xp: Any = numpy,
    arithmetic: str = "",
) -> Report:
    """Compare what a kernel's call gave, its result or a tuple of its results, with the reference of its inputs."""
    expected = expect_all(problem, arrays, xp, arithmetic)
    given = actual if isinstance(actual, tuple) else (actual,)
    return worst(compare_tensor(t, a, e, xp) for t, a, e in zip(problem.results, given, expected, strict=True))


def worst(reports: Iterable[Report]) -> Report:
    """The first report of a wrong result; where all are right, one of all."""
    found = list(reports)
    for report in found:
        if not report:
            return report
    message = "; ".join(r.message for r in found)
    return Report(True, max(r.max_error for r in found), max(r.rel_l2 for r in found), found[0].worst_index, message)


def compare(problem: ConvProblem, actual: Array, expected: Expectation | Array, xp: Any = numpy) -> Report:
    """Compare the operator's result (values, or raw bits as unsigned integers) with what is expected.

    `expected` is best an `Expectation`.  For a plain array of float64 values the bounds come from the
    array's root mean square, which fits random data and epilogues that do not magnify.
    """
    if not isinstance(expected, Expectation):
        expected = _around(problem, expected, xp)
    return compare_tensor(problem.result, actual, expected, xp)


def compare_tensor(result: Tensor, actual: Array, expected: Expectation, xp: Any = numpy) -> Report:
    """Compare any of the results with what is expected of it."""
    shape = tuple(map(int, result.shape))  # of sizes that a call decides, those of the spec
    if tuple(actual.shape) != shape:
        message = f"{result.name} has shape {tuple(actual.shape)}, expected {shape}"
        return Report(False, math.inf, math.inf, (), message)
    got = decode(actual, result.dtype, xp)
    with numpy.errstate(all="ignore"):
        value, low, high = expected.value, expected.low, expected.high
        if not expected.copied:
            value, low, high = (round_to(end, result.element, xp) for end in (value, low, high))
        if not result.element.is_float:
            value = xp.where(xp.isnan(value), 0.0, value)  # as conversions to integers do
        unbounded = xp.isnan(low) | xp.isnan(high)
        unknown = unbounded & ~expected.special  # beyond a function's domain
        same = (got == value) | (xp.isnan(got) & xp.isnan(value))
        alike = same | (xp.isfinite(got) & xp.isfinite(expected.value))
        right = unknown | xp.where(unbounded, alike, (got >= low) & (got <= high))
        both = xp.isfinite(got) & xp.isfinite(value)
        error = xp.where(both, abs(got - value), 0.0)
        outside = xp.where(right, 0.0, xp.maximum(low - got, got - high))
        outside = xp.where(~right & ~xp.isfinite(outside), xp.inf, outside)
    wrong = int((~right).sum())
    norm = float(xp.sqrt(xp.where(both, value**2, 0.0).sum()))
    rel_l2 = float(xp.sqrt((error**2).sum())) / norm if norm else float(error.max() > 0)
    flat = int((outside if wrong else error).argmax())
    worst = tuple(int(i) for i in numpy.unravel_index(flat, result.shape))
    max_error = float(error.max()) if bool(both[~right].all()) else math.inf
    summary = f"max error {max_error:.3g}, relative L2 error {rel_l2:.3g}"
    if unchecked := int((unknown & ~same).sum()):
        summary += f"; {unchecked} of {result.size} elements may be outside a function's domain and were not checked"
    if unchecked == result.size:
        message = f"nothing of {result.name} could be checked: each element may be outside a function's domain"
        return Report(False, max_error, rel_l2, worst, message)
    if not wrong:
        return Report(True, max_error, rel_l2, worst, f"{result.name} is right: {summary}")
    unwritten = int((xp.isnan(got) & ~right).sum())
    message = (
        f"{result.name} is wrong in {wrong} of {result.size} elements ({summary}); worst at "
        f"{_coordinates(result, flat)}: got {float(got[worst]):.9g}, expected {float(value[worst]):.9g} "
        f"(within [{float(low[worst]):.9g}, {float(high[worst]):.9g}])"
    )
    if unwritten:
        message += f"; {unwritten} are NaN: never written, or computed from something that was not"
    return Report(False, max_error, rel_l2, worst, message)


def _coordinates(tensor: Any, flat: int) -> str:
    index = numpy.unravel_index(flat, tensor.extents)
    return "[" + ", ".join(f"{d}={int(i)}" for d, i in zip(tensor.dims, index, strict=True)) + "]"


def _around(problem: ConvProblem, expected: Array, xp: Any) -> Expectation:
    """Bounds from the root mean square of the expected values."""
    bound = tolerance(problem)
    finite = xp.where(xp.isfinite(expected), expected, 0.0)
    # of products of random sign, sqrt(length) rms add up to the magnitude (see Tolerance.slack)
    rms = xp.sqrt((finite**2).mean()) * math.sqrt(bound.length)
    slack = bound.slack(rms, xp)
    if problem.epilogue and not problem.epilogue.is_identity:
        rounding = ROUNDING[problem.number]
        slack = slack + 8 * rounding.eps * abs(expected) + rounding.tiny
    return Expectation(expected, expected - slack, expected + slack, ~xp.isfinite(expected))
