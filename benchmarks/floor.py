"""What the memory traffic of a layer takes at least, measured: a kernel that only reads and writes as many bytes.

    python benchmarks/floor.py --suite depthwise mobilenet_v2 convnext --batch 8 64 --json results/floor_h200.json

The roofline of `convgen bench` divides bytes by the rate of a 1 GiB copy, but a launch of a few microseconds never
reaches that rate: blocks start, the first bytes arrive, the last leave.  For each layer this times a plain kernel that
reads what the layer must read and writes what it must write, each byte once, contiguously, 16 bytes a thread, in the
best of several shapes; launched alone and back to back, as `convgen bench` launches convolutions.  A row of
the JSON is a layer; `empty` is a launch that does nothing.
"""

from __future__ import annotations

import argparse
import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu
from geometries import of_suite

from convgen.bench.backend import TorchBackend
from convgen.bench.measure import set_count, time_graph
from convgen.runtime import cuda
from convgen.runtime.nvrtc import compile_source
from convgen.targets import target_for

WORD = 16  # bytes
#: Shapes of the kernel: threads a block, words in flight a thread, blocks a multiprocessor (0: as many as needed).
SHAPES = ((256, 1, 0), (256, 4, 0), (512, 2, 0), (512, 4, 4))

SOURCE = r"""
struct alignas(16) Word { unsigned x, y, z, w; };
// The first words read are the ones written; the others are summed up, so that none can be left out.
template <int THREADS, int FLIGHT>
__device__ void move(const Word* __restrict__ x, Word* __restrict__ y, unsigned read, unsigned written) {
  const unsigned words = max(read, written);
  unsigned sum = 1;
  for (unsigned first = blockIdx.x * THREADS * FLIGHT; first < words; first += gridDim.x * THREADS * FLIGHT) {
    Word word[FLIGHT] = {};
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      const unsigned at = first + i * THREADS + threadIdx.x;
      if (at < read) word[i] = x[at];
    }
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      const unsigned at = first + i * THREADS + threadIdx.x;
      if (at < written) y[at] = word[i];
      else sum |= word[i].x | word[i].y | word[i].z | word[i].w;
    }
  }
  if (sum == 0) y[0] = Word{};  // never, but the compiler cannot know
}
"""
ENTRY = r"""
extern "C" __global__ __launch_bounds__(@threads@)
void @name@(const Word* __restrict__ x, Word* __restrict__ y, unsigned read, unsigned written) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  move<@threads@, @flight@>(x, y, read, written);
}
"""


def entry_name(threads: int, flight: int) -> str:
    return f"move_{threads}_{flight}"


class Mover:
    """The kernels on the GPU at hand."""

    def __init__(self, backend: TorchBackend) -> None:
        self._driver, self._backend = cuda.driver(), backend
        capability = self._driver.capability(0)
        target = target_for(capability)
        if target is None or capability < (9, 0):
            raise SystemExit("floor.py: needs a GPU that can launch kernels back to back (sm_90)")
        kinds = {(threads, flight) for threads, flight, _ in SHAPES}
        text = SOURCE
        for threads, flight in sorted(kinds):
            entry = ENTRY.replace("@name@", entry_name(threads, flight))
            text += entry.replace("@threads@", str(threads)).replace("@flight@", str(flight))
        cubin = compile_source(text, target).cubin
        self.sms = self._driver.attribute(0, cuda.MULTIPROCESSOR_COUNT)
        with self._driver.context(0):
            module = self._driver.load(cubin)
            self._functions = {kind: self._driver.function(module, entry_name(*kind), 0) for kind in kinds}

    def launcher(self, move: Move, shape: tuple[int, int, int], behind: bool) -> Any:
        """run(i): moves the bytes of set i; `behind` the launch before it, or once that has ended."""
        threads, flight, per_sm = shape
        pieces = max(1, -(-max(move.read, move.written) // (threads * flight)))
        config = cuda.LaunchConfig(
            grid=(min(pieces, per_sm * self.sms) if per_sm else pieces, 1, 1),
            block=(threads, 1, 1),
        )
        attribute = cuda.LaunchAttribute(id=cuda.PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        if behind:
            config.attributes = ctypes.pointer(attribute)
            config.attribute_count = 1
        sizes = [ctypes.c_uint(move.read), ctypes.c_uint(move.written)]
        values = [[*(ctypes.c_void_p(tensor.data_ptr()) for tensor in pair), *sizes] for pair in move.sets]
        params = [(ctypes.c_void_p * 4)(*map(ctypes.addressof, v)) for v in values]
        function = self._functions[threads, flight]

        def run(i: int) -> None:
            config.keep = (values, attribute)
            config.stream = self._backend.torch.cuda.current_stream().cuda_stream
            self._driver.check(self._driver.launch(ctypes.byref(config), function, params[i], None), "move")

        return run


@dataclass(frozen=True)
class Move:
    """Words of 16 bytes to read and to write, and the buffers."""

    read: int
    written: int
    sets: list[tuple[Any, Any]]


def move_of(read: int, written: int, backend: TorchBackend) -> Move:
    """Of so many bytes."""
    torch = backend.torch
    words = [-(-size // WORD) for size in (read, written)]
    with backend.stream():
        sets = [
            tuple(torch.randint(0, 1 << 30, (max(1, 4 * size),), device="cuda", dtype=torch.int32) for size in words)
            for _ in range(set_count(max(read + written, 1)))
        ]
    return Move(words[0], words[1], sets)  # type: ignore[arg-type]


def times(move: Move, mover: Mover, backend: TorchBackend) -> dict[str, Any]:
    """Microseconds of the best shape, launched alone and back to back."""
    found: dict[str, Any] = {}
    for name, behind in (("alone", False), ("chain", True)):
        timed = {s: time_graph(mover.launcher(move, s, behind), len(move.sets), backend).us for s in SHAPES}
        best = min(timed, key=timed.__getitem__)
        found |= {f"{name}_us": timed[best], f"{name}_shape": list(best)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["depthwise", "mobilenet_v2", "convnext", "grouped"])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    need_gpu("torch")
    backend = TorchBackend()
    mover = Mover(backend)
    empty = times(move_of(0, 0, backend), mover, backend)
    print(f"empty launch: {empty['alone_us']:.2f} us alone, {empty['chain_us']:.2f} back to back", flush=True)
    rows = []
    asked = [(suite, n) for suite in args.suite for n in args.batch]
    for suite, n, problem in ((*one, problem) for one in asked for problem in of_suite(*one)):
        name = f"{suite}/{problem.name}"
        written = problem.result.bytes
        read = problem.min_bytes - written
        found = times(move_of(read, written, backend), mover, backend)
        backend.release()
        rows.append({"name": name, "n": n, "read": read, "written": written} | found)
        print(f"{name:32} n={n:<3} {found['alone_us']:7.2f} alone {found['chain_us']:7.2f} chain", flush=True)
    if args.json:
        records.write(args.json, empty=empty, rows=rows)


if __name__ == "__main__":
    main()
