"""Runs each kernel of a spec on random data and compares every element of its result with a float64
reference.  On the GPU where one is at hand that the kernel was compiled for; elsewhere the generated
source runs in the emulator, which is slow: a small batch (-D n=1) does.

The exit code is 0 where every result is right, 1 where one is wrong.

examples:
  convgen run layer.conv
  convgen run layer.conv -D n=1 --device emulate
  convgen run layer.conv --seed 7   the same data again
"""

from __future__ import annotations

import argparse
import os
import random
import re

from convgen import driver
from convgen.cli import console
from convgen.cli.arguments import add_specs, read_specs, short
from convgen.diagnostics import ConvgenError
from convgen.ir.problem import ConvProblem
from convgen.ir.verify import Report
from convgen.runtime.kernel import Kernel

#: A seed has this many bits, whether drawn or given.
_SEED_BITS = 32


def configure(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    parser.add_argument(
        "--device",
        choices=("gpu", "emulate"),
        help="where to run (default: the GPU if it fits the target, else emulate)",
    )
    parser.add_argument(
        "--seed", type=_seed, help="of the data and the emulator's order of events (default: a fresh one)"
    )


def run(arguments: argparse.Namespace) -> int:
    seed = random.SystemRandom().getrandbits(_SEED_BITS) if arguments.seed is None else arguments.seed
    right = True
    for spec in read_specs(arguments):
        for compilation in driver.choose_all(spec):
            problem = compilation.request.problem
            _require_memory(problem)
            device = arguments.device or _device(compilation)
            with console.spinner(f"compiling {compilation.name}"):
                kernel = compilation.kernel()
            report = (_on_gpu if device == "gpu" else _emulated)(kernel, problem, seed)
            where = "on the GPU" if device == "gpu" else "emulated"
            console.write(f"{compilation.name}: {problem.op} by {compilation.plan.strategy}, {where}: {report}")
            right = right and report.ok
    console.write(f"seed {seed}")
    return 0 if right else 1


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 1 << _SEED_BITS:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number from 0 to {(1 << _SEED_BITS) - 1}")
    return int(text)


def _device(compilation: driver.Compilation) -> str:
    return "gpu" if compilation.gpu else "emulate"


def _on_gpu(kernel: Kernel, problem: ConvProblem, seed: int) -> Report:
    from convgen.bench.backend import CupyBackend
    from convgen.bench.measure import Checker
    from convgen.runtime import cuda
    from convgen.runtime.errors import NoGpu

    try:
        cuda.driver()
    except NoGpu as e:
        raise NoGpu(f"{e}\nhint: `--device emulate` runs the generated source on the CPU") from None
    return Checker(problem, CupyBackend(), seed)(kernel, kernel.manifest.arithmetic)


def _emulated(kernel: Kernel, problem: ConvProblem, seed: int) -> Report:
    from convgen.ir import verify

    arrays = verify.random_inputs(problem, seed)
    names = [t.role for t in problem.reads] + [t.name for t in problem.operands]
    with console.progress_bar(f"emulating {kernel.name}") as advance:
        result = kernel.emulate(*(arrays[name] for name in names), seed=seed, progress=advance)
    return verify.check(problem, arrays, result, arithmetic=kernel.manifest.arithmetic)


def _require_memory(problem: ConvProblem) -> None:
    """The reference holds every tensor in float64, and the result with its bounds.  Raises ConvgenError."""
    tensors = (*problem.reads, *problem.operands, problem.result)
    needed = sum(t.bytes + 8 * t.size for t in tensors) + 6 * 8 * problem.result.size
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ConvgenError(
            f"verifying {problem.name} takes about {needed / 1e9:.0f} GB of memory, and this machine has "
            f"{there / 1e9:.0f} GB\nhint: a smaller batch may fit: -D n=1 where the spec says `let n`"
        )
