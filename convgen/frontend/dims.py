"""The dims that each tensor may have, and what people write instead."""

from __future__ import annotations

import re
from dataclasses import replace

from convgen import habits
from convgen.diagnostics import Report, listing
from convgen.frontend import ast
from convgen.ir.problem import SPATIAL

#: Role -> the setting that declares its tensor; SpatialDims has the same names.
SETTING_OF = {"x": "input", "w": "filter", "y": "output"}
#: Dims of each role's tensor, whatever the rank.
ROLE_DIMS: dict[str, tuple[str, ...]] = {
    "x": ("n", "c", *SPATIAL[3].input),
    "w": ("k", "c", *SPATIAL[3].filter),
    "y": ("n", "k", *SPATIAL[3].output),
}
#: Dims whose extents a call may decide.
DYNAMIC_DIMS = ("n", *SPATIAL[3].input)
#: Least spatial rank whose dims have the name.
RANK_OF = {
    name: rank for rank in sorted(SPATIAL, reverse=True) for dims in vars(SPATIAL[rank]).values() for name in dims
}

#: A dim and its extent, without `=`.
_GLUED = re.compile(r"([a-z])(\d+)")


def dim_meant(word: str) -> tuple[str, str] | None:
    """The role and the dim that a word names, by the dim's own name or another; None where no tensor has it."""
    for names in ({role: {d: d for d in dims} for role, dims in ROLE_DIMS.items()}, habits.DIMS):
        for role in ROLE_DIMS:
            if dim := names[role].get(habits.plain(word)):
                return role, dim
    return None


def rename_dims(role: str, tensor: ast.Tensor, report: Report) -> ast.Tensor:
    """The tensor with its role's dims: one by another name is reported and replaced by the dim that it means."""
    own = {d.name.text for d in tensor.dims}
    dims = []
    for dim in tensor.dims:
        name = dim.name
        if name.text not in ROLE_DIMS[role]:
            free = [known for known in ROLE_DIMS[role] if known not in own]
            message = f"`{tensor.name.text}` has no dim named `{name.text}`"
            if dim.extent is None and (glued := _GLUED.fullmatch(name.text)) and glued[1] in free:
                own.add(glued[1])
                report.error("E203", message, name.span, f"write `{glued[1]}={glued[2]}`")
                dim = replace(dim, name=ast.Name(glued[1], name.span), extent=ast.Number(name.span, glued[2]))
            elif meant := habits.meant(name.text, free, habits.DIMS[role]):
                own.add(meant)
                report.error("E203", message, name.span, f"did you mean `{meant}`?")
                dim = replace(dim, name=ast.Name(meant, name.span))
        dims.append(dim)
    names = {d.name.text for d in dims}
    sure = tensor.sure and len(names) == len(dims) and names <= {*ROLE_DIMS[role]}
    return replace(tensor, dims=tuple(dims), sure=sure)


def unknown_dim(role: str, tensor: ast.Name, dim: ast.Name, rank: int, report: Report) -> None:
    """Reports a dim that the role's tensor cannot have."""
    hint = _layout(role, dim.text)
    if not hint:
        known = tuple(d for d in ROLE_DIMS[role] if RANK_OF.get(d, 1) <= rank)
        hint = f"dims of the {SETTING_OF[role]} are {listing(known, 'and')}"
    report.error("E203", f"`{tensor.text}` has no dim named `{dim.text}`", dim.span, hint)


def _layout(role: str, word: str) -> str:
    """A hint for several dims in one word: NHWC, OIHW."""
    known, others = ROLE_DIMS[role], habits.DIMS[role]
    dims = [letter if letter in known else others.get(letter, "") for letter in word.lower()]
    if len(dims) < 3 or not all(dims) or len(set(dims)) < len(dims):
        return ""
    return f"list the dims one by one, with their extents: `[{', '.join(dims)}]`"
