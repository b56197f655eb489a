"""Launches by CuPy: the driver is a fake, and a module that records stands in for CuPy's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_driver import FakeDriver, install
from fake_kernels import BIAS, FILTER, IMAGE, LAUNCH, RESULT, STREAM, B, W, X, Y, array, kernel, right

from convgen.ir.plan import Fill, Workspace
from convgen.runtime import cuda, errors, raw, scratch

SECOND = replace(LAUNCH, entry="second", params=LAUNCH.params[1:], shared_bytes=0, dependent=True)


class RecordingModule:
    """What `raw` asks of a cupy.RawModule; `launches` are (entry point, grid, block, arguments, options)."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.made = 0

    def get_function(self, name: str) -> RecordingKernel:
        return RecordingKernel(self, name)


class RecordingKernel:
    """A cupy.RawKernel and its function on a GPU in one."""

    def __init__(self, module: RecordingModule, name: str) -> None:
        self.module, self.name = module, name
        self.kernel, self.ptr = self, 0x1234
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid, block, arguments, **options) -> None:
        assert cuda.driver().is_current(options["stream"].ptr >> 32)
        assert self.max_dynamic_shared_size_bytes == options["shared_mem"]
        self.module.launches.append((self.name, grid, block, arguments, options))


@pytest.fixture
def driver(tmp_path, monkeypatch) -> FakeDriver:
    return install(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def module(monkeypatch) -> RecordingModule:
    made = RecordingModule()

    def build(source, target) -> RecordingModule:
        assert (source, target.name) == ("// source", "sm_90a")
        made.made += 1
        return made

    monkeypatch.setattr(raw, "module", build)
    monkeypatch.setattr(scratch, "allocate", lambda *_: SimpleNamespace(ptr=0x9000000))
    return made


def test_arguments_are_passed_by_value(driver, module):
    k, arguments = kernel(), right()
    assert k.launch_raw(**arguments, stream=STREAM) is arguments["out"]
    ((name, grid, block, (tensor_map, *pointers, number), options),) = module.launches
    assert (name, grid, block) == ("convgen_tiny", (7, 3, 2), (96, 1, 1))
    assert (options["shared_mem"], options["stream"].ptr) == (1000, STREAM)
    assert (tensor_map.shape, tensor_map.nbytes) == ((), 128)
    assert tensor_map.tobytes() == X.to_bytes(8, "little") + bytes(120)
    assert [(p, p.nbytes) for p in pointers] == [(W, 8), (B, 8), (Y, 8)]
    assert (number, number.dtype) == (-7, np.int32)
    assert driver.launch_count == 0
    assert k.raw_module() is module
    assert module.made == 1


def test_steps_and_grids_are_those_of_a_call(driver, module):
    driver.clusters = 9
    first = replace(LAUNCH, grid=(1000, 1, 1), cluster=2, persistent=True)
    k = kernel(Fill("partial"), first, SECOND, workspaces=(Workspace("partial", 100),))
    k(**right(), stream=STREAM)
    k.launch_raw(**right(), stream=STREAM)
    assert [name for name, *_ in module.launches] == ["convgen_tiny", "second"]
    assert [grid for _, grid, *_ in module.launches] == [tuple(launch.config.grid) for launch in driver.launches]
    assert [(fill.address, fill.bytes) for fill in driver.fills] == [(0x9000000, 100)] * 2


def test_calls_and_raw_launches_do_not_mix(driver, module):
    k = kernel()
    for _ in range(2):
        k(**right(), stream=STREAM)
        k.launch_raw(**right(), stream=STREAM)
    assert (driver.launch_count, len(module.launches)) == (2, 2)


def test_each_gpu_has_its_launches_in_its_context(driver, module):
    driver.devices = 2
    k = kernel()
    places = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
    for device in (1, 0):
        arguments = {name: array(*place, device=device) for name, place in places.items()}
        k.launch_raw(**arguments, stream=(device << 32) + STREAM)
    assert [int(launch[3][1]) >> 32 for launch in module.launches] == [1, 0]
    assert driver.context_depth == 0


def test_wrong_calls_are_refused_as_calls_are(driver, module):
    with pytest.raises(errors.WrongShape, match="image has shape"):
        kernel().launch_raw(**right() | {"image": array(IMAGE, X, shape=(2, 5, 6, 9))}, stream=STREAM)
    with pytest.raises(errors.WrongArguments, match=r"call it as tiny\.launch_raw\(image, weights, b=.*stream=None"):
        kernel().launch_raw(right()["image"])
    assert not module.launches
