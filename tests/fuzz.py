"""Random kernels of tma_im2col and tma_halo (dgrad, too), mma_gemm's dgrad, wgrad, depthwise dgrad and winograd, for as
long as you like, or until so many are done: on a GPU, or emulated.

    python tests/fuzz.py --seconds 100 --processes 12 --failures failures.txt
    python tests/fuzz.py --kinds gradients --count 2000 --seconds 300 --processes 16
    python tests/fuzz.py --kinds tma_im2col tma_halo --operands --count 1000 --seconds 300 --processes 16

Each process draws problems, options and epilogues as the tests do, compiles, and holds each kernel against exact sums
of integers, with operands of integers where the epilogue keeps them whole, or else against the float64 reference.
With fewer processes than kinds, a process has several kinds.
A kernel that faults takes its process with it, since a CUDA context does not survive: what was drawn is on file by
then, and another process takes over.  The exit code is 1 where a kernel was wrong, or fewer were done than asked for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
    "mma_dgrad": ("implicit_gemm", {"kernel": "mma_gemm"}),
    "depthwise_dgrad": ("depthwise", {}),
    "winograd": ("winograd", {"kernel": "winograd"}),
    "winograd_fused": ("winograd", {"kernel": "winograd_fused"}),
}
#: A word for all of these.
GRADIENTS = tuple(kind for kind in KINDS if kind.endswith(("wgrad", "dgrad")))
#: Epilogues that give integers of integers, by the names that the tests have for them; and some with more operands.
WHOLE = ("none", "no operand", "bias f32", "bias bf16", "bias s8", "scalar", "residual", "pixel", "other order")
WITH_OPERANDS = (
    *WHOLE[2:],
    "operand b: f32[k]  operand z: {y}[n, {pixels}, k]  operand u: f32[n, {pixels}, k]  y = relu(acc * 2 + b + z - u)",
    "operand e: f16[n, k]  operand z: bf16[n, {pixels}, k]  y = max(acc * e + z, -8)",
    "operand z: {y}[n, {pixels}, k]  operand m: s8[n, {pixels}, k]  y = select(m > 0, acc + z, z)",
    "operand s: f32[k]  operand z: {y}[n, k, {pixels}]  y = min(acc * s + z, 100)",
)
#: Kinds whose factors are rounded before they are multiplied.
ROUNDED = ("winograd", "winograd_fused")
#: What becomes of a kernel that was drawn: its sums of integers are exact, it is within rounding, or neither.
OUTCOMES = ("exact", "close", "failed")
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


class Log:
    """What a process has drawn, in files: NAME.log has a line for each kernel and each outcome, with its kind, NAME.now
    the spec under way, and NAME.failures those that failed."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.name = folder / f"{pid}"

    def draws(self, kind: str, text: str) -> None:
        self._append(".log", f"drawn {kind}\n")
        self.name.with_suffix(".now").write_text(text)

    def ends(self, kind: str, outcome: str) -> None:
        self._append(".log", f"{outcome} {kind}\n")
        self.name.with_suffix(".now").unlink()

    def fails(self, kind: str, text: str, why: str) -> None:
        self._append(".failures", f"{text}\n{why[:2000]}\n\n")
        self.ends(kind, "failed")

    def died(self, code: int) -> bool:
        """Notes that the process has ended without a word; whether it had drawn anything."""
        if (now := self.name.with_suffix(".now")).exists():
            kind = self.name.with_suffix(".log").read_text().split()[-1]
            self.fails(kind, now.read_text(), f"its process has ended with {code}")
        return self.name.with_suffix(".log").exists()

    def _append(self, suffix: str, text: str) -> None:
        with self.name.with_suffix(suffix).open("a") as file:
            file.write(text)


def tally(folder: Path) -> Counter[tuple[str, str]]:
    """How many were drawn, and had which outcome, of each kind, by all processes: of whole lines."""
    lines = [line for path in folder.glob("*.log") for line in path.read_text().splitlines(keepends=True)]
    pairs = (line.split() for line in lines if line.endswith("\n"))
    return Counter((word, kind) for word, kind in pairs)


def said(counts: Counter[tuple[str, str]]) -> str:
    """A line for each kind, and one for all."""

    def line(kind: str, words: Counter[str]) -> str:
        open = words["drawn"] - sum(words[word] for word in OUTCOMES)
        return (
            f"{kind}: {words['drawn']} kernels drawn, {words['exact']} exact, {words['close']} within rounding,"
            f" {words['failed']} failed" + (f", {open} unfinished" if open else "")
        )

    found: dict[str, Counter[str]] = {}
    for (word, kind), count in sorted(counts.items()):
        for of in (kind, "all"):
            found.setdefault(of, Counter())[word] += count
    everything = found.pop("all", Counter())
    return "\n".join(line(kind, words) for kind, words in [*sorted(found.items()), ("all", everything)])


def settle(log: Log, kind: str, text: str, seed: int, check: Check, outcome: str) -> bool:
    """Checks a kernel, and notes what becomes of it; whether the process can go on."""
    log.draws(kind, f"seed {seed}\n{text}")
    try:
        check(text, seed)
    except Exception as error:
        log.fails(kind, f"seed {seed}\n{text}", str(error) or type(error).__name__)
        return isinstance(error, AssertionError)
    log.ends(kind, outcome)
    return True


def work(kinds: Sequence[str], folder: Path, until: float, operands: bool) -> None:
    """Draws and checks until then."""
    from hypothesis import HealthCheck, Phase, assume, given, settings
    from hypothesis import strategies as st
    from tma_specs import EPILOGUES, SEEDS, serves, some_options, spec
    from wgrad_specs import BIAS

    from convgen.ir.problem import Op

    close, exact, problems = tools()
    log = Log(folder, os.getpid())

    @settings(
        max_examples=10**6, deadline=None, database=None, phases=[Phase.generate], derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        data=st.data(), kind=st.sampled_from(kinds), seed=SEEDS,
        epilogue=st.sampled_from(WITH_OPERANDS if operands else sorted({*EPILOGUES, *WITH_OPERANDS})),
    )  # fmt: skip
    def draw(data: st.DataObject, kind: str, seed: int, epilogue: str) -> None:
        if time.time() > until:
            os._exit(0)
        strategy, given_options = KINDS[kind]
        problem = data.draw(problems[kind])
        problem = replace(problem, epilogue=None) if operands else problem
        options = {**data.draw(some_options(strategy, kernel=given_options.get("kernel", ""))), **given_options}
        assume(serves(problem, strategy, options))
        if problem.op is not Op.FPROP:
            epilogue = BIAS if problem.op is Op.WGRAD and data.draw(st.booleans()) else "none"
        text = spec(problem, strategy, options, "" if problem.epilogue else epilogue)
        whole = (
            kind not in ROUNDED
            and not (problem.epilogue or problem.prologue)
            and epilogue in {*WHOLE, *WITH_OPERANDS, BIAS}
        )
        if not settle(log, kind, text, seed, exact if whole else close, "exact" if whole else "close"):
            os._exit(FAULT)

    draw()


def shares(kinds: Sequence[str], processes: int) -> list[Sequence[str]]:
    """The kinds of each process."""
    if processes < len(kinds):
        return [kinds[i::processes] for i in range(processes)]
    return [[kinds[i % len(kinds)]] for i in range(processes)]


def watch(kinds: Sequence[Sequence[str]], folder: Path, until: float, count: int, operands: bool) -> None:
    """Runs a process for each of these kinds, another in the place of one that dies, until then or so many are done."""

    def start(i: int) -> subprocess.Popen[bytes]:
        words = [",".join(kinds[i]), str(folder), str(until), *(["--operands"] if operands else [])]
        return subprocess.Popen([sys.executable, __file__, "--work", *words])

    processes = [start(i) for i in range(len(kinds))]
    try:
        while time.time() < until and not 0 < count <= done(tally(folder)):
            time.sleep(0.5)
            for i, process in enumerate(processes):
                code = process.poll()
                if not code:  # at work, or at its end
                    continue
                if code != FAULT and not Log(folder, process.pid).died(code):
                    raise SystemExit(f"a process has ended with {code} before it drew anything")
                processes[i] = start(i)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def done(counts: Counter[tuple[str, str]]) -> int:
    return sum(count for (word, _), count in counts.items() if word in OUTCOMES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=0, help="end before, once so many kernels are done")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--kinds", nargs="+", choices=[*KINDS, "gradients"], default=list(KINDS), metavar="KIND",
        help=f"of {', '.join(KINDS)}; gradients for all of wgrad and dgrad (default: all)",
    )  # fmt: skip
    parser.add_argument("--operands", action="store_true", help="only epilogues with operands, of integers")
    parser.add_argument("--failures", type=Path, default=Path("failures.txt"), help="specs whose kernels were wrong")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0].split(","), Path(args.work[1]), float(args.work[2]), args.operands)
        return 0
    words = (GRADIENTS if kind == "gradients" else (kind,) for kind in args.kinds)
    kinds = list(dict.fromkeys(kind for each in words for kind in each))
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        watch(shares(kinds, args.processes), Path(folder), began + args.seconds, args.count, args.operands)
        counts = tally(Path(folder))
        failures = [path.read_text() for path in sorted(Path(folder).glob("*.failures"))]
    print(f"{said(counts)}, in {time.time() - began:.0f} s")
    if failures:
        args.failures.write_text("".join(failures))
        print(f"what failed is in {args.failures}")
    return int(bool(failures) or done(counts) < max(args.count, 1))


if __name__ == "__main__":
    sys.exit(main())
