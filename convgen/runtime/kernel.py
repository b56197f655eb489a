"""The callable: a compiled kernel that takes a user's arrays and gives the result.

`Kernel._call` is what a call does; after the first one with `out=`, `warm` writes a `__call__` that comes to the
same launch in a quarter of the time.  Either reads each argument's shape, type, layout, device and address:
arrays can be changed in place.  A call does not synchronize, and can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from convgen.ir.plan import Launch, Plan
from convgen.ir.tensor import Tensor
from convgen.runtime import cuda, describe, scratch, warm
from convgen.runtime.arguments import Slot, check_addresses, check_number
from convgen.runtime.errors import WrongArguments, WrongType
from convgen.runtime.launch import Enqueue, OnEachGpu, Program, keep, scratch_bytes
from convgen.targets import TARGETS

if TYPE_CHECKING:
    from convgen.runtime.arrays import CupyLibrary, Readers, TorchLibrary
    from convgen.runtime.artifacts import Artifact
    from convgen.runtime.scratch import Scratch

Array = Any


class _Launches(NamedTuple):
    """The launches of calls that pass `out`: a quick `__call__`, if there is one, and the function that enqueues each,
    by the handle of its stream and the addresses of all arrays, in order, with the workspace that the kernel brings."""

    call: Callable[..., Array] | None
    enqueues: dict[tuple[Any, ...], Enqueue]


class Kernel:
    """A compiled convolution.

        y = kernel(x, w, b=bias)                # a new y, of the library that x came from
        kernel(x, w, b=bias, out=y, stream=s)   # no allocation
        y, t = kernel(x, w, z=y, out=(y, t))    # several results; y adds to its old values

    Pass tensors in the order of `manifest.arguments`, or by their names in the spec.  They
    must have the spec's shapes, with dims in the spec's order, and be packed and on one GPU: CuPy arrays, torch
    tensors, or anything with `__cuda_array_interface__` or DLPack.  If the spec calls channels a slice (`c=64 of 256`),
    pass a view, `whole[..., 64:128]`; without `out`, such a result is a view of the first channels of a new array.
    Nothing is copied.
    The work is enqueued on `stream`; the default is torch's current stream if a torch tensor was passed, else CuPy's.

    Any thread may call a kernel, on any stream of the arguments' GPU; the launches of a call are never interleaved
    with others on the stream.  A captured call is replayed with its graph: `runtime.scratch` says what may run at
    the same time.

    Raises, before anything is launched, a subclass of LaunchError, or NoGpu or WrongGpu.
    """

    def __new__(cls, artifact: Artifact, *_: object, **__: object) -> Kernel:
        kind: type[Kernel] = cls
        if artifact.manifest.dynamic:
            from convgen.runtime.dynamic import DynamicKernel as kind
        return super().__new__(type(kind.__name__, (kind,), {}))  # of a class of its own, which gets a call of its own

    def __init__(
        self,
        artifact: Artifact,
        replan: Callable[[], Plan] | None = None,
        explain: Callable[[], str] | None = None,
    ) -> None:
        self._artifact = artifact
        self.manifest = artifact.manifest
        self.__doc__ = describe.docstring(self.manifest)
        self.__signature__ = describe.signature(self.manifest)
        self.name = self.manifest.name
        self.source = artifact.source
        self.cubin = artifact.cubin
        self.ptx = artifact.ptx
        self._replan = replan
        self._explain = explain
        self._names = tuple(t.name for t in self.manifest.arguments)
        self._readers: dict[tuple[type, ...], Readers] = {}
        #: by library, GPU and types
        self._warm: dict[tuple[Any, ...], _Launches] = {}
        self._programs = OnEachGpu(lambda device: Program(self.manifest, self.cubin, device))
        self._workspaces: dict[tuple[int, int], Scratch] = {}  # by GPU and stream
        self._scratch_bytes = self.workspace_bytes
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<convgen kernel {describe.title(self.manifest)}>"

    def _repr_html_(self) -> str:
        return describe.table(self.manifest)

    def __reduce__(self) -> tuple[Callable[..., Kernel], tuple[Mapping[str, bytes]]]:
        """A pickle has what `save` writes: what is loaded from it has no plan."""
        from convgen.runtime.saved import files, restore

        return restore, (files(self._artifacts),)

    @property
    def _artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts to save."""
        return (self._artifact,)

    def __copy__(self) -> Kernel:
        return Kernel(self._artifact, self._replan, self._explain)

    def __deepcopy__(self, memo: object) -> Kernel:
        return self.__copy__()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the kernel to a file, for `convgen.load`, which needs neither the spec nor NVRTC.

        Raises ConvgenError, and writes nothing, if the file cannot be written.
        """
        from convgen.runtime import saved

        saved.write(path, self)

    @property
    def plan(self) -> Plan | None:
        """The plan, recomputed from the spec for its sizes; None for a kernel without a spec (loaded or unpickled)."""
        return self._replan() if self._replan else None

    def at(self, **sizes: int) -> Kernel:
        """The kernel for these sizes, if the spec leaves them to calls.  Raises WrongArguments."""
        raise WrongArguments(f"{self.name} has fixed sizes\nhint: write `dynamic n` into the conv block")

    @property
    def classes(self) -> tuple[Kernel, ...]:
        """The kernels that run calls: this one alone, unless there are plans for several numbers of images."""
        return (self,)

    def class_at(self, **sizes: int) -> Kernel:
        """The one of `classes` that runs a call of these sizes.  Raises as `at` does."""
        return self.at(**sizes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that a call needs, which is the size of `workspace=`.

        If calls decide sizes, it is for a call of the spec's sizes or, with several `classes`, of those that the first
        class was planned for; for other sizes, see `kernel.at(n=...).workspace_bytes`, of the class that runs them."""
        return scratch_bytes(self.manifest)

    def explain(self) -> str:
        """Formulas, plan and reasons; for a kernel without its spec, what the manifest says."""
        if self._explain:
            return self._explain()
        m = self.manifest
        figures = [
            f"{entry}: {r.registers} registers, {r.spill_stores} bytes spilled" for entry, r in m.resources.items()
        ]
        return "\n".join([m.spec, f"strategy {m.strategy}: {m.config}", f"target {m.target}", m.reason, *figures])

    def __call__(
        self, /, *arrays: Array, out: Array = None, stream: object = None, workspace: Array = None, **named: Array
    ) -> Array:
        """Compute the result, into `out` if given, and return it; several results are passed and returned as a tuple.

        `workspace` is scratch memory of `workspace_bytes` on the same GPU, which nothing else may use until the
        call has run; without it, the kernel allocates its own, one for each stream and each capture.
        """
        return self._call(arrays, named, out, stream, workspace)

    def raw_module(self) -> Any:
        """The kernel as a `cupy.RawModule`, compiled by CuPy's NVRTC.  Needs no GPU.  Raises CompileError.

        `manifest.steps` says what to launch with which arguments; `launch_raw` does it.
        """
        return self._raw_module

    def launch_raw(
        self, /, *arrays: Array, out: Array = None, stream: object = None, workspace: Array = None, **named: Array
    ) -> Array:
        """Like a call, but launches `raw_module` with CuPy: the same result, bit for bit, in more time."""
        return self._call(arrays, named, out, stream, workspace, raw=True)

    def _call(
        self,
        arrays: tuple[Array, ...],
        named: Mapping[str, Array],
        out: Array,
        stream: object,
        workspace: Array,
        raw: bool = False,
    ) -> Array:
        given = self._bind(arrays, named, ".launch_raw" if raw else "")
        if out is not None:
            given = (*given, *self._each_out(out))
        types = tuple(map(type, given))
        library, own, device_of, readers, counted = self._readers.get(types) or self._read(types, given)
        device = device_of(given[0], readers[0][1])
        handle = library.stream(device) if stream is None else self._libraries.handle(stream)
        addresses = [read(array, slot, device, handle) for array, (read, slot) in zip(given, readers)]  # noqa: B905
        result = out
        if out is None:
            made = [library.empty(s, device, None if stream is None else handle) for s in self._slots[len(given) :]]
            addresses += [library.pointer(a, s, device, handle) for a, s in zip(made, self._slots[len(given) :])]  # noqa: B905
            result = tuple(made) if self.manifest.further else made[0]
        lasts = True
        if self._scratch_bytes:
            memory, lasts = self._scratch(workspace, device, handle)
            addresses.append(memory.ptr)  # `memory` lives until the launch is enqueued
        program = (self._raw_programs if raw else self._programs)[device]
        key = (handle, *addresses)
        enqueue = program.prepared.get(key)
        if enqueue is None:
            check_addresses(self._slots, addresses, self.manifest.in_place)
            enqueue = program.prepare(key)
        enqueue()
        if counted:
            self._libraries.TORCH.wrote([given[i] for i in counted])
        if out is not None and lasts and own is not None and not raw:
            self._warm_up(own, given, device, (handle, *addresses[: len(given)]), enqueue)
        return result

    def emulate(
        self,
        *arrays: Array,
        out: Array = None,
        seed: int = 0,
        progress: Callable[..., None] | None = None,
        sms: int = 2,
        **named: Array,
    ) -> Array:
        """Run the generated source on the CPU, on NumPy arrays of the same shapes and types.

        `seed` decides the order of the emulated GPU's events, `sms` how many multiprocessors it has.
        Every element of a result that is not given starts as NaN (-1 for integers).
        """
        from convgen import emulator
        from convgen.runtime.arrays import check_numpy

        given = self._bind(arrays, named, ".emulate")
        check_number("seed", seed, 0, 2**64 - 1)
        check_number("sms", sms, 1, 2**31 - 1)
        if progress is not None and not callable(progress):
            raise WrongType(f"progress is of type {type(progress).__name__}: expected a function of (done, total)")
        slots, m = self._slots, self.manifest
        if out is None:
            made = [slot.poisoned() for slot in slots[len(given) :]]
            out = tuple(made) if m.further else made[0]
        given = (*given, *self._each_out(out))
        for array, slot in zip(given, slots, strict=True):
            check_numpy(array, slot)
        check_addresses(slots, [array.ctypes.data for array in given], m.in_place)
        buffers = {slot.buffer: array for array, slot in zip(given, slots, strict=True)}
        emulator.emulate(
            self.source, m.steps, buffers, workspaces=m.workspaces, inputs=[t.buffer for t in (*m.reads, *m.operands)],
            seed=seed, sms=sms, progress=progress,
        )  # fmt: skip
        return out

    @cached_property
    def _raw_module(self) -> Any:
        from convgen.runtime import raw

        return raw.module(self.source, TARGETS[self.manifest.target])

    @cached_property
    def _raw_programs(self) -> OnEachGpu:
        from convgen.runtime.raw import RawProgram

        return OnEachGpu(lambda device: RawProgram(self.manifest, self._raw_module, device))

    @cached_property
    def _libraries(self) -> Any:
        """The module `arrays`, which imports nothing heavy itself but is of no use before the first call."""
        from convgen.runtime import arrays

        return arrays

    #: Sizes that `DynamicKernel.at` chose.
    _chosen: Mapping[str, int] = MappingProxyType({})

    @cached_property
    def _slots(self) -> tuple[Slot, ...]:
        """The slots: the expectations of each tensor that is read, each operand, and each result."""
        alignments: dict[str, int] = {}
        for step in self.manifest.steps:
            for param in step.params if isinstance(step, Launch) else ():
                alignments[param.buffer] = max(param.alignment, alignments.get(param.buffer, 1))

        def slot(tensor: Tensor, out: str = "") -> Slot:
            buffer = tensor.buffer
            alignment = max(tensor.element.bytes, alignments.get(buffer, 1))
            return Slot(tensor, buffer, alignment, out, self._chosen, reads)

        reads = {tensor.name: tensor.shape for tensor in self.manifest.arguments}
        results = self.manifest.results
        outs = [f"out[{i}]" for i in range(len(results))] if len(results) > 1 else ["out"]
        return (*map(slot, self.manifest.arguments), *map(slot, results, outs))

    def _each_out(self, out: Any) -> tuple[Array, ...]:
        """The arrays of `out`, one for each result.  Raises WrongArguments."""
        if not self.manifest.further:
            return (out,)
        names = [t.name for t in self.manifest.results]
        if not isinstance(out, tuple | list) or len(out) != len(names):
            given = f"of length {len(out)}" if isinstance(out, tuple | list) else f"of type {type(out).__name__}"
            hint = f"pass one array for each result: out=({', '.join(names)})"
            raise WrongArguments(f"{self.name} has {len(names)} results, and out is {given}\nhint: {hint}")
        return tuple(out)

    def _bind(self, arrays: tuple[Array, ...], named: Mapping[str, Array], method: str = "") -> tuple[Array, ...]:
        """The arguments in the order of the slots; `method` is the method that was called, for hints.  Raises
        WrongArguments."""
        if len(arrays) + len(named) == len(self._names):
            try:
                return (*arrays, *map(named.__getitem__, self._names[len(arrays) :]))
            except KeyError:
                pass
        self._refuse_call(arrays, named, method)

    def _refuse_call(self, arrays: tuple[Array, ...], named: Mapping[str, Array], method: str) -> NoReturn:
        names, positional = self._names, self._names[: len(arrays)]
        problems = [
            *(f"{name} is missing" for name in names if name not in positional and name not in named),
            *(f"{name} is given twice" for name in named if name in positional),
            *(f"it has no tensor {name}" for name in named if name not in names),
        ]
        if len(arrays) > len(names):
            problems.append(f"{len(arrays)} tensors are given, it takes {len(names)}")
        reads = [t.name for t in self.manifest.reads]
        operands = [f"{t.name}=..." for t in self.manifest.operands]
        call = ", ".join([*reads, *operands, "out=None", "seed=0" if method == ".emulate" else "stream=None"])
        raise WrongArguments(f"{self.name}: {'; '.join(problems)}\nhint: call it as {self.name}{method}({call})")

    def _read(self, types: tuple[type, ...], given: tuple[Array, ...]) -> Readers:
        return self._readers.setdefault(types, self._libraries.readers_of(given, self._slots))

    def _warm_up(
        self,
        library: CupyLibrary | TorchLibrary,
        given: tuple[Array, ...],
        device: int,
        key: tuple[Any, ...],
        enqueue: Enqueue,
    ) -> bool:
        """Makes `__call__` launch arrays like these the quick way, and this launch by its key; false if there is no
        quick way."""
        call, launched = self._launches(library, device, tuple(array.dtype for array in given))
        with self._lock:
            keep(launched, key, enqueue)
        if call and type(self).__call__ is not call:
            type(self).__call__ = call  # type: ignore[method-assign]
        return call is not None

    def prepared(self, device: int) -> Mapping[tuple[int, ...], Enqueue]:
        """Functions that enqueue calls like those already made on a GPU, by the stream's handle, the addresses of all
        arrays, in order, and the workspace's address if there is one."""
        return self._programs[device].prepared

    def _launches(self, library: CupyLibrary | TorchLibrary, device: int, dtypes: tuple[object, ...]) -> _Launches:
        """The launches of calls with arrays of one library, with elements of these types, on a GPU; the results come
        last."""
        seen = library, device, dtypes
        with self._lock:
            if seen not in self._warm:
                launched: dict[tuple[Any, ...], Enqueue] = {}
                shapes = [None if slot.varies else slot.shape for slot in self._slots]
                strides = [None if slot.packed else library.strides(slot) for slot in self._slots]
                capturing = cuda.driver().is_capturing if self._scratch_bytes else None
                results = [slot.out for slot in self._slots if slot.written]
                call = warm.write(
                    self._names, results, library.reading, self._libraries.handle, launched, device, shapes, strides,
                    dtypes,
                    capturing,
                )  # fmt: skip
                self._warm[seen] = _Launches(call, launched)
            return self._warm[seen]

    def _scratch(self, given: Array, device: int, stream: int) -> tuple[Any, bool]:
        """Memory for the workspaces, with its address as `ptr`, and whether later calls on the stream use it again."""
        if given is not None:
            return self._libraries.scratch(given, self._scratch_bytes, device, stream), False
        if capture := cuda.driver().capture(stream):
            return scratch.of_capture(capture, device, stream, self._scratch_bytes), False
        lasts = stream != cuda.PER_THREAD_STREAM
        found = self._workspaces.get((device, stream))
        if found is None:
            found = scratch.of_stream(device, stream, self._scratch_bytes)
            if lasts:
                found = self._workspaces.setdefault((device, stream), found)
        return found, lasts
