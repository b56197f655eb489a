"""The plan: what a strategy decided, and everything that running its kernels takes.

A strategy turns a `ConvProblem` into a `Plan`; a `Plan` and its rendered source are all that the
compiler, the launcher, the emulator and the manifest need.  The records are plain data (`to_json` and
`from_json` of `runtime.manifest`), so that a cached kernel runs without sympy, lark or jinja2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod

from convgen.ir.dynamic import varying
from convgen.ir.estimates import Estimates, SizeClass
from convgen.ir.problem import ConvProblem
from convgen.ir.size import Size, evaluate
from convgen.tables import Table
from convgen.targets import Target


@dataclass(frozen=True)
class TensorMap:
    """A tensor map's fields, as the driver takes them (CUDA driver API, cuTensorMapEncodeTiled/Im2col).

    `buffer` names the tensor (its role or operand name) or the workspace that the map is over.  Arrays
    run from the innermost dim outwards.  `strides` are in bytes, for dims[1:].  A tiled map has `box`;
    an im2col map has `lower` and `upper` (spatial corners, w first), `channels` and `pixels`.
    """

    buffer: str
    mode: str  # "tiled" | "im2col"
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    element_strides: tuple[int, ...]
    box: tuple[int, ...] = ()
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    channels: int = 0
    pixels: int = 0
    swizzle: int = 0  # bytes: 0, 32, 64, 128
    l2_promotion: int = 128  # bytes that L2 fetches together at least: 0, 64, 128, 256
    fill: str = "zero"  # "zero" | "nan"

    def __str__(self) -> str:
        """The tensor that TMA walks and the box that it loads, innermost dim first."""
        extents = " x ".join(map(str, self.dims))
        if self.mode == "im2col":
            corners = [" ".join(map(str, corner)) for corner in (self.lower, self.upper)]
            box = f"boxes of {self.channels} channels by {self.pixels} pixels between corners {' and '.join(corners)}"
            strides = self.element_strides[1:-1]
        else:
            box = f"boxes of {' x '.join(map(str, self.box))}"
            strides = self.element_strides
        every = f", every {' '.join(map(str, strides))}" if set(strides) != {1} else ""
        swizzle = f", {self.swizzle}-byte swizzle" if self.swizzle else ""
        return f"{self.buffer} of {extents} {self.dtype}, {self.mode}: {box}{every}{swizzle}"


@dataclass(frozen=True)
class Param:
    """A kernel parameter: the address of a buffer, a tensor map over it, or a 32-bit integer.

    The address must be a multiple of `alignment` bytes: 16 suits tensor maps and every vector load; a
    kernel that loads single elements may ask for less.
    """

    name: str
    kind: str  # "pointer" | "tensor_map" | "int"
    buffer: str = ""
    map: TensorMap | None = None
    value: int = 0
    alignment: int = 16

    def over(self, buffers: Mapping[str, str]) -> Param:
        """The same parameter over another buffer, and its map, where `buffers` names one for its own."""
        if self.buffer not in buffers:
            return self
        name = buffers[self.buffer]
        return replace(self, buffer=name, map=self.map and replace(self.map, buffer=name))


@dataclass(frozen=True)
class Launch:
    """One kernel launch.  A persistent kernel has `grid` tiles of work and as many blocks as the GPU
    holds at `blocks_per_sm` (a multiple of the cluster and of `multiple_of`, at least one), never more
    than tiles."""

    entry: str
    grid: tuple[int, int, int]
    block: int
    params: tuple[Param, ...]
    shared_bytes: int = 0
    cluster: int = 1
    persistent: bool = False
    blocks_per_sm: int = 1
    multiple_of: int = 1  # a persistent kernel's blocks come in multiples of this
    dependent: bool = False  # launch with programmatic stream serialization
    spread_bytes: int = 0  # of shared memory that a launch asks for where multiprocessors shall hold one block each

    @property
    def most_bytes(self) -> int:
        """The most shared memory, in bytes, that a launch requests."""
        return max(self.shared_bytes, self.spread_bytes)

    def __str__(self) -> str:
        blocks = f"block{'s' if self.persistent or prod(self.grid) > 1 else ''} of {self.block} threads"
        if self.persistent:
            parts = [f"{blocks}, persistent, {self.blocks_per_sm} per SM, and no more than {prod(self.grid)}"]
        else:
            parts = [f"{' x '.join(map(str, self.grid)).removesuffix(' x 1').removesuffix(' x 1')} {blocks}"]
        if self.multiple_of > 1:
            parts.append(f"in multiples of {self.multiple_of}")
        if self.cluster > 1:
            parts.append(f"in clusters of {self.cluster}")
        if self.shared_bytes:
            spread = f", or {self.spread_bytes} where blocks are few" if self.spread_bytes else ""
            parts.append(f"{self.shared_bytes} bytes of shared memory{spread}")
        return f"{self.entry}: {', '.join(parts)}"


@dataclass(frozen=True)
class Gemm:
    """C = A B + beta C in row-major terms, through cuBLAS; a batch where `batch` > 1.

    a is m x k (k x m in memory where `trans_a`), b is k x n (n x k where `trans_b`).  Offsets and
    strides are in elements.
    """

    a: str
    b: str
    c: str
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    lda: int
    ldb: int
    ldc: int
    dtype: str
    c_dtype: str
    offset_a: int = 0
    offset_b: int = 0
    offset_c: int = 0
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    batch: int = 1
    beta: float = 0.0

    def __str__(self) -> str:
        batch = f", {self.batch} of them" if self.batch > 1 else ""
        return f"matrix product {self.c} = {self.a} {self.b}: {self.m} x {self.n} x {self.k}{batch}"


@dataclass(frozen=True)
class Fill:
    """Set a buffer's bytes to zero (before an atomic scatter, say)."""

    buffer: str

    def __str__(self) -> str:
        return f"fill {self.buffer} with zeros"


@dataclass(frozen=True)
class Workspace:
    name: str
    bytes: int


@dataclass(frozen=True)
class Limit:
    """A limit on a number that follows from a call's sizes, which a kernel counts in 32 bits, or hardware bounds."""

    what: str  # such as "elements of x"
    size: Size
    most: int


def most_images(limits: Sequence[Limit], sizes: Mapping[str, int]) -> int:
    """How many images of these sizes the limits allow, of an int."""

    def exceeded(n: int) -> bool:
        return any(evaluate(limit.size.formula, {**sizes, "n": n}) > limit.most for limit in limits)

    return bisect_left(range(1 << 31), True, lo=1, key=exceeded) - 1


Step = Launch | Gemm | Fill


def stated(options: Mapping[str, int | str]) -> str:
    """Options as a strategy block states them: `tile m=128 n=64  stages 4`."""
    said: dict[str, list[str]] = {}
    for name, value in options.items():
        group, _, member = name.partition(".")
        said.setdefault(group, []).append(f"{member}={value}" if member else str(value))
    return "  ".join(f"{name} {' '.join(values)}" for name, values in said.items())


@dataclass(frozen=True)
class Plan:
    """A strategy's decisions for one problem on one target.

    `config` is the strategy's own frozen record (tile, stages, ...), readable through str().
    `steps` run in order on one stream.  `reason` says in one line why this plan was chosen.  `arithmetic`
    names the row of `ir.verify.ARITHMETIC` that bounds the result's rounding; empty, that of its types.
    `us` is the cost model's estimate, 0 where there is none.
    `kernel` made the plan, from `layout`: its own record of what follows from problem and configuration.
    `behind` is the source of launches that follow the kernel's own; it is set where a plan is rendered.
    `limits` are those of the sizes that a call decides, `estimates` the cost model's where it decides how many images.
    """

    problem: ConvProblem
    target: Target
    strategy: str
    config: object
    steps: tuple[Step, ...]
    workspaces: tuple[Workspace, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = field(default=())
    arithmetic: str = ""
    kernel: str = ""
    us: float = field(default=0.0, compare=False)
    layout: object = field(default=None, compare=False, repr=False)
    behind: str = field(default="", compare=False, repr=False)
    limits: tuple[Limit, ...] = ()
    estimates: Estimates = field(default=(), compare=False, repr=False)

    @property
    def options(self) -> dict[str, int | str]:
        """The options of a strategy block that requests exactly this plan."""
        said = dict(getattr(self.config, "options", {}))
        return {"kernel": self.kernel, **said} if self.kernel not in ("", self.strategy) else said

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The plan as a table, without its workspaces."""
        found = [("strategy", self.strategy), ("configuration", self.configuration)]
        options = stated(self.options)
        found += [("all options", options)] if options not in ("", self.configuration) else []
        found += [("reason", self.reason)] if self.reason else []
        found += [("note", n) for n in self.notes]
        return *found, *((f"step {i}", str(s)) for i, s in enumerate(self.steps, 1))

    def __str__(self) -> str:
        return str(self._table)

    def _repr_html_(self) -> str:
        return self._table._repr_html_()

    @property
    def _table(self) -> Table:
        rows = [*self.rows, *(("workspace", f"{w.name}, {w.bytes:,} bytes") for w in self.workspaces)]
        return Table(f"Plan of {self.problem.name} for {self.target}", ("", ""), tuple(rows))

    @property
    def configuration(self) -> str:
        """The configuration as a strategy block says it, with the kernel where the strategy has several."""
        return f"kernel {self.kernel}  {self.config}" if self.kernel not in ("", self.strategy) else str(self.config)

    def launch(self, part: str = "") -> Launch:
        """The main launch, or the one of a part, such as prepare or finish."""
        entry = f"convgen_{self.problem.name}" + (f"_{part}" if part else "")
        return next(launch for launch in self.launches if launch.entry == entry)

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(s for s in self.steps if isinstance(s, Launch))

    @property
    def size_class(self) -> SizeClass:
        """The plan's size class, if it is one of several plans for different numbers of images."""
        sizes = {dim: self.problem.extent(dim) for dim in varying(self.problem)}
        return SizeClass(self.estimates, most_images(self.limits, sizes))

    @property
    def workspace_bytes(self) -> int:
        return sum(w.bytes for w in self.workspaces)


def launch_grid(launch: Launch, sms: int, clusters: int | None = None) -> tuple[int, int, int]:
    """Blocks to launch on a GPU of that many multiprocessors, which places `clusters` of the kernel at once (by
    default, as many as there is room for: but a cluster stays in one GPC, and these may have no multiple of it)."""
    if not launch.persistent:
        return launch.grid
    unit = lcm(launch.cluster, launch.multiple_of)
    room = sms * launch.blocks_per_sm
    if clusters is not None:
        room = min(room, clusters * launch.cluster)
    blocks = min(room, prod(launch.grid)) // unit * unit
    return max(blocks, unit), 1, 1


#: Of the multiprocessors, what a launch fills at least that is spread over them; fewer blocks find free ones, but not
#: behind another launch of the plan, which prepares copies on all of them.
SPREAD_FROM = 0.3


def launch_bytes(launch: Launch, blocks: int, sms: int, behind: bool = False) -> int:
    """Shared memory of a launch of so many blocks on a GPU of that many multiprocessors; whether it is `behind` another
    one of its plan.

    With dependent launch, blocks begin while those of the kernel before still fill most multiprocessors, and crowd on
    the free ones, unless one leaves no room for another (docs/decisions/dependent_launch.md).
    """
    few = (0 if behind else SPREAD_FROM * sms) <= blocks < sms
    return max(launch.shared_bytes, launch.spread_bytes) if few else launch.shared_bytes
