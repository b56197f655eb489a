"""What whole networks hold of a GPU's memory: eager, torch.compile and convgen.torch.optimize, each in a process.

    python benchmarks/memory.py --networks resnet50 vgg16 --batches 8 64 --out memory.json

Megabytes beyond the model and its inputs: what is held once the network is prepared, the most at a time while it is
prepared and called for the first time, and the most at a time of later calls, results included.  Counted are torch's
allocator and CuPy's pools, which kernels' workspaces come from.  Networks and inputs are those of networks.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import networks
import records
from at_hand import need_gpu

ENTRANTS = ("eager", "compile", "convgen")
MB = 1e6


def _of_pools() -> int:
    """Bytes that CuPy's pools have taken from the driver."""
    import cupy

    from convgen.runtime import scratch

    return int(cupy.get_default_memory_pool().total_bytes() + scratch._capture_pool().total_bytes())


def _drop_unused() -> None:
    import cupy
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()


def measure(name: str, batch: int, entrant: str) -> dict[str, float]:
    """Megabytes of one entrant, in this process."""
    import torch

    import convgen.torch as ct

    torch.backends.cudnn.benchmark = True
    model, inputs = networks.model_and_inputs(name, batch)
    _drop_unused()
    before = torch.cuda.memory_allocated() + _of_pools()
    weights = sum(w.nbytes for w in (*model.parameters(), *model.buffers()))
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        makers = {
            "eager": lambda: model,
            "compile": lambda: torch.compile(model, dynamic=False),
            "convgen": lambda: ct.optimize(model, inputs),
        }
        made = makers[entrant]()
        made(*inputs)
        preparing = torch.cuda.max_memory_allocated() + _of_pools()
        for _ in range(3):
            made(*inputs)
        _drop_unused()
        held = torch.cuda.memory_allocated() + _of_pools()
        torch.cuda.reset_peak_memory_stats()
        made(*inputs)
        torch.cuda.synchronize()
        calling = torch.cuda.max_memory_allocated() + _of_pools()
    figures = {"held": held, "preparing": preparing, "calling": calling}
    return {"weights": round(weights / MB, 1)} | {key: round((size - before) / MB, 1) for key, size in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=("resnet50", "vgg16"), metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=(8, 64))
    parser.add_argument("--entrant", choices=ENTRANTS, help="measure this one in this process, and print JSON")
    parser.add_argument("--out", type=Path, help="JSON of all rows")
    arguments = parser.parse_args()
    need_gpu("torch", "torchvision")
    if arguments.entrant:
        print(json.dumps(measure(arguments.networks[0], arguments.batches[0], arguments.entrant)))
        return
    rows: list[dict[str, Any]] = []
    for name in arguments.networks:
        for batch in arguments.batches:
            row: dict[str, Any] = {"network": name, "batch": batch}
            for entrant in ENTRANTS:
                command = [sys.executable, __file__, "--networks", name, "--batches", str(batch), "--entrant", entrant]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
                row[entrant] = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            print(row, flush=True)
            if arguments.out:
                records.write(arguments.out, rows=rows)


if __name__ == "__main__":
    main()
