"""The spec that a call writes: one conv block with every extent known."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.functional.pointwise import Step, Sum, read_by_norm
from convgen.ir.problem import OPS, SPATIAL, Op, Padding

#: Dims of each role's tensor by torch's order of axes: batch or filters, channels, then the spatial axes.
_LEADING = {"x": ("n", "c"), "w": ("k", "c"), "y": ("n", "k")}
#: Result types that have a rounding function in the language.
ROUNDED = ("f16", "bf16")
#: What names of operands and of intermediate values begin with.
_NAMES = {"prologue": ("p", "u"), "epilogue": ("a", "t")}
_SPATIAL_OF = {"x": "input", "w": "filter", "y": "output"}


def dims_of(role: str, rank: int) -> tuple[str, ...]:
    """The language's dims of x, w or y in the order of torch's axes, as (n, c, h, w)."""
    return (*_LEADING[role], *getattr(SPATIAL[rank], _SPATIAL_OF[role]))


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a caller has it: torch's shape, the order of those axes in memory, outermost first, and of how many
    channels the innermost ones are a slice."""

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    pitch: int | None = None

    def declaration(self, dims: tuple[str, ...]) -> str:
        """A tensor's declaration in a spec; an operand's dims of extent 1 broadcast and are left out."""
        return f"{self.dtype}[{', '.join(f'{dims[i]}={self.shape[i]}' for i in self.order)}{_of(self.pitch)}]"


@dataclass(frozen=True)
class Operand:
    """A tensor of the epilogue, with one axis an axis of the result: it broadcasts along those that `order` lacks."""

    dtype: str
    order: tuple[int, ...]
    pitch: int | None = None


def _of(pitch: int | None) -> str:
    return f" of {pitch}" if pitch else ""


@dataclass(frozen=True)
class Convolution:
    """The convolution that a call computes.  Spatial tuples are outermost first; y is there for im2col and col2im,
    too."""

    op: Op
    x: TensorSpec
    w: TensorSpec
    y: TensorSpec
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1
    steps: tuple[Step, ...] = ()
    operands: tuple[Operand, ...] = ()
    strategy: str | None = None
    fill: Padding = Padding.ZERO
    options: str = ""  # the strategy's, as a spec writes them
    opening: tuple[Step, ...] = ()  # the steps of the prologue, and its operands
    opening_operands: tuple[Operand, ...] = ()
    sums: tuple[Sum, ...] = ()  # further results, of what the steps make; their operands come last
    bias: bool = False  # of wgrad: the sum of y for each channel is a further result, the bias's gradient
    windows_are_rows: bool = False  # of the lowered matrix of the whole batch, else columns of one for each image

    @property
    def rank(self) -> int:
        return len(self.stride)

    @property
    def text(self) -> str:
        """The spec."""
        axes = SPATIAL[self.rank].input
        lowers = self.op in (Op.IM2COL, Op.COL2IM)
        lines = [
            f"conv {self._name} {{",
            f"  input  x: {self.x.declaration(dims_of('x', self.rank))}",
            f"  filter w: {self._filter_of_lowering() if lowers else self.w.declaration(dims_of('w', self.rank))}",
            f"  lowered m: {self._lowered()}"
            if lowers
            else f"  output y: {self.y.declaration(dims_of('y', self.rank))}",
            "  stride " + " ".join(f"{d}={v}" for d, v in zip(axes, self.stride, strict=True)),
            f"  pad {self._pad()}",
            "  dilation " + " ".join(f"{d}={v}" for d, v in zip(axes, self.dilation, strict=True)),
            f"  groups {self.groups}",
            *self._pointwise("prologue", "x", "x", self.opening, self.opening_operands),
            *self._pointwise("epilogue", OPS[self.op].writes, "acc", self.steps, self.operands, self.sums),
            *(["  epilogue {", f"    result db: {self._sum_type}[k]", "    db = y", "    w = acc", "  }"] * self.bias),
            f"  op {self.op}",
            *([f"  strategy {self.strategy} {{ {self.options} }}"] if self.options else []),
            "}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _sum_type(self) -> str:
        return "f64" if self.x.dtype == "f64" else "f32"

    @property
    def _name(self) -> str:
        """The name that profilers show, such as conv2d_3x3_c64_k128."""
        k, _, *taps = self.w.shape
        return f"conv{self.rank}d_{'x'.join(map(str, taps))}_c{self.x.shape[1]}_k{k}"

    def _pad(self) -> str:
        axes = SPATIAL[self.rank].input
        amounts = " ".join(f"{d}=({low}, {high})" for d, (low, high) in zip(axes, self.pad, strict=True))
        return amounts if self.fill is Padding.ZERO else f"{amounts} {self.fill}"

    def _filter_of_lowering(self) -> str:
        """Its spatial dims alone: im2col and col2im read no filter."""
        dims = SPATIAL[self.rank].filter
        return f"{self.w.dtype}[{', '.join(f'{d}={e}' for d, e in zip(dims, self.w.shape[2:], strict=True))}]"

    def _lowered(self) -> str:
        """[n, c*r*s, p*q], which is the shape of torch's unfold, or [n*p*q, c*r*s]."""
        sp = SPATIAL[self.rank]
        taps, pixels = "*".join(("c", *sp.filter)), "*".join(sp.output)
        return f"{self.x.dtype}[{f'n*{pixels}, {taps}' if self.windows_are_rows else f'n, {taps}, {pixels}'}]"

    def _pointwise(
        self, block: str, tensor: str, value: str, steps: tuple[Step, ...], operands: tuple[Operand, ...],
        sums: tuple[Sum, ...] = (),
    ) -> list[str]:  # fmt: skip
        """Steps from a value to a tensor, whose dims the operands have, and sums of what they make."""
        if not steps and not sums:
            return []
        dims, letter, local = dims_of(tensor, self.rank), *_NAMES[block]
        lines = [
            f"    operand {letter}{i}: {o.dtype}[{', '.join(dims[axis] for axis in o.order)}{_of(o.pitch)}]"
            for i, o in enumerate(operands)
        ]
        lines += [
            f"    result s{i}: {self._sum_type}[{', '.join(dims[not s.of_images : 2])}]" for i, s in enumerate(sums)
        ]
        left = iter(f"{letter}{i}" for i in range(len(operands)))
        for i, step in enumerate(steps):
            name = tensor if i == len(steps) - 1 and not sums else f"{local}{i}"
            read = [next(left) for _ in range(step.operands)]
            lines += [f"    {line}" for line in step.assignments(name, value, read, str(i))]
            value = name
        if any(s.of_images for s in sums) and self.y.dtype in ROUNDED:
            # an image that is flat has no variance then, as where a pass reads what is stored
            lines.append(f"    {local}r = round_{self.y.dtype}({value})")
            value = f"{local}r"
        for i, summed in enumerate(sums):
            read = [f"{letter}{read_by_norm(steps)}"] * summed.of_norm + [next(left) for _ in range(summed.operands)]
            lines.append(f"    s{i} = {summed.expression(value, read)}")
        lines += [f"    {tensor} = {value}"] if sums else []
        return [f"  {block} {{", *lines, "  }"]
