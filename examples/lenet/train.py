"""Train LeNet on digits: convolutions and their gradients by convgen.

    python examples/lenet/train.py                     digits that the example draws
    python examples/lenet/train.py --mnist FOLDER      MNIST's four files
    python examples/lenet/train.py --strategy im2col   explicit im2col and GEMMs, as in the paper

On a GPU arrays are CuPy's; without one they are NumPy's, and convolutions take convgen's float64 reference: a step of
64 images takes half a second.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from digits import draw, mnist
from lenet import LeNet

from convgen.bench.results import command, commit
from convgen.diagnostics import SpecError
from convgen.spec import UsageError


def accuracy(network: LeNet, x: Any, labels: Any, batch: int) -> float:
    right = sum(
        int((network.scores(x[i : i + batch]).argmax(1) == labels[i : i + batch]).sum())
        for i in range(0, len(x), batch)
    )
    return right / len(x)


def positive(text: str) -> int:
    """A whole number from 1 on.  Raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def finite(text: str) -> float:
    """Raises ValueError."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="MNIST's files (default: digits drawn here)")
    parser.add_argument("--strategy", help="of the convolutions (default: convgen chooses)")
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--rate", type=finite, default=0.02)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write what was found as JSON")
    arguments = parser.parse_args()
    xp = array_module()
    random = np.random.default_rng(1)
    if arguments.mnist:
        try:
            train, test = mnist(arguments.mnist, "train"), mnist(arguments.mnist, "t10k")
        except (OSError, EOFError, ValueError, IndexError) as error:
            parser.error(f"--mnist: {error}")
    else:
        train, test = draw(8192, random), draw(1024, random)
    (x, labels), (x_test, labels_test) = (tuple(map(xp.asarray, pair)) for pair in (train, test))

    if arguments.out and (arguments.out.is_dir() or not arguments.out.parent.is_dir()):
        parser.error(f"--out: {arguments.out} names no file in a folder that exists")
    network = LeNet(xp, arguments.strategy)
    start, rate = time.perf_counter(), 0.0
    for step in range(1, arguments.steps + 1):
        chosen = xp.asarray(random.integers(0, len(x), arguments.batch))
        try:
            loss = network.step(x[chosen], labels[chosen], arguments.rate)
        except (SpecError, UsageError) as error:  # of the strategy
            parser.error(str(error))
        if step == 1:  # which has compiled the kernels
            start = time.perf_counter()
        elif step % 50 == 0:
            rate = (step - 1) / (time.perf_counter() - start)
            print(f"step {step}: loss {loss:.3f}, {rate:.1f} steps a second", flush=True)
    right = accuracy(network, x_test, labels_test, arguments.batch)
    print(f"accuracy on {len(x_test)} other images: {right:.1%}")
    if arguments.out:
        record = {
            "commit": commit(),
            "command": command(),
            "date": datetime.now(UTC).isoformat("T", "seconds"),
        }
        record |= {"arrays": xp.__name__, "machine": device(xp), "digits": "MNIST" if arguments.mnist else "drawn"}
        record |= {"batch": arguments.batch, "steps": arguments.steps, "steps_a_second": rate, "accuracy": right}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def device(xp: Any) -> str:
    """The GPU, or the CPU's architecture."""
    if xp is np:
        return platform.machine()
    return xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)["name"].decode()


def array_module() -> Any:
    """CuPy where there is a GPU for it, else NumPy."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception:  # not installed, or no driver
        return np
    return cupy


if __name__ == "__main__":
    main()
