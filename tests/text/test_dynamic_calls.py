"""Calls of a kernel whose sizes they decide: the driver is a fake."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int
from dataclasses import replace

import numpy as np
import pytest
from fake_driver import FakeDriver, install
from fake_kernels import STREAM, array, parameter

from convgen import driver
from convgen.ir.plan import Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime import saved, scratch
from convgen.runtime.dynamic import joined
from convgen.runtime.errors import WrongArguments, WrongShape
from convgen.runtime.kernel import Kernel
from convgen.spec import Spec

X, W, B, Y = 0x10000000, 0x20000000, 0x30000000, 0x40000000  # addresses
SPEC = """
conv layer {
  input  x: f16[n=2, h=8, w=9, c=16]
  filter w: f16[k=8, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  dynamic n h w
  epilogue {
    operand b: f32[k]
    y = acc + b
  }
  strategy direct
  target sm_90a
}
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> FakeDriver:
    return install(tmp_path, monkeypatch)


@pytest.fixture
def kernel() -> Kernel:
    (compilation,) = driver.load(Spec(SPEC))
    made = compilation.uncompiled()
    return Kernel(replace(made._artifact, cubin=b"\x7fELF"))


def arrays(kernel: Kernel, n: int, h: int, w: int) -> dict:
    x, filters = kernel.manifest.reads
    (bias,) = kernel.manifest.operands

    def of(tensor: Tensor, address: int, **sizes: int):
        shape = tuple(sizes.get(d, int(e)) for d, e in zip(tensor.dims, tensor.extents, strict=True))
        return array(tensor, address, shape=shape)

    return {
        "x": of(x, X, n=n, h=h, w=w), "w": of(filters, W), "b": of(bias, B),
        "out": of(kernel.manifest.result, Y, n=n, p=h, q=w),
    }  # fmt: skip


def test_each_call_has_the_sizes_of_its_arrays(fake, kernel):
    for n, h, w in ((2, 8, 9), (5, 30, 1), (2, 8, 9), (2, 8, 9)):
        given = arrays(kernel, n, h, w)
        assert kernel(**given, stream=STREAM) is given["out"]
        launch = fake.launches[-1]
        assert tuple(launch.config.grid) == (-(-n * h * w * 8 // 256), 1, 1)
        assert [parameter(launch, 4 + i, c_int).value for i in range(5)] == [n, h, w, h, w]
    assert fake.launch_count == 4
    assert fake.module_count == 1


def test_a_size_that_was_seen_takes_the_quick_call(fake, kernel, monkeypatch):
    given = {n: arrays(kernel, n, 8, 9) for n in (2, 5)}
    for sizes in given.values():
        kernel(**sizes, stream=STREAM)
    with monkeypatch.context() as slow:
        slow.setattr(type(kernel), "_call", lambda *_: pytest.fail("the call is not the quick one"))
        for n in (5, 2, 5):
            assert kernel(**given[n], stream=STREAM) is given[n]["out"]
    assert [parameter(launch, 4, c_int).value for launch in fake.launches] == [2, 5, 5, 2, 5]
    with pytest.raises(WrongShape, match=r"out has shape \(2, 8, 9, 8\), expected \(5, 8, 9, 8\)"):
        kernel(**given[5] | {"out": given[2]["out"]}, stream=STREAM)
    kernel(**arrays(kernel, 7, 8, 9), stream=STREAM)
    assert parameter(fake.launches[-1], 4, c_int).value == 7


def test_a_kernel_shows_its_sizes(kernel):
    assert re.fullmatch(r"<convgen kernel layer: fprop by .* for sm_90a, of any n, h, w>", repr(kernel))
    shown = repr(kernel).removesuffix("of any n, h, w>")
    assert repr(kernel.at(n=3, h=20, w=21)) == f"{shown}at n=3, h=20, w=21>"
    assert repr(kernel.at(n=1)) == f"{shown}at n=1, h=8, w=9>"


def test_the_kernel_of_some_sizes_says_so_where_others_are_given(kernel):
    fixed = kernel.at(n=5, h=8)
    given = arrays(kernel, 5, 8, 7)
    del given["out"]
    with pytest.raises(WrongShape) as refused:
        fixed(**given, stream=STREAM)
    assert "these sizes make it x: f16[n=5, h=8, w=9, c=16]" in str(refused.value)
    assert "hint: `.at(n=5, h=8, w=7)`, or call the kernel itself" in str(refused.value)


def test_at_is_of_kernels_whose_spec_leaves_sizes_to_calls(kernel):
    assert kernel.at(n=5).at(n=2).manifest == kernel.at(n=2).manifest
    fixed = driver.load(Spec("conv a { input x: f16[n=4, c=8] filter w: f16[k=8, c] output y: f16[n, k] }"))[0]
    for ask in (fixed.uncompiled().at, fixed.uncompiled().class_at):
        with pytest.raises(WrongArguments) as refused:
            ask(n=2)
        assert str(refused.value) == "a has fixed sizes\nhint: write `dynamic n` into the conv block"


def test_every_kernel_has_classes(kernel):
    fixed = driver.load(Spec("conv a { input x: f16[n=4, c=8] filter w: f16[k=8, c] output y: f16[n, k] }"))[0]
    alone = fixed.uncompiled()
    assert alone.classes == (alone,) and kernel.classes == (kernel,)
    assert kernel.at(n=5).class_at(n=2) is kernel
    with pytest.raises(WrongArguments, match=r"\.class_at cannot choose k\nhint: the spec's dynamic dims are n, h, w"):
        kernel.class_at(k=2)


def test_a_size_that_no_call_decides_is_the_specs_to_change() -> None:
    text = (
        "conv a { input x: f16[n=4, h=8, w=8, c=16]  filter w: f16[k=16, r=3, s=3, c=16]  output y: f16[n, p, q, k] "
        "pad 1  stride 2  dynamic n  strategy direct }"
    )
    kernel = driver.load(Spec(text))[0].uncompiled()
    w = np.zeros((16, 3, 3, 16), np.float16)
    for call in (kernel, kernel.at(n=4)):
        with pytest.raises(WrongShape) as refused:
            call.emulate(np.zeros((2, 7, 8, 16), np.float16), w)
        assert "hint: compile the spec with h=7, or write `dynamic n h`, so that calls decide" in str(refused.value)


def test_the_kernel_of_some_sizes_has_a_quick_call_of_its_own(fake, kernel, monkeypatch):
    fixed, given = kernel.at(n=5), arrays(kernel, 5, 8, 9)
    fixed(**given, stream=STREAM)
    monkeypatch.setattr(type(fixed), "_call", lambda *_: pytest.fail("the call is not the quick one"))
    fixed(**given, stream=STREAM)
    assert fake.launch_count == 2


def test_a_quick_call_keeps_the_workspace_that_it_launches_with(fake, kernel, monkeypatch, own_garbage):
    freed = []

    class Memory:
        ptr = 0x50000000

        def __del__(self) -> None:
            freed.append(self)

    monkeypatch.setattr(scratch, "allocate", lambda *_: Memory())
    monkeypatch.setattr("convgen.runtime.launch.KEPT", 2)  # kernels of sizes, among others
    with_scratch = replace(kernel.manifest, workspaces=(Workspace("partial", 512),))
    kernel = Kernel(replace(kernel._artifact, manifest=with_scratch))
    given = arrays(kernel, 2, 8, 9)
    kernel(**given, stream=STREAM)
    for n in (3, 4, 5):
        kernel.at(n=n)
    gc.collect()
    assert not freed
    kernel(**given, stream=STREAM)
    assert fake.launch_count == 2


def test_arguments_must_agree(fake, kernel):
    given = arrays(kernel, 3, 8, 9)
    with pytest.raises(WrongShape, match=r"out has shape \(2, 8, 9, 8\), expected \(3, 8, 9, 8\)"):
        kernel(**given | {"out": arrays(kernel, 2, 8, 9)["out"]}, stream=STREAM)
    with pytest.raises(WrongShape, match=r"x has shape \(3, 8, 9, 8\), expected \(3, 8, 9, 16\)"):
        kernel(**given | {"x": arrays(kernel, 3, 8, 9)["out"]}, stream=STREAM)
    with pytest.raises(WrongShape, match=r"x has shape .*, expected dims n h w c"):
        kernel(**given | {"x": given["b"]}, stream=STREAM)
    assert fake.launch_count == 0


def test_threads_share_one_program(fake, kernel):
    again = saved.restore(kernel._artifact.files())

    def call(i: int) -> None:
        again(**arrays(again, 1 + i % 5, 8, 9), stream=STREAM)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(40)))
    assert fake.launch_count == 40
    assert sorted({launch.config.grid[0] for launch in fake.launches}) == [3, 5, 7, 9, 12]


def test_each_class_has_code_of_its_own(fake):
    (compilation,) = driver.load(Spec(SPEC))
    made = [compilation.planned_for(n).uncompiled() for n in (2, 4000)]  # by one and by eight outputs a thread
    kernel = joined([Kernel(replace(k._artifact, cubin=b"\x7fELF")) for k in made])
    for n in (1, 5000, 1, 6000):
        kernel(**arrays(kernel, n, 8, 9), stream=STREAM)
    blocks = [launch.config.grid[0] for launch in fake.launches]
    assert blocks == [-(-n * 72 * 8 // (256 * tile)) for n, tile in ((1, 1), (5000, 8), (1, 1), (6000, 8))]
    assert fake.module_count == 2


SPEC_OF_ANY_SIZES = """conv a {
  input x: f16[n=4, h=9, w=9, c=16]  filter w: f16[k=16, r=3, s=3, c=16]  output y: f16[n, p, q, k]
  pad 1  dynamic n h w
}"""


def test_a_kernel_of_chosen_sizes_tells_these_and_its_plan() -> None:
    kernel = driver.load(Spec(SPEC_OF_ANY_SIZES))[0].uncompiled()
    fixed = kernel.at(n=3, h=5, w=7)
    assert fixed.plan is not None and fixed.plan == kernel.plan
    assert fixed.explain().startswith("a at n=3, h=5, w=7, by the plan for the sizes below\n")
    assert "n=3, h=5, w=7" in fixed._repr_html_() and "<th>sizes</th>" not in kernel._repr_html_()


def test_arguments_in_each_others_place_are_named_where_two_have_one_shape() -> None:
    text = (
        "conv a { input x: f16[n=1, h=4, w=4, c=8] filter w: f16[k=8, r=3, s=3, c=8] output y: f16[n, p, q, k] pad 1 "
    )
    text += "epilogue { operand z: f16[n, p, q, k]  y = acc + z } }"
    kernel = driver.load(Spec(text))[0].uncompiled()
    x = np.zeros((1, 4, 4, 8), np.float16)
    with pytest.raises(WrongShape, match=r"hint: this is the shape of x and z: a call takes x, w, z$"):
        kernel.emulate(x, x, x)


def test_arguments_in_each_others_place_are_named() -> None:
    text = "conv a { input x: f16[n=4, h=8, w=8, c=16] filter w: f16[k=16, r=3, s=3, c=16] output y: f16[n, p, q, k] }"
    kernel = driver.load(Spec(text))[0].uncompiled()
    x, w = np.zeros((4, 8, 8, 16), np.float16), np.zeros((16, 3, 3, 16), np.float16)
    for given, name in (((w, x), "w"), ((x, x), "x")):
        with pytest.raises(WrongShape, match=f"hint: this is the shape of {name}: a call takes x, w$"):
            kernel.emulate(*given)
