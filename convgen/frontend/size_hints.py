"""Guesses at what people mean where sizes stand, extents of tensors or amounts by axis: one function per guess gives a
hint, or nothing if it does not apply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from lark import Token

from convgen import habits
from convgen.diagnostics import did_you_mean
from convgen.frontend import wording
from convgen.frontend.dims import DYNAMIC_DIMS
from convgen.frontend.place import Place
from convgen.ir.problem import Padding

CHANNEL_SLICE = "channels of a larger tensor are written as `c=64 of 256`; the call decides where they begin"
#: Dims of each setting's tensor, by how many there are.
LAYOUTS = {
    "input": {2: "nc", 3: "nwc", 4: "nhwc", 5: "ndhwc"},
    "filter": {2: "kc", 3: "ksc", 4: "krsc", 5: "ktrsc"},
    "output": {2: "nk", 3: "nqk", 4: "npqk", 5: "nopqk"},
}

_FILLS = frozenset(map(str, Padding))


def positional(place: Place) -> str | None:
    """Extents without the names of their dims."""
    layouts = LAYOUTS.get(place.keyword)
    if layouts is None or place.before is None:
        return None
    begins = place.before.type == "LSQB"
    if sizes := by_x(place.word):
        if not begins and place.before.type not in ("COMMA", "ASSIGN"):
            return None  # it is no extent
        dims = layouts.get(len(sizes) + 2 * (not begins), layouts[4])
        return _named([dim for dim in dims if begins or dim not in "nck"], sizes)
    if place.word.type != "INT":
        return None
    if place.before.type == "COMMA" and place.kinds == {"NAME"}:
        return f"name each extent, as in `{_unnamed(place, layouts)}={place.word}`"
    if not begins:
        return None
    listed = takewhile(lambda word: word.type != "RSQB", place.words[place.at :])
    extents = [word for word in listed if word.type == "INT"]
    return _named(layouts.get(len(extents), layouts[4]), extents)


def _unnamed(place: Place, layouts: Mapping[int, str]) -> str:
    """The dim that an extent without a name in a tensor's brackets is probably of: an axis before another dim."""
    start = next(i for i in range(place.at, -1, -1) if place.words[i].type == "LSQB") + 1
    listed = [*takewhile(lambda word: word.type != "RSQB", place.words[start:])]
    dims = layouts.get(1 + sum(word.type == "COMMA" for word in listed), layouts[4])
    return min(dims, key=lambda dim: (dim in listed, dim in "nck"))


def _named(dims: Sequence[str], extents: Sequence[str]) -> str:
    planes = len(extents) == len(dims) == 4 and extents[2] == extents[3] and extents[1] != extents[2]
    if planes:  # as PyTorch writes shapes
        dims = (dims[0], dims[3], *dims[1:3])
    shown = ", ".join(map("{}={}".format, dims, extents))
    return f"name each extent{', in the order of memory' * planes}: `[{shown}]`"


def by_x(word: Token) -> list[str]:
    """The numbers of 64x64; none of another word, or of 0x40."""
    return word.split("x") if re.fullmatch(r"[1-9][0-9]*(x[0-9]+)+", word) else []


def _by_axis(keyword: str, sizes: Sequence[str], axes: Sequence[str] = ()) -> str:
    """How to write amounts; for the last axes if none are named."""
    if len(sizes) == 1 and not axes:
        return f"write `{keyword} {sizes[0]}`"
    if keyword == "pad" and len(sizes) == 4 and not axes:  # in an order that differs from library to library
        low, high = (sizes[0], sizes[0]) if len({*sizes}) == 1 else ("LOW", "HIGH")
        return f"write both ends of each axis: `pad h=({low}, {high}) w=({low}, {high})`"
    axes = axes or "dhw"[-len(sizes) :]
    if len(axes) != len(sizes) or not set(axes) <= set("dhw"):
        return f"write a value per axis as `{wording.AXES[keyword]}`"
    return f"write a value per axis: `{' '.join((keyword, *map('{}={}'.format, axes, sizes)))}`"


def listed_by_axis(place: Place, at: int) -> str:
    """The same of a list in brackets whose first word is at a place."""
    kinds = {"INT", "NAME", "COMMA", "ASSIGN", "COLON"}
    listed = list(takewhile(lambda word: word.type in kinds, place.words[at:]))
    if place.words[at + len(listed)] not in ("]", "}"):  # there is more than amounts
        return _by_axis(place.keyword, ())
    return _by_axis(place.keyword, *([word for word in listed if word.type == kind] for kind in ("INT", "NAME")))


def _listed_amounts(place: Place) -> str | None:
    """How amounts are written that stand in parentheses, or with commas between them: `pad (h=1, w=1)`, `pad 1, 1`."""
    start = next(i for i in range(place.at, -1, -1) if place.words[i] == place.keyword) + 1
    line = [*takewhile(lambda w: w.line == place.word.line, place.words[start:])]
    listed = [*takewhile(lambda w: w.type in ("LPAR", "INT", "NAME", "ASSIGN", "COMMA"), line)]
    sizes, names = ([w for w in listed if w.type == kind] for kind in ("INT", "NAME"))
    if place.word.type not in ("COMMA", "ASSIGN") or len(sizes) < 2:
        return None
    assigned = sum(w.type == "ASSIGN" for w in listed)
    if not len(names) == assigned == len(sizes) * bool(names) or not {*names} <= {*"dhw"}:
        return None
    return _by_axis(place.keyword, sizes, names)


def axes(place: Place) -> str | None:
    """Amounts of stride, pad and dilation, one after the other."""
    word, before = place.word, place.before
    if place.keyword not in wording.AXES or not place.braces or before is None:
        return None
    if word.type == "INT" and before in _FILLS and place.words[place.at - 2].type == "PAD":
        return f"write the amount first: `pad {word} {before}`"
    if word.type in ("INT", "FLOAT") and before == "constant":
        zeros = f"zeros need no word: `pad {place.words[place.at - 2]}`"
        return habits.NO_SETTINGS["padvalue"] if float(word) else zeros
    if not place.begins_line and (amounts := _listed_amounts(place)):
        return amounts
    if word.type in ("INT", "COMMA") and not place.begins_line:
        return f"one value for all axes, or one per axis: `{wording.AXES[place.keyword]}`"
    if word.type == "LBRACE" and before.type == "NAME" and (block := did_you_mean(before, wording.BLOCKS)):
        return block
    if word.type in ("LSQB", "LBRACE"):
        return listed_by_axis(place, place.at + 1)
    if sizes := by_x(word):
        return _by_axis(place.keyword, sizes)
    if word.type == "ASSIGN" and place.keyword == "pad":  # `pad 1 mode=reflect`
        return habits.NO_SETTINGS.get(f"pad{habits.plain(before)}")
    return None


def channels(place: Place) -> str | None:
    """A slice as in Python: `c=0:64`, `k[0:64]`."""
    word, before, after = place.word, place.before, place.after
    if place.keyword not in LAYOUTS or "RSQB" not in place.kinds or before is None or after is None:
        return None
    ends = before.type == "INT" and word.type == "COLON" and after.type in ("INT", "NAME", "RSQB")
    if ends or (before.type == "NAME" and word.type == "LSQB" and after.type in ("INT", "COLON")):
        return CHANNEL_SLICE
    return None


def any_size(place: Place) -> str:
    """Hint for an extent that is left open as `h=?`."""
    named = place.words[place.at - 2] if place.before == "=" and place.at > 1 else ""
    return habits.ANY_SIZE.format(named if named in DYNAMIC_DIMS else "n")


def extent(place: Place) -> str | None:
    """An extent or an amount after a colon, or an extent that may be any."""
    word, before, after = place.word, place.before, place.after
    if word.type == "STAR" and before is not None and before.type == "ASSIGN" and place.keyword in LAYOUTS:
        return any_size(place)
    if word.type != "COLON" or before is None or before.type != "NAME" or after is None:
        return None
    if after.type not in ("NAME", "INT", "LPAR") or not ("RSQB" in place.kinds or place.keyword in wording.AXES):
        return None
    return f"write `{before}={'(...)' if after.type == 'LPAR' else after}`"
