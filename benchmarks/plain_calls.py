"""Whole networks called one after another, as a program calls them that makes no CUDA graph: eager, torch.compile and
convgen.torch.optimize, and the latter two with Inductor's CUDA graphs.

    python benchmarks/plain_calls.py --networks resnet50 mobilenet_v2 --batches 1 8 64 --out plain_calls.json

Each figure is the time of a call among a hundred, after which the GPU is waited for: the host's time where that is
longer than the GPU's.  Networks and inputs are those of networks.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import records
from at_hand import need_gpu

CALLS, ROUNDS = 100, 5


def per_call(model: Callable[..., Any], inputs: tuple[Any, ...] = (), calls: int = CALLS) -> float:
    """Milliseconds."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        model(*inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1000


def measure(name: str, batch: int, graphs: bool) -> dict[str, Any]:
    """One row: milliseconds of a call, medians of rounds in turn."""
    import torch

    import convgen.torch as ct

    model, inputs = networks.model_and_inputs(name, batch)
    with torch.no_grad():
        entrants = {
            "eager": model,
            "compile": torch.compile(model, dynamic=False),
            "convgen": ct.optimize(model, inputs),
        }
        if graphs:
            entrants["compile, graphs"] = torch.compile(model, dynamic=False, mode="reduce-overhead")
            entrants["convgen, graphs"] = ct.optimize(model, inputs, options={"triton.cudagraphs": True})
        for entrant in entrants.values():
            for _ in range(20):
                entrant(*inputs)
        gc.collect()
        rounds = [{key: per_call(entrant, inputs) for key, entrant in entrants.items()} for _ in range(ROUNDS)]
    ms = {key: round(statistics.median(each[key] for each in rounds), 4) for key in entrants}
    return {"network": name, "batch": batch, "ms": ms, "x": round(ms["compile"] / ms["convgen"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=("resnet50", "mobilenet_v2"), metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8, 64))
    parser.add_argument("--graphs", action="store_true", help="with Inductor's CUDA graphs, too")
    parser.add_argument("--out", type=Path, help="JSON of all rows")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has")
    arguments = parser.parse_args()
    need_gpu("torch", "torchvision")
    import torch

    torch.backends.cudnn.benchmark = True
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.append and arguments.out.exists() else []
    for name in arguments.networks:
        for batch in arguments.batches:
            rows.append(row := measure(name, batch, arguments.graphs))
            print(f"{name} n={batch}: {row['ms']} ms, {row['x']}x", flush=True)
            if arguments.out:
                records.write(arguments.out, rows=rows)


if __name__ == "__main__":
    main()
