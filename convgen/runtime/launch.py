"""A kernel's code on one GPU, and its launches.

What a launch takes (configuration, parameter block, tensor maps) depends on the stream and on the
addresses alone.  It is prepared once for each set of those and never changed afterwards, so a repeated
call writes nothing, encodes nothing, and is safe from any thread.

A call of one launch goes straight to the driver.  The steps of any other are enqueued under the stream's
`scratch.turn`, so that no other call comes between them.  Either way the GPU's primary context is the
thread's current one meanwhile, and whatever was current before is so again afterwards.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import cache, partial
from typing import Any

from convgen.ir.plan import Fill, Gemm, Launch, Param, Step, TensorMap, Workspace, launch_bytes, launch_grid
from convgen.runtime import cublas, cuda, scratch, tensor_map
from convgen.runtime.errors import NoGpu, WrongDevice, WrongGpu
from convgen.runtime.manifest import Manifest
from convgen.targets import TARGETS, target_for

#: A function and its arguments; it returns a driver status, where 0 and None are success.
Call = tuple[Callable[..., Any], tuple[Any, ...]]
#: Enqueues the steps of one call.
Enqueue = Callable[[], None]
#: How many sets of addresses, and tensor maps, a program keeps ready; the oldest goes first.
KEPT = 4096
#: Workspaces share one allocation and start at multiples of this many bytes.
WORKSPACE_ALIGNMENT = 256


class Program:
    """A compiled kernel, given as a cubin, on one GPU.  Raises NoGpu, WrongGpu, DriverError.

    A call's key is (stream, *addresses of reads, operands and result[, address of the workspaces]).
    """

    def __init__(self, manifest: Manifest, code: Any, device: int) -> None:
        self.device = device
        self.prepared: dict[tuple[int, ...], Enqueue] = {}
        self._manifest = manifest
        self._driver = driver = cuda.driver()
        self._sms = driver.attribute(device, cuda.MULTIPROCESSOR_COUNT)
        self._lock = threading.Lock()
        self._maps: dict[tuple[TensorMap, int], Any] = {}
        _check_capability(manifest, driver.capability(device), device)
        launches = [step for step in manifest.steps if isinstance(step, Launch)]
        with driver.relaxed_capture(), driver.context(device):
            self._functions = self._load(code, launches)
            self._grids = {s: self._grid_of(s) for s in launches}
            if _calls_cublas(manifest):
                cublas.load(device)

    def resized(self, manifest: Manifest) -> Program:
        """The same code, for a manifest of other sizes."""
        made = copy(self)
        made.prepared, made._maps, made._lock = {}, {}, threading.Lock()
        made._manifest = manifest
        with self._driver.context(self.device):
            made._grids = {s: made._grid_of(s) for s in manifest.steps if isinstance(s, Launch)}
        return made

    def prepare(self, key: tuple[int, ...]) -> Enqueue:
        """The function that enqueues a call, kept in `prepared`.  Raises DriverError, WrongDevice."""
        stream, *addresses = key
        buffers = {t.buffer: (a, t.bytes) for t, a in zip(self._manifest.tensors, addresses, strict=False)}
        base = addresses[-1]
        for workspace in _workspaces(self._manifest):
            buffers[workspace.name] = base, workspace.bytes
            base += _rounded(workspace.bytes)
        with self._lock, self._driver.context(self.device):
            self._check_stream(stream)
            calls = [self._call(step, buffers, stream) for step in self._manifest.steps]
            enqueue = self._enqueue(calls, stream)
            keep(self.prepared, key, enqueue)
        return enqueue

    def _enqueue(self, calls: Sequence[Call], stream: int) -> Enqueue:
        run = self._at_once(calls)
        if len(calls) == 1:
            return run
        turn = scratch.turn(self.device, stream)

        def in_turn() -> None:
            with turn:
                run()

        return in_turn

    def _at_once(self, calls: Sequence[Call]) -> Enqueue:
        """Makes calls with the GPU's context current.

        Asking which one is current costs a fifth of a launch.  With one GPU a launch fails in any other, so none asks.
        """
        (function, arguments), *others = calls
        if self._driver.device_count > 1 or function is not self._driver.launch:
            return partial(self._in_context, calls)

        def run() -> None:
            if status := function(*arguments):
                self._again(status, calls)
                return
            for other, values in others:
                if status := other(*values):
                    self._check(status)

        return run

    def _again(self, status: int, calls: Sequence[Call]) -> None:
        """All calls, after the first one has failed."""
        if status not in cuda.WRONG_CONTEXT or self._driver.is_current(self.device):
            self._check(status)
        self._in_context(calls)

    def _in_context(self, calls: Sequence[Call]) -> None:
        with nullcontext() if self._driver.is_current(self.device) else self._driver.context(self.device):
            for function, arguments in calls:
                if status := function(*arguments):
                    self._check(status)

    def _check(self, status: int) -> None:
        self._driver.check(status, f"launching {self._manifest.name}")

    def _check_stream(self, stream: int) -> None:
        device = self._driver.device_of_stream(stream)
        if device not in (None, self.device):
            raise WrongDevice(f"the stream is one of cuda:{device}, the arguments are on cuda:{self.device}")

    def _load(self, code: Any, launches: Sequence[Launch]) -> dict[str, Any]:
        """The entry points by name, as the driver knows them."""
        module = self._driver.load(code)
        return {s.entry: self._driver.function(module, s.entry, s.most_bytes) for s in launches}

    def _call(self, step: Step, buffers: dict[str, tuple[int, int]], stream: int) -> Call:
        if isinstance(step, Launch):
            return self._launch(step, buffers, stream)
        if isinstance(step, Fill):
            address, size = buffers[step.buffer]
            return self._driver.memset, (address, 0, size, stream)
        return cublas.prepare(step, buffers, self.device, stream), ()

    def _grid_of(self, step: Launch) -> tuple[tuple[int, int, int], int]:
        """A launch's grid, with no more clusters than can run at once, since one that waits would double the time; and
        its bytes of shared memory, chosen so that no cluster has to wait for them either."""
        grid, behind = launch_grid(step, self._sms), step != self._manifest.steps[0]
        if not step.persistent or step.cluster == 1:
            return grid, launch_bytes(step, grid[0], self._sms, behind)
        grid = self._at_once_grid(step, grid, step.shared_bytes)
        asked = launch_bytes(step, grid[0], self._sms, behind)
        if asked > step.shared_bytes and self._at_once_grid(step, grid, asked) != grid:
            asked = step.shared_bytes
        return grid, asked

    def _at_once_grid(self, step: Launch, grid: tuple[int, int, int], shared_bytes: int) -> tuple[int, int, int]:
        """A grid of as many clusters as run at once with so much shared memory."""
        config = cuda.LaunchConfig(grid=grid, block=(step.block, 1, 1), shared_bytes=shared_bytes)
        return launch_grid(step, self._sms, self._driver.clusters_at_once(config, self._functions[step.entry]))

    def _launch(self, step: Launch, buffers: dict[str, tuple[int, int]], stream: int) -> Call:
        values = [self._value(param, buffers) for param in step.params]
        block = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        attributes = (cuda.LaunchAttribute * 1)(
            cuda.LaunchAttribute(id=cuda.PROGRAMMATIC_STREAM_SERIALIZATION, value=1),
        )
        grid, shared_bytes = self._grids[step]
        config = cuda.LaunchConfig(
            grid=grid,
            block=(step.block, 1, 1),
            shared_bytes=shared_bytes,
            stream=stream,
            attributes=attributes,
            attribute_count=int(step.dependent),
        )
        config.keep = values  # the block holds their addresses alone
        return self._driver.launch, (ctypes.byref(config), self._functions[step.entry], block, None)

    def _value(self, param: Param, buffers: dict[str, tuple[int, int]]) -> Any:
        """A parameter's storage, of which the driver copies as many bytes as the kernel declares."""
        if param.map is not None:
            return self._tensor_map(param.map, buffers[param.buffer][0])
        if param.kind == "int":
            return ctypes.c_int(param.value)
        return ctypes.c_void_p(buffers[param.buffer][0])

    def _tensor_map(self, map: TensorMap, address: int) -> Any:
        key = map, address
        if key not in self._maps:
            keep(self._maps, key, ctypes.create_string_buffer(tensor_map.encode(map, address), tensor_map.BYTES))
        return self._maps[key]


class OnEachGpu(dict[int, Program]):
    """A kernel's programs by GPU, each loaded when it is first asked for."""

    def __init__(self, load: Callable[[int], Program]) -> None:
        self._load, self._lock = load, threading.Lock()

    def __missing__(self, device: int) -> Program:
        with self._lock:
            if device not in self:
                self[device] = self._load(device)
            return self[device]


def scratch_bytes(manifest: Manifest) -> int:
    """Bytes of one allocation for all that a call works in."""
    return sum(_rounded(workspace.bytes) for workspace in _workspaces(manifest))


def _workspaces(manifest: Manifest) -> tuple[Workspace, ...]:
    """The plan's workspaces, and cuBLAS's."""
    return (*manifest.workspaces, *([cublas.WORKSPACE] if _calls_cublas(manifest) else ()))


def _calls_cublas(manifest: Manifest) -> bool:
    return any(isinstance(step, Gemm) for step in manifest.steps)


def _rounded(size: int) -> int:
    return -(-size // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


@cache
def gpu_at_hand() -> cuda.Gpu | None:
    """The GPU that this process would use; None where there is none.

    Asks NVML first where all GPUs are alike, since initializing CUDA takes a tenth of a second or more.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    found = cuda.nvml_gpus()
    if len(found) == 1:
        return found.pop()
    try:
        return cuda.driver().gpu(0)
    except NoGpu:
        return None


def _check_capability(manifest: Manifest, capability: tuple[int, int], device: int) -> None:
    if TARGETS[manifest.target].runs_on(capability):
        return
    fits = target_for(capability)
    version = ".".join(map(str, capability))
    hint = f"compile for target {fits}" if fits else "convgen has no target for it"
    where = f"GPU {device} has compute capability {version}"
    raise WrongGpu(f"{manifest.name} was compiled for {manifest.target}; {where}\nhint: {hint}")


def keep(kept: dict, key: Any, value: Any) -> None:
    """Puts a value among at most `KEPT`."""
    if len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value
