"""How long people wait: importing convgen, compiling a new spec, and compiling it again from the cache.

    python benchmarks/compile_time.py
    python benchmarks/compile_time.py -o benchmarks/results/compile_time.json

Each figure is the median of whole processes' wall times.  A new spec has a batch that no spec had before,
so nothing of it is cached but what a user's machine keeps as well: Python's byte code and the prepared
grammar.  Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import convgen
from convgen.bench.results import commit
from convgen.kernels import strategies
from convgen.runtime.nvrtc import nvrtc_version

ROOT = Path(__file__).resolve().parents[1]
RUNS = 7
#: Every strategy serves it; the filter of depthwise has one channel.
SPEC = """\
let n = 8
let g = {groups}
conv layer {{
  input  x: f16[n, h=28, w=28, c=128]
  filter w: f16[k=128, r=3, s=3, c=128 / g]
  output y: f16[n, p, q, k]
  pad 1
  groups g
  epilogue {{
    operand b: f32[k]
    y = relu(acc + b)
  }}
  strategy {strategy}
  target sm_90a
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON")
    output = parser.parse_args().output
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        bare = _median(lambda _: _python("-c", "pass", folder=folder))
        figures["import convgen, over a bare interpreter"] = _median(
            lambda _: _python("-c", "import convgen", folder=folder) - bare
        )
        figures["convgen --help"] = _median(lambda _: _python("-m", "convgen", "--help", folder=folder))
        for strategy in strategies.NAMES:
            spec = Path(folder) / f"{strategy}.conv"
            spec.write_text(SPEC.format(strategy=strategy, groups=128 if strategy == "depthwise" else 1))
            command = ["-m", "convgen", "compile", str(spec), "-o", f"{folder}/out"]
            figures[f"compile, {strategy}, new"] = _median(
                lambda i, command=command: _python(*command, "-D", f"n={8 + i}", folder=folder)
            )
            figures[f"compile, {strategy}, from the cache"] = _median(
                lambda _, command=command: _python(*command, "-D", "n=8", folder=folder)
            )
    for name, seconds in figures.items():
        print(f"{seconds:7.3f} s  {name}")
    if output:
        facts = {
            "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
            "system": f"{platform.system()} on {platform.machine()}",
            "python": platform.python_version(),
            "convgen": convgen.__version__,
            "nvrtc": nvrtc_version(),
            **{name: version(name) for name in ("sympy", "lark", "jinja2")},
            "commit": commit(),
            "command": "python benchmarks/compile_time.py",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "method": f"median wall time of {RUNS} processes after one that is left out",
        }
        output.write_text(json.dumps(facts | {"seconds": figures}, indent=2) + "\n")


def _median(measure: Callable[[int], float]) -> float:
    """Of `RUNS` measurements, each with its number; the first is left out, since it fills caches."""
    return round(statistics.median([measure(i) for i in range(RUNS + 1)][1:]), 4)


def _python(*arguments: str, folder: str) -> float:
    """Wall time in seconds of an interpreter of its own, with a cache of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "CONVGEN_CACHE_DIR": f"{folder}/cache",
        "CONVGEN_TUNING_DB": f"{folder}/none.sqlite",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
