"""How arrays lie in memory, and how a result lies because of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convgen.functional.arrays import WIDEST, channels_first, channels_last, is_packed, order_of, pitch_of
from convgen.ir.dtypes import DTYPES


class Given(NamedTuple):
    """An array: shape, strides in elements, the language's element type, whether it begins at an aligned address, and
    what its caller calls it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    aligned: bool = True
    name: str = "an array"

    def pitch(self, order: Sequence[int]) -> int | None:
        """The number of channels of which its own are a slice that a kernel takes in place, with the axes in this
        order."""
        found = pitch_of(self.shape, self.strides, order)
        return found if found and self.aligned and found * DTYPES[self.dtype].bytes % WIDEST == 0 else None


def result_order(a: Given, b: Given) -> tuple[int, ...]:
    """The order in memory of the result's axes, where these two are read.

    Where both have one channel, so that their elements lie the same either way, strides decide as they do in torch
    (c10/core/MemoryFormat.h).  Of one pixel, the result lies the same either way, too, and its channels are last.
    """
    rank = len(a.shape) - 2
    last, first = channels_last(rank), channels_first(rank)
    clear = [_clear_order(given, last, first) for given in (a, b)]
    if last in clear or first in clear:
        return last if last in clear else first
    says_last = [_one_channel_is_last(given) for given in (a, b)]
    return order_of(a.shape, a.strides, last if any(says_last) or says_last[0] is None else first) or last


def _clear_order(given: Given, *orders: tuple[int, ...]) -> tuple[int, ...] | None:
    """The one of two orders, the first with channels last, that a tensor has; None where it has both (one channel, or
    one pixel) or neither."""
    fits = [order for order in orders if is_packed(given.shape, given.strides, order)]
    if not fits and pitch_of(given.shape, given.strides, orders[0]):
        return orders[0]
    return fits[0] if len(fits) == 1 else None


def _one_channel_is_last(given: Given) -> bool | None:
    """Whether the strides of a tensor of one channel say that it is last; None of other tensors, and of one pixel."""
    if given.shape[1] != 1 or all(extent == 1 for extent in given.shape[2:]):
        return None
    return given.strides[1] <= given.strides[-1]
