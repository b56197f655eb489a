"""Named numbers of generated source: the extents by which an index is divided, and the strides of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from convgen.codegen.c_expr import INT_MAX, NO_NAMES, Names
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor

#: Names of extents in formulas and constants, where they are not the dim in capitals.
EXTENT_NAMES = {"c_in_group": "Cg", "k_in_group": "Kg"}
#: The names in the order in which they are defined.
EXTENTS = (
    *("p_tiles", "q_tiles"), *("N", "C", "Cg", "D", "H", "W", "K", "Kg"), *("T", "R", "S"), *("O", "P", "Q"),
    *("walk_o", "walk_p", "walk_q"),
)  # fmt: skip

#: Their meaning, unless the name says it.
COMMENTS = {
    "chunks_at_once": "  // chunks of a row, each copied by one thread",
    "row_chunks": "  // of 16 bytes",
    "chunk_pieces": "  // each copied separately",
    "rows_at_once": "  // by all threads",
    "column_blocks": "  // they divide all elements among them",
    "group_pack": "  // groups that are multiplied as one",
    "padded_channels": "  // including zeros at the end",
    "p_tiles": "  // down an image",
    "q_tiles": "  // across",
    "row_channels": "  // of all taps in a filter row",
    "Cg": "  // input channels per group",
    "Kg": "  // output channels per group",
    "walk_o": "  // planes of an image, in the order of the walk",
    "walk_p": "  // rows of an image, in the order of the walk",
    "walk_q": "  // pixels of a row, in the order of the walk",
}


def walk_name(dim: str) -> str:
    """The name of an extent of a walk over pixels of y that differs from y's extent: it covers more pixels, or a
    phase."""
    return f"walk_{dim}"


def extent_name(dim: str) -> str:
    return EXTENT_NAMES.get(dim, dim.upper())


class Definition(NamedTuple):
    """C text that defines constants, and whether they need 64 bits."""

    text: str
    wide: bool


@dataclass
class Constants:
    """The constants of a function's text while it is generated: those that it mentions, in order.

    A name has one value.  Where another number has it already, a number stands for itself.  Operands and results that
    lie in memory as the `result` does have its strides.  Text with no place where they are `defined` has none.  Those
    of the `file` are there already.
    """

    result: Tensor | None = None
    defined: bool = True
    file: Mapping[str, int] = field(default_factory=dict)

    _known: dict[str, int] = field(default_factory=dict)
    _mentioned: dict[str, None] = field(default_factory=dict)

    def within(self, text: str) -> tuple[Definition, ...]:
        """The constants that a text uses: extents first, then strides, grouped by tensor.

        Not all that were mentioned are left: lines that nothing needs are dropped in the end."""
        return self.parted(text)[0]

    def parted(self, text: str) -> tuple[tuple[Definition, ...], tuple[Definition, ...]]:
        """The constants that a text uses, and the others."""
        within = [name for name in self._mentioned if re.search(rf"\b{name}\b", text)]
        return self._defined(within), self._defined([name for name in self._mentioned if name not in within])

    @property
    def mentioned(self) -> dict[str, int]:
        """The constants mentioned so far, with their values."""
        return {name: self._known[name] for name in self._mentioned}

    @property
    def all(self) -> tuple[Definition, ...]:
        """All constants mentioned so far."""
        return self._defined([*self._mentioned])

    def _defined(self, names: Sequence[str]) -> tuple[Definition, ...]:
        strides: dict[str, list[str]] = {}
        for name in names:
            if (tensor := name.partition("_stride_")[0]) != name:
                strides.setdefault(tensor, []).append(name)
        order = {name: i for i, name in enumerate(EXTENTS)}
        extents = sorted((name for name in names if "_stride_" not in name), key=lambda name: order.get(name, -1))
        return (
            *(self._definition([name], COMMENTS.get(name, "")) for name in extents),
            *(self._definition(names, "  // in elements") for names in strides.values()),
        )

    def _definition(self, names: Sequence[str], comment: str) -> Definition:
        largest_first = sorted(names, key=self._known.__getitem__, reverse=True)
        text = ", ".join(f"{name} = {self._known[name]}" for name in largest_first)
        return Definition(f"{text};{comment}", self._known[largest_first[0]] > INT_MAX)

    def extent(self, dim: str, value: int) -> str:
        """C text of a dim's extent; 1 stays a number, since a dim of one element may not be the problem's."""
        name = extent_name(dim)
        if value == 1 or not self._takes(name, value):
            return str(value)
        self._mention(name)
        return name

    def number(self, name: str, value: int) -> str:
        """C text of a number that has its own name."""
        if not self._takes(name, value):
            return str(value)
        self._mention(name)
        return name

    def strides(self, tensor: Tensor, groups: int = 1, index: Names = NO_NAMES, name: str = "") -> Names:
        """The strides of a tensor, by its name in the source, including the one from a group of channels to the next.
        An `index` that coordinates follow from is divided by the numbers that it names."""
        pointer = name or {
            "operand": f"operand_{tensor.name}",
            "result": f"result_{tensor.name}",
            "workspace": tensor.name,
        }.get(tensor.role, tensor.role)
        if self.result and (tensor.dims, tensor.strides) == (self.result.dims, self.result.strides):
            pointer = self.result.role
        named = {
            stride: f"{pointer}_stride_{dim}"
            for dim, extent, stride in zip(tensor.dims, tensor.extents, tensor.strides, strict=True)
            if not isinstance(stride, Size) and extent != 1 and stride > 1
        }
        for dim, extent, stride in zip(tensor.dims, tensor.extents, tensor.strides, strict=True):
            if dim in ("c", "k") and groups > 1 and extent > groups and not isinstance(stride, Size):
                named.setdefault(extent // groups * stride, f"{pointer}_stride_group")
        strides = {s: name for s, name in named.items() if self._takes(name, s)}
        k, group = tensor.extent("k_in_group"), f"{pointer}_stride_g"
        if k > 1 and group in strides.values() and self._takes("Kg", k):
            between = tensor.stride("g") - k  # where the channel in the group is k - g * Kg
            if between > 1:
                strides.setdefault(between, f"({group} - Kg)")
        return Names(strides, index.divisors, index.moduli, self._mention)

    def of_index(
        self, dims: Sequence[str], extent: Callable[[str], int], name: Callable[[str], str] = extent_name
    ) -> Names:
        """The extents that divide an index over dims, outermost first, into coordinates."""
        divisors: dict[int, tuple[str, ...]] = {}
        moduli: dict[tuple[int, int], tuple[str, ...]] = {}
        inner = 1
        for end in range(len(dims), 0, -1):
            if isinstance(extent(dims[end - 1]), Size):
                break
            names: tuple[str, ...] = ()
            count = 1
            for dim in reversed(dims[1:end]):
                if isinstance(extent(dim), Size) or not self._takes(name(dim), extent(dim)):
                    break
                count *= extent(dim)
                if extent(dim) > 1:
                    names = (name(dim), *names)
                if inner == 1:
                    divisors.setdefault(count, names)
                moduli.setdefault((inner, count), names)
            inner *= extent(dims[end - 1])
        return Names(divisors=divisors, moduli=moduli, mention=self._mention)

    def of_group(self, c: int, k: int, pack: int) -> Names:
        """The extents in formulas of channels: a group's input and output channels, and the groups of a pack."""
        own = ("Kg",) if k > 1 and self._takes("Kg", k) else ()
        packed = ("group_pack",) if pack > 1 and self._takes("group_pack", pack) else ()
        steps = {c: "Cg"} if c > 1 and self._takes("Cg", c) else {}
        return Names(steps, {k: own}, {(1, k): own, (k, pack): packed}, self._mention)

    def of_place(self, dims: Sequence[str], extents: Mapping[str, int]) -> Names:
        """The factors that turn coordinates over dims, outermost first, into a number: products of the inner
        extents."""
        steps: dict[int, str] = {}
        step, name = 1, ""
        for dim in reversed(dims[1:]):
            if not self._takes(extent_name(dim), extents[dim]):
                break
            step, name = step * extents[dim], f"{extent_name(dim)} * {name}" if name else extent_name(dim)
            steps[step] = name

        return Names({step: name for step, name in steps.items() if step > 1}, mention=self._mention)

    def _takes(self, name: str, value: int) -> bool:
        return self.defined and bool(name) and self._known.setdefault(name, self.file.get(name, value)) == value

    def _mention(self, name: str) -> None:
        for one in re.findall(r"[a-zA-Z]\w*", name):
            if one not in self.file:
                self._mentioned.setdefault(one)
