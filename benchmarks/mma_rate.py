"""What mma.sync reaches on this GPU: the bound of code that has no wgmma.

    python benchmarks/mma_rate.py --json results/mma_rate_h200.json

One block a multiprocessor multiplies fp16 (m16n8k16, sums in fp32), each warp `rows` x `columns` instructions over and
over: from registers alone, or with the fragments of implicit_gemm's tiles of 64 of gemm_k read by ldmatrix, a slice
ahead, from swizzled shared memory (2 x 2 warps a tile: 4 x 8 instructions make 128 x 128 x 64).  There are no
copies, barriers or results.  Factors are N(0, 1), since power depends on their bits.

A row of the JSON is one kernel: TFLOP/s behind rests, beside an 8192-cubed torch.matmul timed in turn with it
(`convgen.bench.measure`), cycles that a scheduler takes for an instruction, the clock that follows, and TFLOP/s
without rests.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import records
from at_hand import need_gpu

from convgen.bench.backend import TorchBackend
from convgen.bench.baselines import GemmShape, capture_gemm
from convgen.bench.measure import Captured, capture, time_in_turn
from convgen.runtime import cuda
from convgen.runtime.nvrtc import compile_source
from convgen.targets import target_for

SIDE = 8192
FLOPS = 2 * 16 * 8 * 16  # of an instruction
SLICES = 4  # instructions along gemm_k in a step
STEPS = 400
GROUP = 4  # warps that share a tile
SCHEDULERS = 4  # of a multiprocessor
SUSTAINED_MS = 200


@dataclass(frozen=True)
class Kernel:
    """`warps` a multiprocessor, `rows` x `columns` instructions each; fragments from shared memory or not."""

    warps: int
    rows: int
    columns: int
    shared: bool

    @property
    def products(self) -> int:
        """Instructions of a warp."""
        return STEPS * SLICES * self.rows * self.columns

    @property
    def tile_bytes(self) -> int:
        """Of both factors, in rows of 128 bytes."""
        return (2 * 16 * self.rows + 2 * 8 * self.columns) * 128

    @property
    def shared_bytes(self) -> int:
        return self.tile_bytes * -(-self.warps // GROUP) if self.shared else 0


KERNELS = tuple(
    Kernel(warps, rows, columns, shared)
    for shared in (False, True)
    for warps, rows, columns in ((4, 4, 8), (8, 4, 8), (8, 3, 8), (12, 4, 4), (16, 4, 4))
)

SOURCE = r"""
typedef unsigned int u32;
constexpr int ROWS = @rows@;
constexpr int COLUMNS = @columns@;
constexpr u32 TILE_BYTES = @tile_bytes@;

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Where 16 bytes of a row stand in a tile.
__device__ __forceinline__ u32 slot(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

__device__ __forceinline__ void load(u32 (&a)[ROWS][4], u32 (&b)[COLUMNS][2], u32 rows, u32 columns) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i) ldmatrix(a[i], rows + i * 2048);
#pragma unroll
  for (int j = 0; j < COLUMNS; j += 2) {
    u32 pair[4];
    ldmatrix(pair, columns + j * 1024);
    b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
  }
}

__device__ __forceinline__ void multiply(
    float (&acc)[ROWS][COLUMNS][4], const u32 (&a)[ROWS][4], const u32 (&b)[COLUMNS][2]) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) mma(acc[i][j], a[i], b[j]);
  }
}

// `data` are random factors; `out` takes a sum of each thread, `cycles` what each block took.
extern "C" __global__ __launch_bounds__(@threads@, 1)
void mma_rate(const u32* __restrict__ data, float* __restrict__ out, long long* __restrict__ cycles) {
  extern __shared__ u32 shared_memory[];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float acc[ROWS][COLUMNS][4] = {};
  u32 a[2][ROWS][4], b[2][COLUMNS][2];
@load@
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int step = 0; step < @steps@; ++step) {
#pragma unroll
    for (int k = 0; k < @slices@; ++k) {
@next@
      multiply(acc, a[k % 2], b[k % 2]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < ROWS * COLUMNS * 4; ++i) sum += acc[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
  out[blockIdx.x * @threads@ + threadIdx.x] = sum;
}
"""
FROM_REGISTERS = """#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int i = 0; i < ROWS * 4; ++i) a[s][i / 4][i % 4] = data[(s * ROWS * 4 + i) * @threads@ + threadIdx.x];
#pragma unroll
    for (int i = 0; i < COLUMNS * 2; ++i) {
      b[s][i / 2][i % 2] = data[(8 * ROWS + s * COLUMNS * 2 + i) * @threads@ + threadIdx.x];
    }
  }"""
FROM_SHARED = """  for (int i = threadIdx.x; i < @shared_bytes@ / 4; i += @threads@) shared_memory[i] = data[i];
  __syncthreads();
  const u32 tile = u32(__cvta_generic_to_shared(shared_memory)) + warp / 4 * TILE_BYTES;
  const u32 rows = tile + slot(warp / 2 % 2 * (ROWS * 16) + lane % 16, lane / 16);
  const int column = warp % 2 * (COLUMNS * 8) + lane / 16 * 8 + lane % 8;
  const u32 columns = tile + 2 * 16 * ROWS * 128 + slot(column, lane / 8 % 2);
  load(a[0], b[0], rows, columns);"""
NEXT = "      load(a[(k + 1) % 2], b[(k + 1) % 2], rows ^ (k + 1) % 4 * 32, columns ^ (k + 1) % 4 * 32);"


def source(kernel: Kernel) -> str:
    text = SOURCE.replace("@load@", FROM_SHARED if kernel.shared else FROM_REGISTERS)
    text = text.replace("@next@", NEXT if kernel.shared else "")
    values = {
        "rows": kernel.rows,
        "columns": kernel.columns,
        "tile_bytes": kernel.tile_bytes,
        "shared_bytes": kernel.shared_bytes,
        "threads": 32 * kernel.warps,
        "steps": STEPS,
        "slices": SLICES,
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


class Runner:
    """A kernel on the GPU at hand, ready to be captured: `run` launches it."""

    def __init__(self, kernel: Kernel, backend: TorchBackend) -> None:
        torch, driver = backend.torch, cuda.driver()
        self.kernel, self._torch, self._driver = kernel, torch, driver
        target = target_for(driver.capability(0))
        if target is None:
            raise SystemExit("mma_rate.py: no target of convgen's runs on this GPU")
        compiled = compile_source(source(kernel), target)
        (self.resources,) = compiled.resources.values()
        self.sms = driver.attribute(0, cuda.MULTIPROCESSOR_COUNT)
        words = max(kernel.shared_bytes // 4, 32 * kernel.warps * (8 * kernel.rows + 4 * kernel.columns))
        self._data = torch.randn(2 * words, device="cuda", dtype=torch.float16)
        self._out = torch.empty(self.sms * 32 * kernel.warps, device="cuda", dtype=torch.float32)
        self.cycles = torch.empty(self.sms, device="cuda", dtype=torch.int64)
        with driver.context(0):
            self._function = driver.function(driver.load(compiled.cubin), "mma_rate", kernel.shared_bytes)
        self._values = [ctypes.c_void_p(t.data_ptr()) for t in (self._data, self._out, self.cycles)]
        self._params = (ctypes.c_void_p * 3)(*map(ctypes.addressof, self._values))

    def run(self, _: int) -> None:
        config = cuda.LaunchConfig(
            grid=(self.sms, 1, 1),
            block=(32 * self.kernel.warps, 1, 1),
            shared_bytes=self.kernel.shared_bytes,
            stream=self._torch.cuda.current_stream().cuda_stream,
        )
        self._driver.check(self._driver.launch(ctypes.byref(config), self._function, self._params, None), "mma_rate")

    @property
    def flops(self) -> int:
        return FLOPS * self.kernel.products * self.kernel.warps * self.sms


def sustained(graph: Captured, backend: TorchBackend) -> float:
    """Microseconds a launch, without rests: the median of the later half."""
    with backend.stream():
        times = backend.replay(graph.graph, max(4, round(SUSTAINED_MS / graph.ms)))
    return median(times[len(times) // 2 :]) * 1000 / graph.launches


def measure(backend: TorchBackend) -> Iterator[dict[str, Any]]:
    gemm = capture_gemm(GemmShape(1, SIDE, SIDE, SIDE, False, True), "f16", backend)
    flops = 2 * SIDE**3
    for kernel in KERNELS:
        runner = Runner(kernel, backend)
        graph = capture(runner.run, 1, backend)
        ours, theirs = time_in_turn([[graph], [gemm]], backend)
        # of the last launch: an instruction takes as many at any clock
        cycles = max(runner.cycles.tolist())
        yield {
            "warps": kernel.warps,
            "instructions": [kernel.rows, kernel.columns],
            "ldmatrix": kernel.shared,
            "registers": runner.resources.registers,
            "spills": runner.resources.spill_stores,
            "us": ours.us,
            "tflops": runner.flops / ours.us / 1e6,
            "cycles": cycles / (kernel.products * kernel.warps / SCHEDULERS),
            "mhz": cycles / ours.us,
            "sustained_tflops": runner.flops / sustained(graph, backend) / 1e6,
            "matmul_tflops": flops / theirs.us / 1e6,
            "matmul_sustained_tflops": flops / sustained(gemm, backend) / 1e6,
        }


def line(row: dict[str, Any]) -> str:
    rows, columns = row["instructions"]
    return (
        f"{row['warps']:2} warps of {rows}x{columns} {'ldmatrix ' if row['ldmatrix'] else 'registers'}"
        f" {row['tflops']:6.1f} TFLOP/s, {row['tflops'] / row['matmul_tflops']:4.0%} of matmul's"
        f" {row['matmul_tflops']:6.1f};"
        f" {row['cycles']:5.2f} cycles at {row['mhz']:.0f} MHz;"
        f" without rests {row['sustained_tflops']:6.1f} of {row['matmul_sustained_tflops']:6.1f}"
        f"{' SPILLS' if row['spills'] else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    rows = []
    for row in measure(TorchBackend()):
        rows.append(row)
        print(line(row), flush=True)
    if args.json:
        records.write(args.json, rows=rows)


if __name__ == "__main__":
    main()
