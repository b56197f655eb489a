"""A kernel of sizes that a call decides: one cubin, and for each set of sizes a kernel that launches it.

What a kernel of fixed sizes prepares once (grids, tensor maps, checks of arguments, warm calls) is prepared once a set
of sizes, from the formulas of the manifest: nothing is planned or compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from convgen.ir.estimates import behind
from convgen.ir.problem import exchanged_dims
from convgen.ir.size import Size, evaluate, whole
from convgen.runtime import describe
from convgen.runtime.errors import WrongArguments, WrongShape, WrongType
from convgen.runtime.kernel import Array, Kernel
from convgen.runtime.launch import Enqueue, OnEachGpu, keep
from convgen.runtime.manifest import Dynamic

if TYPE_CHECKING:
    from convgen.runtime.arrays import CupyLibrary, TorchLibrary
    from convgen.runtime.artifacts import Artifact

#: The input's dim for each of the output's.
_INPUTS = exchanged_dims()
#: Of an int.
_MOST = 2**31 - 1
#: `explain` says of so many times as many images as any class is planned for which class they take, and of no more
#: than so many.
_BEYOND, _TOLD = 8, 4096


class DynamicKernel(Kernel):
    """A compiled convolution of any sizes that its spec calls dynamic, within `manifest.dynamic.limits`.

        y = kernel(x, w)                     # of the sizes that x has
        fixed = kernel.at(n=3, h=20, w=20)   # the kernel of these sizes

    It is called as any other.  The sizes are read off the arguments; what they disagree in is refused.
    """

    def __repr__(self) -> str:
        return f"<convgen kernel {describe.title(self.manifest)}, of any {', '.join(self._dynamic.dims)}>"

    def at(self, **sizes: int) -> Kernel:
        """The kernel of these sizes; dims that are left out have those of the spec, n that of the first of `classes`.

        Raises WrongArguments, WrongShape."""
        made = self._of(self._sizes(sizes, "at"))
        made.alone = True
        return made

    def _sizes(self, sizes: Mapping[str, int], method: str) -> dict[str, int]:
        """All that a call decides, where a user gives some.  Raises WrongArguments."""
        dims = self._dynamic.dims
        if unknown := [name for name in sizes if name not in dims]:
            hint = f"hint: the spec's dynamic dims are {', '.join(dims)}"
            raise WrongArguments(f"{self.name}.{method} cannot choose {', '.join(unknown)}\n{hint}")
        found = dict(self.manifest.written)
        for name, size in sizes.items():
            if (number := whole(size)) is None:
                raise WrongArguments(f"{self.name}: {name} is of type {type(size).__name__}: expected a whole number")
            found[name] = number
        return found

    @cached_property
    def classes(self) -> tuple[DynamicKernel, ...]:
        """The kernels that calls are handed to, each planned for other sizes; itself alone unless `joined` has given
        others."""
        return (self,)

    def class_at(self, **sizes: int) -> DynamicKernel:
        """The one of `classes` that a call of these sizes runs: that was planned for them, else the one that the cost
        model expects to be fastest, else, where there is no model, the one planned for the nearest size.

        Raises as `at` does."""
        return self._class(self._all(self._sizes(sizes, "class_at")))

    def _call(
        self,
        arrays: tuple[Array, ...],
        named: Mapping[str, Array],
        out: Array,
        stream: object,
        workspace: Array,
        raw: bool = False,
    ) -> Array:
        """Compute the result of these sizes, as a kernel of fixed sizes does."""
        given = self._bind(arrays, named, ".launch_raw" if raw else "")
        kernel = self._for(given, out)
        return (kernel.launch_raw if raw else kernel)(*given, out=out, stream=stream, workspace=workspace)

    def emulate(self, *arrays: Array, out: Array = None, **options: Any) -> Array:
        """Run the generated source on the CPU, as a kernel of fixed sizes does."""
        own = {name: options.pop(name) for name in list(options) if name in self._names}
        given = self._bind(arrays, own, ".emulate")
        return self._for(given, out).emulate(*given, out=out, **options)

    def explain(self) -> str:
        """As for any kernel; with several classes, also which numbers of images run which."""
        text = super().explain()
        if len(self.classes) == 1:
            return text
        from convgen.explain import classes

        manifests = [kernel.manifest for kernel in self.classes]
        of = {m.written["n"]: (m.size_class, f"{m.strategy}, {m.config}") for m in manifests}
        told = sorted({*range(1, min(_BEYOND * max(of), _TOLD) + 1), *of})
        return f"{text.rstrip()}\n\n{classes(of, told)}\n"

    @property
    def _artifacts(self) -> tuple[Artifact, ...]:
        return tuple(kernel._artifact for kernel in self.classes)

    def __copy__(self) -> Kernel:
        return joined(self.classes) if len(self.classes) > 1 else super().__copy__()

    @cached_property
    def _dynamic(self) -> Dynamic:
        assert self.manifest.dynamic
        return self.manifest.dynamic

    @cached_property
    def _kernels(self) -> dict[tuple[int, ...], _OfSizes]:
        """The kernels by sizes."""
        return {}

    @cached_property
    def _size_sources(self) -> dict[str, tuple[tuple[int, int, int], ...]]:
        """Where each dim's size can be read: at the argument, results last, the axis, and of how many."""
        tensors = [t for t in self.manifest.tensors if t.axes is None]
        return {
            dim: tuple((i, t.dims.index(dim), len(t.dims)) for i, t in enumerate(tensors) if dim in t.dims)
            for dim in (*self._dynamic.dims, *(dim for dim, _ in self._dynamic.derived))
        }

    @cached_property
    def _inverse(self) -> dict[str, tuple[str, int]]:
        """The dims that follow from the output's, of windows one pixel apart: which, and how much larger they are."""
        found = {}
        for output, extent in self._dynamic.derived:
            dim = _INPUTS[output]
            low, high = (evaluate(extent.formula, {dim: value}) for value in (1, 1001))
            if high - low == 1000:
                found[dim] = output, 1 - low
        return found

    def _for(self, given: tuple[Array, ...], out: Array) -> Kernel:
        """The kernel of the sizes that arrays have.  Raises WrongArguments, WrongShape."""
        arrays = given if out is None else (*given, *self._each_out(out))
        sizes = tuple(self._size(dim, arrays) for dim in self._dynamic.dims)
        return self._kernels.get(sizes) or self._of(dict(zip(self._dynamic.dims, sizes, strict=True)))

    def _size(self, dim: str, arrays: tuple[Array, ...]) -> int:
        for i, axis, rank in self._size_sources[dim]:
            if i < len(arrays):
                shape = _shape(arrays[i])
                if shape is None or len(shape) != rank:
                    tensor = self.manifest.tensors[i]
                    if shape is None:
                        kind = type(arrays[i]).__name__
                        raise WrongType(f"{tensor.name} is of type {kind}: expected an array, with a shape")
                    raise WrongShape(f"{tensor.name} has shape {shape}, expected dims {' '.join(tensor.dims)}")
                return shape[axis]
        if dim in self._inverse and len(arrays) >= len(self.manifest.arguments):
            output, taken = self._inverse[dim]
            return self._size(output, arrays) + taken
        hint = f"hint: pass the result as out=, or choose it: {self.name}.at({dim}=...)"
        raise WrongArguments(f"{self.name}: {dim} does not follow from the arguments\n{hint}")

    def _of(self, sizes: Mapping[str, int]) -> _OfSizes:
        """The kernel of all these sizes, made when they are first asked for."""
        key = tuple(sizes[dim] for dim in self._dynamic.dims)
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                every = self._all(sizes)
                found = self._class(every)._made(every, self)
                keep(self._kernels, key, found)
        return found

    def _class(self, sizes: Mapping[str, int]) -> DynamicKernel:
        """The one of `classes` for all these sizes.  Raises WrongShape if none serves sizes so large."""
        ranked = sorted(self.classes, key=lambda kernel: kernel._behind(sizes))
        found = next((kernel for kernel in ranked if not kernel._exceeded(sizes)), ranked[0])
        if exceeded := found._exceeded(sizes):
            raise WrongShape(exceeded)
        return found

    def _behind(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """The class's rank among others for these sizes, by the equivalent number of images of the spec's size."""
        asked, planned = (prod(of[dim] for dim in self._dynamic.dims) for of in (sizes, self.manifest.written))
        n = self.manifest.written.get("n", 1)
        return behind(self._dynamic.estimates, n, asked * n / planned)

    def _all(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes with those that follow.  Raises WrongShape where there are none."""
        found = dict(sizes)
        for dim, extent in self._dynamic.derived:
            found[dim] = evaluate(extent.formula, sizes)
        for dim, size in found.items():
            if not 1 <= size <= _MOST:
                said = f"{dim} is {size}" if dim in sizes else f"{self._said(sizes)} gives {dim}={size}"
                raise WrongShape(f"{self.name}: {said}; it must be from 1 to {_MOST}")
        return found

    def _exceeded(self, sizes: Mapping[str, int]) -> str:
        """How far the kernel goes, where these sizes are beyond it."""
        for limit in self._dynamic.limits:
            count = evaluate(limit.size.formula, sizes)
            if count > limit.most:
                hint = "hint: write sizes as large into the spec and compile it again"
                said = self._said(sizes)
                return f"{self.name}: {said} gives {count} {limit.what}; it goes up to {limit.most}\n{hint}"
        return ""

    def _said(self, sizes: Mapping[str, int]) -> str:
        return ", ".join(f"{dim}={sizes[dim]}" for dim in self._dynamic.dims)

    def _made(self, sizes: Mapping[str, int], whole: DynamicKernel) -> _OfSizes:
        manifest = self.manifest.at(sizes)
        made = _OfSizes(replace(self._artifact, manifest=manifest), self._replan, self._explain)
        made.whole = whole
        made._chosen = {dim: sizes[dim] for dim in self._dynamic.dims}
        made._programs = OnEachGpu(lambda device: self._programs[device].resized(manifest))
        made._raw_programs = OnEachGpu(lambda device: self._raw_programs[device].resized(manifest))
        return made


class _OfSizes(Kernel):
    """The kernel of one set of sizes of a dynamic kernel.  What it has launched once, `whole` launches the quick way;
    where it is called `alone`, so does it."""

    whole: DynamicKernel
    alone = False

    def explain(self) -> str:
        """The plan's explanation, and the kernel's sizes."""
        return (
            f"{self.name} at {self.whole._said(self._chosen)}, by the plan for the sizes below\n\n{super().explain()}"
        )

    def __repr__(self) -> str:
        return f"<convgen kernel {describe.title(self.manifest)}, at {self.whole._said(self._chosen)}>"

    def _repr_html_(self) -> str:
        return describe.table(self.manifest, self.whole._said(self._chosen))

    def at(self, **sizes: int) -> Kernel:
        return self.whole.at(**sizes)

    def class_at(self, **sizes: int) -> DynamicKernel:
        return self.whole.class_at(**sizes)

    def _warm_up(
        self,
        library: CupyLibrary | TorchLibrary,
        given: tuple[Array, ...],
        device: int,
        key: tuple[Any, ...],
        enqueue: Enqueue,
    ) -> bool:
        def run() -> None:
            enqueue()

        vars(run)["kernel"] = self  # whose workspace must live
        slots = self.whole._slots
        shapes = (array.shape for array, slot in zip(given, slots, strict=True) if slot.varies)
        quick = self.whole._warm_up(library, given, device, (*key, *shapes), run if self._scratch_bytes else enqueue)
        return super()._warm_up(library, given, device, key, enqueue) if self.alone or not quick else quick


def joined(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel of several that differ in the sizes that they were planned for.  Raises WrongArguments."""
    first, *others = [Kernel(kernel._artifact, kernel._replan, kernel._explain) for kernel in kernels]
    for kernel in (first, *others):
        if not isinstance(kernel, DynamicKernel):
            raise WrongArguments(f"{kernel.name} has fixed sizes\nhint: write `dynamic n` into the conv block")
        if _face(kernel) != _face(first):
            raise WrongArguments(f"{kernel.name} and {first.name} differ in more than the sizes that a call decides")
    vars(first)["classes"] = (first, *others)
    first._scratch_bytes = max(kernel._scratch_bytes for kernel in (first, *others))
    return first


def _face(kernel: Kernel) -> tuple[object, ...]:
    """The interface that a caller sees, except for the sizes that a call decides."""
    m = kernel.manifest
    assert m.dynamic
    tensors = tuple(replace(t, extents=tuple(0 if isinstance(e, Size) else e for e in t.extents)) for t in m.tensors)
    settings = tuple(line for line in m.spec.splitlines() if "[" not in line)  # which declare no tensor
    return m.target, tensors, m.dynamic.dims, settings


def _shape(array: Array) -> tuple[int, ...] | None:
    """None for an object that is not an array."""
    shape = getattr(array, "shape", None)
    if shape is None:
        shape = getattr(array, "__cuda_array_interface__", {}).get("shape")
    return None if shape is None else tuple(shape)
