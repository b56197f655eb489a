"""The convolution problem: everything a spec says, with every extent known.

A `ConvProblem` has one operator.  A spec that asks for several gives several problems.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from convgen.diagnostics import ConvgenError
from convgen.ir import dynamic
from convgen.ir.epilogue import Epilogue, Prologue
from convgen.ir.pixels import Padding, coordinates_read
from convgen.ir.size import of_dim
from convgen.ir.tensor import Tensor

SECTOR = 32  #: Bytes that memory moves together.


class Op(enum.StrEnum):
    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    IM2COL = "im2col"
    COL2IM = "col2im"


@dataclass(frozen=True)
class OpRow:
    """Which tensors an operator reads and which it writes, by role."""

    reads: tuple[str, ...]
    writes: str


OPS: dict[Op, OpRow] = {
    Op.FPROP: OpRow(("x", "w"), "y"),
    Op.DGRAD: OpRow(("y", "w"), "x"),
    Op.WGRAD: OpRow(("x", "y"), "w"),
    Op.IM2COL: OpRow(("x",), "lowered"),
    Op.COL2IM: OpRow(("lowered",), "x"),
}


@dataclass(frozen=True)
class SpatialDims:
    """Names of the spatial dims of input, filter and output for one spatial rank, outermost first."""

    input: tuple[str, ...]
    filter: tuple[str, ...]
    output: tuple[str, ...]


#: The loop coordinates that count an input pixel's places in the padded input, by the dim that is padded.
PLACES = {"d": "place_d", "h": "place_h", "w": "place_w"}

SPATIAL: dict[int, SpatialDims] = {
    1: SpatialDims(("w",), ("s",), ("q",)),
    2: SpatialDims(("h", "w"), ("r", "s"), ("p", "q")),
    3: SpatialDims(("d", "h", "w"), ("t", "r", "s"), ("o", "p", "q")),
}


def exchanged_dims() -> dict[str, str]:
    """Each dim of the input under the output's name for it, and the other way round: a convolution seen from behind."""
    pairs = [("c", "k"), *((i, o) for i, o in zip(SPATIAL[3].input, SPATIAL[3].output, strict=True))]
    return dict(pairs) | {o: i for i, o in pairs}


class BadName(ConvgenError):
    """A convolution or an operand, made in Python, has a name that no spec could give it."""


def identifier(name: str) -> str:
    """The name itself where the language and C have it as one, else the nearest that they have."""
    made = re.sub(r"\W+", "_", name, flags=re.ASCII)
    return made if re.match(r"[A-Za-z_]", made) else f"_{made}"


@dataclass(frozen=True)
class ConvProblem:
    """One convolution, all extents known.

    Its name, and those of its operands, are names of the language: its kernels are called by them, and as text it
    is a spec.  Raises BadName.

    Spatial tuples have one entry a spatial axis, outermost first (d, h, w).  `c` and `k` count all
    groups' channels.  `x`, `w`, `y` are the tensors in their memory layouts; w's dim c is c/groups.
    `lowered` is there for im2col and col2im alone.

    `dynamic` are the dims, of n and the input's spatial ones, whose extents a call decides: these, and what follows
    from them, are `Size`s.
    """

    name: str
    op: Op
    n: int
    c: int
    k: int
    input: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_lo: tuple[int, ...]
    pad_hi: tuple[int, ...]
    groups: int
    x: Tensor
    w: Tensor
    y: Tensor
    lowered: Tensor | None = None
    accumulate: str = "f32"
    epilogue: Epilogue | None = None
    padding: Padding = Padding.ZERO  # zero where nothing is padded
    prologue: Prologue | None = None  # of fprop alone
    dynamic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tensors = [(t.role, t.name) for t in (*self.operands, *self.further)]
        for what, name in (("convolution", self.name), *tensors):
            if (near := identifier(name)) != name:
                raise BadName(
                    f"the {what} {name!r} has a name that neither a spec nor a kernel can have\n"
                    f"hint: a name is of ASCII letters, digits and _, and does not start with a digit, such as {near}"
                )
        if self.dynamic:
            vars(self).update(dynamic.resized(self, of_dim))
        if any(t.pitch and t.rows == 1 for t in self._all_tensors):
            vars(self).update(self._changed(lambda t: t.settled))

    @property
    def static(self) -> ConvProblem:
        """The same convolution of the written sizes alone."""
        fields = dynamic.resized(self, lambda size, _: int(size)) if self.dynamic else {}
        return replace(self, dynamic=(), **fields)

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.input)

    @property
    def spatial(self) -> SpatialDims:
        return SPATIAL[self.rank]

    @property
    def c_per_group(self) -> int:
        return self.c // self.groups

    @property
    def k_per_group(self) -> int:
        return self.k // self.groups

    def tensor(self, role: str) -> Tensor:
        """The tensor of a role: x, w, y, lowered, or an operand or a further result by name.  Raises KeyError."""
        found = getattr(self, role) if role in ("x", "w", "y", "lowered") else None
        return found or {t.name: t for t in (*self.operands, *self.further)}[role]

    def __hash__(self) -> int:
        """Hashes only the fields that tell most problems apart: a search looks a problem up thousands of times."""
        return hash((self.op, self.n, self.c, self.k, self.input, self.filter, self.stride, self.groups))

    @cached_property
    def reads(self) -> tuple[Tensor, ...]:
        return tuple(self.tensor(role) for role in OPS[self.op].reads)

    @cached_property
    def result(self) -> Tensor:
        """The operator's."""
        return self.tensor(OPS[self.op].writes)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The operands of the prologue and of the epilogue."""
        return tuple(t for part in (self.prologue, self.epilogue) if part for t in part.operands)

    @property
    def further(self) -> tuple[Tensor, ...]:
        """The results that the epilogue declares."""
        return self.epilogue.results if self.epilogue else ()

    @cached_property
    def results(self) -> tuple[Tensor, ...]:
        """All that a call gives, in order."""
        return (self.result, *self.further)

    @cached_property
    def narrow(self) -> bool:
        """Whether all results have 16 bits or less: functions of the epilogue need few digits beyond those."""
        return all(t.element.bytes <= 2 for t in self.results)

    @property
    def number(self) -> str:
        """The type of values in prologues, epilogues and sums: f64 where that is multiplied, else f32."""
        return "f64" if self.accumulate == "f64" else "f32"

    @cached_property
    def elementwise(self) -> tuple[Tensor, ...]:
        """The further results with a value for each element of the operator's; the others are sums."""
        return tuple(t for t in self.further if t.size == self.result.size and self.like(t) is self.result)

    @cached_property
    def sums(self) -> tuple[Tensor, ...]:
        """The further results that leave out dims, over which they are summed."""
        return tuple(t for t in self.further if t not in self.elementwise)

    def like(self, t: Tensor) -> Tensor:
        """The tensor whose dims an operand or a further result has: the operator's result; the one that it reads and
        that a further result is the sum of; of the prologue's operands, x."""
        if self.prologue and t in self.prologue.operands:
            return self.x
        name = self.epilogue.summed.get(t.name) if self.epilogue and t.role == "result" else None
        return next((read for read in self.reads if read.name == name), self.result)

    @property
    def in_place(self) -> tuple[tuple[str, str], ...]:
        """The operands that may be a result's own array, each with that result: they lie alike, and the result depends
        on the operand, whose element is therefore read before the result's is written."""
        if self.epilogue is None:
            return ()
        reads = self.epilogue.reads
        return tuple(
            (operand.name, result.name)
            for result in self.results
            for operand in self.operands
            if operand.name in reads[result.name] and operand.lies_like(result)
        )

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """All that a call takes, in order."""
        return (*self.reads, *self.operands)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a call takes and gives."""
        return (*self.arguments, *self.results)

    @property
    def padded(self) -> tuple[int, ...]:
        """Extents of the input with its padding."""
        return tuple(lo + e + hi for lo, e, hi in zip(self.pad_lo, self.input, self.pad_hi, strict=True))

    @property
    def places(self) -> dict[str, int]:
        """How many places of the padded input may have a pixel's value, along each axis where several may.

        Padding that mirrors or goes round has one on either side.  Replicated pixels stand at the edge: the first
        or the last has all of the padding beside it."""
        found = {}
        for dim, lo, hi in zip(self.spatial.input, self.pad_lo, self.pad_hi, strict=True):
            if self.padding.repeats and (lo or hi):
                found[PLACES[dim]] = lo + 1 + hi if self.padding is Padding.REPLICATE else 3
        return found

    @property
    def output_pixels(self) -> int:
        return self.n * math.prod(self.output)

    @property
    def taps(self) -> int:
        return math.prod(self.filter)

    @property
    def is_pointwise(self) -> bool:
        return self.taps == 1 and set(self.stride) == {1} and not any((*self.pad_lo, *self.pad_hi))

    @property
    def macs(self) -> int:
        """Multiply-adds, halo included: the field's convention for counting a convolution's work."""
        if self.op in (Op.IM2COL, Op.COL2IM):
            return 0
        return self.output_pixels * self.k * self.taps * self.c_per_group

    @cached_property
    def min_bytes(self) -> int:
        """Least traffic: each tensor once, of an x that is read the pixels that a window has."""
        skipped = self.x.bytes - self._bytes_in_windows() if "x" in OPS[self.op].reads else 0
        return sum(t.bytes for t in self.tensors) - skipped

    def _bytes_in_windows(self) -> int:
        """Bytes of x in windows.  Neighbors along an axis that share a sector arrive together."""
        read = self.x.bytes
        axes = (self.spatial.input, self.input, self.output, self.filter, self.stride, self.dilation, self.pad_lo)
        for dim, extent, *window in zip(*axes, strict=True):
            if self.x.stride(dim) * self.x.element.bytes >= SECTOR:
                read = read // extent * coordinates_read(self.padding, extent, *window)
        return read

    def with_images(self, n: int) -> ConvProblem:
        """The same convolution of n images; this one has several."""

        def resized(tensor: Tensor) -> Tensor:
            extents = tuple(n if d == "n" and e != 1 else e for d, e in zip(tensor.dims, tensor.extents, strict=True))
            return replace(tensor, extents=extents)

        lowered = resized(self.lowered) if self.lowered else None
        return replace(self, n=n, lowered=lowered, **self._changed(resized))

    @property
    def packed(self) -> ConvProblem:
        """The same convolution of packed tensors."""
        if not any(t.pitch for t in self._all_tensors):
            return self
        return replace(self, **self._changed(lambda t: replace(t, pitch=None)))

    @property
    def _all_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that may be slices."""
        return (self.x, self.w, self.y, *self.operands, *self.further)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The fields that have changed with all of these tensors."""
        prologue, epilogue = self.prologue, self.epilogue
        if prologue:
            prologue = replace(prologue, operands=tuple(map(change, prologue.operands)))
        if epilogue:
            operands, results = (tuple(map(change, tensors)) for tensors in (epilogue.operands, epilogue.results))
            epilogue = replace(epilogue, operands=operands, results=results)
        x, w, y = map(change, (self.x, self.w, self.y))
        return {"x": x, "w": w, "y": y, "prologue": prologue, "epilogue": epilogue}

    def extent(self, dim: str) -> int:
        """Extent of a dim by name; c and k count all groups, g is the number of groups."""
        return self._extents[dim]

    @cached_property
    def _extents(self) -> dict[str, int]:
        sp = self.spatial
        table = {"n": self.n, "c": self.c, "k": self.k, "g": self.groups}
        table |= dict(zip(sp.input, self.input, strict=True))
        table |= dict(zip(sp.filter, self.filter, strict=True))
        table |= dict(zip(sp.output, self.output, strict=True))
        return table | self.places

    def __str__(self) -> str:
        """The canonical spec: parses back to this problem (strategy and target apart)."""
        sp = self.spatial

        def axes(keyword: str, values: list[str]) -> str:
            return f"  {keyword} " + " ".join(f"{d}={v}" for d, v in zip(sp.input, values, strict=True))

        lines = [f"conv {self.name} {{", f"  input {self.x}", f"  filter {self.w}", f"  output {self.y}"]
        if self.lowered:
            lines.append(f"  lowered {self.lowered}")
        if self.dynamic:
            lines.append(f"  dynamic {' '.join(self.dynamic)}")
        lines.append(axes("stride", [str(v) for v in self.stride]))
        fill = "" if self.padding is Padding.ZERO else f" {self.padding}"
        lines.append(axes("pad", [f"({a},{b})" for a, b in zip(self.pad_lo, self.pad_hi, strict=True)]) + fill)
        lines.append(axes("dilation", [str(v) for v in self.dilation]))
        lines.append(f"  groups {self.groups}")
        lines.append(f"  accumulate {self.accumulate}")
        if self.prologue:
            lines.append("  prologue {")
            lines += [f"    operand {t}" for t in self.prologue.operands]
            lines += [f"    {a}" for a in self.prologue.body]
            lines.append("  }")
        if self.epilogue:
            lines.append("  epilogue {")
            lines += [f"    operand {t}" for t in self.epilogue.operands]
            lines += [f"    result {t}" for t in self.epilogue.results]
            lines += [f"    {a}" for a in self.epilogue.body]
            lines.append("  }")
        lines.append(f"  op {self.op}")
        lines.append("}")
        return "\n".join(lines)

    @property
    def digest(self) -> str:
        """Hexadecimal digest of the canonical spec."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]
