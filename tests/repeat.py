"""Runs every test that draws random data again and again, each time with another seed.

    python tests/repeat.py                                  all of them, 500 times
    python tests/repeat.py -n 20 --first 1000 tests/text    seeds 1000 to 1019, a tier of them

The tests are those that carry the marker `randomized`, which tests/conftest.py gives to whatever draws.  A failure is
printed with its seed as it comes, with the command that shows it again; the exit code is 1 where there was one.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("tests/text", "tests/nvrtc", "tests/emulated", "tests/gpu")
PASSED = 0
FAILED = 1


def run(seed: int, where: list[str]) -> tuple[int, list[str], str]:
    """The tests with one seed: pytest's exit code, the tests that failed, and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    options = ["--every-case", "-m", "randomized", f"--hypothesis-seed={seed}"]
    done = subprocess.run([*command, *options, *where], cwd=ROOT, capture_output=True, text=True)
    # "FAILED tests/text/test_a.py::test_b[c] - AssertionError: ..."
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return done.returncode, [line.split(" ", 1)[1].split(" - ")[0] for line in lines], done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=500, metavar="RUNS", help="how often (default: 500)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first run's seed (default: 1)")
    parser.add_argument("-j", type=int, default=os.cpu_count(), metavar="JOBS", help="how many runs at once")
    parser.add_argument("where", nargs="*", default=TIERS, help="folders, files or tests (default: all tiers)")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.n)
    failures: collections.Counter[str] = collections.Counter()
    with ThreadPoolExecutor(args.j) as threads:
        runs = threads.map(lambda seed: run(seed, args.where), seeds)
        for seed, (code, failed, output) in zip(seeds, runs, strict=True):
            if code not in (PASSED, FAILED):
                threads.shutdown(wait=False, cancel_futures=True)
                sys.exit(f"{output}\npytest ended with exit code {code} at seed {seed}")
            if failed:
                print(output, *(f"pytest --hypothesis-seed={seed} '{test}'" for test in failed), sep="\n", flush=True)
            failures.update(failed)
            print(f"seed {seed}: {len(failed)} failed", file=sys.stderr, flush=True)
    for test, times in failures.most_common():
        print(f"{test}: failed in {times} of {args.n} runs")
    return FAILED if failures else PASSED


if __name__ == "__main__":
    sys.exit(main())
