"""What became of each convolution of a network, as a table."""

from __future__ import annotations

import os
import textwrap
import traceback
from collections.abc import Collection, Iterator
from dataclasses import astuple, dataclass, field

import torch

from convgen import diagnostics
from convgen.hypertext import preformatted, table


@dataclass(frozen=True)
class Row:
    """A convolution.  `us` is convgen's time, with what it fused; `aten_us` is aten's time, with one pass for what
    convgen fused; both are None if nothing was measured."""

    layer: str
    kernel: str  # the strategy and its configuration, or aten
    us: float | None = None
    aten_us: float | None = None
    fused: str = ""
    why_not: str = ""
    spec: str = ""  # of convgen's kernel, taken or not: for `convgen tune`, which the table leaves out


#: Why aten computes what lies on a CPU.
NOT_ON_GPU = "not on a GPU"
#: Why aten computes what could not be compared.
NO_MEMORY = "there was no memory to time it"
_NOTHING = "nothing was optimized: there are no convolutions"
#: Where code is that a program calls, and that calls convgen for it.
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
#: Names that a note has of one kind.
_MOST_NAMES = 4
_HEADS = ("layer", "kernel", "us", "aten us", "fused", "why not")


@dataclass
class Report:
    """Rows in the order of the network, and notes on the whole."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "\n".join(self.notes or [_NOTHING])
        cells = [_HEADS, *(tuple(map(_shown, astuple(row)[: len(_HEADS)])) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADS))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        if not self.rows:
            return preformatted(str(self))
        rows = (tuple(map(_shown, astuple(row)[: len(_HEADS)])) for row in self.rows)
        return table(_HEADS, rows, note="; ".join(self.notes))


#: Of a function that torch's tracers refuse for what it writes.
WRITES = "it writes into its inputs or buffers"
#: What errors of torch's tracers say, or the function that raises them, and what they mean.
_LIMITS = {
    "data-dependent expression": "it branches on values of tensors",
    "_local_scalar_dense": "it reads numbers from tensors, as item() does",
    "input mutations": WRITES,
    "Unsupported input type": "torch.export does not know the class of an argument",
    "in output, which is not a known type": "torch.export does not know the class of a result",
    "is_opaque_type": "torch.export does not know the class of a result",  # which has no hash; of torch 2.11
    "on inference tensor": "its weights were made in torch.inference_mode, and this is outside of it",
    "attributes that calls leave to later ones": "its results depend on what earlier calls left in its attributes",
    "layers that calls make": "its forward makes layers",
    "containers among the arguments that calls write to": "it writes into lists or dicts among its arguments",
    "is not an instance of torch.nn.Parameter": "a part of it is a ScriptModule",
}


def limit_of_tracers(error: Exception) -> str:
    """What in a model torch's tracers do not support, from their error; none if the error says something else."""
    raised_in = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)][-2:]
    said = " ".join([str(error), *raised_in])
    return next((limit for text, limit in _LIMITS.items() if text in said), "")


def told(error: Exception) -> str:
    """An error of torch's in a line: some are pages long."""
    line = textwrap.shorten(f"{type(error).__name__}: {error}".partition("\n")[0], 160, placeholder=" ...")
    limit = limit_of_tracers(error)
    return f"{limit} ({line})" if limit else line


def listed(names: Collection[str]) -> str:
    """Names in a line: a network of many layers has as many."""
    shown, rest = list(names)[:_MOST_NAMES], len(names) - _MOST_NAMES
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value).partition("\n")[0]


def warn(text: str) -> None:
    """Warns of the program's own line that led here, through torch or not."""
    diagnostics.warn(text, through=(_TORCH,))
