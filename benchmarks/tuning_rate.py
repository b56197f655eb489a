"""Layers a minute that `convgen tune` measures on one GPU and on all of this machine's.

    python benchmarks/tuning_rate.py --suite resnet50 -D n=24 -o FILE.json
    python benchmarks/tuning_rate.py --suite resnet50 -D n=24 --ray --seconds 200 -o FILE.json

All GPUs come first, then one: as a local Ray cluster with --ray, else by `CUDA_VISIBLE_DEVICES`.  Each run has a cache
and a database of its own.  Its rate counts from the start of the command to the last layer that it finished; --seconds
ends it early.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu

from convgen.runtime import cuda

CONVGEN = (sys.executable, "-m", "convgen")
RAY = (sys.executable, "-m", "ray.scripts.scripts")


def tune(gpus: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run on so many GPUs: layers finished, candidates measured, seconds and layers a minute."""
    with tempfile.TemporaryDirectory() as place:
        environment = dict(os.environ, CONVGEN_CACHE_DIR=f"{place}/cache")
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
        words = [*CONVGEN, "tune", "--suite", arguments.suite, "--db", f"{place}/tuned.sqlite"]
        words += [word for define in arguments.define for word in ("-D", define)]
        if arguments.ray:
            words.append("--ray")
            start = (*RAY, "start", "--head", f"--num-gpus={gpus}", "--include-dashboard=false")
            subprocess.run(start, env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            begun = time.monotonic()
            finished, tried = _watched(words, environment, arguments.seconds)
            seconds = time.monotonic() - begun
        finally:
            if arguments.ray:
                subprocess.run((*RAY, "stop", "--force"), check=True, stdout=subprocess.DEVNULL)
    rate = 60 * len(finished) / finished[-1] if finished else 0.0
    return {"gpus": gpus, "layers": len(finished), "tried": tried, "seconds": seconds, "layers_a_minute": rate,
            "finished_at": finished}  # fmt: skip


def _watched(words: list[str], environment: dict[str, str], limit: float) -> tuple[list[float], int]:
    """Seconds after which each layer was finished, and how many candidates they had."""
    begun = time.monotonic()
    finished, tried = [], 0
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        timer = threading.Timer(limit, run.send_signal, (signal.SIGINT,))
        timer.start()
        assert run.stderr
        for line in run.stderr:
            print(line, end="", flush=True)
            if " tried; " in line:
                finished.append(time.monotonic() - begun)
                tried += int(line.split(" tried; ")[0].split()[-1])
        timer.cancel()
    return finished, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", default="resnet50")
    parser.add_argument("-D", "--define", action="append", default=[])
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--seconds", type=float, default=threading.TIMEOUT_MAX, help="end each run after so many")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    need_gpu()
    runs = [tune(gpus, arguments) for gpus in sorted({cuda.driver().device_count, 1}, reverse=True)]
    for run in runs:
        print({name: value for name, value in run.items() if name != "finished_at"})
    print(f"{runs[0]['layers_a_minute'] / runs[-1]['layers_a_minute']:.2f}x")
    if arguments.output:
        records.write(arguments.output, runs=runs)


if __name__ == "__main__":
    main()
