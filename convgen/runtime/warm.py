"""The quick way to a launch: a `__call__` that is written for one kernel and the library of its arrays.

It comes to the same launch as `Kernel._call` in a quarter of the time, and looks at the same things: an array may
have been changed in place since the last call, or be another one at the same address.  What takes time is
Python's reading of attributes, so it does that and nothing else: no loop, no packing of arguments.  For
kernel(x, w, b=b, out=y) with arrays of CuPy it reads

    def __call__(self, /, x, w, b, *, out=None, stream=None, workspace=None):
        enqueue = None
        try:
            if out is not None and workspace is None and x.dtype is _dtype_0 and x.shape == _shape_0 and ...:
                handle = _current(_device).ptr if stream is None else _handle(stream)
                enqueue = _launched.get((handle, x.data.ptr, ...))
        except AttributeError:
            pass
        if enqueue:
            enqueue()
            return out
        return self._call((x, w, b), {}, out, stream, workspace)

A call with torch's tensors then says that it wrote `out`, which autograd counts.  A kernel that brings its own
workspace also asks whether the stream is being captured, since a capture has another.  Where a call decides sizes,
arrays' shapes are part of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from keyword import iskeyword
from types import CodeType
from typing import Any, NamedTuple

_TEXT = """\
def __call__(self, /, {names}, *, out=None, stream=None, workspace=None):
    enqueue = None
    try:
        if out is not None and workspace is None and {count}{right}:
            handle = {stream} if stream is None else _handle(stream)
            enqueue = _launched.get((handle, {key}))
    except AttributeError:  # an array of another library
        pass
    if enqueue{idle}:
        enqueue(){wrote}
        return out
    return self._call(({names},), {{}}, out, stream, workspace)
"""
#: What the text has names for; others begin with "_".
_TAKEN = {"self", "out", "stream", "workspace", "handle", "enqueue", "AttributeError", "len", "tuple", "type"}


class Reading(NamedTuple):
    """A library's arrays in Python expressions: of an array `{a}` whether it is of type `_dtype_{i}`, has the shape
    that `{shape}` says, lies as `{layout}` says, and is on GPU `_device`; its layouts: packed, or with the strides
    `_strides_{i}`; its address; the handle of the current stream.  `current` is `_current` in them; `wrote` is told of
    the results, where the library wants that."""

    right: str
    packed: str
    sliced: str
    address: str
    stream: str
    current: Callable[..., Any]
    wrote: Callable[..., Any] | None = None


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    """Python's code: kernels of other sizes have the same."""
    return compile(text, "<call>", "exec")


def write(
    names: Sequence[str], results: Sequence[str], reading: Reading, handle: Callable[[object], int],
    launched: Mapping[tuple[Any, ...], Callable[[], object]], device: int, shapes: Sequence[tuple[int, ...] | None],
    strides: Sequence[tuple[int, ...] | None], dtypes: Sequence[object], capturing: Callable[[int], bool] | None = None,
) -> Callable[..., Any] | None:  # fmt: skip
    """The call of a kernel whose tensors have these names, whose results are called "out", or "out[0]" and so on, and
    whose arrays, the results last, are as stated: of channel slices, `strides` are in the library's own units; a shape
    is None where a call decides it.  `launched` has what enqueues a call, by the handle of the stream, addresses, and
    the shapes that calls decide; not for a stream of which `capturing` is true.

    None where a tensor's name is none that a parameter of a Python function can have, and for slices whose shape a call
    decides.
    """
    if any(iskeyword(name) or name in _TAKEN or name.startswith("_") for name in names):
        return None
    if any(shape is None and of is not None for shape, of in zip(shapes, strides, strict=True)):
        return None
    arrays = (*names, *results)
    key = [reading.address.format(a=array) for array in arrays]
    key += [f"{array}.shape" for array, shape in zip(arrays, shapes, strict=True) if shape is None]
    text = _TEXT.format(
        names=", ".join(names),
        count=f"type(out) is tuple and len(out) == {len(results)} and " if len(results) > 1 else "",
        right=" and ".join(
            reading.right.replace("{shape}", "{a}.shape == _shape_{i}" if shape else "True")
            .replace("{layout}", reading.sliced if of else reading.packed)
            .format(a=array, i=i)
            for i, (array, shape, of) in enumerate(zip(arrays, shapes, strides, strict=True))
        ),
        key=", ".join(key),
        stream=reading.stream,
        wrote=f"\n        _wrote(({', '.join(results)},))" if reading.wrote else "",
        idle=" and not _capturing(handle)" if capturing else "",
    )
    values = {"_current": reading.current, "_handle": handle, "_launched": launched, "_device": device}
    values |= {"_capturing": capturing, "_wrote": reading.wrote}
    values |= {f"_shape_{i}": shape for i, shape in enumerate(shapes)}
    values |= {f"_strides_{i}": of for i, of in enumerate(strides)}
    values |= {f"_dtype_{i}": dtype for i, dtype in enumerate(dtypes)}
    made: dict[str, Any] = {}
    exec(_compiled(text), values, made)
    return made["__call__"]
