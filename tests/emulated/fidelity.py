"""Random TMA loads, TMA stores and wgmma tiles, the kernels that try them, and the digests of what comes out.

The same source and the same inputs go to a GPU (benchmarks/record_fidelity.py) and to the emulator
(test_emulator_fidelity.py).  Every input is a function of the case alone, so that a digest is all that need
be kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from random import Random
from typing import Any

import numpy as np
from handwritten import KERNELS, launch, whole_source

from convgen import emulator
from convgen.ir.dtypes import DTYPES, numpy_dtype
from convgen.ir.plan import TensorMap

# ---- inputs --------------------------------------------------------------------------------------


def noise(seed: int, count: int) -> np.ndarray:
    """Random 64-bit words, the same for ever (splitmix64)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def digest(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


# ---- TMA -----------------------------------------------------------------------------------------

WINDOW = 32768
#: What the window holds before the load.
PATTERN = 0xA5
TMA_SHARED = 1024 + WINDOW + 8


@dataclass(frozen=True)
class TmaCase:
    """A map, the coordinates (innermost first), for im2col a tap's offsets, and where in the window the box goes."""

    map: TensorMap
    coords: tuple[int, ...]
    offsets: tuple[int, ...]
    destination: int
    seed: int

    @property
    def rank(self) -> int:
        return len(self.map.dims)

    @property
    def entry(self) -> str:
        return f"{self.map.mode}_{self.rank}d"

    @property
    def rows(self) -> int:
        m = self.map
        if m.mode == "im2col":
            return m.pixels
        return prod(-(-b // s) for b, s in zip(m.box[1:], m.element_strides[1:], strict=True))

    @property
    def row_elements(self) -> int:
        return self.map.channels if self.map.mode == "im2col" else self.map.box[0]

    @property
    def row_bytes(self) -> int:
        return self.row_elements * DTYPES[self.map.dtype].bytes

    @property
    def pitch(self) -> int:
        """From row to row in shared memory: a swizzled row has a span to itself."""
        return self.map.swizzle or self.row_bytes

    @property
    def fits(self) -> bool:
        """Whether the box ends within the window, and no row is longer than a box may be."""
        return self.row_elements <= 256 and self.destination + self.rows * self.pitch <= WINDOW

    @property
    def load_parameters(self) -> tuple[int, ...]:
        return (self.rows * self.row_bytes, self.destination, *self.coords, *self.offsets)

    @property
    def store_parameters(self) -> tuple[int, ...]:
        return (self.destination, *self.coords)

    def tensor(self) -> np.ndarray:
        """The bytes of the tensor (before a store)."""
        m = self.map
        last = sum((d - 1) * s for d, s in zip(m.dims[1:], m.strides, strict=True))
        size = last + m.dims[0] * DTYPES[m.dtype].bytes
        # a store writes whole units of 16 bytes
        return noise(self.seed, -(-size // 16) * 2).view(np.uint8)

    def window(self) -> np.ndarray:
        """The words of shared memory that a store takes its box from."""
        return noise(self.seed + 1, WINDOW // 8).view(np.uint32)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tma_case(values: dict[str, Any]) -> TmaCase:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in values["map"].items()}
    rest = tuple(values["coords"]), tuple(values["offsets"]), values["destination"], values["seed"]
    return TmaCase(TensorMap(**fields), *rest)


def _strides(r: Random, dims: Sequence[int], size: int) -> tuple[int, ...]:
    """Byte strides of dims[1:]: packed up to 16 bytes, now and then with room between."""
    strides, step = [], dims[0] * size
    for extent in dims[1:]:
        step = -(-step // 16) * 16 + r.choice((0, 0, 0, 16, 48))
        strides.append(step)
        step *= extent
    return tuple(strides)


def _row(r: Random, size: int) -> tuple[int, int]:
    """Swizzle, and elements of a row: mostly a whole span."""
    swizzle = r.choice((0, 32, 64, 128))
    if not swizzle:
        return 0, r.choice((16, 32, 48, 80, 128, 256)) // size
    return swizzle, (swizzle if r.random() < 0.85 else r.choice(range(16, swizzle + 1, 16))) // size


def _whole_units(coords: Sequence[int], size: int) -> tuple[int, ...]:
    """The innermost coordinate at a multiple of 16 bytes: an H200 traps at any other (illegal instruction)."""
    unit = 16 // size
    return (coords[0] // unit * unit, *coords[1:])


def _destination(r: Random) -> int:
    """Mostly where the swizzle's pattern begins, but any multiple of 128 will do."""
    return r.choice((0, 0, 1024, 128 * r.randrange(16)))


def random_tiled(r: Random, rank: int) -> TmaCase:
    dtype = r.choice(("f16", "bf16", "f32", "e4m3", "s8"))
    size = DTYPES[dtype].bytes
    while True:
        swizzle, width = _row(r, size)
        strides = [1] + [r.choice((1, 1, 1, 2, 3, 5)) for _ in range(rank - 1)]
        box = [width] + [r.choice((1, 2, 3, 4, 7, 8, 16, 33)) for _ in range(rank - 1)]
        dims = tuple(max(1, b * r.choice((1, 1, 2)) + r.randrange(-3, 4)) for b in box)
        case = TmaCase(
            TensorMap(
                "tensor", "tiled", dtype, dims, _strides(r, dims, size), tuple(strides), box=tuple(box),
                swizzle=swizzle, fill=r.choice(("zero", "zero", "nan")) if dtype in ("f16", "bf16", "f32") else "zero",
            ),
            _whole_units([r.choice((0, r.randrange(-b - 1, d + 2))) for b, d in zip(box, dims, strict=True)], size),
            (), _destination(r), r.randrange(1 << 30),
        )  # fmt: skip
        if case.fits:
            return case


def random_im2col(r: Random, rank: int) -> TmaCase:
    dtype = r.choice(("f16", "f16", "bf16", "f32", "e4m3", "s8"))
    size = DTYPES[dtype].bytes
    while True:
        swizzle, channels = _row(r, size)
        c = max(16 // size, channels * r.choice((1, 1, 2)) + r.choice((0, 0, -8, 8)))
        spatial = [r.randrange(2, 12) for _ in range(rank - 2)]
        lower = [r.randrange(-3, 3) for _ in spatial]
        upper = [r.randrange(-3, 4) for _ in spatial]
        steps = [r.choice((1, 1, 1, 2, 3, 8)) for _ in spatial]
        ends = [s - 1 + u for s, u in zip(spatial, upper, strict=True)]
        if any(e < b for e, b in zip(ends, lower, strict=True)):
            continue
        dims = (c, *spatial, r.randrange(1, 5))
        start = [b + s * r.randrange((e - b) // s + 1) for b, e, s in zip(lower, ends, steps, strict=True)]
        case = TmaCase(
            TensorMap(
                "tensor", "im2col", dtype, dims, _strides(r, dims, size), (1, *steps, 1), lower=tuple(lower),
                upper=tuple(upper), channels=channels, pixels=r.choice((1, 5, 16, 32, 64, 100, 128, 256)),
                swizzle=swizzle, fill=r.choice(("zero", "zero", "nan")) if dtype in ("f16", "bf16", "f32") else "zero",
            ),
            _whole_units([r.choice((0, 0, channels, r.randrange(c))), *start, r.randrange(dims[-1])], size),
            tuple(r.randrange(5) for _ in spatial), _destination(r), r.randrange(1 << 30),
        )  # fmt: skip
        if case.fits:
            return case


def random_tma(seed: int, count: int) -> list[TmaCase]:
    """As many tiled as im2col cases, over all ranks."""
    r = Random(seed)
    kinds: list[Callable[[Random], TmaCase]] = [
        *(partial(random_im2col, rank=rank) for rank in (3, 4, 5)),
        *(partial(random_tiled, rank=rank) for rank in (2, 3, 4, 5, 4, 5)),
    ]
    # two rounds over the im2col kinds for one over the tiled ones
    order = [kinds[i] for i in (0, 1, 2, 3, 4, 5, 0, 1, 2, 6, 7, 8)]
    return [order[i % len(order)](r) for i in range(count)]


def random_stores(seed: int, count: int) -> list[TmaCase]:
    """Tiled boxes of all ranks; what a map fills with does not matter.  None begins before the tensor, where a store
    is an illegal instruction."""
    r = Random(seed)
    cases = [random_tiled(r, rank=2 + i % 4) for i in range(count)]
    return [replace(case, coords=tuple(max(0, c) for c in case.coords)) for case in cases]


#: A wait that a GPU gives up where the hardware counts other bytes than expected.
_COMPLETES = r"""
#ifdef CONVGEN_EMULATE
#define COMPLETES(barrier) (mbarrier_wait_parity(barrier, 0), true)
#else
__device__ bool COMPLETES(u32 barrier) {
  u32 done = 0;
  for (int i = 0; i < 10000 && !done; ++i) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(barrier) : "memory");
  }
  return done;
}
#endif
"""


def tma_source() -> str:
    """Entries tiled_2d to tiled_5d and im2col_3d to im2col_5d: loads."""
    body = (KERNELS / "box.cu").read_text(encoding="utf-8")
    parts = [_COMPLETES, f"#define WINDOW {WINDOW}"]
    for mode, ranks in (("tiled", (2, 3, 4, 5)), ("im2col", (3, 4, 5))):
        for rank in ranks:
            offsets = [f"o{i}" for i in range(rank - 2)] if mode == "im2col" else []
            values = [f"c{i}" for i in range(rank)]
            load = "tma_load_im2col" if mode == "im2col" else "tma_load_tile"
            call = ", ".join(["base + destination", "&map", "barrier", *values, *(f"u16({o})" for o in offsets)])
            instance = body.replace("ENTRY", f"{mode}_{rank}d").replace("LOAD", f"{load}_{rank}d({call})")
            parts.append(instance.replace("COORDINATES", ", ".join(f"int {v}" for v in [*values, *offsets])))
    return whole_source("\n".join(parts) + "\n// mbarrier_wait_parity()\n")


def store_source() -> str:
    """Entries tiled_2d to tiled_5d: stores."""
    body = (KERNELS / "store.cu").read_text(encoding="utf-8")
    parts = [f"#define WINDOW {WINDOW}"]
    for rank in (2, 3, 4, 5):
        values = [f"c{i}" for i in range(rank)]
        call = f"tma_store_tile_{rank}d(&map, base + source, {', '.join(values)})"
        instance = body.replace("ENTRY", f"tiled_{rank}d").replace("STORE", call)
        parts.append(instance.replace("COORDINATES", ", ".join(f"int {v}" for v in values)))
    return whole_source("\n".join(parts))


def emulate_tma(cases: Sequence[TmaCase], source: str, seed: int = 0) -> list[np.ndarray]:
    """For each load the window after it, and the word that says whether the barrier saw the bytes expected."""
    buffers, steps = {}, []
    for i, case in enumerate(cases):
        buffers[f"tensor{i}"] = case.tensor()
        buffers[f"out{i}"] = np.zeros(WINDOW // 4 + 1, np.uint32)
        params = (replace(case.map, buffer=f"tensor{i}"), f"out{i}", *case.load_parameters)
        steps.append(launch(case.entry, params, shared_bytes=TMA_SHARED))
    emulator.emulate(source, steps, buffers, seed=seed)
    return [buffers[f"out{i}"] for i in range(len(cases))]


def emulate_stores(cases: Sequence[TmaCase], source: str, seed: int = 0) -> list[np.ndarray]:
    """For each store the tensor after it."""
    buffers, steps = {}, []
    for i, case in enumerate(cases):
        buffers |= {f"tensor{i}": case.tensor(), f"window{i}": case.window()}
        params = (replace(case.map, buffer=f"tensor{i}"), f"window{i}", *case.store_parameters)
        steps.append(launch(case.entry, params, shared_bytes=TMA_SHARED))
    emulator.emulate(source, steps, buffers, seed=seed)
    return [buffers[f"tensor{i}"] for i in range(len(cases))]


# ---- wgmma ---------------------------------------------------------------------------------------

#: Bytes of shared memory for a, then for b.
A_BYTES, B_BYTES = 40960, 81920
IMAGE_BYTES = A_BYTES + B_BYTES
WGMMA_SHARED = 1024 + IMAGE_BYTES
SWIZZLE_FIELD = {0: 0, 128: 1, 64: 2, 32: 3}
K_OF = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32}
S8_N = (8, 16, 24, *range(32, 257, 16))


@dataclass(frozen=True)
class Operand:
    """A descriptor: start (from the operand's region), leading and stride offsets, swizzle, all in bytes."""

    start: int
    leading: int
    stride: int
    swizzle: int
    major: int

    def fields(self, region: int) -> int:
        address = (region + self.start) >> 4
        return address | self.leading >> 4 << 16 | self.stride >> 4 << 32 | SWIZZLE_FIELD[self.swizzle] << 62


@dataclass(frozen=True)
class WgmmaCase:
    n: int
    a_type: str
    b_type: str
    a: Operand | None  # None: from registers
    b: Operand
    accumulate: int
    seed: int
    k: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", K_OF[self.a_type])

    @property
    def integer(self) -> bool:
        return self.a_type == "s8"

    @property
    def function(self) -> str:
        d = "s32" if self.integer else "f32"
        return f"wgmma_m64n{self.n}k{self.k}_{d}_{self.a_type}_{self.b_type}{'' if self.a else '_rs'}"

    @property
    def entry(self) -> str:
        majors = f"_{self.a.major if self.a else 0}{self.b.major}" if self.k == 16 else ""
        return f"tile_{self.function}{majors}"

    @property
    def call(self) -> str:
        majors = [*([self.a.major] if self.a else []), self.b.major]
        template = f"<{', '.join(map(str, majors))}>" if self.k == 16 else ""
        return f"{self.function}{template}(d, {'descriptor_a' if self.a else 'a'}, descriptor_b, accumulate)"

    def inputs(self) -> dict[str, np.ndarray]:
        """Small whole numbers, so that every sum is exact."""
        count = 64 * self.n
        kind = np.int32 if self.integer else np.float32
        fields = [self.a.fields(0) if self.a else 0, self.b.fields(A_BYTES), self.accumulate]
        a, b = _elements(self.a_type, self.seed, A_BYTES), _elements(self.b_type, self.seed + 1, B_BYTES)
        return {
            "image": np.concatenate([a, b]),
            "a_registers": _elements(self.a_type, self.seed + 2, 128 * 16),
            "fields": np.array(fields, np.uint64),
            "out": _small(self.seed + 3, count).astype(kind).view(np.uint32),
        }  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["k"]
        return values


def wgmma_case(values: dict[str, Any]) -> WgmmaCase:
    a = Operand(**values["a"]) if values["a"] else None
    return WgmmaCase(**{**values, "a": a, "b": Operand(**values["b"])})


def _small(seed: int, count: int) -> np.ndarray:
    return (noise(seed, count) % np.uint64(9)).astype(np.int64) - 4


def _elements(name: str, seed: int, size: int) -> np.ndarray:
    """`size` bytes of elements as 32-bit words; s8 takes its whole range."""
    if name == "s8":
        return noise(seed, size // 8).view(np.uint32)
    kind = np.dtype(np.float32) if name == "tf32" else numpy_dtype(name)
    return _small(seed, size // kind.itemsize).astype(kind).view(np.uint32)


def _operand(r: Random, rows: int, size: int, major: int, region: int) -> Operand:
    """A canonical layout with its blocks one way or the other, at any start that the layout allows."""
    swizzle = r.choice((0, 32, 64, 128))
    groups = -(-rows // 8)
    if not major:
        if swizzle:
            leading, stride = 16, 8 * swizzle
            reach = groups * stride
            # further along k within the span, and any row: the hardware swizzles absolute addresses
            start = 32 * r.randrange(swizzle // 32) + swizzle * r.choice((0, 0, 8, r.randrange(64)))
        else:
            leading, stride = r.choice(((128, 256), (128 * groups, 128)))
            reach, start = 256 * groups, 16 * r.randrange(32)
    else:  # 16-bit elements, 8 a unit; two groups of 8 along k
        across = (swizzle or 16) // 16
        blocks = -(-groups // across)
        atom = 8 * (swizzle or 16)
        k_step, row_step = r.choice(((atom, 2 * atom), (atom * blocks, atom)))
        leading, stride = (row_step, k_step) if swizzle else (k_step, row_step)
        reach, start = 2 * blocks * atom, atom * r.randrange(4)
    assert start + reach <= region
    return Operand(start, leading, stride, swizzle, major)


def random_wgmma(seed: int, count: int) -> list[WgmmaCase]:
    r = Random(seed)
    types = [("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"), ("s8", "s8")]
    types += [(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    cases = []
    for i in range(count):
        a_type, b_type = types[i % len(types)]
        size = {16: 2, 8: 4, 32: 1}[K_OF[a_type]]
        n = r.choice(S8_N if a_type == "s8" else range(8, 257, 8))
        majors = (r.randrange(2), r.randrange(2)) if size == 2 else (0, 0)
        a = _operand(r, 64, size, majors[0], A_BYTES) if r.random() < 0.75 else None
        b = _operand(r, n, size, majors[1], B_BYTES)
        cases.append(WgmmaCase(n, a_type, b_type, a, b, r.randrange(2), r.randrange(1 << 30)))
    return cases


def wgmma_source(cases: Iterable[WgmmaCase]) -> str:
    """One entry for each function and majors that the cases use."""
    body = (KERNELS / "wgmma_tile.cu").read_text(encoding="utf-8")
    parts = [f"#define IMAGE {IMAGE_BYTES // 4}"]
    for case in {c.entry: c for c in cases}.values():
        names = ("int", "int", "u32") if case.integer else ("float", "__uint_as_float", "__float_as_uint")
        macros = dict(zip(("ACCUMULATOR", "AS_ACCUMULATOR", "AS_BITS"), names, strict=True))
        macros |= {"ENTRY": case.entry, "CALL": case.call, "N": case.n}
        parts += [f"#define {name} {value}" for name, value in macros.items()]
        parts += [body, *(f"#undef {name}" for name in macros)]
    return whole_source("\n".join(parts))


WGMMA_PARAMETERS = ("image", "a_registers", "fields", "out")


def emulate_wgmma(cases: Sequence[WgmmaCase], source: str, seed: int = 0) -> list[np.ndarray]:
    """For each case the accumulators' bits, thread by thread."""
    buffers, steps = {}, []
    for i, case in enumerate(cases):
        buffers |= {f"{name}{i}": array for name, array in case.inputs().items()}
        names = [f"{name}{i}" for name in WGMMA_PARAMETERS]
        steps.append(launch(case.entry, names, shared_bytes=WGMMA_SHARED))
    emulator.emulate(source, steps, buffers, seed=seed)
    return [buffers[f"out{i}"] for i in range(len(cases))]
