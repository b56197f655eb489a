"""Reproduces the findings of the documents that convgen implements: `convgen reproduce NAME`.

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
#: Zhang, "A Simple and Efficient Implementation of im2col in Convolution Neural Networks", 2017.
_ZHANG = "Zhang, 2017"
#: "im2col", of the wiki of netcl.
_NETCL = "netcl wiki"


@dataclass(frozen=True)
class Results:
    """The results of a benchmark: the command, and its rows."""

    command: str
    row: frozenset[str]


_BENCH = Results("convgen bench --out", frozenset({"spec", "n", "us", "cudnn_us"}))


def _documents(name: str, *columns: str) -> Results:
    return Results(f"benchmarks/documents.py {name} --json", frozenset({*columns}))


_STRIDES = _documents("stride", "layer", "n", "stride", "outputs", "us", "cudnn_us", "explicit_us", "gemm_us")
_EXPLICIT = _documents("explicit", "spec", "n", "us", "explicit_us", "gemm_part_us")
_REUSE = _documents("reuse", "layer", "spec", "n", "us", "cudnn_us", "halo_us")
_MULTI_TILE = _documents("multi-tile", "c", "r", "taps", "part", "n", "macs")
_NAIVE = _documents("naive", "layer", "n", "us", "direct_us", "im2col_us", "implicit_gemm_us", "winograd_us")
_FORMS = _documents("forms", "layer", "op", "n")
_LENET = _documents("lenet", "batch", "auto_per_s", "im2col_per_s", "torch_per_s")


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
    "explicit": Experiment(
        "networks by explicit im2col, in parts, over implicit", f"{_ZHOU}, figure 2a", "measured.explicit", _EXPLICIT
    ),
    "stride": Experiment(
        "strides 1, 2 and 4: orders of gemm_k, explicit im2col, a GEMM, cuDNN",
        f"{_ZHOU}, figures 4a and 18a",
        "measured.stride",
        _STRIDES,
    ),
    "reuse": Experiment(
        "taps inside of channels, and a halo tile, which read x again while it is near",
        f"{_ZHOU}, figure 18b",
        "measured.reuse",
        _REUSE,
    ),
    "multi-tile": Experiment(
        "taps in a stage or a k block, for 8 channels", f"{_ZHOU}, figure 14a", "measured.multi_tile", _MULTI_TILE
    ),
    "channels": Experiment(
        "4 to 128 channels, with one tap in a stage and with several",
        f"{_ZHOU}, figure 14b",
        "measured.channels",
        _MULTI_TILE,
    ),
    "naive": Experiment("strategies beside a loop over windows, float32", f"{_NETCL}", "layers.naive", _NAIVE),
    "forms": Experiment("im2col's forms, in GB/s", f"{_ZHANG}", "layers.forms", _FORMS),
    "lenet-layers": Experiment(
        "LeNet's convolutions and gradients by each form of im2col", f"{_ZHANG}, table 4", "layers.lenet_layers", _FORMS
    ),
    "lenet": Experiment("steps a second of LeNet", f"{_ZHANG}, table 3", "layers.lenet", _LENET),
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
