"""Random kernels of tma_im2col and tma_halo (dgrad, too), wgrad, depthwise dgrad and winograd, for as long as you
like: on a GPU, or emulated.

    python tests/fuzz.py --seconds 100 --processes 12 --failures failures.txt

Each process draws problems, options and epilogues as the tests do, and holds each kernel against the float64 reference;
gradients without an epilogue are held against exact sums of integers.
A kernel that faults takes its process with it, since a CUDA context does not survive: what was drawn is on file by
then, and another process takes over.  The exit code is 1 where a kernel was wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / tier) for tier in ("text", "emulated")]

#: Kinds of problems, by the name that the tests have for them, and the options that go with each.
KINDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "tma_im2col": ("tma_im2col", {}),
    "tma_halo": ("tma_halo", {}),
    "tma_wgrad": ("tma_im2col", {"kernel": "tma_wgrad"}),
    "mma_wgrad": ("implicit_gemm", {"kernel": "mma_wgrad"}),
    "depthwise_wgrad": ("depthwise", {"kernel": "depthwise_wgrad"}),
    "stem_wgrad": ("implicit_gemm", {"kernel": "stem_wgrad"}),
    "dgrad": ("tma_im2col", {}),
    "halo_dgrad": ("tma_halo", {}),
    "depthwise_dgrad": ("depthwise", {}),
    "winograd": ("winograd", {"kernel": "winograd"}),
    "winograd_fused": ("winograd", {"kernel": "winograd_fused"}),
}
#: A process that has seen a fault ends with this.
FAULT = 3


Check = Callable[[str, int], object]


def tools() -> tuple[Check, Check, Mapping[str, Any]]:
    """What fails on a spec whose kernel is beyond rounding, and on one whose sums of integers are not exact; and each
    kind's problems: a few images for the emulator."""
    from convgen.runtime import cuda
    from convgen.runtime.errors import NoGpu

    try:
        cuda.driver()
    except NoGpu:
        from tma_specs import PROBLEMS, check_emulated, check_exact

        return check_emulated, check_exact, PROBLEMS
    import cupy
    from gpu_tma import check, exact, many_images

    def then_free(check: Check) -> Check:
        def on_gpu(text: str, seed: int) -> None:
            check(text, seed)
            cupy.cuda.runtime.deviceSynchronize()
            cupy.get_default_memory_pool().free_all_blocks()

        return on_gpu

    return then_free(check), then_free(exact), {name: many_images(name) for name in KINDS}


def work(kind: str, folder: Path, until: float) -> None:
    """Draws and checks until then.  Leaves NAME.drawn, how many, and NAME.failures."""
    from hypothesis import HealthCheck, Phase, assume, given, settings
    from hypothesis import strategies as st
    from tma_specs import EPILOGUES, SEEDS, serves, some_options, spec
    from wgrad_specs import BIAS

    from convgen.ir.problem import Op

    close, exact, problems = tools()
    strategy, given_options = KINDS[kind]
    name, drawn = folder / f"{kind}-{os.getpid()}", 0

    @settings(
        max_examples=10**6, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(data=st.data(), seed=SEEDS, epilogue=st.sampled_from(sorted(EPILOGUES)))
    def draw(data: st.DataObject, seed: int, epilogue: str) -> None:
        nonlocal drawn
        if time.time() > until:
            os._exit(0)
        problem = data.draw(problems[kind])
        options = {**data.draw(some_options(strategy, kernel=given_options.get("kernel", ""))), **given_options}
        assume(serves(problem, strategy, options))
        gradient = problem.op is not Op.FPROP
        if gradient:
            epilogue = BIAS if problem.op is Op.WGRAD and data.draw(st.booleans()) else "none"
        text = spec(problem, strategy, options, "" if problem.epilogue else epilogue)
        check = exact if gradient and not problem.epilogue else close
        drawn += 1
        name.with_suffix(".drawn").write_text(str(drawn))
        try:
            check(text, seed)
        except Exception as error:
            with name.with_suffix(".failures").open("a") as file:
                file.write(f"seed {seed}\n{text}\n{str(error)[:2000]}\n\n")
            if not isinstance(error, AssertionError):
                os._exit(FAULT)

    draw()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--failures", type=Path, default=Path("failures.txt"), help="specs whose kernels were wrong")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], Path(args.work[1]), float(args.work[2]))
        return 0
    until = time.time() + args.seconds
    with tempfile.TemporaryDirectory() as folder:

        def start(i: int) -> subprocess.Popen[bytes]:
            words = [args.kinds[i % len(args.kinds)], folder, str(until)]
            return subprocess.Popen([sys.executable, __file__, "--work", *words])

        processes = [start(i) for i in range(args.processes)]
        while time.time() < until:
            time.sleep(0.5)
            for i, process in enumerate(processes):
                if process.poll() == FAULT:
                    processes[i] = start(i)
        for process in processes:
            process.terminate()
            process.wait()
        drawn = sum(int(path.read_text() or 0) for path in Path(folder).glob("*.drawn"))
        failures = [path.read_text() for path in sorted(Path(folder).glob("*.failures"))]
    if failures:
        args.failures.write_text("".join(failures))
    print(f"{drawn} kernels, {f'wrong ones are in {args.failures}' if failures else 'none wrong'}")
    return int(bool(failures) or not drawn)


if __name__ == "__main__":
    sys.exit(main())
