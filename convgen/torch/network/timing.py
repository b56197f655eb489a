"""The time of a convolution on this GPU, by convgen and by aten, with the work that is left to do after it.

Times come from CUDA graphs over buffers that rotate (convgen.bench.measure), and are kept on disk for the GPU, the
driver's and the libraries' versions, and convgen's own files; not those that other work on the GPU disturbed.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from convgen.bench import measure
from convgen.bench.backend import TorchBackend
from convgen.cache import Cache
from convgen.functional.pointwise import operands_of, read_by_norm, steps_of
from convgen.runtime import artifacts
from convgen.torch import aten
from convgen.torch.asked import Gradient, Summed, WithBias
from convgen.torch.launch import Served, served
from convgen.torch.switches import switches

Tensor = Any
TF = torch.nn.functional
_FILE = "us.json"
#: Rotated buffers are at most this many bytes, or half of what is free.
_BYTES = 2 << 30
_here = threading.local()
#: Who times has the GPU to itself, as far as this module is concerned.
_turn = threading.RLock()
#: What measures on each GPU, and what that says of itself.  One stream for all: cuBLAS keeps 32 MiB for each that it
#: has worked on.
_machines: dict[int, tuple[TorchBackend, dict[str, str]]] = {}


def timing() -> bool:
    """Whether this thread is timing: then aten's functions are aten's, also within convgen.torch.enabled()."""
    return getattr(_here, "timing", False)


#: What two of Inductor's passes, the one that makes sums and the one behind it, take to compute an activation's
#: gradient, beyond what they read: in tensors that could be read in that time (H200: 2.6 to 3.2 of 51 to 154 MB).
COMPUTED = {"silu_backward_of_norm": 2.6}


@contextmanager
def timed() -> Iterator[None]:
    """Where this thread is timing."""
    outer, _here.timing = timing(), True
    try:
        yield
    finally:
        _here.timing = outer


class Timer:
    """Times in microseconds, by their keys: from this process, from disk, or measured now."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._cache = Cache()
        self._measured: set[int] = set()  # GPUs

    def fused(
        self, arguments: tuple[Any, ...], left: int | None, source: Tensor | None = None, opens: bool = False,
        gated: bool = False,
    ) -> float:  # fmt: skip
        """convgen's kernel for arguments of convgen::fused_conv (fake tensors), and an elementwise pass after it that
        reads `left` tensors as large as the result; None: there is none.  Before, aten upsamples `source` to the input,
        or makes the input by a pass over another (`opens`).  `gated`: behind it, one half of the result times the
        other."""
        serving = served(*arguments)
        launch = serving.launch
        assert launch is not None
        who, call = _gated(_who(serving), lambda x, w, operands: launch(x, w, operands), gated)
        return self._us(who, arguments, left, call, source, opens)

    def aten(
        self, arguments: tuple[Any, ...], left: int | None, linear: bool = False, source: Tensor | None = None,
        opens: bool = False, gated: bool = False,
    ) -> float:  # fmt: skip
        """aten's convolution without bias, or linear layer over the channels, and such passes."""
        geometry = arguments[4:]
        if linear:
            return self._us("linear", arguments, left, lambda x, w, _: TF.linear(x.movedim(1, -1), w.flatten(1)))
        who, call = _gated("aten", lambda x, w, _: aten.convolution(x, w, None, *geometry), gated)
        return self._us(who, arguments, left, call, source, opens)

    def gradient(self, gradient: Gradient) -> tuple[float, float]:
        """Times of convgen's kernel for a gradient, infinite if there is none, and of aten's."""
        serving = gradient.served()
        launch = serving.launch
        arguments = _read_by(gradient)
        us = self._us(_who(serving), arguments, None, lambda a, b, _: launch(a, b, ())) if launch else math.inf
        return us, self.gradient_by_aten(gradient)

    def gradient_by_aten(self, gradient: Gradient) -> float:
        def call(a: Tensor, b: Tensor, _: Any) -> Tensor:
            return gradient._replace(first=a, second=b).by_aten()

        return self._us("aten", _read_by(gradient), None, call)

    def with_bias(self, asked: WithBias) -> tuple[float, float]:
        """convgen's kernel for both gradients; and the faster one of convgen and aten for the filters', and a sum."""
        serving, bare = asked.served(), asked.bare
        launch = serving.launch
        assert launch is not None
        us = self._us(f"{_who(serving)} with the bias", _read_by(bare), None, lambda a, b, _: launch(a, b, ())[0])
        added_up = self._us("sum", (bare.second, bare.first, []), None, lambda grad, *_: _summed(asked, grad))
        return us, min(self.gradient(bare)) + added_up

    def summed(self, asked: Summed) -> tuple[float, float]:
        """convgen's kernel with sums; and the faster one of convgen and aten without, with the passes for them."""
        bare = asked.bare
        if isinstance(bare, Gradient):
            without = min(self.gradient(bare))
        else:
            own = self.fused(bare, None) if bare.served().launch else math.inf
            without = min(own, self.aten(bare, None))
        return self.with_sums(asked), without + self.passes(asked, spared(asked))

    def with_sums(self, asked: Summed) -> float:
        """convgen's kernel with sums."""
        serving = asked.served()
        launch = serving.launch
        assert launch is not None
        arguments: tuple[Any, ...] = *asked.reads, asked.operands, asked.epilogue, asked.sums, *asked.bare[3:]
        return self._us(f"{_who(serving)} with sums", arguments, None, lambda x, w, operands: launch(x, w, operands)[0])

    def passes(self, asked: Summed, tensors: float) -> float:
        """Sums by passes over so many tensors as large as the result: reading each, at the time of half a copy, and a
        launch that finishes the sums, at that of a copy of one."""
        result = asked.result
        finish = self.copy(result.new_empty(result.shape[1], dtype=torch.float32))
        return tensors * self.copy(result) / 2 + finish

    def copy(self, tensor: Tensor) -> float:
        """aten's copy of a tensor like this fake one."""
        return self._us("copy", (tensor, tensor[:0], []), None, lambda made, *_: made.clone())

    def _us(
        self, who: str, arguments: tuple[Any, ...], left: int | None, call: Callable[[Tensor, Tensor, Any], Tensor],
        source: Tensor | None = None, opens: bool = False,
    ) -> float:  # fmt: skip
        x, w, operands, *others = arguments
        if opens:
            who, call = f"{who} behind a pass", _behind_pass(call)
        if source is not None:
            pixels = list(x.shape[2:])
            who, x, call = f"{who} of an upsampling to {pixels}", source, _of_upsampling(call, pixels)
        described = [(list(t.shape), list(t.stride()), str(t.dtype)) for t in (x, w, *operands)]
        with torch.cuda.device_of(x), _turn, timed():
            key = self._key(x.get_device(), who, described, others, left)
            if key not in self._known:
                stored = self._cache.get(key)
                if stored is None:
                    us, undisturbed = self._measure(x, w, operands, left, call)
                    if undisturbed:  # else it is measured again by another process
                        self._cache.put(key, {_FILE: json.dumps(us).encode()})
                else:
                    us = float(json.loads(stored[_FILE]))
                self._known[key] = us
            return self._known[key]

    def _key(self, device: int, *what: Any) -> str:
        _, environment = _machine(device)
        facts = [environment, artifacts.schema_digest(), switches(), *what]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def release(self) -> None:
        """Gives back to the driver what measuring took of a GPU's memory."""
        while self._measured:
            device = self._measured.pop()
            with _turn, torch.cuda.device(device), suppress(RuntimeError):  # another thread captures a graph
                _machine(device)[0].release()

    def _measure(
        self, x: Tensor, w: Tensor, operands: Sequence[Tensor], left: int | None,
        call: Callable[[Tensor, Tensor, Any], Tensor],
    ) -> tuple[float, bool]:  # fmt: skip
        """Microseconds, and whether nothing else ran on the GPU meanwhile."""
        buffers = [_made(x, w, operands)]
        result = call(*buffers[0])
        each = sum(t.numel() * t.element_size() for t in (x, w, *operands, result))
        backend, _ = _machine(x.get_device())
        self._measured.add(x.get_device())
        buffers += [_made(x, w, operands) for _ in range(_set_count(each, backend) - 1)]
        others = [torch.randn_like(result) for _ in range((left or 1) - 1)]
        del result
        kept: list[Any] = [None] * len(buffers)  # results stay alive, so that they rotate, too

        def run(i: int) -> None:
            made = call(*buffers[i])
            for other in others:
                made = torch.add(made, other)
            kept[i] = made if left is None or others else torch.relu(made)

        return measure.time_undisturbed(measure.capture(run, len(buffers), backend), backend)


def _set_count(each: int, backend: TorchBackend) -> int:
    """How many sets of so many bytes rotate.  A large one is out of the L2 by itself when it is read again; two would
    need more memory than the network does."""
    if each >= measure.ROTATED_BYTES:
        return 1
    room = min(_BYTES, backend.free_bytes() // 2)
    return min(measure.set_count(each), max(2, room // each))


def _machine(device: int) -> tuple[TorchBackend, dict[str, str]]:
    """The backend and environment of a GPU, which is the current one."""
    if device not in _machines:
        backend = TorchBackend()
        _machines[device] = backend, backend.environment()
    return _machines[device]


def _read_by(gradient: Gradient) -> tuple[Any, ...]:
    """Tensors, operands, and what else tells gradients apart."""
    return *gradient.reads, [], gradient.op, *gradient[3:]


def _summed(asked: WithBias, grad: Tensor) -> Tensor:
    return asked._replace(bare=asked.bare._replace(second=grad)).sum()


def _who(serving: Served) -> str:
    """convgen's kernel, which may become another one by tuning."""
    return f"convgen by {serving.kernel}"


def _gated(who: str, call: Callable[..., Tensor], gated: bool) -> tuple[str, Callable[..., Tensor]]:
    """A call, and where it is gated a pass that reads and writes as much as a product of halves, in order."""

    def product(*given: Any) -> Tensor:
        made = call(*given)
        values = made.as_strided((made.numel(),), (1,))
        return values[: len(values) // 2] * values[len(values) // 2 :]

    return (f"{who} with a gate", product) if gated else (who, call)


def _of_upsampling(call: Callable[[Tensor, Tensor, Any], Tensor], pixels: list[int]) -> Callable[..., Tensor]:
    return lambda x, w, operands: call(TF.interpolate(x, pixels), w, operands)


def _behind_pass(call: Callable[[Tensor, Tensor, Any], Tensor]) -> Callable[..., Tensor]:
    return lambda x, w, operands: call(torch.relu(x), w, operands)


def _made(x: Tensor, w: Tensor, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Random tensors like these fake ones."""
    return _random(x), _random(w), [_random(o) for o in operands]


def _random(fake: Tensor) -> Tensor:
    """Random data with the same extents and strides; broadcast axes have one element."""
    sizes, strides = [int(n) for n in fake.shape], [int(n) for n in fake.stride()]
    held = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    made = torch.empty_strided(held, strides, dtype=fake.dtype, device=fake.device)
    return made.normal_().as_strided(sizes, strides)


def spared(asked: Summed) -> float:
    """Tensors as large as the result that need not be read because the kernel makes the sums: the pass that would make
    them reads the result, and with it each operand of that size; a later pass reads the epilogue's result, and not its
    operands, except for the tensor that BatchNorm read.  Plus what these passes need not compute."""
    steps, size = steps_of(asked.epilogue), asked.result.numel()
    large = [o.numel() == size for o in asked.operands]
    read = large[: operands_of(steps)]
    again = any(is_large and i != read_by_norm(steps) for i, is_large in enumerate(read))
    return 1 + sum(large) + again + sum(COMPUTED.get(step.kind, 0.0) for step in steps)
