"""Channel slices: what `c=64 of 256` means to the language, the index maps, kernels that do not take it, and a call."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, problems, sliced

from convgen import frontend
from convgen.functional import recipe
from convgen.functional.layouts import Given
from convgen.functional.pointwise import Step
from convgen.ir.index_map import Access
from convgen.ir.integer import symbol
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels.registry import KERNELS
from convgen.kernels.search import search
from convgen.planner import database
from convgen.runtime import errors
from convgen.runtime.arguments import overlap
from convgen.targets import TARGETS

SPEC = """conv a {
  input x: f16[n=2, h=5, w=6, c=8 of 24]
  filter w: f16[k=16, r=3, s=3, c=8]
  output y: f16[n, p, q, k of 64]
  epilogue { operand z: f16[n, p, q, k of 48]  operand b: f32[k of 32]  y = acc + z + b }
}"""


def problem(text: str) -> ConvProblem:
    (request,) = frontend.load(text)
    return request.problem


def test_a_slice_has_the_whole_tensors_strides() -> None:
    found = problem(SPEC)
    assert found.x.extents == (2, 5, 6, 8) and found.x.strides == (720, 144, 24, 1)
    assert found.y.extents == (2, 3, 4, 16) and found.y.strides == (768, 256, 64, 1)
    z, b = found.operands
    assert z.pitch == 48 and b.pitch is None  # one row is as good as packed
    assert found.x.whole.extents == (2, 5, 6, 24) and found.x.span == 59 * 24 + 8
    assert found.packed.x.strides == (240, 48, 8, 1)


def test_of_is_a_name_elsewhere() -> None:
    text = SPEC.replace("c=8 of 24", "c=of of of + of").replace("y = acc + z + b", "of = acc + z y = of + b")
    found = problem(f"let of = 8 {text}")
    assert (found.x.extent("c"), found.x.pitch) == (8, 16)
    assert found.epilogue and [a.name for a in found.epilogue.body] == ["of", "y"]


def test_all_of_a_tensors_channels_are_no_slice() -> None:
    assert problem(SPEC.replace("c=8 of 24", "c=8 of 8")) == problem(SPEC.replace("c=8 of 24", "c=8"))


@given(problems(ops=("fprop", "dgrad", "wgrad"), dtypes=("f16",)).flatmap(sliced))
def test_the_canonical_text_says_the_same(given_: ConvProblem) -> None:
    (request,) = frontend.load(str(given_))
    assert request.problem == given_


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 5))
def test_offsets_are_those_of_the_whole_tensor(extents: list[int], more: int) -> None:
    dims = ("n", "h", "w", "c")[-len(extents) :]
    t = Tensor("x", "x", "f16", dims, tuple(extents), pitch=extents[-1] + more)
    for at in itertools.product(*map(range, extents)):
        offset = Access(t, dict(zip(dims, map(symbol, dims), strict=True))).offset.subs(
            dict(zip(map(symbol, dims), at, strict=True))
        )
        place = 0
        for index, extent in zip(at, t.whole.extents, strict=True):
            place = place * extent + index
        assert offset == place == sum(i * s for i, s in zip(at, t.strides, strict=True))
    assert t.span == place + 1


@settings(max_examples=200)
@given(st.data())
def test_slices_overlap_where_they_share_elements(data: st.DataObject) -> None:
    pitch = data.draw(st.integers(2, 6))

    def one(name: str) -> tuple[Tensor, int, set[int]]:
        row, first = data.draw(st.integers(1, pitch)), data.draw(st.integers(0, 20))
        t = Tensor(name, "x", "f16", ("w", "c"), (data.draw(st.integers(1, 4)), row), pitch=pitch)
        held = {2 * (first + w * t.strides[0] + c) for w in range(t.extents[0]) for c in range(row)}
        return t, 2 * first, held

    (a, at, mine), (b, start, others) = one("a"), one("b")
    columns = [{(first // 2 + c) % pitch for c in range(t.row)} for t, first in ((a, at), (b, start))]
    if mine & others:
        assert overlap(a, at, b, start)
    elif a.pitch and b.pitch and not columns[0] & columns[1]:
        assert not overlap(a, at, b, start)


@pytest.mark.parametrize("name", [row.name for row in KERNELS])
@pytest.mark.parametrize("role", ["x", "w", "y"])
def test_a_kernel_takes_a_slice_or_says_that_it_does_not(name: str, role: str) -> None:
    kernel = next(row.kernel for row in KERNELS if row.name == name)
    plain = make("fprop" if Op.FPROP in kernel.ops else "wgrad", 2, 64, 64, (9, 9), (3, 3), pad=1)
    given_ = replace(plain, **{role: replace(plain.tensor(role), pitch=128)})
    found = search(kernel, given_, TARGETS["sm_90a"], {}).unserved
    refused = [o for o in found if f"{role} is a slice of 128 channels" in o.message]
    assert bool(refused) == (role not in kernel.slice_roles)
    assert all(o.hint for o in refused)


def test_a_slice_is_tuned_on_its_own() -> None:
    plain, found = problem(SPEC).packed, problem(SPEC)
    assert database.key(plain) != database.key(found)
    assert database.key(plain) == database.key(found.packed)


# ---- functions ----------------------------------------------------------------------------------


def known(channels: int, pitch: int, aligned: bool = True) -> Given:
    """Channels of a channels_last array of float16."""
    return Given((2, channels, 4, 5), (20 * pitch, 1, 5 * pitch, pitch), "f16", aligned)


FILTERS = Given((16, 16, 3, 3), (144, 9, 3, 1), "f16")


def recipe_of(x: Given, *operands: Given) -> recipe.Recipe:
    steps = tuple(Step("add") for _ in operands)
    return recipe.forward(x, FILTERS, operands, steps, 1, 1, 1, 1, None)


@pytest.mark.parametrize(
    ("x", "copied"), [(known(16, 40), False), (known(16, 40, aligned=False), True), (known(16, 44), True)]
)
def test_slices_are_copied_where_they_are_not_aligned(x: Given, copied: bool) -> None:
    for made, at in ((recipe_of(x), 0), (recipe_of(known(16, 16), x), 2)):
        assert made.views[at].copied == copied
        assert made.views[at].order in ((0, 2, 3, 1), (0, 1, 2, 3) if copied else ())
        assert ("of 40]" in made.convolution.text) == (not copied)


def test_the_result_lies_as_out_does() -> None:
    made = recipe_of(known(16, 40))
    assert recipe.into(made, known(16, 64)).convolution.text.count("k=16 of 64]") == 1
    planes = Given((2, 16, 4, 5), (320, 20, 5, 1), "f16")
    assert "y: f16[n=2, k=16, p=4, q=5]" in recipe.into(made, planes).convolution.text
    for wrong, error in (
        (known(8, 64), errors.WrongShape),
        (known(16, 64)._replace(dtype="bf16"), errors.WrongType),
        (known(16, 64, aligned=False), errors.WrongLayout),
        (planes._replace(strides=(640, 40, 10, 2)), errors.WrongLayout),
    ):
        with pytest.raises(error, match="out has"):
            recipe.into(made, wrong)


# ---- a call -------------------------------------------------------------------------------------

IMAGE = Tensor("image", "x", "bf16", ("n", "h", "w", "c"), (2, 5, 6, 8), pitch=32)
WHOLE = Tensor("image", "x", "bf16", ("n", "h", "w", "c"), (2, 5, 6, 32))
RESULT = Tensor("result", "y", "bf16", ("n", "p", "q", "k"), (2, 5, 6, 16), pitch=32)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    from fake_driver import install

    return install(tmp_path, monkeypatch)


def test_a_call_reads_and_writes_slices_of_one_array(driver) -> None:
    """What DenseNet does: the first channels are read, later ones written."""
    from fake_kernels import BIAS, FILTER, STREAM, B, W, X, array, kernel, parameter

    k = kernel(reads=(IMAGE, FILTER), result=RESULT)
    whole, weights, b = array(WHOLE, X), array(FILTER, W), array(BIAS, B)
    for _ in range(3):  # the second call is warm
        out = whole[..., 8:24]
        assert k(whole[..., :8], weights, b=b, out=out, stream=STREAM) is out
        assert parameter(driver.launches[-1], 3, ctypes.c_uint64).value == X + 16
    assert type(k).__call__.__code__.co_filename == "<call>"  # written by `warm`


@pytest.mark.parametrize(
    ("first", "pitch", "error", "words"),
    [
        (4, 32, errors.Misaligned, "multiple of 16 bytes(?s:.*)multiple of 8 channels"),
        (0, 32, errors.Overlap, "overlaps"),
        (8, 40, errors.WrongLayout, r"expected \(960, 192, 32, 1\)"),
    ],
)
def test_a_call_refuses_other_slices(driver, first: int, pitch: int, error: type, words: str) -> None:
    from fake_kernels import BIAS, FILTER, STREAM, B, W, X, array, kernel

    k = kernel(reads=(IMAGE, FILTER), result=RESULT)
    whole, weights, b = array(WHOLE, X), array(FILTER, W), array(BIAS, B)
    other = whole if pitch == 32 else array(replace(WHOLE, extents=(2, 5, 6, pitch)), X)
    good = whole[..., :8], whole[..., 8:24]
    for _ in range(2):
        k(good[0], weights, b=b, out=good[1], stream=STREAM)
    for _ in range(2):
        with pytest.raises(error, match=words):
            k(good[0], weights, b=b, out=other[..., first : first + 16], stream=STREAM)
    assert driver.launch_count == 2
