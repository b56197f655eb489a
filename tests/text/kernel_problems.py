"""Random calls of every kernel: what it serves, with all that a spec may add to a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynamic_problems import all_sizes
from gemm_problems import depthwise_problems, gemm_problems
from hypothesis import assume
from hypothesis import strategies as st
from problems import make, sliced
from rich_epilogues import rich_epilogues, rich_prologues
from strategy_problems import PRODUCTS, direct_problems, matrix_problems
from tma_specs import PROBLEMS, depthwise_dgrads, laid_out, reordered, served_options, serves, typed

from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.kernels.base import IMAGES, Options
from convgen.kernels.registry import KERNELS, KernelRow

# ---- kernels without problems of their own elsewhere ---------------------------------------------


def _axes(
    draw, rank: int, taps: Sequence[int], dilations: Sequence[int], strides: Sequence[int], longest: int,
    last: Sequence[int] = (),
):  # fmt: skip
    """Extents, filter, strides, padding and dilation of axes, with an output each; `last`: the last one's dilations."""
    found = []
    for i in range(rank):
        given = last if last and i == rank - 1 else dilations
        tap, dilation, stride = (draw(st.sampled_from(of)) for of in (taps, given, strides))
        reach = (tap - 1) * dilation
        low, high = draw(st.integers(0, reach + 1)), draw(st.integers(0, reach + 1))
        extent = draw(st.integers(max(1, reach + 1 - low - high), longest + reach))
        found.append((extent, tap, stride, (low, high), dilation))
    return tuple(zip(*found, strict=True))


@st.composite
def stem_problems(draw, types: Sequence[str]) -> ConvProblem:
    """What stem_mma and stem_wgmma serve: few channels, innermost or in planes, an axis or two."""
    rank = draw(st.sampled_from((1, 2, 2)))
    axes = _axes(draw, rank, (1, 2, 3, 5, 7), (1, 1, 2), (1, 2, 3, 4), 24, last=(1,))
    c, k, dtype = draw(st.integers(1, 6)), draw(st.integers(1, 70)), draw(st.sampled_from(types))
    problem = make("fprop", draw(st.integers(1, 3)), c, k, *axes, dtype=dtype)
    assume(problem.output_pixels <= 400)
    if draw(st.booleans()):
        problem = laid_out(problem, x=("n", "c", *problem.spatial.input))  # type: ignore[arg-type]
    return typed(problem, y=draw(st.sampled_from(("f16", "bf16", "f32", "s8", "e4m3"))))


@st.composite
def small_group_problems(draw) -> ConvProblem:
    """What small_groups serves: groups of few channels, as many as fill instructions."""
    axes = _axes(draw, draw(st.sampled_from((1, 2, 2))), (1, 2, 3, 5), (1, 2), (1, 2, 3), 12)
    c, k = draw(st.sampled_from((2, 4, 8, 16))), draw(st.sampled_from((1, 2, 4, 8, 12, 16)))
    groups = draw(st.sampled_from((2, 4, 8, 16, 24, 32)))
    dtype = draw(st.sampled_from(("f16", "bf16", "s8", "e4m3", "e5m2")))
    problem = make("fprop", draw(st.integers(1, 3)), groups * c, groups * k, *axes, groups, dtype)
    assume(problem.output_pixels <= 300)
    return typed(problem, y=draw(st.sampled_from((dtype, "f16", "bf16", "f32", "s8"))))


@st.composite
def pointwise_problems(draw) -> ConvProblem:
    """1x1 filters without padding, which tma_im2col multiplies with a prologue."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    extents = tuple(draw(st.integers(1, {1: 60, 2: 12, 3: 5}[rank])) for _ in range(rank))
    stride = tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in range(rank))
    c, k, dtype = 8 * draw(st.integers(1, 20)), draw(st.integers(1, 90)), draw(st.sampled_from(("f16", "bf16")))
    problem = make("fprop", draw(st.integers(1, 5)), c, k, extents, (1,) * rank, stride, dtype=dtype)
    assume(problem.output_pixels <= 300)
    return typed(problem, y=draw(st.sampled_from(("f16", "bf16", "f32"))))


def _aligned(p: ConvProblem) -> ConvProblem:
    """The problem with channels in eights, innermost, and one type: its sizes may be dynamic, as TMA moves it."""
    unit, pads = 8 * p.groups, tuple(zip(p.pad_lo, p.pad_hi, strict=True))
    c, k = (-(-channels // unit) * unit for channels in (p.c, p.k))
    reads = p.reads[0].dtype
    return make(p.op, p.n, c, k, p.input, p.filter, p.stride, pads, p.dilation, p.groups, reads, name=p.name)


@st.composite
def plain_problems(draw) -> ConvProblem:
    """What tma_plain serves: two axes, channels innermost, one group."""
    axes = _axes(draw, 2, (1, 2, 3), (1, 2, 3), (1, 2, 3, 5), 12)
    c, k, dtype = 8 * draw(st.integers(1, 20)), draw(st.integers(1, 90)), draw(st.sampled_from(("f16", "bf16")))
    problem = make("fprop", draw(st.integers(1, 4)), c, k, *axes, dtype=dtype)
    assume(problem.output_pixels <= 300)
    return typed(problem, y=draw(st.sampled_from(("f16", "bf16", "f32"))))


@st.composite
def stream_problems(draw) -> ConvProblem:
    """What depthwise_stream serves: vectors of channels, an axis or two, both directions."""
    axes = _axes(draw, draw(st.sampled_from((1, 2, 2))), (1, 2, 3, 4, 5, 7), (1, 1, 2, 3), (1, 1, 2, 3), 20)
    c, dtype = draw(st.sampled_from((8, 16, 24, 32, 40, 96))), draw(st.sampled_from(("f16", "bf16", "f32")))
    op, multiplier = draw(st.sampled_from((Op.FPROP, Op.FPROP, Op.DGRAD))), draw(st.sampled_from((1, 1, 1, 2)))
    problem = make(op, draw(st.integers(1, 3)), c, c * (1 if op is Op.DGRAD else multiplier), *axes, c, dtype)
    assume(max(problem.x.size, problem.y.size) <= 300 * c * multiplier)
    return typed(problem, **{problem.result.role: draw(st.sampled_from((dtype, "f16", "bf16", "f32")))})


@st.composite
def replaced_padding(draw, problem: ConvProblem) -> ConvProblem:
    """The problem with padding of another kind, where it can be made so."""
    padding = draw(st.sampled_from(Padding))
    most = {Padding.REFLECT: -1, Padding.CIRCULAR: 0}.get(padding, 1 << 20)
    axes = zip(problem.input, problem.pad_lo, problem.pad_hi, strict=True)
    fits = any((*problem.pad_lo, *problem.pad_hi)) and all(max(lo, hi) <= e + most for e, lo, hi in axes)
    nan = problem.op is not Op.DGRAD and problem.x.element.is_float  # dgrad does not read x
    refused = problem.dynamic if padding.repeats else padding is Padding.NAN and not nan
    return replace(problem, padding=padding) if fits and not refused else problem


_TMA, _HALO = PROBLEMS["tma_im2col"] | PROBLEMS["dgrad"], PROBLEMS["tma_halo"] | PROBLEMS["halo_dgrad"]
#: By kernel, problems that it serves, for the most part.
OF_KERNEL: Mapping[str, st.SearchStrategy[ConvProblem]] = {
    "tma_im2col": _TMA | _TMA.map(_aligned) | pointwise_problems(),
    "tma_wgrad": PROBLEMS["tma_wgrad"],
    "tma_plain": plain_problems(),
    "tma_halo": _HALO | _HALO.map(_aligned),
    "depthwise_stream": stream_problems(),
    "depthwise_direct": depthwise_problems() | depthwise_dgrads(),
    "depthwise_wgrad": PROBLEMS["depthwise_wgrad"],
    "mma_gemm": gemm_problems() | PROBLEMS["mma_dgrad"],
    "mma_wgrad": PROBLEMS["mma_wgrad"],
    "stem_wgmma": stem_problems(("f16", "bf16")),
    "stem_mma": stem_problems(("f16", "bf16", "f32", "s8", "e4m3", "e5m2")),
    "stem_wgrad": PROBLEMS["stem_wgrad"],
    "small_groups": small_group_problems(),
    "im2col": st.sampled_from(PRODUCTS).flatmap(matrix_problems),
    "winograd": PROBLEMS["winograd"],
    "winograd_fused": PROBLEMS["winograd_fused"],
    "direct": st.sampled_from(PRODUCTS).flatmap(direct_problems),
}
ROWS: Mapping[str, KernelRow] = {row.name: row for row in KERNELS}

# ---- what a spec may add -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kernel's spec, and a call of it: `sizes` are those that the call decides.  Where data are small whole numbers
    and `whole` holds, results are exact."""

    kernel: str
    problem: ConvProblem
    options: Options
    whole: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        return ROWS[self.kernel].strategy


def asked(kernel: str) -> Options:
    """The options that name a kernel: none where its strategy has it alone."""
    alone = sum(row.strategy == ROWS[kernel].strategy for row in KERNELS) == 1
    return {} if alone else {"kernel": kernel}


@st.composite
def bare_problems(draw, kernel: str) -> ConvProblem:
    """What a kernel serves, of packed tensors, without an epilogue."""
    problem = replace(draw(OF_KERNEL[kernel]).packed, epilogue=None, name="random")
    assume(serves(problem, ROWS[kernel].strategy, asked(kernel)))
    return problem


Change = Callable[[ConvProblem], ConvProblem]


def _changes(draw, kernel: str, whole: bool) -> list[Change]:
    """What may be added to a kernel's problem, each half of the time, in any order but for layouts."""
    made = ROWS[kernel].kernel
    sizes, by_tma = draw(st.sampled_from((IMAGES, made.dynamic))), kernel == "tma_im2col"
    changes: dict[str, Change] = {
        "epilogue": lambda p: replace(p, epilogue=draw(rich_epilogues(p, whole, made.further, not p.dynamic))),
    }
    if made.slice_roles:
        changes["slices"] = lambda p: draw(sliced(p, made.slice_roles))
    if made.dynamic:
        changes["sizes"] = lambda p: with_dynamic(p, sizes)
    if made.paddings != {Padding.ZERO} and not whole:
        changes["padding"] = lambda p: draw(replaced_padding(p))
    if made.prologues and not whole:
        changes["prologue"] = lambda p: replace(p, prologue=draw(rich_prologues(p, by_tma))) if p.op is Op.FPROP else p
    names = [name for name in draw(st.permutations(sorted(changes))) if name == "epilogue" or draw(st.booleans())]
    return [lambda p: reordered(draw, p, "xwy", 2), *(changes[name] for name in names)]


@st.composite
def cases(draw, kernel: str) -> Case:
    """A kernel's problem with whatever a spec may add, of which it keeps what the kernel serves."""
    problem, strategy = draw(bare_problems(kernel)), ROWS[kernel].strategy
    whole = draw(st.booleans()) and is_exact(problem, kernel)
    for change in _changes(draw, kernel, whole):
        changed = change(problem)
        if changed != problem and serves(changed, strategy, asked(kernel)):
            problem = changed
    options = draw(served_options(problem, strategy, kernel, given=asked(kernel)))
    return Case(kernel, problem, options, whole, draw(sizes_of(problem)))


def is_exact(problem: ConvProblem, kernel: str) -> bool:
    """Whether sums of small whole numbers come out exactly: transformed filters are fractions, sums of fp8 products
    lose what is 2^14 times less than others, and some padding is no number."""
    if kernel.startswith("winograd") or problem.padding is Padding.NAN:
        return False
    return all(not t.element.is_float or t.element.bytes > 1 for t in problem.reads)


def with_dynamic(problem: ConvProblem, dims: Sequence[str]) -> ConvProblem:
    """The problem with those of the dims dynamic that the language allows to be: no result is a sum over them."""
    if problem.padding.repeats:
        return problem
    outputs = dict(zip(("n", *problem.spatial.input), ("n", *problem.spatial.output), strict=True))
    summed = {d for t in problem.further for d in problem.like(t).dims if d not in t.dims}
    held = tuple(
        d for d, o in outputs.items()
        if d in dims and d in problem.x.dims and o in problem.y.dims and not summed & {d, o}
    )  # fmt: skip
    return replace(problem, dynamic=held)


def sizes_of(problem: ConvProblem) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of the dynamic dims that leave an output."""
    drawn = {d: st.integers(1, 4 if d == "n" else int(problem.extent(d)) + 5) for d in problem.dynamic}
    return st.fixed_dictionaries(drawn).filter(lambda sizes: min(all_sizes(problem, sizes).values(), default=1) > 0)
