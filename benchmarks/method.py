"""Whether what the method of measuring rests on holds on this GPU.

    python benchmarks/method.py

Prints, for each backend, what two launches in a row take over one launch (about 2: a graph's own time does not
count); the time of each thread's first and second call of cuDNN (the first tunes, so it takes several times as
long); and cuDNN's and cuBLAS's times for a layer, over the least that its products take.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from at_hand import need_gpu

import convgen
from convgen import driver
from convgen.bench import baselines
from convgen.bench.backend import Backend, CupyBackend, TorchBackend
from convgen.bench.measure import buffer_sets, time_graph, time_in_turn, time_kernel
from convgen.ir.problem import ConvProblem

SPEC = """
conv layer {{
  input  x: f16[n=8, h=28, w=28, c=64]
  filter w: f16[k=64, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  op {op}
}}
"""


def problem_of(text: str) -> ConvProblem:
    return driver.load(driver.Spec(text))[0].request.problem


def twice_over_once(backend: Backend) -> float:
    """Time of two launches in a row over that of one: the least of five tries each."""
    text = SPEC.format(op="fprop")
    kernel, sets = convgen.compile(text), buffer_sets(problem_of(text), backend)

    def twice(i: int) -> None:
        for _ in range(2):
            kernel(*sets[i].inputs, out=sets[i].out)

    tries = [(time_kernel(kernel, sets, backend).us, time_graph(twice, len(sets), backend).us) for _ in range(5)]
    once, both = (min(column) for column in zip(*tries, strict=True))
    return both / once


def first_and_second_call(backend: TorchBackend) -> tuple[float, float]:
    """Seconds that a new thread's first two calls of cuDNN take."""
    launches = baselines._convolution(problem_of(SPEC.format(op="fprop")), backend)
    seconds: list[float] = []

    def calls() -> None:
        with backend.stream():
            for _ in range(2):
                begun = time.perf_counter()
                launches.run(0)
                backend.torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begun)

    with (
        backend.torch.backends.cudnn.flags(enabled=True, benchmark=True),
        ThreadPoolExecutor(1) as thread,
    ):
        thread.submit(calls).result()
    first, second = seconds
    return first, second


def main() -> None:
    need_gpu("torch")
    torch = TorchBackend()
    for backend in (CupyBackend(), torch):
        print(f"{backend.name}: two launches take {twice_over_once(backend):.2f} times as long as one")
    first_and_second_call(torch)  # loads cuDNN
    for _ in range(3):
        first, second = first_and_second_call(torch)
        print(f"cuDNN in a new thread: {first * 1e3:.2f} ms, then {second * 1e3:.2f} ms")
    peaks = baselines.peaks("f16", torch)
    print(f"peaks: {peaks.tflops:.0f} TFLOP/s, {peaks.gb_per_s:.0f} GB/s")
    for op in ("fprop", "dgrad", "wgrad"):
        problem = problem_of(SPEC.format(op=op))
        least = peaks.roofline_us(2 * problem.macs, 0)
        timed = time_in_turn([baselines.convolution(problem, torch), baselines.gemm(problem, torch)], torch)
        cudnn, gemm = (timing.us / least for timing in timed)
        print(f"{op}: cuDNN takes {cudnn:.1f} times as long as the products, a GEMM {gemm:.1f} times")


if __name__ == "__main__":
    main()
