"""Losses of examples/lenet, whose convolutions and their gradients are convgen's, beside the same network by torch.

    python benchmarks/lenet_training.py --steps 100 --out benchmarks/results/lenet_losses_h200.json

All start from the same weights, and take the same digits (which the example draws) and the same dropout: convgen and
torch in float32, without TF32, and torch in float64.  `apart` are the largest relative differences of two curves within
the first steps.  Rounding alone does not stay small: which of nearly equal pixels a pooling takes is a jump, which
training amplifies, so that torch's own two curves part after some 20 steps.  The exit code is 1 where convgen's and
the float64 curve are further apart than LIMITS says.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import records
from at_hand import need_gpu

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "lenet"
RATE, MOMENTUM = 0.02, 0.9
#: How far rounding may take a curve from that of float64 within so many steps.
LIMITS = {5: 2e-5, 20: 1e-2}


def example() -> tuple[Any, Any]:
    """The example's modules: of the network, and of its digits."""
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    import digits
    import lenet

    return lenet, digits


class Twin:
    """The network by torch, with the weights of one of the example's and the dropout that it will draw."""

    def __init__(self, network: Any, device: str, dtype: str, rate: float = RATE) -> None:
        import torch

        self._torch, self._random, self._kept = torch, copy.deepcopy(network.random), example()[0].KEPT
        self._like: Mapping[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
        self.weights = {
            name: torch.tensor(on_host(weight), **self._like).requires_grad_()
            for name, weight in network.weights.items()
        }
        self._optimizer = torch.optim.SGD(list(self.weights.values()), rate, MOMENTUM)

    def scores(self, x: Any, kept: Any = None) -> Any:
        """(n, 10) of images; `kept`: which of fc3's outputs dropout keeps, as 0 and 1; without, all."""
        w, function = self.weights, self._torch.nn.functional
        for name in ("conv1", "conv2"):
            x = function.max_pool2d(function.relu(function.conv2d(x, w[name], w[f"{name}.bias"])), 2)
        hidden = function.relu(x.flatten(1) @ w["fc3"] + w["fc3.bias"])
        hidden = hidden if kept is None else hidden * kept / self._kept
        return hidden @ w["fc4"] + w["fc4.bias"]

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """One step; returns the loss before it."""
        torch = self._torch
        kept = self._random.random((len(x), len(self.weights["fc4"]))) < self._kept
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            scores = self.scores(torch.tensor(x, **self._like), torch.tensor(kept, **self._like))
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels, device=self._like["device"]))
            self._optimizer.zero_grad()
            loss.backward()
        self._optimizer.step()
        return float(loss.detach())


def on_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def batches(steps: int, size: int, seed: int = 1) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Digits of each step."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        yield example()[1].draw(size, random)


def curves(network: Any, given: Iterable[tuple[np.ndarray, np.ndarray]], device: str) -> dict[str, list[float]]:
    """Losses of each step: by convgen, where the network's arrays are, and by torch in float32 and float64."""
    twins = {"torch": Twin(network, device, "float32"), "float64": Twin(network, device, "float64")}
    losses: dict[str, list[float]] = {name: [] for name in ("convgen", *twins)}
    for x, labels in given:
        own = network.step(network.xp.asarray(x), network.xp.asarray(labels), RATE, MOMENTUM)
        losses["convgen"].append(own)
        for name, twin in twins.items():
            losses[name].append(twin.step(x, labels))
    return losses


def apart(losses: Mapping[str, list[float]], steps: int) -> dict[str, float]:
    """The largest difference of each two curves within so many steps, relative to the latter's."""
    return {
        f"{a} from {b}": max(abs(x - y) / abs(y) for x, y in zip(losses[a][:steps], losses[b][:steps], strict=True))
        for a, b in combinations(losses, 2)
    }


def beyond_rounding(losses: Mapping[str, list[float]]) -> str:
    """Where convgen's curve is too far from float64's; empty where it is not."""
    far = ((steps, apart(losses, steps)["convgen from float64"], limit) for steps, limit in LIMITS.items())
    return ", ".join(f"{value:.2g} within {n} steps, above {limit}" for n, value, limit in far if not value <= limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--strategy", help="of the convolutions (default: convgen chooses)")
    parser.add_argument("--out", type=Path, help="JSON of the curves and how far apart they are")
    args = parser.parse_args()
    need_gpu("torch", "cupy")
    import cupy

    losses = curves(example()[0].LeNet(cupy, args.strategy), batches(args.steps, args.batch), "cuda")
    for step in sorted({*range(0, args.steps, max(args.steps // 10, 1)), args.steps - 1}):
        print(f"step {step + 1:4d}", *(f"{name} {curve[step]:.6f}" for name, curve in losses.items()), sep="  ")
    found = {str(steps): apart(losses, steps) for steps in sorted({*LIMITS, args.steps}) if steps <= args.steps}
    for steps, values in found.items():
        print(f"within {steps} steps:", ", ".join(f"{name} {value:.2g}" for name, value in values.items()))
    if args.out:
        settings = {"batch": args.batch, "steps": args.steps, "rate": RATE, "momentum": MOMENTUM}
        records.write(args.out, **settings, strategy=args.strategy, apart=found, losses=losses)
    if far := beyond_rounding(losses):
        print(f"convgen's losses are not those of float64: {far}")
    return int(bool(far))


if __name__ == "__main__":
    sys.exit(main())
