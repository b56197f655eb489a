"""What one rewriting of networks' graphs gives: convgen.torch.optimize without it and with it, timed in turn.

    python benchmarks/rewriting.py fill_rows --networks timm/hrnet_w18 timm/rexnet_100 --batches 8 64 --out rows.json

A rewriting is a function that convgen/torch/network/prepare.py calls with the graph, and that returns how many nodes
it changed.  Models, inputs and errors are those of networks.py.  Rows are written as they come.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

import records
from at_hand import need_gpu
from networks import captured, error_beside, exact_result, model_and_inputs

import convgen.torch as ct
from convgen.bench.backend import TorchBackend
from convgen.bench.measure import time_in_turn
from convgen.torch.network import prepare


def measure(rewriting: str, name: str, batch: int, backend: TorchBackend) -> dict[str, Any]:
    """One row: milliseconds of a pass, errors, the convolutions' times and kernels."""
    model, inputs = model_and_inputs(name, batch)
    exact = exact_result(model, inputs)
    graphs, errors, reports = {}, {}, {}
    with backend.torch.no_grad():
        for entrant in ("without", "with"):
            function = _changes_nothing if entrant == "without" else getattr(prepare, rewriting)
            with mock.patch.object(prepare, rewriting, function):
                made = ct.optimize(model, inputs)
            graphs[entrant], result = captured(made, inputs, backend)
            with backend.stream():
                graphs[entrant].graph.replay()
            errors[entrant], reports[entrant] = error_beside(result, exact), made.report
    timings = zip(graphs, time_in_turn([[graph] for graph in graphs.values()], backend), strict=True)
    layers = {
        entrant: [{"layer": row.layer, "kernel": row.kernel, "us": row.us} for row in report]
        for entrant, report in reports.items()
    }
    return {
        "network": name, "batch": batch, "ms": {entrant: round(timing.us / 1000, 4) for entrant, timing in timings},
        "error": errors, "notes": reports["with"].notes, "layers": layers,
    }  # fmt: skip


def _changes_nothing(*_: Any) -> int:
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rewriting", metavar="FUNCTION", help="of convgen/torch/network/prepare.py")
    parser.add_argument("--networks", nargs="+", required=True, metavar="NAME", help="as networks.py takes them")
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--out", type=Path, help="JSON of all rows")
    arguments = parser.parse_args()
    if not callable(getattr(prepare, arguments.rewriting, None)):
        parser.error(f"convgen/torch/network/prepare.py has no function {arguments.rewriting}")
    need_gpu("torch")
    backend = TorchBackend()
    backend.torch.backends.cudnn.benchmark = True
    rows = []
    for name in arguments.networks:
        for batch in arguments.batches:
            rows.append(measure(arguments.rewriting, name, batch, backend))
            print(*(f"{key} {rows[-1][key]}" for key in ("network", "batch", "ms", "error")), flush=True)
            if arguments.out:
                records.write(arguments.out, rows=rows)
            backend.release()


if __name__ == "__main__":
    main()
