"""Operands rearranged in the workspace, before the kernel that reads them.

TMA walks pixels whose channels are neighbors, in rows of 16 bytes.  `channels_last` says what a problem
looks like to a kernel that reads it so, and which copies make it so: x and w from any layout, channels
filled up with zeros, x with its padding where that is not of zeros.  Groups that are too small for wgmma go in
packs: neighboring groups become one, whose filters have zeros for the channels of the others.  The copies of a
problem are one launch; the main kernel, launched behind it, reads the workspace.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from sympy import Expr, Integer

from convgen import plurals
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.plan import Launch, Param, Workspace
from convgen.ir.problem import ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor
from convgen.kernels.base import Obstacle, Options
from convgen.kernels.parts import cost
from convgen.kernels.parts.copies import THREADS, VECTOR, Copy, Taps, Transpose, transpose
from convgen.kernels.parts.gathers import Gather, gather
from convgen.kernels.parts.hopper import lies_as
from convgen.kernels.parts.lowering import ACCESS

#: Of a pack's input and output channels, what wgmma multiplies at once: they are multiples.
PACK_C, PACK_K = 16, 8
#: Input channels of a pack, at most: the widest swizzle span.
WIDEST_PACK = 64
#: Microseconds that the launch adds, most of it hidden by the main kernel's own beginning, and bytes a microsecond,
#: read and written (NVIDIA H200).
LAUNCH_US = 0.8
BYTES_PER_US = 3.6e6
#: Times the bytes that a copy takes which gathers channels that are no neighbors.  A guess: not measured.
SCATTERED = 4.0
#: The same of one that makes taps channels: what tma_wgrad takes longer for ResNet-50's first layer, at two batches,
#: than without (benchmarks/results/wgrad_candidates_h200.json).
OF_TAPS = 3.0


@dataclass(frozen=True)
class Kernel:
    """The launch that makes all copies, each in a range of blocks."""

    entry: str
    parts: tuple[Transpose | Gather, ...]
    dependent: bool = True  # launched after a kernel that may not have ended

    @property
    def type(self) -> str:
        """C type of an element."""
        return ACCESS[self.parts[0].copy.source.element.bytes]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first block of each copy, and the end of its blocks."""
        ends = [*itertools.accumulate(part.blocks for part in self.parts)]
        return list(zip([0, *ends], ends, strict=False))

    @property
    def launch(self) -> Launch:
        params: list[Param] = []
        for part in self.parts:
            role, buffer = part.copy.source.role, part.copy.buffer
            alignment = part.copy.source.element.bytes * (part.vector if isinstance(part, Transpose) else 1)
            params += [Param(role, "pointer", role, alignment=alignment), Param(f"prepared_{role}", "pointer", buffer)]
        return Launch(
            self.entry,
            (sum(part.blocks for part in self.parts), 1, 1),
            THREADS,
            tuple(params),
            max(part.shared_bytes for part in self.parts),
            dependent=self.dependent,
        )


@dataclass(frozen=True)
class Prepared:
    """A problem as the main kernel reads it, and the copies that make it so."""

    problem: ConvProblem
    copies: tuple[Copy, ...] = ()
    dependent: bool = True  # launched after a kernel that may not have ended

    @cached_property
    def traffic(self) -> dict[str, int]:
        """The cost models' input from the problem."""
        return cost.traffic(self.problem)

    @cached_property
    def time(self) -> float:
        """Microseconds that the copies take."""
        moved = sum(c.bytes * (SCATTERED if c.scattered else OF_TAPS if c.taps else 1) for c in self.copies)
        return LAUNCH_US + moved / BYTES_PER_US if self.copies else 0.0

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        return tuple(Workspace(c.buffer, c.target.bytes) for c in self.copies)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"prepares {copy}, {copy.target.bytes} bytes of workspace" for copy in self.copies)

    def launches(self) -> tuple[Launch, ...]:
        """The launch that makes the copies, if there are any."""
        kernel = self.kernel
        return (kernel.launch,) if kernel else ()

    def params(self, params: Iterable[Param]) -> tuple[Param, ...]:
        """The main kernel's parameters; copied tensors are replaced by the copies."""
        buffers = {c.target.role: c.buffer for c in self.copies}
        return tuple(p.over(buffers) for p in params)

    @cached_property
    def kernel(self) -> Kernel | None:
        """Finished values for templates/prepare/kernel.cu.j2."""
        if not self.copies:
            return None
        parts = tuple(transpose(copy) or gather(copy) for copy in self.copies)
        return Kernel(f"convgen_{self.problem.name}_prepare", parts, self.dependent)


@lru_cache(maxsize=64)
def channels_last(
    problem: ConvProblem, copy_x: bool = True, copy_w: bool = True, taps_outside: bool = True, group_pack: int = 1,
    loads_pad: bool = False,
) -> Prepared:  # fmt: skip
    """The problem with x as n d h w c, unless `copy_x` is False, and w as k t r s c (or, where it lies so and
    `taps_outside` allows it, t r s k c), unless `copy_w` is, channels a multiple of 16 bytes, `group_pack` neighboring
    groups as one.  For fprop of 2-byte types; groups are served in the packs of `group_packs`.

    Of x, a filter of one tap gets the pixels that it reads, and strides no more.  An x whose padding is not of zeros
    gets it in the copy, whatever `copy_x` says; unless it lies right, and `loads_pad`, as TMA does with NaN.  A slice
    whose pixels begin at multiples of 16 bytes keeps its channels, fewer than the problem's: TMA reads zeros for the
    others, and nothing of what lies there."""
    x, w, sp = problem.x, problem.w, problem.spatial
    if problem.op is not Op.FPROP or {x.element.bytes, w.element.bytes} != {2}:
        return Prepared(problem)
    channels = _whole(problem.c)
    groups = -(-problem.groups // group_pack)
    own_channels = channels if problem.groups == 1 else group_pack * problem.c_per_group
    inside, outside = ("k", *sp.filter, "c"), (*sp.filter, "k", "c")
    w_stays = taps_outside and w.dims[:1] != ("k",) and _in_memory(w, own_channels, outside)
    w = _target(w, outside if w_stays else inside, own_channels, problem.k)
    # of a pack's channels, those of the group that output channel k is of
    own = mod(floordiv(symbol("k"), problem.k_per_group), group_pack) * problem.c_per_group
    copies: list[Copy] = []
    prepared = replace(problem, c=channels, groups=groups)
    if copy_w:
        prepared = replace(prepared, w=w)
        c = symbol("c") - own if group_pack > 1 else symbol("c")
        group = (problem.c_per_group, problem.k_per_group, group_pack) if problem.groups > 1 else (1, 1, 1)
        copies.append(Copy(problem.w, w, c, places=_in_groups(problem), group=group))
    last = ("n", *sp.input, "c")
    pads = problem.padding is not Padding.ZERO and not (loads_pad and _in_memory(x, channels, last))
    if copy_x or pads:
        there = x.extent("c") if not pads and _is_filled_up(problem, last) else channels
        prepared = replace(prepared, x=_target(x, last, there))
        steps: tuple[tuple[str, int], ...] = ()
        if pads:
            prepared = _padded(prepared)
        if pads or not _in_memory(x, there, last):
            prepared, steps = _unstrided(prepared)
        low = tuple(zip(sp.input, problem.pad_lo, strict=True)) if pads else ()
        copies.insert(0, Copy(x, prepared.x, steps=steps, padding=problem.padding, low=low))
    return Prepared(prepared, _needed(copies))


@lru_cache(maxsize=64)
def words_last(problem: ConvProblem) -> Prepared | None:
    """The problem with x as n d h w c and w as k t r s c, channels a multiple of 16 bytes, for fprop of 4-byte types on
    any target; None where an operand does not lie in planes, nor so already."""
    x, w, sp = problem.x, problem.w, problem.spatial
    fits = problem.op is Op.FPROP and {x.element.bytes, w.element.bytes} == {4} and not problem.dynamic
    if not fits or (problem.groups > 1 and problem.c_per_group % 4):
        return None
    channels = -(-problem.c // 4) * 4
    of_x = _target(x, ("n", *sp.input, "c"), channels)
    of_w = _target(w, ("k", *sp.filter, "c"), channels // problem.groups, problem.k)
    copies = _needed((Copy(x, of_x), Copy(w, of_w)))
    if not all(map(transpose, copies)):
        return None
    return Prepared(replace(problem, c=channels, x=of_x, w=of_w), copies, dependent=False)


def _needed(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    """The copies that change anything."""
    return tuple(c for c in copies if c.low or not _in_memory(c.source, c.target.extent("c"), c.target.dims))


@lru_cache(maxsize=64)
def gradient_factors(problem: ConvProblem, lowered: bool = False) -> Prepared:
    """A wgrad with x as n d h w c, with its padding where that is not of zeros, and y as n o p q k; channels a multiple
    of 16 bytes.  For 2-byte types.

    Where rows are `lowered`, a pixel of x has the pixels under a filter row as its channels, one pixel for each of
    y's: the problem is one of filters that are one pixel wide.  For one group, and padding of zeros."""
    sp = problem.spatial
    x, (prepared, of_y) = problem.x, _y_last(problem)
    if lowered:
        of_x = _lowered(problem)
        prepared = _of_one_pixel(replace(prepared, x=of_x.target))
    else:
        prepared = replace(prepared, x=_target(x, ("n", *sp.input, "c"), _whole(x.extent("c"))))
        pads = problem.padding is not Padding.ZERO
        if pads:
            prepared = _padded(prepared)
        low = tuple(zip(sp.input, problem.pad_lo, strict=True)) if pads else ()
        of_x = Copy(x, prepared.x, padding=problem.padding, low=low)
    return Prepared(prepared, _needed((of_x, of_y)))


@lru_cache(maxsize=64)
def gradient_y(problem: ConvProblem) -> Prepared:
    """A wgrad with y as n o p q k, channels a multiple of 16 bytes, and x as it is.  For 2-byte types."""
    prepared, of_y = _y_last(problem)
    return Prepared(prepared, _needed((of_y,)))


def _y_last(problem: ConvProblem) -> tuple[ConvProblem, Copy]:
    """The problem with y's channels innermost, and the copy that makes them so."""
    y, output = problem.y, problem.spatial.output
    source = replace(y, dims=tuple("c" if d == "k" else d for d in y.dims))
    target = _target(source, ("n", *output, "c"), _whole(y.extent("k")))
    return replace(problem, y=replace(target, dims=("n", *output, "k"))), Copy(source, target)


def _lowered(problem: ConvProblem) -> Copy:
    """x, the taps of a filter row as channels."""
    x, dim = problem.x, problem.spatial.input[-1]
    taps = Taps(dim, problem.filter[-1], problem.dilation[-1])
    extents = (problem.n, *problem.input[:-1], problem.output[-1], _whole(taps.count * problem.c))
    target = replace(x, dims=("n", *problem.spatial.input, "c"), extents=extents, pitch=None)
    return Copy(
        x, target, mod(symbol("c"), Integer(problem.c)), steps=((dim, problem.stride[-1]),),
        low=((dim, problem.pad_lo[-1]),), taps=taps,
    )  # fmt: skip


def _of_one_pixel(problem: ConvProblem) -> ConvProblem:
    """The problem of an x that has the taps of a filter row as channels."""

    def last(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:-1], value)

    return replace(
        problem, c=problem.c * problem.filter[-1], input=last(problem.input, problem.output[-1]),
        filter=last(problem.filter, 1), stride=last(problem.stride, 1), dilation=last(problem.dilation, 1),
        pad_lo=last(problem.pad_lo, 0), pad_hi=last(problem.pad_hi, 0),
    )  # fmt: skip


def _whole(channels: int) -> int:
    """Channels, filled up to whole vectors."""
    return -(-channels // VECTOR) * VECTOR


def _padded(problem: ConvProblem) -> ConvProblem:
    """The problem of an x that has its padding in memory."""
    x, extents = problem.x, dict(zip(problem.spatial.input, problem.padded, strict=True))
    x = replace(x, extents=tuple(extents.get(d, e) for d, e in zip(x.dims, x.extents, strict=True)), pitch=None)
    none = (0,) * problem.rank
    return replace(problem, x=x, input=problem.padded, pad_lo=none, pad_hi=none, padding=Padding.ZERO)


def _unstrided(problem: ConvProblem) -> tuple[ConvProblem, tuple[tuple[str, int], ...]]:
    """The problem of the pixels of x that a filter of one tap reads, and the steps between them."""
    dims = problem.spatial.input
    steps = tuple((d, s) for d, s in zip(dims, problem.stride, strict=True) if s > 1)
    if problem.taps > 1 or any((*problem.pad_lo, *problem.pad_hi)) or not steps:
        return problem, ()
    x = problem.x
    kept = dict(zip(dims, problem.output, strict=True))
    x = replace(x, extents=tuple(kept.get(d, e) for d, e in zip(x.dims, x.extents, strict=True)))
    return replace(problem, x=x, input=problem.output, stride=(1,) * problem.rank), steps


def group_packs(problem: ConvProblem, of_c: int = PACK_C, *, fewer: bool = False) -> tuple[int, ...]:
    """How many neighboring groups wgmma may multiply as one, if worth considering; () if it cannot.  A pack's input
    channels are a multiple of `of_c`; the last pack may have `fewer` groups."""
    if problem.groups == 1:
        return (1,)
    c, k = problem.c_per_group, problem.k_per_group
    unit = math.lcm(of_c // math.gcd(of_c, c), PACK_K // math.gcd(PACK_K, k))
    widest = max(unit, min(WIDEST_PACK // c, problem.groups))
    packs = (b for b in range(unit, widest + 1, unit) if fewer or problem.groups % b == 0)
    return tuple(b for b in packs if not _pack_fault(problem, b, of_c))


def _pack_fault(problem: ConvProblem, group_pack: int, of_c: int, backward: bool = False) -> str:
    """Why this many neighboring groups cannot go as one; empty where they can.  Of a convolution that goes `backward`,
    the user calls c output channels."""
    if group_pack > problem.groups:
        return f"group_pack {group_pack} is more than the {plurals.counted(problem.groups, 'group')}"
    c, k = group_pack * problem.c_per_group, group_pack * problem.k_per_group
    if problem.groups > 1 and (c % of_c or k % PACK_K):
        which = f"a pack of {group_pack} groups" if group_pack > 1 else "a group"
        multiples = _numbers(of_c, PACK_K, backward)
        return f"{which} has {_channels(c, k, backward)} channels; they must be multiples of {multiples}"
    return ""


def pack_obstacle(
    problem: ConvProblem, options: Options, of_c: int = PACK_C, *, backward: bool = False
) -> list[Obstacle]:
    """Why a problem's groups cannot be served as they are, nor in the packs that the options ask for."""
    if "group_pack" in options and (fault := _pack_fault(problem, int(options["group_pack"]), of_c, backward)):
        return [Obstacle(fault, option="group_pack")]
    if not group_packs(problem, of_c, fewer=True):
        size = f"{problem.groups} groups of {_channels(problem.c_per_group, problem.k_per_group, backward)} channels"
        return [Obstacle(f"{size}: no group_pack makes them multiples of {_numbers(of_c, PACK_K, backward)}")]
    return []


def _channels(c: int, k: int, backward: bool) -> str:
    """The channels, as text, of a forward convolution, or of the dgrad that it stands for."""
    return f"{k} input and {c} output" if backward else f"{c} input and {k} output"


def _numbers(c: int, k: int, backward: bool) -> str:
    return f"{k} and {c}" if backward else f"{c} and {k}"


@dataclass(frozen=True)
class Group:
    """Input and output channels of groups that are multiplied as one; the last pack may have fewer."""

    c: int
    k: int


def _in_groups(problem: ConvProblem) -> tuple[tuple[str, Expr], ...]:
    """Where w is that of a dgrad with groups (`parts.assignment`): the places of an output channel in its dims."""
    k, each = symbol("k"), Integer(problem.k_per_group)
    return (("g", floordiv(k, each)), ("k_in_group", mod(k, each))) if "g" in problem.w.dims else ()


def _target(tensor: Tensor, order: tuple[str, ...], channels: int, k: int = 1) -> Tensor:
    own = {"c": channels, "k": k}
    extents = tuple(own.get(d, tensor.extent(d)) for d in order)
    pitch = tensor.pitch if _in_memory(tensor, channels, order) else None
    return replace(tensor, dims=order, extents=extents, pitch=pitch)


def _in_memory(tensor: Tensor, channels: int, order: tuple[str, ...]) -> bool:
    """Whether a tensor lies in memory as `order` does, dims of one element aside, and its rows are aligned."""
    aligned = (tensor.pitch or 0) % VECTOR == 0
    return tensor.extent("c") == channels and aligned and lies_as(tensor, order)


def _is_filled_up(problem: ConvProblem, order: tuple[str, ...]) -> bool:
    """Whether x is a slice that TMA reads in place and fills up with zeros: not if a prologue would turn these into
    other values, nor if a group's channels follow another's."""
    x = problem.x
    whole = x.pitch is not None and x.pitch % VECTOR == 0
    return whole and lies_as(x, order) and problem.groups == 1 and problem.prologue is None
