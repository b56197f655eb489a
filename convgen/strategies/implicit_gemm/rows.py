"""Few channels: whole input rows in shared memory, taps merged along them.

Where a pixel has 3 channels, a tap is too short a run for 16-byte chunks, but a window's row is one run of
S * C contiguous elements (the multi-tile idea of "Characterizing and Demystifying the Implicit Convolution
Algorithm on Commercial Matrix-Multiplication Accelerators", section IV-B, along the row alone).  A block
copies the rows that its output pixels need, once, as they lie in memory; every lane then reads the 32-bit
words of its fragments straight from its pixel's window, so that nothing is lowered and nothing is loaded
twice.  Filters stay in shared memory for all of a block's tiles, dealt out as fragments want them.

A window begins anywhere, a word on a multiple of 4 bytes.  Windows that begin `shift` elements into a word
read filters that are shifted by as much: output columns fall into `phases` classes of equal shift, and each
warp works on one class.  With channels in planes (NCHW) a run is S elements of one channel's row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sympy import Integer

from convgen.codegen.render import render
from convgen.ir.integer import floordiv, mod, symbol
from convgen.ir.plan import Launch, Plan
from convgen.ir.problem import ConvProblem
from convgen.strategies import lowering
from convgen.strategies.base import Obstacle, Options
from convgen.strategies.elementwise import Pointer, operand_pointers, window_formulas
from convgen.strategies.implicit_gemm import output
from convgen.strategies.implicit_gemm.mma import CHUNK_BYTES, COLUMNS, K_BYTES, MMAS, ROWS, Mma, maths
from convgen.strategies.implicit_gemm.reader import LEAST_ASYNC_BYTES, advance
from convgen.strategies.implicit_gemm.walk import Digit, loop_map, number
from convgen.targets import Target

WARP = 32
WORD = 4
#: Filters and patches of a block take at most this much of a multiprocessor's shared memory.
MOST_SHARED = 200 * 1024


@dataclass(frozen=True)
class RowsConfig:
    """Output pixels of a warp, output channels of a tile, warps, patches in shared memory, arithmetic,
    blocks a multiprocessor."""

    warp_m: int
    n: int
    warps: int
    stages: int
    math: str
    blocks: int

    @property
    def m(self) -> int:
        return self.warp_m * self.warps

    @property
    def options(self) -> Options:
        """What a spec's strategy block would say."""
        said: dict[str, int | str] = {
            "kernel": "rows",
            "tile.m": self.m,
            "tile.n": self.n,
            "warps.m": self.warps,
            "stages": self.stages,
            "blocks": self.blocks,
        }
        return {**said, "math": self.math} if self.math else said

    def __str__(self) -> str:
        math_ = f", {self.math}" if self.math else ""
        return (
            f"rows: tile {self.m}x{self.n}, {self.warps} warps, {self.stages} patch{'es' if self.stages > 1 else ''}"
            f"{math_}, {self.blocks} block{'s' if self.blocks > 1 else ''} a multiprocessor"
        )


@dataclass(frozen=True)
class Window:
    """How a window's elements lie in x's rows.

    A line is a contiguous stretch of x: an input row, or with planes one channel's row.  A window takes a
    run of `run` elements from each of `lines` lines; neighbouring pixels are `pixel` elements apart.
    """

    planes: bool
    lines: int
    run: int
    pixel: int


def window(problem: ConvProblem) -> Window | None:
    """None where a window's rows are no runs."""
    x = problem.x
    s, r = problem.filter[-1], math.prod(problem.filter[:-1])
    if problem.rank > 2 or problem.groups > 1 or (s > 1 and problem.dilation[-1] > 1):
        return None
    c = problem.c
    inner = (x.stride("w") if x.extent("w") > 1 else c, x.stride("c") if c > 1 else 1)
    if inner == (c, 1):
        return Window(False, r, s * c, c)
    if x.extent("w") > 1 and x.stride("w") == 1:
        return Window(True, c * r, s, 1)
    return None


@dataclass(frozen=True)
class Layout:
    """What follows from a problem and a configuration.  Sizes in elements or bytes, as their names say."""

    problem: ConvProblem
    config: RowsConfig

    @cached_property
    def window(self) -> Window:
        found = window(self.problem)
        assert found
        return found

    @property
    def element_bytes(self) -> int:
        return self.problem.x.element.bytes

    @property
    def per_word(self) -> int:
        return WORD // self.element_bytes

    @property
    def stride(self) -> int:
        return self.problem.stride[-1]

    @property
    def step(self) -> int:
        """Elements from one output column's window to the next one's."""
        return self.stride * self.window.pixel

    @property
    def phases(self) -> int:
        return self.per_word // math.gcd(self.per_word, self.step)

    @property
    def margin_bytes(self) -> int:
        """Zeros before a line, for padding; a whole number of vectors."""
        before = self.problem.pad_lo[-1] * self.window.pixel * self.element_bytes
        return -(-before // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def first_bytes(self) -> int:
        """Where in a line the window of output column 0 begins."""
        return self.margin_bytes - self.problem.pad_lo[-1] * self.window.pixel * self.element_bytes

    def shift(self, phase: int) -> int:
        """Elements from a word's start to where the windows of a phase begin."""
        return (self.first_bytes // self.element_bytes + phase * self.step) % self.per_word

    @property
    def run_words(self) -> int:
        longest = max(self.shift(p) for p in range(self.phases)) + self.window.run
        return -(-longest // self.per_word)

    @property
    def words(self) -> int:
        return self.window.lines * self.run_words

    @property
    def k_steps(self) -> int:
        return -(-self.words // (K_BYTES // WORD))

    # --- output pixels: tiles of each image's pixels, its rows padded to a multiple of the phases

    @property
    def q(self) -> int:
        return self.problem.output[-1]

    @property
    def p(self) -> int:
        return math.prod(self.problem.output[:-1])

    @property
    def padded_q(self) -> int:
        return -(-self.q // self.phases) * self.phases

    @property
    def image_tiles(self) -> int:
        return -(-self.p * self.padded_q // self.config.m)

    @property
    def tiles(self) -> int:
        return self.problem.n * self.image_tiles

    @property
    def n_tiles(self) -> int:
        return -(-self.problem.k // self.config.n)

    # --- the patch: the lines that a tile needs

    @property
    def row_stride(self) -> int:
        return self.problem.stride[0] if self.problem.rank == 2 else 1

    @property
    def row_dilation(self) -> int:
        return self.problem.dilation[0] if self.problem.rank == 2 else 1

    @property
    def row_pad(self) -> int:
        return self.problem.pad_lo[0] if self.problem.rank == 2 else 0

    @property
    def height(self) -> int:
        return self.problem.input[0] if self.problem.rank == 2 else 1

    @property
    def filter_rows(self) -> int:
        return self.problem.filter[0] if self.problem.rank == 2 else 1

    @cached_property
    def patch_rows(self) -> int:
        """Most input rows that a tile's windows span."""
        m, q = self.config.m, self.padded_q
        spans = []
        for tile in range(min(self.image_tiles, q // math.gcd(m, q))):  # then tiles start where they did before
            first = tile * m // q
            last = min((tile + 1) * m - 1, self.p * q - 1) // q
            spans.append(last - first)
        return max(spans) * self.row_stride + (self.filter_rows - 1) * self.row_dilation + 1

    @property
    def patch_lines(self) -> int:
        return self.patch_rows * (self.problem.c if self.window.planes else 1)

    @property
    def line_elements(self) -> int:
        return self.problem.input[-1] * self.window.pixel

    @property
    def pitch(self) -> int:
        """Bytes of a line in shared memory."""
        last = (self.padded_q - 1) * self.step * self.element_bytes + self.first_bytes
        read = last // WORD * WORD + self.run_words * WORD
        return -(-max(read, self.margin_bytes + self.line_elements * self.element_bytes) // CHUNK_BYTES) * CHUNK_BYTES

    @property
    def patch_bytes(self) -> int:
        return self.patch_lines * self.pitch

    @property
    def vector(self) -> int:
        """Elements of one copy to shared memory."""
        x = self.problem.x
        strides = [x.stride(d) for d in ("n", "h", "c") if x.stride(d) > 1 and x.extent(d) > 1]
        vector = math.gcd(self.line_elements, CHUNK_BYTES // self.element_bytes, *strides)
        return vector if vector * self.element_bytes >= LEAST_ASYNC_BYTES else 1

    @property
    def asynchronous(self) -> bool:
        return self.vector * self.element_bytes >= LEAST_ASYNC_BYTES

    # --- shared memory

    @property
    def phase_filter_bytes(self) -> int:
        return self.k_steps * self.config.n * K_BYTES

    @property
    def filter_bytes(self) -> int:
        return self.phases * self.phase_filter_bytes

    @property
    def table_bytes(self) -> int:
        return self.phases * self.k_steps * 4 * CHUNK_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.filter_bytes + self.table_bytes + self.config.stages * self.patch_bytes

    # --- the product

    @cached_property
    def columns(self) -> output.Columns:
        return output.columns(self.problem)

    @cached_property
    def run(self) -> int:
        return output.run_length(self.problem, self.columns, self.config.n)

    @property
    def mma(self) -> Mma:
        return MMAS[self.problem.x.dtype, self.config.math]

    @property
    def multiply(self) -> str:
        """The PTX function: rows by columns."""
        factors = (self.problem.x.dtype, self.problem.w.dtype)
        return self.mma.function(*factors)

    @property
    def threads(self) -> int:
        return WARP * self.config.warps


def choose(problem: ConvProblem, target: Target, options: Options) -> RowsConfig | None:
    """The configuration that `options` fix, the rest by estimate; None where none fits."""
    return next(iter(candidates(problem, target, options)), None)


def candidates(problem: ConvProblem, target: Target, options: Options) -> list[RowsConfig]:
    """Configurations that run and that `options` allow, the most promising first."""
    if window(problem) is None:
        return []
    fitting = [c for c in _configs(problem, options) if not _unfit(Layout(problem, c), target)]
    return sorted(fitting, key=lambda c: cycles(problem, target, c))


def _configs(problem: ConvProblem, options: Options) -> Iterator[RowsConfig]:
    math_ = str(options.get("math", maths(problem.x.dtype)[0]))
    n = int(options.get("tile.n", min(-(-problem.k // 16) * 16, 128)))
    if problem.k > 128 and "tile.n" not in options:
        n = next(t for t in (96, 112, 128, 64) if t == 64 or -(-problem.k // t) * t - problem.k < 16)
    for warp_m in (64, 48, 32, 16):
        for warps in (4, 8, 2):
            for stages in (2, 1):
                config = RowsConfig(warp_m, n, warps, stages, math_, 1)
                if "tile.m" in options and config.m != options["tile.m"]:
                    continue
                if "warps.m" in options and warps != options["warps.m"]:
                    continue
                if "stages" in options and stages != options["stages"]:
                    continue
                layout = Layout(problem, config)
                for blocks in (int(options["blocks"]),) if "blocks" in options else _blocks(layout):
                    yield RowsConfig(warp_m, n, warps, stages, math_, blocks)


def _registers(layout: Layout) -> int:
    """An estimate of the registers a thread needs."""
    c = layout.config
    return c.warp_m * c.n // WARP + (c.warp_m // 4 + c.n // 4) * (2 if c.math == "tf32x3" else 1) + c.warp_m // 8 + 44


def _blocks(layout: Layout) -> tuple[int, ...]:
    most = 65536 // (layout.threads * (-(-_registers(layout) // 8) * 8))
    return tuple(b for b in (4, 3, 2, 1) if b <= most)


def _unfit(layout: Layout, target: Target) -> str:
    """Why a configuration cannot run; empty where it can."""
    c = layout.config
    if c.warps % layout.phases:
        return f"{c.warps} warps do not split into {layout.phases} classes of columns"
    if c.blocks * (layout.shared_bytes + 1024) > target.shared_bytes_per_sm:
        return f"filters and patches take {layout.shared_bytes} bytes of shared memory, {c.blocks} times"
    if c.warp_m * c.n > 64 * 64:
        return f"a warp's part of {c.warp_m}x{c.n} does not fit its registers"
    return ""


def cycles(problem: ConvProblem, target: Target, config: RowsConfig) -> float:
    """Estimated time: rounds of tiles, each bound by the tensor cores, by shared memory or by traffic."""
    layout, c = Layout(problem, config), config
    products = 1.7 * c.warp_m // ROWS * (c.n // COLUMNS) * c.warps * (2 if layout.element_bytes == 4 else 1)
    reads = c.warps * (c.warp_m // 4 + c.n // 4 + 2)
    busy = min(1.0, 0.3 + 0.1 * c.warps * c.blocks)
    compute = layout.k_steps * max(products, reads) / busy
    stores = c.m * c.n * layout.problem.y.element.bytes / 18
    copies = layout.patch_bytes / 32
    overlap = compute + 400 if c.stages * c.blocks > 1 else compute + copies + 1500
    tile = max(overlap, stores + copies)
    slots = target.sms * c.blocks
    rounds = -(-layout.tiles * layout.n_tiles // slots)
    setup = layout.filter_bytes / (layout.threads * 4) * 60
    return rounds * tile * min(c.blocks, -(-layout.tiles // target.sms)) + setup


def obstacles(problem: ConvProblem, target: Target, options: Options) -> list[Obstacle]:
    found = []
    if window(problem) is None:
        found.append(
            Obstacle(
                f"a window's row is not contiguous in {problem.x.name}, or there are groups or three spatial dims",
                "kernel gather serves it",
                "kernel",
            )
        )
        return found
    order = tuple(d for d in output.pixel_dims(problem) if d in problem.y.dims)
    if order != tuple(d for d in ("n", *problem.spatial.output) if d in problem.y.dims):
        found.append(Obstacle(f"{problem.y.name}'s pixels lie in the order {' '.join(order)}", "n p q", "kernel"))
    if output.columns(problem).role == "pixels":
        found.append(Obstacle(f"channels are not innermost in {problem.y.name}", "kernel gather serves it", "kernel"))
    if choose(problem, target, options) is None:
        found.append(
            Obstacle(
                f"filters of {problem.c} channels and {problem.taps} taps, and the rows they need, do not fit shared "
                "memory with these options",
                "kernel gather serves it",
                "kernel",
            )
        )
    return found


def serves_well(problem: ConvProblem, target: Target, options: Options) -> bool:
    """Whether this kernel is the default: taps too short for whole chunks, windows long enough to merge."""
    found = window(problem)
    if found is None or problem.taps == 1:
        return False
    chunk = CHUNK_BYTES // problem.x.element.bytes
    return problem.c < chunk and not obstacles(problem, target, options)


def plan(problem: ConvProblem, target: Target, options: Options, name: str) -> Plan:
    config = choose(problem, target, options)
    assert config
    layout = Layout(problem, config)
    launch = Launch(
        f"convgen_{problem.name}",
        (layout.tiles * layout.n_tiles, 1, 1),
        layout.threads,
        tuple(p.param for p in _pointers(problem)),
        layout.shared_bytes,
        persistent=True,
        blocks_per_sm=config.blocks,
        multiple_of=layout.n_tiles,
    )
    return Plan(problem, target, name, config, (launch,))


def _pointers(problem: ConvProblem) -> list[Pointer]:
    return [
        Pointer("x", problem.x.dtype, "x"),
        Pointer("w", problem.w.dtype, "w"),
        Pointer("y", problem.y.dtype, "y", written=True),
        *operand_pointers(problem),
    ]


def source(plan_: Plan) -> str:
    problem, config = plan_.problem, plan_.config
    assert isinstance(config, RowsConfig)
    layout = Layout(problem, config)
    element = problem.x.element
    bits_type = element.c_type if element.is_float and element.bytes < WORD else output.ACCESS[element.bytes]
    along, run = layout.columns, layout.run
    index = lowering.index_type(problem, (layout.tiles * config.m,))
    maps = output.product_map(problem)
    result = output.result(problem, maps, along, along.index, run, layout.mma.accumulator, index != "int")
    copies = layout.line_elements // layout.vector
    digits = [
        *([Digit("c", problem.c, 0)] if layout.window.planes else []),
        Digit("row", layout.patch_rows, 0),
        Digit("vector", copies, 0),
    ]
    digits = [d for i, d in enumerate(digits) if i == 0 or d.extent > 1 or d.name != "c"]
    return render(
        "implicit_gemm/rows.cu.j2",
        plan_,
        config=config,
        layout=layout,
        window=layout.window,
        launch=plan_.launches[0],
        formulas=window_formulas(problem),
        pointers=_pointers(problem),
        index=index,
        bits_type=bits_type,
        run=run,
        column_of=output.column_of(run),
        accumulator=lowering.ACCUMULATORS[layout.mma.accumulator].c_type,
        result=result,
        copies=copies,
        next_copy=advance(digits, number(digits, layout.threads)),
        x_offset=_x_offset(problem, layout),
        w_offset=_w_offset(problem, layout),
    )


def _x_offset(problem: ConvProblem, layout: Layout) -> str:
    """C text of a vector's offset in x, from image, c (of planes), h and vector."""
    x = problem.x
    terms = [("image", x.stride("n")), ("h", x.stride("h")), ("vector", layout.vector)]
    if layout.window.planes:
        terms.insert(1, ("c", x.stride("c")))
    return " + ".join(name if step == 1 else f"{name} * {step}" for name, step in terms if step)


def _w_offset(problem: ConvProblem, layout: Layout) -> str:
    """C text of a filter element's offset in w, from channel `k`, `line` and `at` in the run."""
    maps = loop_map(problem)
    scope = lowering.Scope("int")
    k = scope.declare("k", problem.k)
    line = scope.declare("line", layout.window.lines)
    at = scope.declare("at", layout.window.run)
    rows = Integer(layout.filter_rows)
    if layout.window.planes:
        values = {"c_in_group": floordiv(line, rows), "r": mod(line, rows), "s": at}
    else:
        c = Integer(problem.c)
        values = {"c_in_group": mod(at, c), "s": floordiv(at, c), "r": line}
    values["k_in_group"] = k
    offset = maps.offset("w").subs({symbol(name): e for name, e in values.items()}, simultaneous=True)
    return scope.text(offset)


CONFIG = RowsConfig
