"""What a kernel's call does with its arguments: refuses the wrong ones before any launch, and launches
exactly what the manifest says with the right ones.  CuPy's arrays are real, over addresses that nobody
reads; the driver is a fake that records."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import re
import sys
import threading
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from fake_driver import FakeDriver, install
from fake_kernels import BIAS, FILTER, IMAGE, LAUNCH, MAP, RESULT, STREAM, B, W, X, Y, array, kernel, parameter, right
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convgen.diagnostics import ConvgenError
from convgen.ir.dtypes import DTYPES
from convgen.ir.plan import Fill, Launch, Param, TensorMap, Workspace, launch_grid
from convgen.ir.tensor import Tensor
from convgen.runtime import arrays, cuda, errors, scratch, tensor_map
from convgen.runtime import launch as launching
from convgen.runtime.arguments import packed_strides

cupy = pytest.importorskip("cupy")
PER_TEST = settings(max_examples=60, deadline=None)


@pytest.fixture
def driver(tmp_path, monkeypatch) -> FakeDriver:
    return install(tmp_path, monkeypatch)


# ---- what is launched ---------------------------------------------------------------------------


def test_launch_is_what_the_manifest_says(driver):
    k, arguments = kernel(), right()
    assert k(**arguments, stream=STREAM) is arguments["out"]
    (launch,) = driver.launches
    config = launch.config
    assert (tuple(config.grid), tuple(config.block)) == ((7, 3, 2), (96, 1, 1))
    assert (config.shared_bytes, driver.shared_limit, config.stream) == (1000, 1000, STREAM)
    assert (launch.entry, config.attribute_count) == (b"convgen_tiny", 0)
    assert ctypes.string_at(launch.params[0], 128) == X.to_bytes(8, "little") + bytes(120)
    assert [parameter(launch, i, ctypes.c_uint64).value for i in (1, 2, 3)] == [W, B, Y]
    assert parameter(launch, 4, ctypes.c_int).value == -7
    assert driver.capture_mode == 0
    assert driver.context_depth == 0


@pytest.mark.parametrize(
    ("cluster", "fit", "status", "blocks"),
    [(4, 32, 0, 128), (4, 33, 0, 132), (4, 40, 0, 132), (4, 2, 1, 132), (4, 0, 0, 132), (2, 9, 0, 18), (1, 9, 0, 132)],
)
def test_no_cluster_waits_for_another_to_end(driver, cluster, fit, status, blocks):
    """An H200 has 132 multiprocessors and no place for 33 clusters of 4."""
    driver.clusters, driver.occupancy_status = fit, status
    step = replace(LAUNCH, grid=(1000, 1, 1), cluster=cluster, persistent=True)
    kernel(step)(**right(), stream=STREAM)
    (launch,) = driver.launches
    assert tuple(launch.config.grid) == (blocks, 1, 1)


@pytest.mark.parametrize(("tiles", "spread"), [(1, 0), (39, 0), (40, 1), (131, 1), (132, 0), (1000, 0)])
def test_few_blocks_are_spread_over_multiprocessors(driver, tiles, spread):
    """Half of a multiprocessor's shared memory leaves room for one block; an H200 has 132 multiprocessors."""
    step = replace(LAUNCH, grid=(tiles, 1, 1), persistent=True, dependent=True, spread_bytes=116736)
    kernel(step)(**right(), stream=STREAM)
    (launch,) = driver.launches
    assert (launch.config.shared_bytes, driver.shared_limit) == (116736 if spread else 1000, 116736)


@pytest.mark.parametrize(("tiles", "spread"), [(1, 1), (131, 1), (132, 0)])
def test_blocks_behind_others_of_the_plan_are_spread_however_few(driver, tiles, spread):
    step = replace(LAUNCH, grid=(tiles, 1, 1), persistent=True, dependent=True, spread_bytes=116736)
    kernel(replace(LAUNCH, entry="first"), step)(**right(), stream=STREAM)
    first, launch = driver.launches
    assert (first.config.shared_bytes, launch.config.shared_bytes) == (1000, 116736 if spread else 1000)


@pytest.mark.parametrize(("fit", "spread"), [(24, 0), (25, 1)])
def test_no_cluster_waits_because_blocks_are_spread(driver, fit, spread):
    driver.clusters, driver.spread_clusters = 32, fit
    step = replace(LAUNCH, grid=(100, 1, 1), cluster=4, persistent=True, dependent=True, spread_bytes=116736)
    kernel(step)(**right(), stream=STREAM)
    (launch,) = driver.launches
    assert (launch.config.grid[0], launch.config.shared_bytes) == (100, 116736 if spread else 1000)


def test_dependent_launch_asks_for_stream_serialization(driver):
    kernel(replace(LAUNCH, dependent=True))(**right(), stream=STREAM)
    (launch,) = driver.launches
    assert launch.config.attribute_count == 1
    assert (launch.attribute.id, launch.attribute.value) == (cuda.PROGRAMMATIC_STREAM_SERIALIZATION, 1)


def test_steps_run_in_order_on_workspaces(driver):
    reads = (Param("partial", "pointer", "partial"), Param("sums", "pointer", "sums"))
    second = Launch("second", (1, 1, 1), 32, reads)
    k = kernel(Fill("sums"), LAUNCH, second, workspaces=(Workspace("partial", 1000), Workspace("sums", 40)))
    assert k.workspace_bytes == 1024 + 256
    scratch = array(Tensor("", "", "s8", ("n",), (k.workspace_bytes,)), 0x500000)
    k(**right(), stream=STREAM, workspace=scratch)
    assert [launch.entry for launch in driver.launches] == [b"convgen_tiny", b"second"]
    assert parameter(driver.launches[1], 0, ctypes.c_uint64).value == 0x500000
    assert parameter(driver.launches[1], 1, ctypes.c_uint64).value == 0x500000 + 1024
    (fill,) = driver.fills
    assert (fill.address, fill.bytes, fill.value, fill.stream) == (0x500000 + 1024, 40, 0, STREAM)


def test_maps_are_encoded_once_for_each_address(driver):
    k = kernel()
    for _ in range(3):
        k(**right(), stream=STREAM)
    assert driver.map_count == 1
    k(**right() | {"out": array(RESULT, Y + 0x10000)}, stream=STREAM)
    k(**right(), stream=STREAM + 1)
    assert driver.map_count == 1
    k(**right() | {"image": array(IMAGE, X + 0x10000)}, stream=STREAM)
    assert driver.map_count == 2
    assert driver.launch_count == 6
    assert driver.module_count == 1


@st.composite
def maps(draw) -> TensorMap:
    rank = draw(st.integers(2, 5))
    im2col = rank >= 3 and draw(st.booleans())

    def numbers(count: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    return TensorMap(
        "x",
        "im2col" if im2col else "tiled",
        draw(st.sampled_from([d.name for d in DTYPES.values() if d.tma])),
        numbers(rank, 1, 2**31),
        numbers(rank - 1, 16, 2**40),
        numbers(rank, 1, 8),
        box=() if im2col else numbers(rank, 1, 256),
        lower=numbers(rank - 2, -(2**15), 2**15 - 1) if im2col else (),
        upper=numbers(rank - 2, -(2**15), 2**15 - 1) if im2col else (),
        channels=draw(st.integers(1, 256)) if im2col else 0,
        pixels=draw(st.integers(1, 1024)) if im2col else 0,
        swizzle=draw(st.sampled_from([0, 32, 64, 128])),
        l2_promotion=draw(st.sampled_from([0, 64, 128, 256])),
        fill=draw(st.sampled_from(["zero", "nan"])),
    )


@PER_TEST
@given(maps(), st.integers(1, 2**40).map(lambda n: 16 * n))
def test_map_fields_reach_the_driver(driver, map, address):
    with cuda.driver().context(0):
        encoded = tensor_map.encode(map, address)
    seen = driver.last_map
    assert encoded == address.to_bytes(8, "little") + bytes([seen.im2col]) * 120
    rank = len(map.dims)
    assert (seen.im2col, seen.rank, seen.interleave) == (map.mode == "im2col", rank, 0)
    assert tuple(seen.dims)[:rank] == map.dims
    assert tuple(seen.strides)[: rank - 1] == map.strides
    assert tuple(seen.element_strides)[:rank] == map.element_strides
    if map.mode == "tiled":
        assert tuple(seen.box)[:rank] == map.box
    else:
        assert (tuple(seen.lower)[: rank - 2], tuple(seen.upper)[: rank - 2]) == (map.lower, map.upper)
        assert (seen.channels, seen.pixels) == (map.channels, map.pixels)
    # enumerators of cuda.h, written out once more
    assert seen.dtype == {"f16": 6, "bf16": 9, "f32": 7, "e4m3": 0, "e5m2": 0, "s8": 0, "s32": 3}[map.dtype]
    assert seen.swizzle == [0, 32, 64, 128].index(map.swizzle)
    assert seen.l2_promotion == [0, 64, 128, 256].index(map.l2_promotion)
    assert seen.fill == ["zero", "nan"].index(map.fill)


def test_refused_map_shows_its_fields(driver):
    refusal = r"cuTensorMapEncodeTiled refused \(1\).*dims=\(8, 60\).*swizzle=32"
    with cuda.driver().context(0), pytest.raises(errors.DriverError, match=refusal):
        tensor_map.encode(MAP, X + 8)


@given(
    st.integers(1, 300), st.integers(1, 8), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4000),
    st.none() | st.integers(1, 300),
)  # fmt: skip
def test_persistent_grid(sms, cluster, multiple_of, blocks_per_sm, tiles, clusters):
    unit = math.lcm(cluster, multiple_of)
    tiles *= unit
    launch = Launch(
        "k", (tiles, 1, 1), 128, (),
        cluster=cluster, multiple_of=multiple_of, persistent=True, blocks_per_sm=blocks_per_sm,
    )  # fmt: skip
    blocks, *rest = launch_grid(launch, sms, clusters)
    assert rest == [1, 1]
    assert blocks % cluster == blocks % multiple_of == 0
    room = min(tiles, sms * blocks_per_sm, (clusters or sms * blocks_per_sm) * cluster)
    assert blocks == unit or blocks <= room
    assert blocks + unit > room  # none is left for another unit


def test_threads_do_not_mix_their_arguments(driver):
    k = kernel()
    calls = 20

    def work(offset: int) -> None:
        arguments = {"image": array(IMAGE, X + offset), "weights": array(FILTER, W + offset)}
        arguments |= {"b": array(BIAS, B + offset), "out": array(RESULT, Y + offset)}
        for i in range(calls):
            k(**arguments, stream=STREAM + offset + i % 3)

    threads = [threading.Thread(target=work, args=(0x10000000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.launch_count == 8 * calls
    for launch in driver.launches:
        offset = ctypes.cast(launch.params[0], ctypes.POINTER(ctypes.c_uint64)).contents.value - X
        assert [parameter(launch, i, ctypes.c_uint64).value - offset for i in (1, 2, 3)] == [W, B, Y]
        assert launch.config.stream - offset - STREAM in range(3)


def test_one_thread_at_a_time_makes_room(driver, monkeypatch):
    """Among launches that a kernel remembers: two threads would drop the same one."""
    k, held = kernel(), []
    monkeypatch.setattr("convgen.runtime.kernel.keep", lambda *_: held.append(k._lock.locked()))
    k(array(IMAGE, X), array(FILTER, W), b=array(BIAS, B), out=array(RESULT, Y), stream=STREAM)
    assert held == [True]


# ---- what is refused ----------------------------------------------------------------------------


def refusals():
    """(changed arguments, error, what the message says)"""
    yield (
        {"image": array(IMAGE, X, dtype="f4")},
        errors.WrongType,
        "image has elements of float32.*f16\nhint: pass image as float16",
    )
    yield (
        {"out": array(RESULT, Y, dtype="f2")},
        errors.WrongType,
        "out has elements of float16.*bf16\nhint: pass out as bfloat16",
    )
    yield {"image": array(IMAGE, X, shape=(2, 5, 6, 9))}, errors.WrongShape, r"\(2, 5, 6, 9\), expected \(2, 5, 6, 8\)"
    yield (
        {"image": array(IMAGE, X, shape=(3, 5, 6, 8))},
        errors.WrongShape,
        "with n=3, or write `dynamic n`, so that calls decide",
    )
    yield {"image": array(IMAGE, X, shape=(2, 7, 9, 8))}, errors.WrongShape, "with h=7 w=9, or write `dynamic h w`"
    yield {"out": array(RESULT, Y, shape=(3, 3, 4, 16))}, errors.WrongShape, "in that order, packed$"
    yield {"image": array(IMAGE, X, shape=(480,))}, errors.WrongShape, r"image has shape \(480,\)"
    yield {"b": array(BIAS, B, strides=(8,))}, errors.WrongLayout, r"strides \(2,\) in elements, expected \(1,\)"
    yield {"image": array(IMAGE, X + 8)}, errors.Misaligned, "image starts at 0x100008.*multiple of 16"
    yield {"b": array(BIAS, B + 2)}, errors.Misaligned, "b starts at 0x300002.*multiple of 4"
    yield {"out": array(RESULT, X)}, errors.Overlap, "out overlaps image"
    yield {"out": array(RESULT, W + FILTER.bytes - 16)}, errors.Overlap, "out overlaps weights"
    yield {"b": array(BIAS, B, device=1)}, errors.WrongDevice, "b is on cuda:1, the other arguments are on cuda:0"
    yield {"out": array(RESULT, Y, device=1)}, errors.WrongDevice, "out is on cuda:1"
    yield {"weights": np.zeros(FILTER.shape, "f2")}, errors.WrongDevice, "weights, of type ndarray, is not on a GPU"
    yield {"weights": [1.0]}, errors.WrongType, "weights is of type list"
    yield {"image": None}, errors.WrongType, "image is of type NoneType"


@pytest.mark.parametrize(("change", "error", "message"), list(refusals()))
def test_wrong_arguments_are_refused(driver, change, error, message):
    driver.devices = 2
    with pytest.raises(error, match=re.compile(message, re.DOTALL)) as refusal:
        kernel()(**right() | change, stream=STREAM)
    assert isinstance(refusal.value, errors.LaunchError)
    assert isinstance(refusal.value, ConvgenError)
    assert driver.launch_count == 0


@pytest.mark.parametrize(("change", "error", "message"), list(refusals()))
def test_a_warm_kernel_refuses_as_a_cold_one(driver, change, error, message):
    driver.devices = 2
    k = kernel()
    k(**right(), stream=STREAM)
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        k(**right() | change, stream=STREAM)
    assert driver.launch_count == 1


def test_operand_needs_its_own_alignment_alone(driver):
    kernel()(**right() | {"b": array(BIAS, B + 4)}, stream=STREAM)
    assert driver.launch_count == 1


@PER_TEST
@given(st.integers(-RESULT.bytes // 16 - 2, IMAGE.bytes // 16 + 2))
def test_overlap_is_what_shares_a_byte(driver, offset):
    out = X + 16 * offset
    shared = set(range(out, out + RESULT.bytes)) & set(range(X, X + IMAGE.bytes))
    k = kernel()
    if shared:
        with pytest.raises(errors.Overlap):
            k(**right() | {"out": array(RESULT, out)}, stream=STREAM)
    else:
        k(**right() | {"out": array(RESULT, out)}, stream=STREAM)


FURTHER = Tensor("t", "result", "f16", RESULT.dims, RESULT.extents)
SUM = Tensor("s", "result", "f32", ("k",), (16,))
LIKE = Tensor("z", "operand", "bf16", RESULT.dims, RESULT.extents)
T, S, Z = 0x500000, 0x600000, 0x700000
#: Of three results, into the first of which an operand is added.
RESULTS_LAUNCH = replace(
    LAUNCH, params=tuple(Param(name, "pointer", name, alignment=4) for name in ("x", "w", "z", "y", "t", "s"))
)


def with_results():
    launched = kernel(RESULTS_LAUNCH, operands=(LIKE,), further=(FURTHER, SUM), in_place=(("z", RESULT.name),))
    given_ = {"image": array(IMAGE, X), "weights": array(FILTER, W), "z": array(LIKE, Z)}
    return launched, given_, (array(RESULT, Y), array(FURTHER, T), array(SUM, S))


@pytest.mark.parametrize("kind", [tuple, list])
def test_several_results_are_passed_and_returned_in_order(driver, kind):
    k, given_, outs = with_results()
    for _ in range(3):  # the second call is the quick one
        assert k(**given_, out=kind(outs), stream=STREAM) == kind(outs)
        assert [parameter(driver.launches[-1], i, ctypes.c_void_p).value for i in range(6)] == [X, W, Z, Y, T, S]
    assert str(FURTHER) in k.__doc__ and "Returns a tuple" in k.__doc__


def test_several_results_are_made(driver, monkeypatch):
    k, given_, outs = with_results()
    made = dict(zip("yts", outs, strict=True))
    monkeypatch.setattr(arrays.CupyLibrary, "empty", lambda _, slot, *__: made[slot.buffer])
    assert k(**given_, stream=STREAM) == outs


def test_an_operand_may_be_the_results_own_array(driver):
    k, given_, (y, t, s) = with_results()
    k(**given_ | {"z": array(LIKE, Y)}, out=(y, t, s), stream=STREAM)
    assert driver.launch_count == 1


@pytest.mark.parametrize(
    ("change", "outs", "error", "message"),
    [
        ({}, (0, 1), errors.WrongArguments, r"has 3 results, and out is of length 2\nhint: .*out=\(result, t, s\)"),
        ({}, 0, errors.WrongArguments, "and out is of type ndarray"),
        ({}, (1, 0, 2), errors.WrongType, r"out\[0\] has elements of float16"),
        ({}, (0, array(FURTHER, Y), 2), errors.Overlap, r"out\[1\] overlaps out\[0\] in memory: both are written"),
        (
            {"z": array(LIKE, T)},
            (0, 1, 2),
            errors.Overlap,
            r"out\[1\] overlaps z .* read what it has written",
        ),
        ({"z": array(LIKE, Y + 16)}, (0, 1, 2), errors.Overlap, r"out\[0\] overlaps z"),
    ],
)
def test_wrong_results_are_refused(driver, change, outs, error, message):
    k, given_, own = with_results()
    given_out = own[outs] if isinstance(outs, int) else tuple(own[o] if isinstance(o, int) else o for o in outs)
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        k(**given_ | change, out=given_out, stream=STREAM)
    assert driver.launch_count == 0


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (0, (), "image is missing; weights is missing; b is missing"),
        (1, ("b",), "weights is missing"),
        (2, ("b", "weights"), "weights is given twice"),
        (2, ("b", "z"), "it has no tensor z"),
        (4, (), "4 tensors are given, it takes 3"),
        (3, ("b",), "b is given twice"),
    ],
)
def test_calls_that_do_not_fit_say_how_to_call(driver, positional, named, message):
    with pytest.raises(errors.WrongArguments, match=message) as refusal:
        kernel()(*[array(IMAGE, X)] * positional, **dict.fromkeys(named, array(BIAS, B)), stream=STREAM)
    assert "tiny(image, weights, b=..., out=None, stream=None)" in str(refusal.value)
    assert driver.launch_count == 0


def test_tensors_go_by_place_or_by_name(driver):
    a = right()
    image, weights, b = a["image"], a["weights"], a["b"]
    k = kernel()
    k(image, weights, b, out=a["out"], stream=STREAM)
    k(image, weights, b=b, out=a["out"], stream=STREAM)
    k(image, b=b, weights=weights, out=a["out"], stream=STREAM)
    k(b=b, weights=weights, image=image, out=a["out"], stream=STREAM)
    assert len({bytes(ctypes.string_at(launch.params, 40)) for launch in driver.launches}) == 1
    assert driver.launch_count == 4


@PER_TEST
@given(st.permutations(range(4)), st.tuples(*[st.integers(1, 4)] * 4))
def test_hint_mends_a_permuted_view(driver, order, extents):
    """The memory is right, the dims are in another order: the view that the hint names is accepted."""
    tensor = Tensor("image", "x", "f16", ("n", "h", "w", "c"), extents)
    packed = array(tensor, X)
    permuted = packed.transpose(order)
    assume(permuted.shape != packed.shape or permuted.strides != packed.strides)
    k = kernel(Launch("k", (1, 1, 1), 32, (Param("x", "pointer", "x"),)), reads=(tensor,), operands=())
    try:
        k(permuted, out=array(RESULT, Y), stream=STREAM)
    except errors.LaunchError as error:
        found = re.search(r"image\.transpose\(([\d, ]+)\) is the right view", str(error))
        assert found, str(error)
        mended = permuted.transpose([int(i) for i in found[1].split(",")])
        k(mended, out=array(RESULT, Y), stream=STREAM)
    else:  # dims of one element alone have changed places
        assert permuted.shape == packed.shape


def test_hint_of_another_order_of_memory(driver):
    planes = np.zeros((2, 8, 5, 6), np.float16)
    with pytest.raises(errors.WrongShape) as raised:
        kernel().emulate(planes, np.zeros(FILTER.shape, np.float16), b=np.zeros(BIAS.shape, np.float32))
    hint = "hint: write `f16[n=2, c=8, h=5, w=6]` in the spec, or pass a packed copy of image.transpose(0, 2, 3, 1)"
    assert str(raised.value).endswith(hint)


def test_a_mask_is_not_ignored(driver):
    masked = np.ma.masked_array(np.zeros(IMAGE.shape, np.float16))
    with pytest.raises(errors.WrongType, match="image is of type MaskedArray: the emulator takes NumPy arrays"):
        kernel().emulate(masked, np.zeros(FILTER.shape, np.float16), b=np.zeros(BIAS.shape, np.float32))


def test_how_the_emulator_takes_another_library_s_array():
    torch = pytest.importorskip("torch")
    image = torch.zeros(IMAGE.shape, dtype=torch.float16, requires_grad=True)
    others = np.zeros(FILTER.shape, np.float16), np.zeros(BIAS.shape, np.float32)
    with pytest.raises(errors.WrongType) as raised:
        kernel().emulate(image, others[0], b=others[1])
    assert str(raised.value).endswith("takes NumPy arrays\nhint: image.numpy(force=True) is one")
    with pytest.raises(errors.WrongType, match=r"out is of type Tensor: the emulator takes NumPy arrays$"):
        kernel().emulate(image.numpy(force=True), others[0], b=others[1], out=torch.zeros(IMAGE.shape))


@pytest.mark.parametrize(
    ("dtype", "given", "to"),
    [("f16", "bfloat16", "float16"), ("bf16", "float32", "bfloat16"), ("f32", "float64", "float32")],
)
def test_how_the_emulator_takes_a_tensor_of_another_type(dtype, given, to, driver):
    torch = pytest.importorskip("torch")
    tensors = [np.zeros(tensor.shape, np.float16) for tensor in (IMAGE, FILTER)]
    declared = Tensor("scale", "operand", dtype, ("k",), (8,))
    scale = torch.zeros(8, dtype=getattr(torch, given))
    with pytest.raises(errors.WrongType) as raised:
        kernel(operands=(declared,)).emulate(*tensors, scale=scale)
    hint = str(raised.value).partition("\nhint: ")[2].removesuffix(" is one")
    assert hint.startswith(f"scale.to(torch.{to}).")
    assert eval(hint, {"scale": scale, "torch": torch}).shape == (8,)


@pytest.mark.parametrize(
    ("dtype", "raw"), [("f32", ""), ("bf16", ".view(torch.int16)"), ("e4m3", ".view(torch.uint8)")]
)
def test_how_the_emulator_takes_a_tensor_without_dims(dtype, raw, driver):
    torch = pytest.importorskip("torch")
    tensors = [np.zeros(tensor.shape, np.float16) for tensor in (IMAGE, FILTER)]
    declared = Tensor("scale", "operand", dtype, (), ())
    scale = torch.zeros(()).to(getattr(torch, declared.element.numpy)).requires_grad_()
    hint = f"scale{raw}.numpy(force=True)"
    with pytest.raises(errors.WrongType, match=rf"\nhint: {re.escape(hint)} is one$"):
        kernel(operands=(declared,)).emulate(*tensors, scale=scale)
    assert eval(hint, {"scale": scale, "torch": torch}).shape == ()


@pytest.mark.parametrize("scale", [2, 0.5, np.float64(0.5)])
def test_how_the_emulator_takes_a_number(scale, driver):
    tensors = [np.zeros(tensor.shape, np.float16) for tensor in (IMAGE, FILTER)]
    scaled = kernel(operands=(Tensor("scale", "operand", "f32", (), ()),))
    with pytest.raises(errors.WrongType, match=r"\nhint: numpy.array\(scale, 'float32'\) is one$"):
        scaled.emulate(*tensors, scale=scale)


# ---- warm calls: what was right once is looked at again -----------------------------------------


def elsewhere(tensor: Tensor, address: int):
    """An array of another GPU, at an address that an array of this one had."""
    memory = cupy.cuda.UnownedMemory(address, 1 << 30, None, 1)
    return cupy.ndarray(tensor.shape, tensor.element.numpy, cupy.cuda.MemoryPointer(memory, 0))


def reshaped(made, tensor: Tensor):
    made.shape = made.shape[::-1]  # the same object
    return made


@pytest.mark.parametrize("name", ["image", "out"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (reshaped, errors.WrongShape),
        (lambda a, t: array(t, a.data.ptr, shape=(*t.shape[:-1], 4)), errors.WrongShape),
        (lambda a, t: array(t, a.data.ptr, dtype="f4"), errors.WrongType),
        (lambda a, t: array(t, a.data.ptr, strides=(a.strides[0], 2, *a.strides[1:3])), errors.WrongLayout),
        (lambda a, t: elsewhere(t, a.data.ptr), errors.WrongDevice),
        (lambda a, t: np.zeros(t.shape, a.dtype), errors.WrongDevice),
        (lambda a, t: object(), errors.WrongType),
    ],
)
def test_a_warm_call_refuses_what_is_no_longer_right(driver, name, change, error):
    if name == "image" and error is errors.WrongDevice:  # it would be the others that are on the wrong GPU
        name = "weights"
    k, arguments = kernel(), right()
    for _ in range(2):
        k(**arguments, stream=STREAM)
    tensor = {"image": IMAGE, "weights": FILTER, "out": RESULT}[name]
    changed = arguments | {name: change(arguments[name], tensor)}
    for _ in range(2):
        with pytest.raises(error, match=name):
            k(**changed, stream=STREAM)
    assert driver.launch_count == 2
    k(**right(), stream=STREAM)
    assert driver.launch_count == 3


def test_warm_calls_go_to_the_buffers_that_are_given(driver):
    """A few sets of buffers in turn, with new objects over the same memory, on two streams, by name and by place."""
    k = kernel()
    for turn in range(4):
        for i in range(3):
            offset = i * 0x1000
            image, weights, b = array(IMAGE, X + offset), array(FILTER, W + offset), array(BIAS, B + offset)
            out = array(RESULT, Y + offset)
            if turn % 2:
                k(image, b=b, weights=weights, out=out, stream=STREAM + i)
            else:
                k(image, weights, b, out=out, stream=SimpleNamespace(ptr=STREAM + i))
            launch = driver.launches[-1]
            assert launch.config.stream == STREAM + i
            assert int.from_bytes(ctypes.string_at(launch.params[0], 8), "little") == X + offset
            assert [parameter(launch, j, ctypes.c_uint64).value - offset for j in (1, 2, 3)] == [W, B, Y]
    assert driver.launch_count == 12
    assert driver.map_count == 3


def test_a_warm_call_tells_tensors_of_one_shape_apart_by_name(driver):
    left, right_ = (Tensor(name, "operand", "f32", ("k",), (16,)) for name in ("left", "right"))
    step = Launch("k", (1, 1, 1), 32, (Param("l", "pointer", "left"), Param("r", "pointer", "right")))
    k = kernel(step, operands=(left, right_))
    a, b, out = array(left, B), array(left, B + 0x1000), array(RESULT, Y)
    image, weights = array(IMAGE, X), array(FILTER, W)
    for _ in range(2):
        k(image, weights, left=a, right=b, out=out, stream=STREAM)
        k(image, weights, right=b, left=a, out=out, stream=STREAM)
        k(image, weights, a, b, out=out, stream=STREAM)
    for launch in driver.launches:
        assert [parameter(launch, i, ctypes.c_uint64).value for i in (0, 1)] == [B, B + 0x1000]
    with pytest.raises(TypeError, match="left"):
        k(image, weights, a, left=a, right=b, out=out, stream=STREAM)
    with pytest.raises(TypeError, match="right"):
        k(image, weights, a, out=out, stream=STREAM)
    assert driver.launch_count == 6


def test_a_warm_call_on_another_gpu(driver):
    driver.devices = 2
    k = kernel()
    for device in (0, 0, 1, 1, 0, 1):
        arguments = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
        where = {name: array(*place, device=device) for name, place in arguments.items()}
        k(**where, stream=(device << 32) + STREAM)
    assert [launch.context for launch in driver.launches] == [0x100, 0x100, 0x101, 0x101, 0x100, 0x101]
    assert driver.context_depth == 0


def test_a_warm_call_has_the_workspace_of_its_stream(driver, monkeypatch):
    found = iter(range(0x900000, 0xA00000, 0x1000))
    monkeypatch.setattr(scratch, "allocate", lambda *_: SimpleNamespace(ptr=next(found)))
    k = kernel(
        Launch("k", (1, 1, 1), 32, (Param("partial", "pointer", "partial"),)), workspaces=(Workspace("partial", 10),)
    )
    for stream in (STREAM, STREAM, STREAM + 1, STREAM, STREAM + 1):
        k(**right(), stream=stream)
    mine = array(Tensor("", "", "s8", ("n",), (256,)), 0x500000)
    k(**right(), stream=STREAM, workspace=mine)
    k(**right(), stream=STREAM)
    addresses = [parameter(launch, 0, ctypes.c_uint64).value for launch in driver.launches]
    assert addresses == [0x900000, 0x900000, 0x901000, 0x900000, 0x901000, 0x500000, 0x900000]


# ---- types that NumPy lacks, other libraries ----------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "taken", "refused"),
    [
        ("bf16", ("u2", "i2", ml_dtypes.bfloat16), ("f2", "f4", "u1")),
        ("e4m3", ("u1", ml_dtypes.float8_e4m3fn), ("i1", "f2", ml_dtypes.float8_e5m2)),
        ("e5m2", ("u1", ml_dtypes.float8_e5m2), ("i1", ml_dtypes.float8_e4m3fn)),
        ("s8", ("i1",), ("u1",)),
        ("f16", ("f2",), ("u2", ml_dtypes.bfloat16)),
        ("s32", ("i4",), ("f4", "u4")),
    ],
)
def test_element_types(driver, dtype, taken, refused):
    tensor = Tensor("image", "x", dtype, ("n", "c"), (4, 16))
    k = kernel(Launch("k", (1, 1, 1), 32, (Param("x", "pointer", "x"),)), reads=(tensor,), operands=())
    for kind in taken:
        k(array(tensor, X, dtype=kind), out=array(RESULT, Y), stream=STREAM)
    assert driver.launch_count == len(taken)
    for kind in refused:
        with pytest.raises(errors.WrongType):
            k(array(tensor, X, dtype=kind), out=array(RESULT, Y), stream=STREAM)


class Interface:
    """Some library's array."""

    def __init__(self, tensor: Tensor, address: int, **more) -> None:
        typestr = {"f16": "<f2", "f32": "<f4", "bf16": "<V2"}[tensor.dtype]
        data = {"shape": tensor.shape, "typestr": typestr, "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = data | more


def foreign(**more) -> dict:
    tensors = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
    return {name: Interface(*where, **more.get(name, {})) for name, where in tensors.items()}


def test_cuda_array_interface(driver):
    k, arguments = kernel(), foreign(b={"strides": None})
    assert k(**arguments, stream=STREAM) is arguments["out"]
    assert [parameter(driver.launches[0], i, ctypes.c_uint64).value for i in (1, 2, 3)] == [W, B, Y]
    assert driver.wait_count == 0


@pytest.mark.parametrize(
    ("name", "more", "error"),
    [
        ("image", {"strides": (480, 96, 16, 4)}, errors.WrongLayout),
        ("image", {"typestr": "<f4"}, errors.WrongType),
        ("weights", {"shape": (16, 3, 3, 4)}, errors.WrongShape),
        ("b", {"data": (1 << 40, False)}, errors.WrongDevice),
        ("out", {"data": (Y, True)}, errors.WrongType),
    ],
)
def test_cuda_array_interface_is_checked(driver, name, more, error):
    with pytest.raises(error, match=name):
        kernel()(**foreign(**{name: more}), stream=STREAM)
    assert driver.launch_count == 0


def test_the_launch_waits_for_another_librarys_stream(driver):
    kernel()(**foreign(image={"stream": STREAM}, weights={"stream": 77}), stream=STREAM)
    assert driver.wait_count == 1


class TorchTensor:
    """What convgen asks of a torch.Tensor."""

    def __init__(self, tensor: Tensor, address: int, torch: ModuleType, place: str = "cuda:0") -> None:
        self.shape, self.address, self.device = tensor.shape, address, place
        self.dtype = getattr(torch, tensor.element.numpy)
        self.is_cuda = place.startswith("cuda")
        self.strides = packed_strides(tensor.shape)
        self._version = 0

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return int(self.device[5:]) if self.is_cuda else -1

    def is_contiguous(self) -> bool:
        return self.strides == packed_strides(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self.strides


@pytest.fixture
def torch(monkeypatch) -> ModuleType:
    """A module that looks like torch with a tensor type, its types and its current stream."""
    from convgen.runtime import arrays

    made = ModuleType("torch")
    kind = type("dtype", (), {"__module__": "torch"})
    for name in ("float16", "float32", "bfloat16", "int32"):
        setattr(made, name, kind())
    made.current = 0x70C4
    made.Tensor = type("Tensor", (TorchTensor,), {"__module__": "torch"})

    def wrote(tensors):
        for tensor in tensors:
            tensor._version += 1

    made._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: made.current + device, _increment_version=wrote)
    made.device = lambda kind, index: f"{kind}:{index}"

    def empty(shape, dtype, device):
        tensor = made.Tensor(RESULT, Y, made, device)
        assert (tensor.shape, tensor.dtype) == (shape, dtype)
        return tensor

    made.empty = empty
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setattr(arrays, "TORCH", arrays.TorchLibrary())
    arrays._torch_device.cache_clear()
    return made


def test_torch_tensors_run_on_torchs_stream_and_give_torch(driver, torch):
    def tensor(t: Tensor, address: int):
        return torch.Tensor(t, address, torch)

    k = kernel()
    result = k(tensor(IMAGE, X), tensor(FILTER, W), b=array(BIAS, B))
    assert type(result) is torch.Tensor
    (launch,) = driver.launches
    assert launch.config.stream == 0x70C4
    assert [parameter(launch, i, ctypes.c_uint64).value for i in (1, 2, 3)] == [W, B, Y]


@pytest.mark.parametrize("image", ["torch", "cupy"])
def test_each_call_advances_the_version_of_what_it_writes(driver, torch, image):
    written = torch.Tensor(RESULT, Y, torch), torch.Tensor(RESULT, Y + (1 << 20), torch)
    tensors = {"weights": torch.Tensor(FILTER, W, torch), "b": torch.Tensor(BIAS, B, torch)}
    tensors["image"] = torch.Tensor(IMAGE, X, torch) if image == "torch" else array(IMAGE, X)
    k = kernel()
    for count in (1, 2, 3):
        for out in written:
            k(**tensors, out=out)
            assert out._version == count
    assert not tensors["b"]._version


def test_a_warm_call_advances_the_version_of_each_result(torch):
    from convgen.runtime import arrays, warm

    reading = arrays.TORCH.reading
    outs = tuple(torch.Tensor(BIAS, address, torch) for address in (Y, Y + 64))
    launched = {(7, X, Y, Y + 64): lambda: None}
    types = (torch.float16, *[out.dtype for out in outs])
    shapes = [IMAGE.shape, *[out.shape for out in outs]]
    call = warm.write(["x"], ["out[0]", "out[1]"], reading, int, launched, 0, shapes, [None] * 3, types)
    assert call(None, torch.Tensor(IMAGE, X, torch), out=outs, stream=7) is outs
    assert [out._version for out in outs] == [1, 1]


@pytest.mark.parametrize("name", ["image", "weights", "b", "out"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"shape": (2,), "strides": (1,)}, errors.WrongShape),  # resize_
        ({"strides": (9, 7, 5, 3)}, errors.WrongLayout),  # as_strided_
        ({"dtype": "int32"}, errors.WrongType),  # .data = another's
        ({"device": "cuda:1"}, errors.WrongDevice),
        ({"device": "cpu", "is_cuda": False}, errors.WrongDevice),
        ({"address": 0x700001}, errors.Misaligned),  # set_
    ],
)
def test_a_warm_call_sees_what_was_changed_in_a_torch_tensor(driver, torch, name, change, error):
    tensors = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
    k = kernel()
    arguments = {key: torch.Tensor(*where, torch) for key, where in tensors.items()}
    for _ in range(2):
        k(**arguments)
    if name == "image" and change.get("device") == "cuda:1":
        driver.devices, name = 2, "weights"
    tensor = arguments[name]
    for attribute, value in change.items():
        setattr(tensor, attribute, getattr(torch, value) if attribute == "dtype" else value)
    if "shape" not in change:
        tensor.strides = tensor.strides[: len(tensor.shape)]
    for _ in range(2):
        with pytest.raises(error):
            k(**arguments)
    assert driver.launch_count == 2
    k(**{key: torch.Tensor(*where, torch) for key, where in tensors.items()})
    assert driver.launch_count == 3


def test_a_warm_call_sees_torchs_own_changes_in_place():
    torch = pytest.importorskip("torch")
    from convgen.runtime import arrays, warm

    changes = {
        "resize_": lambda t: t.resize_(8, 32),
        "as_strided_": lambda t: t.as_strided_((16, 16), (1, 16)),
        "t_": lambda t: t.t_(),
        "unsqueeze_": lambda t: t.unsqueeze_(0),
        "set_": lambda t: t.set_(torch.zeros(16, 16)),
        "data of another type": lambda t: setattr(t, "data", t.half()),
        "data elsewhere": lambda t: setattr(t, "data", t.clone()),
        "swap_tensors": lambda t: torch.utils.swap_tensors(t, torch.zeros(16, 16)),
        "another view": lambda t: t.set_(t.untyped_storage(), 16, (15, 16), (16, 1)),
    }
    reading = arrays.TorchLibrary().reading._replace(current=None)
    cpu = -1  # torch's number of it
    for name, change in changes.items():
        tensor, out = torch.ones(16, 16), torch.ones(4)
        ran, slow = [], SimpleNamespace(_call=lambda *_: "slow")
        launched = {(7, tensor.data_ptr(), out.data_ptr()): partial(ran.append, name)}
        types = torch.float32, torch.float32
        call = warm.write(["x"], ["out"], reading, int, launched, cpu, [(16, 16), (4,)], [None] * 2, types)
        assert call(slow, tensor, out=out, stream=7) is out
        assert ran == [name]
        kept = tensor.detach()  # its memory is not given to another
        change(tensor)
        assert call(slow, tensor, out=out, stream=7) == "slow", name
        assert call(slow, x=kept, out=out, stream=7) is out


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_a_copy_of_a_kernel_that_ran_launches_for_itself(driver, copied):
    original, arguments = kernel(), right()
    for _ in range(3):
        original(**arguments, stream=STREAM)
    other = copied(original)
    for _ in range(3):
        assert other(**arguments, stream=STREAM) is arguments["out"]
    assert [launch.entry for launch in driver.launches] == [b"convgen_tiny"] * 6
    assert type(other) is not type(original)  # each has a call of its own


@pytest.mark.parametrize("name", ["lambda", "out_", "self", "handle", "enqueue", "_launched", "None", "AttributeError"])
def test_a_tensor_may_have_any_name(driver, name):
    operand = Tensor(name, "operand", "f32", ("k",), (16,))
    k = kernel(Launch("k", (1, 1, 1), 32, (Param("b", "pointer", name),)), operands=(operand,))
    for _ in range(3):
        k(array(IMAGE, X), array(FILTER, W), **{name: array(operand, B)}, out=array(RESULT, Y), stream=STREAM)
    assert {parameter(launch, 0, ctypes.c_uint64).value for launch in driver.launches} == {B}
    with pytest.raises(errors.WrongDevice):
        k(np.zeros(IMAGE.shape, "f2"), array(FILTER, W), array(operand, B), out=array(RESULT, Y), stream=STREAM)


def test_a_warm_call_goes_to_torchs_current_stream(driver, torch):
    k = kernel()
    arguments = {
        name: torch.Tensor(t, address, torch)
        for name, t, address in (("image", IMAGE, X), ("weights", FILTER, W), ("b", BIAS, B), ("out", RESULT, Y))
    }
    for stream in (0, 5, 0, 7, 5):
        torch.current = stream
        k(**arguments)
    assert [launch.config.stream or 0 for launch in driver.launches] == [0, 5, 0, 7, 5]


def test_torch_tensor_on_the_cpu_is_refused(driver, torch):
    tensor = torch.Tensor(IMAGE, X, torch, "cpu")
    with pytest.raises(errors.WrongDevice, match="image is on cpu"):
        kernel()(tensor, array(FILTER, W), b=array(BIAS, B))
    with pytest.raises(errors.WrongDevice, match="image is on cpu"):
        kernel()(tensor, array(FILTER, W), array(BIAS, B), out=array(RESULT, Y), stream=STREAM)


def test_channels_last_torch_tensor_gets_the_free_view_as_hint(driver, torch):
    tensor = torch.Tensor(Tensor("", "x", "f16", ("n", "c", "h", "w"), (2, 8, 5, 6)), X, torch)
    tensor.strides = (240, 1, 48, 8)
    with pytest.raises(errors.WrongShape, match=r"image\.permute\(0, 2, 3, 1\) is the right view"):
        kernel()(tensor, array(FILTER, W), b=array(BIAS, B), out=array(RESULT, Y))


@pytest.mark.parametrize(
    "stream",
    [STREAM, SimpleNamespace(ptr=STREAM), SimpleNamespace(cuda_stream=STREAM),
     SimpleNamespace(__cuda_stream__=lambda: (0, STREAM))],
)  # fmt: skip
def test_any_librarys_stream(driver, stream):
    kernel()(**right(), stream=stream)
    assert driver.launches[0].config.stream == STREAM


def test_what_is_no_stream_is_refused(driver):
    with pytest.raises(errors.WrongType, match="stream is of type str"):
        kernel()(**right(), stream="mine")


# ---- GPUs ---------------------------------------------------------------------------------------


def test_no_driver(monkeypatch):
    from functools import cache

    monkeypatch.setattr(cuda, "LIBRARY", "libcuda-that-is-not-there.so")
    monkeypatch.setattr(cuda, "driver", cache(cuda.driver.__wrapped__))
    with pytest.raises(errors.NoGpu, match="no NVIDIA driver"):
        kernel()(**right(), stream=STREAM)


def test_no_gpu(driver):
    driver.init_status = 100
    with pytest.raises(errors.NoGpu, match=r"finds no GPU \(CUDA_ERROR_FAKE \(100\)"):
        kernel()(**right(), stream=STREAM)


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_90a", (9, 0), True), ("sm_90a", (8, 0), False), ("sm_90a", (10, 0), False), ("sm_90", (10, 0), False),
        ("sm_80", (8, 0), True), ("sm_80", (8, 9), True), ("sm_86", (8, 0), False),
    ],
)  # fmt: skip
def test_a_kernel_runs_on_its_target_alone(driver, target, capability, runs):
    driver.major, driver.minor = capability
    k = kernel(target=target)
    if runs:
        k(**right(), stream=STREAM)
    else:
        with pytest.raises(
            errors.WrongGpu, match=rf"compiled for {target}; GPU 0 has compute capability {capability[0]}"
        ):
            k(**right(), stream=STREAM)
    assert driver.launch_count == runs


def test_each_gpu_gets_its_own_module_and_context(driver):
    driver.devices = 2
    k = kernel()
    for device in (1, 0, 1):
        arguments = {"image": (IMAGE, X), "weights": (FILTER, W), "b": (BIAS, B), "out": (RESULT, Y)}
        where = {name: array(*place, device=device) for name, place in arguments.items()}
        k(**where, stream=(device << 32) + STREAM)
    assert [launch.context for launch in driver.launches] == [0x101, 0x100, 0x101]
    assert driver.module_count == 2
    assert driver.context_depth == 0


@pytest.mark.parametrize("instances", [0, 1])  # NVML does not know the names of a GPU's instances
def test_the_gpu_at_hand(driver, monkeypatch, instances):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver.devices, driver.major, driver.minor, driver.instances = 2, 8, 9, instances
    driver.rename("NVIDIA L40S")
    assert cuda.nvml_gpus() == (set() if instances else {cuda.Gpu("NVIDIA L40S", (8, 9))})
    assert launching.gpu_at_hand() == ("NVIDIA L40S", (8, 9))


def test_no_gpu_at_hand(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver.init_status = 100
    assert launching.gpu_at_hand() is None


def test_where_gpus_differ_the_first_visible_one_is_at_hand(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver.devices, driver.major_step = 2, 1
    assert cuda.nvml_gpus() == {("NVIDIA H200", (9, 0)), ("NVIDIA H200", (10, 0))}
    assert launching.gpu_at_hand() == ("NVIDIA H200", (9, 0))


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_none(driver, monkeypatch, hidden):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert launching.gpu_at_hand() is None


def test_a_failing_launch_says_what_the_driver_says(driver):
    driver.launch_status = 719
    with pytest.raises(errors.DriverError, match=r"launching tiny: the CUDA driver says CUDA_ERROR_FAKE \(719\)"):
        kernel()(**right(), stream=STREAM)


def test_after_a_fork_a_launch_says_how_to_start_processes(driver):
    driver.launch_status = cuda.NOT_INITIALIZED
    with pytest.raises(errors.DriverError, match="does not survive a fork: start processes with spawn"):
        kernel()(**right(), stream=STREAM)


def test_an_entry_that_the_code_lacks(driver):
    with pytest.raises(errors.DriverError, match="cuModuleGetFunction"):
        kernel(Launch("missing", (1, 1, 1), 32, ()))(**right(), stream=STREAM)


# ---- without a GPU ------------------------------------------------------------------------------


def test_emulate_checks_and_passes_named_buffers(monkeypatch):
    from convgen import emulator

    seen = {}
    monkeypatch.setattr(emulator, "emulate", lambda *a, **k: seen.update(a=a, k=k), raising=False)
    image, weights, b = np.zeros(IMAGE.shape, "f2"), np.zeros(FILTER.shape, "f2"), np.zeros(BIAS.shape, "f4")
    k = kernel()
    result = k.emulate(image, weights, b=b, seed=3, sms=5)
    assert (result.shape, result.dtype) == (RESULT.shape, ml_dtypes.bfloat16)
    assert np.isnan(result.astype("f4")).all()
    source, steps, buffers = seen["a"]
    assert (source, steps) == (k.source, k.manifest.steps)
    assert buffers.keys() == {"x", "w", "b", "y"}
    assert buffers["x"] is image
    assert buffers["y"] is result
    assert (seen["k"]["seed"], seen["k"]["sms"]) == (3, 5)
    seen.clear()
    with pytest.raises(errors.WrongLayout):
        k.emulate(np.zeros((2, 5, 6, 16), "f2")[..., ::2], weights, b=b)
    records = np.zeros(BIAS.shape, [("b", "f4"), ("used", "?")])
    with pytest.raises(errors.WrongLayout, match=r"strides \(1.25,\) in elements, expected \(1,\)"):
        k.emulate(image, weights, b=records["b"])
    with pytest.raises(errors.WrongType):
        k.emulate(image, weights, b=b.astype("f8"))
    with pytest.raises(errors.WrongType, match="takes NumPy arrays"):
        k.emulate(array(IMAGE, X), weights, b=b)
    for wrong in ({"seed": "a"}, {"seed": 1.5}, {"sms": None}):
        with pytest.raises(errors.WrongType, match="expected a whole number"):
            k.emulate(image, weights, b=b, **wrong)
    for beyond in ({"seed": -1}, {"seed": 2**64}, {"sms": 0}):
        with pytest.raises(errors.WrongArguments, match="are possible"):
            k.emulate(image, weights, b=b, **beyond)
    within = np.resize(image, RESULT.size + IMAGE.size).view(ml_dtypes.bfloat16)
    with pytest.raises(errors.Overlap, match="out overlaps image"):
        image_within = within[: IMAGE.size].view("f2").reshape(IMAGE.shape)
        k.emulate(image_within, weights, b=b, out=within[8 : 8 + RESULT.size].reshape(RESULT.shape))
    result.setflags(write=False)
    with pytest.raises(errors.WrongType, match="is read-only"):
        k.emulate(image, weights, b=b, out=result)
    with pytest.raises(errors.WrongArguments) as refusal:
        k.emulate(image, weights, b=b, stream=0)
    assert "it has no tensor stream" in str(refusal.value) and ".emulate(" in str(refusal.value)
    assert "stream=" not in str(refusal.value)
    assert not seen
