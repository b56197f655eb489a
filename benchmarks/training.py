"""A training step of ResNet-50: eager cuDNN, torch.compile and convgen's backend of it (convgen), which also without
BatchNorm's sums fused into convolutions (separate), each a CUDA graph, in turn; and `plain_ms`, of steps that a program
calls one after another, with --graphs also with Inductor's CUDA graphs of the two passes.

    python benchmarks/training.py --batches 64 --out training.json
    python benchmarks/training.py --budget 500 --out training.json            # batch 8, 64 and 256, as far as it goes
    python benchmarks/training.py --network resnet18 --entrants eager convgen --batches 8
    python benchmarks/training.py --entrants compile convgen --graphs --batches 64 --out training.json

A step is forward, loss, backward and SGD with momentum: bfloat16 by autocast, float32 weights, channels last,
cudnn.benchmark on.  All entrants start from the same weights.  Their losses over the first steps, which also compile,
build and tune, are written down, and how far each is from eager cuDNN's: `apart`.  `x` is the time of the faster of
eager and compile over convgen's, `x_separate` over that of separate.  `layers` says what computes each convolution of
convgen's.  Rows are written as they come; with --append those of the file stay, and what they have is not measured
again.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain_calls
import records
from at_hand import need_gpu

from convgen.bench.backend import TorchBackend
from convgen.bench.measure import Captured, time_in_turn

#: Steps before the one that is captured.
STEPS = 10
#: In a round of plain steps.
PLAIN_STEPS = 20
SIDE, CLASSES = 224, 1000
ENTRANTS = ("eager", "compile", "convgen", "separate")
#: Of plain steps alone.
WITH_GRAPHS = ("compile, graphs", "convgen, graphs")
#: Keys of a row that compare convgen's entrants with the others.
COMPARED = {"convgen": "x", "separate": "x_separate"}


class Training:
    """A model, its images and its optimizer: a call is one step, and gives the loss before it."""

    def __init__(self, model: Any, compiled: Callable[[Any], Any], x: Any, target: Any) -> None:
        import torch

        self._torch, self._x, self._target = torch, x, target
        self._model = compiled(model)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=True)

    def __call__(self) -> Any:
        torch = self._torch
        self._optimizer.zero_grad()
        with torch.enable_grad():  # a backend measures without
            with torch.autocast(self._x.device.type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(self._model(self._x), self._target)
            loss.backward()
        self._optimizer.step()
        return loss.detach()


def compiler(entrant: str) -> Callable[[Any], Any]:
    """From a model to what is called in its place."""
    import torch

    import convgen.torch as ct

    if entrant == "eager":
        return lambda model: model
    name, _, graphs = entrant.partition(", ")
    if name == "compile":
        return lambda model: torch.compile(model, dynamic=False, options={"triton.cudagraphs": bool(graphs)})
    options = {"sums": name == "convgen", "triton.cudagraphs": bool(graphs)}
    return lambda model: torch.compile(model, backend=ct.compile_graph, dynamic=False, options=options)


def captured(step: Callable[[], Any], backend: TorchBackend) -> tuple[Captured, list[float]]:
    """A step as a CUDA graph, and the losses of the steps before it."""
    with backend.stream():
        losses = [step() for _ in range(STEPS)]
        found = [loss.item() for loss in losses]
        graph = backend.capture(step)
        ms = min(backend.replay(graph, 3))
    return Captured(graph, 1, ms, lambda _: step()), found


def apart(found: list[float], right: list[float]) -> float:
    """The largest relative difference of two curves of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, right, strict=True))


def plain(steps: dict[str, Training], backend: TorchBackend) -> dict[str, float]:
    """Milliseconds of steps that are called one after another, on the stream of the first ones: there torch adds up
    gradients."""
    with backend.stream():
        rounds = [[plain_calls.per_call(step, calls=PLAIN_STEPS) for step in steps.values()] for _ in range(5)]
    return {entrant: round(statistics.median(taken), 4) for entrant, *taken in zip(steps, *rounds, strict=True)}


def measure(
    network: str, batch: int, entrants: tuple[str, ...], with_graphs: bool, backend: TorchBackend
) -> dict[str, Any]:
    """One row: milliseconds of a step, losses, seconds of preparing, what computes each convolution."""
    import torchvision

    import convgen.torch as ct

    torch = backend.torch
    torch._dynamo.reset()  # of what other batches compiled
    torch.manual_seed(0)
    model = torchvision.models.get_model(network, weights=None, num_classes=CLASSES)
    model = model.train().cuda().to(memory_format=torch.channels_last)
    x = torch.randn((batch, 3, SIDE, SIDE), device="cuda").to(memory_format=torch.channels_last)
    target = torch.randint(CLASSES, (batch,), device="cuda")
    graphs, losses, prepared, steps = {}, {}, {}, {}
    layers: list[dict[str, Any]] = []
    for entrant in entrants:
        start = time.monotonic()
        steps[entrant] = step = Training(copy.deepcopy(model), compiler(entrant), x, target)
        graphs[entrant], losses[entrant] = captured(step, backend)
        prepared[entrant] = round(time.monotonic() - start, 1)
        if entrant == "convgen":
            layers = [vars(layer) for report in ct.reports()[-2:] for layer in report]
        print(f"{network} n={batch} {entrant}: ready in {prepared[entrant]} s", flush=True)
    timings = dict(zip(graphs, time_in_turn([[graph] for graph in graphs.values()], backend), strict=True))
    ms = {entrant: round(timing.us / 1000, 4) for entrant, timing in timings.items()}
    for entrant in WITH_GRAPHS if with_graphs else ():
        steps[entrant] = step = Training(copy.deepcopy(model), compiler(entrant), x, target)
        with backend.stream():
            losses[entrant] = [step().item() for _ in range(STEPS)]
    row: dict[str, Any] = {"network": network, "batch": batch, "ms": ms, "plain_ms": plain(steps, backend)}
    others = [taken for entrant, taken in ms.items() if entrant not in COMPARED]
    row |= {name: round(min(others) / ms[entrant], 3) for entrant, name in COMPARED.items() if entrant in ms and others}
    if "eager" in losses:
        right = losses["eager"]
        row["apart"] = {e: float(f"{apart(found, right):.3g}") for e, found in losses.items() if e != "eager"}
    return row | {"losses": losses, "prepare_s": prepared, "layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50", help="a classifier of torchvision (default: resnet50)")
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 8, 256])
    parser.add_argument("--entrants", nargs="+", choices=ENTRANTS, default=list(ENTRANTS))
    parser.add_argument("--graphs", action="store_true", help="plain steps with Inductor's CUDA graphs, too")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="start no row after this time")
    parser.add_argument("--out", type=Path, help="JSON of all rows")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has, and measure the others")
    arguments = parser.parse_args()
    need_gpu("torch", "torchvision")
    start = time.monotonic()
    backend = TorchBackend()
    backend.torch.backends.cudnn.benchmark = True
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.append and arguments.out.exists() else []
    known = {(row["network"], row["batch"]) for row in rows}
    for batch in arguments.batches:
        if (arguments.network, batch) in known or time.monotonic() - start > arguments.budget:
            continue
        row = measure(arguments.network, batch, tuple(arguments.entrants), arguments.graphs, backend)
        rows.append(row)
        told = "ms", "plain_ms", *COMPARED.values(), "apart", "prepare_s"
        shown = {name: row[name] for name in told if name in row}
        print(f"{arguments.network} n={batch}: {shown}", flush=True)
        if arguments.out:
            records.write(arguments.out, rows=rows)
        backend.release()


if __name__ == "__main__":
    main()
