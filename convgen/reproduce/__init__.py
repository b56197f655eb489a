"""What the documents that convgen implements found, found again: `convgen reproduce NAME`.

docs/reproduction.md lists their claims.  An experiment is a function that returns an `Outcome`: our figures beside the
document's, and why they differ.  Some weigh what `convgen bench` measured, and take its record.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from convgen.reproduce.outcome import Outcome
from convgen.spec import UsageError, unknown

#: Zhou et al., "Characterizing and Demystifying the Implicit Convolution Algorithm on Commercial Matrix-Multiplication
#: Accelerators", IISWC 2021.
_ZHOU = "Zhou et al., 2021"


@dataclass(frozen=True)
class Results:
    """What a benchmark writes: the command, and what its rows have."""

    command: str
    row: frozenset[str]


_BENCH = Results("convgen bench --out", frozenset({"spec", "n", "us", "cudnn_us"}))
_STRIDES = Results(
    "benchmarks/strides.py --json",
    frozenset({"layer", "n", "stride", "us", "cudnn_us", "per_output", "cudnn_per_output"}),
)


@dataclass(frozen=True)
class Experiment:
    """What it shows, which table or figure of which document that is, and the function, `module.function`; of one that
    `weighs` a benchmark's results, that takes their record."""

    summary: str
    source: str
    function: str
    weighs: Results | None = None

    def run(self, record: dict[str, Any] | None = None) -> Outcome:
        """Raises UsageError."""
        module, _, name = self.function.rpartition(".")
        function = getattr(import_module(f"convgen.reproduce.{module}"), name)
        return function(record) if self.weighs else function()


EXPERIMENTS: dict[str, Experiment] = {
    "memory": Experiment("bytes of inputs and of lowered inputs, by network", f"{_ZHOU}, table I", "memory.memory"),
    "networks": Experiment(
        "whole networks beside cuDNN, from results of `convgen bench`",
        f"{_ZHOU}, figure 17",
        "measured.networks",
        _BENCH,
    ),
    "stride": Experiment(
        "strides 1, 2 and 4 on a GPU, from results of benchmarks/strides.py",
        f"{_ZHOU}, figures 4a and 18a",
        "measured.stride",
        _STRIDES,
    ),
    "tpu-stride": Experiment("a systolic array at strides 1, 2 and 4", f"{_ZHOU}, figure 4b", "tpu.stride"),
    "tpu-gemm": Experiment("matrix products on a systolic array", f"{_ZHOU}, figure 13a", "tpu.gemm"),
    "tpu-tiles": Experiment("taps that a pass merges, for few channels", f"{_ZHOU}, figure 14a", "tpu.tiles"),
    "tpu-channels": Experiment("4 to 128 channels, with and without merging", f"{_ZHOU}, figure 14b", "tpu.channels"),
    "tpu-networks": Experiment("networks on a systolic array", f"{_ZHOU}, figure 15a", "tpu.networks"),
    "tpu-array": Experiment("the size of the array", f"{_ZHOU}, figure 16a", "tpu.array"),
    "tpu-word": Experiment("the word of vector memories", f"{_ZHOU}, figure 16b", "tpu.word"),
}


def find(name: str) -> Experiment:
    """Raises UsageError."""
    if name not in EXPERIMENTS:
        raise UsageError(unknown("experiment", name, EXPERIMENTS))
    return EXPERIMENTS[name]
