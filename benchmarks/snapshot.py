"""What convgen makes of every spec that ships: strategy, configuration, launches, source; and how two snapshots differ.

    python benchmarks/snapshot.py take SNAPSHOT.json [--tree CHECKOUT] [--batches 3 8 64] [--only TEXT]
    python benchmarks/snapshot.py compare BEFORE.json AFTER.json [--show-text NAME]

A rebuild that must not change kernels is checked so: take one snapshot at the commit before it and one after, and
compare.  Batches 8 and 64 of the networks are tuned, 3 is not, so that both ways to a choice are seen.  `--tree` takes
the snapshot of another checkout, by a Python that imports convgen from there.  Needs no GPU.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Runs in the checkout that the snapshot is of, so it keeps to what every version of convgen has.
TAKE = """
import json, sys, time
from pathlib import Path
from convgen import driver
batches, only = json.loads(sys.argv[1]), sys.argv[2]
found = {}
for path in sorted(Path("specs").rglob("*.conv")):
    text = path.read_text()
    for n in batches if "let n =" in text and path.parent.name == "specs" else [None]:
        spec = driver.Spec(text, str(path), {} if n is None else {"n": n})
        for c in driver.load(spec):
            name = f"{path.stem}/{c.name}" + (f" n={n}" if n else "")
            if only not in name:
                continue
            began = time.process_time()
            plan = c.plan
            planned = time.process_time() - began
            found[name] = {
                "strategy": plan.strategy, "config": str(plan.config), "reason": plan.reason, "planned_s": planned,
                "options": dict(getattr(plan.config, "options", {})),
                "steps": [str(s) for s in plan.steps], "workspace": plan.workspace_bytes,
                "source": c.source,
            }
            print(f"{len(found)} {name}: {planned:.2f} s", file=sys.stderr)
print(json.dumps(found))
"""


def take(out: Path, tree: Path, batches: list[int], only: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKE, json.dumps(batches), only], cwd=tree, stdout=subprocess.PIPE, check=True,
        env={**os.environ, "PYTHONPATH": str(tree), "CONVGEN_TUNING_DB": "/nonexistent/none.sqlite"},
    )  # fmt: skip
    out.write_bytes(done.stdout)


def kernel_text(source: str) -> str:
    """The source without its header, which names the spec and the plan."""
    return source[source.index("\nusing ") :] if "\nusing " in source else source


def compare(before: dict, after: dict, show: str) -> None:
    seen: Counter[str] = Counter()
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            seen["only in one"] += 1
            print(f"{name}: only {'after' if a is None else 'before'}")
            continue
        same_steps, same_text = a["steps"] == b["steps"], kernel_text(a["source"]) == kernel_text(b["source"])
        if not same_steps or a["strategy"] != b["strategy"]:
            seen["another plan"] += 1
            for row in (a, b):
                print("\n    ".join([f"{name}: {row['strategy']} {row['config']} [{row['reason']}]", *row["steps"]]))
        elif not same_text:
            seen["the same plan, another text"] += 1
        else:
            seen["the same text"] += 1
        if show and show in name and not same_text:
            diff = difflib.unified_diff(a["source"].splitlines(), b["source"].splitlines(), "before", "after", "", "")
            print("\n".join(diff))
    for what, count in seen.most_common():
        print(f"{count:5d} {what}")
    for which, rows in (("before", before), ("after", after)):
        times = sorted((row["planned_s"] for row in rows.values() if "tuned" not in row["reason"]), reverse=True)
        print(f"{which}: planning untuned, {times[len(times) // 2]:.3f} s median, {times[0]:.3f} s at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("take")
    taking.add_argument("out", type=Path)
    taking.add_argument("--tree", type=Path, default=ROOT)
    taking.add_argument("--batches", type=int, nargs="+", default=[3, 8, 64])
    taking.add_argument("--only", default="", help="convolutions whose name has this text")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--show-text", default="", metavar="NAME", help="the difference of these sources")
    args = parser.parse_args()
    began = time.monotonic()
    if args.command == "take":
        take(args.out, args.tree.resolve(), args.batches, args.only)
        print(f"{args.out}: {time.monotonic() - began:.0f} s")
    else:
        compare(*(json.loads(path.read_text()) for path in (args.before, args.after)), args.show_text)


if __name__ == "__main__":
    main()
