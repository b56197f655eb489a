"""A call with its arrays: launched where they are on a GPU, computed on the host where they are in its memory.

On the host the generated source runs in the emulator, where that is a matter of seconds: up to `EMULATED` multiply-adds
(elements, for im2col and col2im), and where there is a C++ compiler.  Larger calls, and machines without a compiler,
take the float64 reference, rounded once to the result's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from convgen.functional.arrays import NUMPY, Array, NumpyLibrary, element_type, inverse
from convgen.functional.kernels import kernel_of
from convgen.functional.layouts import Given
from convgen.functional.recipe import Recipe, View
from convgen.ir.dtypes import numpy_dtype
from convgen.runtime.arguments import Slot, check_overlap
from convgen.runtime.arrays import capturing
from convgen.runtime.errors import Misaligned, WrongShape
from convgen.spec import known_tuning

if TYPE_CHECKING:
    from convgen.ir.problem import ConvProblem
    from convgen.runtime.kernel import Kernel

#: Multiply-adds, or elements, that the emulator is given: it does some 10 million in a second.
EMULATED = 1 << 22


@dataclass(frozen=True)
class Call:
    """A recipe and its arrays, with torch's axes, in the kernel's order."""

    recipe: Recipe
    library: NumpyLibrary
    arrays: tuple[Array, ...]
    unbatched: bool = False
    axes: tuple[int, ...] | None = None  # of the result, where they are not in torch's order
    out: Array | None = None  # the caller's
    tune: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.tune is not None:
            known_tuning(self.tune)

    def kernel(self) -> Kernel:
        """The kernel that serves the call.  Raises WrongShape, SpecError, UsageError, CompileError."""
        if self._is_empty:
            raise WrongShape("an empty batch takes no kernel\nhint: give an array of one image or more")
        asked = self.recipe.convolution.text, self.recipe.convolution.strategy
        key = (*asked, self.tune)
        if self.tune and key not in kernel_of and capturing():
            key = (*asked, None)  # the next call outside of a capture measures
        return kernel_of(key)

    @property
    def _is_empty(self) -> bool:
        """Whether there are no images."""
        return any(0 in array.shape for array in self.arrays)

    def run(self) -> Array:
        """The result."""
        result, library = self.recipe.result, self.library
        if self.out is None:
            found = library.empty([result.shape[i] for i in result.order], result.dtype, self.arrays[0])
        else:
            found = library.permuted(self.out[None] if self.unbatched else self.out, result.order)
        if self._is_empty:
            found[...] = 0  # sums, too
        else:
            views = [viewed(a, v, library) for a, v in zip(self.arrays, self.recipe.views, strict=True)]
            if library.on_gpu:
                self._launched(self.kernel(), views, found)
            else:
                self._on_host([library.host(view) for view in views], library.host(found))
                library.wrote(found)
        if self.out is not None:
            return self.out
        found = library.permuted(found, inverse(result.order))
        if self.axes is not None:
            found = library.permuted(found, self.axes)
        return found[0] if self.unbatched else found

    def _launched(self, kernel: Callable[..., Array], views: Sequence[Array], out: Array) -> None:
        """Call the kernel, with copies of arrays that begin where it can't load."""
        try:
            kernel(*views, out=out)
        except Misaligned:
            library = self.library if self.library.on_gpu else NUMPY
            moved = [view if library.aligned(view) else library.packed(view) for view in views]
            if all(a is b for a, b in zip(moved, views, strict=True)):
                raise  # it is the caller's out
            kernel(*moved, out=out)

    def _on_host(self, views: Sequence[Any], out: Any) -> None:
        from convgen.emulator.compiler import host_compiler
        from convgen.emulator.errors import NoHostCompiler

        work = max(self.recipe.macs, *(view.size for view in views))
        try:
            if work <= EMULATED and host_compiler():
                self._launched(replace(self, tune=None).kernel().emulate, views, out)
                return
        except NoHostCompiler:
            pass
        problem = _problem(self.recipe.convolution.text, self.recipe.convolution.strategy)
        _check_overlap(problem, views, out)
        out[...] = _reference(problem, views)


def viewed(array: Array, view: View, library: NumpyLibrary) -> Array:
    """An array as the kernel takes it."""
    if view.index is not None:
        array = array[(*view.index, ...)]  # an array also where no axis is left
    array = library.permuted(array, view.order)
    return library.packed(array) if view.copied else library.stored(array)


def given(library: NumpyLibrary, **arrays: Array) -> list[Given]:
    """The properties of arrays that recipes use, by their parameters' names.  Raises WrongType."""
    return [
        Given(
            tuple(array.shape),
            tuple(library.strides(array)),
            element_type(name, array, library),
            library.aligned(array),
            name,
        )
        for name, array in arrays.items()
    ]


def _check_overlap(problem: ConvProblem, views: Sequence[Any], out: Any) -> None:
    """Checks for overlap as a kernel does.  Raises Overlap."""
    tensors = (*problem.arguments, problem.result)
    slots = [Slot(t, t.name, 1, "out" if t is problem.result else "") for t in tensors]
    check_overlap(slots, [array.ctypes.data for array in (*views, out)], problem.in_place)


def _reference(problem: ConvProblem, views: Sequence[Any]) -> Any:
    from convgen.ir.reference import reference, round_to

    names = [t.buffer for t in problem.arguments]
    found = reference(problem, dict(zip(names, views, strict=True)))
    element = problem.result.element
    return round_to(found, element).astype(numpy_dtype(element.name), order="C")


@lru_cache(maxsize=1024)
def _problem(text: str, strategy: str | None) -> ConvProblem:
    """The problem of a spec.  Raises SpecError if the strategy does not serve it, UsageError if there is no such
    strategy."""
    from convgen.driver import load
    from convgen.spec import Spec

    (compilation,) = load(Spec(text, strategy=strategy))
    if strategy:
        compilation.check_served()
    return compilation.request.problem
