"""Transposed convolution: the geometry of its block, and the dgrad that it is.

The input is the small tensor.  Along an axis

    p = (h - 1) * stride - padding + (r - 1) * dilation + 1 + extra

where `extra`, 0 unless the output's extent says otherwise, are pixels at the high end (PyTorch's output_padding).
As dgrad the input is y, whose windows are spread over x, the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from convgen.frontend import ast, padding
from convgen.frontend.geometry import Geometry
from convgen.frontend.sizes import MAX_INT
from convgen.frontend.solver import Amount, Solver
from convgen.ir.problem import Padding, exchanged_dims
from convgen.ir.tensor import Tensor


@dataclass(frozen=True)
class TransposedGeometry(Geometry):
    """The geometry in the names of the block; the filter has all channels of the input, and a group's of the output."""

    def extents(self, role: str) -> dict[str, int]:
        found = super().extents(role)
        return found | {"k": self.k // self.groups, "c": self.c} if role == "w" else found

    @property
    def as_dgrad(self) -> Geometry:
        """The same in the names of dgrad's problem.

        Further pixels up to stride - 1 lie behind the last window; more of them take the place of padding there."""
        steps = zip(self.stride, self.dilation, self.pad_lo, self.pad_hi, strict=True)
        pad_hi = []
        for h, r, p, (stride, dilation, low, high) in zip(self.input, self.filter, self.output, steps, strict=True):
            extra = p - ((h - 1) * stride - low - high + (r - 1) * dilation + 1)
            pad_hi.append(high - max(extra - (stride - 1), 0))
        return Geometry(
            self.n, self.k, self.c, self.output, self.filter, self.input, self.stride, self.dilation, self.pad_lo,
            tuple(pad_hi), self.groups, self.padding,
        )  # fmt: skip


class TransposedSolver(Solver):
    """Finds the geometry of a transposed convolution's block, in the names that the block has."""

    _grouped, _whole = ("k", "y"), ("c", "x")
    _geometry = TransposedGeometry

    def _axes_so_far(self, stride: list[Amount] | None, dilation: list[Amount] | None) -> list[padding.Axis]:
        # what `same` pads is the output, whose extent is to be found
        return [padding.Axis(dim, None, None, None) for dim in self.spatial.input]

    def _infers_input(self, stride: int) -> bool:
        return True

    def _fits(self, fill: Padding, inputs: Sequence[int | None], pad: Sequence[Amount]) -> None:
        setting = self._conv.first(ast.AxesSetting, "pad")
        if setting and setting.fill and fill is not Padding.ZERO:
            hint = f"leave `{fill}` out"
            self._report.error("E216", "`pad` crops the output of `op transposed`", setting.fill.span, hint)

    def _input(self, i: int, stride: int, dilation: int, pad: Amount) -> int | None:
        x, w, y = self._along(i)
        if x or not (w and y):
            return x.value if x else None
        window = (w.value - 1) * dilation + 1
        extent = (y.value + sum(pad) - window) // stride + 1
        if extent < 1:
            message = f"{y.dim} is {y.value} in `{y.tensor}`; one pixel of the input makes {window - sum(pad)}"
            self._report.error("E209", message, y.span)
            return None
        return extent

    def _axis(self, extent: int | None, i: int, stride: int, dilation: int, pad: Amount) -> tuple[int, int, int] | None:
        sp, (_, w, y) = self.spatial, self._along(i)
        if not (extent and w):
            return None
        window = (w.value - 1) * dilation + 1
        least = (extent - 1) * stride + window - sum(pad)
        shown = f"({sp.input[i]} - 1) * stride + window - padding = ({extent} - 1) * {stride} + {window} - {sum(pad)}"
        if (uncropped := least + sum(pad)) > MAX_INT:
            shown = f"({sp.input[i]} - 1) * stride + window = ({extent} - 1) * {stride} + {window} = {uncropped}"
            self._report.error("E209", f"{shown}; it must be at most {MAX_INT}", w.span)
            return None
        further = stride - 1 + pad[1]
        if y is None and least < 1:
            message = f"the output is empty along {sp.output[i]}: {shown} = {least}"
            self._report.error("E211", message, w.span)
            return None
        if y and not least <= y.value <= least + further:
            hint = f"{shown} = {least}, and at most stride - 1 + padding after = {further} more"
            hint = hint if y.explicit else f"give `{y.tensor}` the dim `{y.dim}`; {hint}"
            makes = f"{least} to {least + further}" if further else f"{least}"
            self._report.error("E208", f"{y}, but the window makes it {makes}", y.span, hint)
            return None
        return extent, w.value, y.value if y else least


def exchanged(tensor: Tensor) -> Tensor:
    """A tensor of the block as dgrad's problem has it."""
    role = {"x": "y", "y": "x"}.get(tensor.role, tensor.role)
    return replace(tensor, role=role, dims=tuple(exchanged_dims().get(d, d) for d in tensor.dims))
