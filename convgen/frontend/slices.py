"""Channel slices: `c=64 of 256`, in the last place of a tensor's dims."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.diagnostics import Report
from convgen.frontend import ast
from convgen.frontend.dims import RANK_OF
from convgen.frontend.sizes import MAX_INT, Sizes

CHANNELS = ("c", "k")
DIMS = frozenset({*CHANNELS, "n", *RANK_OF})


def pitch(tensor: ast.Tensor, extents: Mapping[str, int | None], sizes: Sizes, report: Report) -> int | None:
    """The number of channels of which a tensor's are a slice; None if it is packed, or has an error, which is then
    reported.  `extents` are those of its dims, as far as they are known."""
    found = None
    for dim in tensor.dims:
        if dim.pitch is None or dim.name.text not in DIMS:  # of which other checks tell
            continue
        value, extent = sizes.evaluate(dim.pitch), extents.get(dim.name.text)
        message = hint = ""
        if dim.name.text not in CHANNELS:
            message = f"`{dim.name.text}` cannot be a slice: of `{tensor.name.text}`, only channels can"
            hint = "the channels are `c` and `k`"
        elif dim is not tensor.dims[-1]:
            message = f"`{dim.name.text}` is not the last dim of `{tensor.name.text}`, so it cannot be a slice"
            hint = "a slice's channels are neighbors in memory: put them last"
        elif value is not None and extent is not None and value < extent:
            message = f"`{tensor.name.text}` has {extent} channels; they cannot be a slice of {value}"
            hint = f"write `{dim.name.text}={value} of {extent}`?" if dim.extent else ""
        if message:
            report.error("E215", message, dim.span, hint or None)
        elif value is not None and not 1 <= value <= MAX_INT:
            report.error("E209", f"`of` is {value}; it must be from 1 to {MAX_INT}", dim.pitch.span)
        else:
            found = value
    return found
