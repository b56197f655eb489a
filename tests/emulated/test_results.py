"""Several results from one kernel, emulated: each kernel writes them, and operands may be their own arrays."""

from __future__ import annotations

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from result_specs import CASES, READ_SUMS, SUMMED, SUMS_OF_IMAGES, sums_spec

from convgen import driver
from convgen.diagnostics import SpecError
from convgen.ir import verify
from convgen.ir.dtypes import numpy_dtype
from convgen.spec import Spec


def test_a_result_that_lies_as_y_does_leaves_by_tma():
    (compilation,) = driver.load(Spec(CASES["tma_im2col"]))
    kinds = {p.name: p.kind for p in compilation.plan.launch().params}
    assert {kinds[name] for name in ("c_map", "result_t_map", "operand_z_map")} == {"tensor_map"}
    assert kinds["result_u"] == "pointer"


def test_sums_of_channels_are_made_in_parts():
    """16 pixels a part, where the kernel adds up; other sums are of every element's value."""
    (compilation,) = driver.load(Spec(sums_spec("tma_im2col")))
    sizes = {w.name: w.bytes for w in compilation.plan.workspaces}
    pixels = -(-compilation.request.problem.output_pixels // 64) * 64
    assert sizes["partial.s"] == 4 * 40 * pixels // 16 and "values.s" not in sizes
    assert sizes["values.all"] == 4 * compilation.request.problem.y.size


@pytest.mark.parametrize("name", CASES)
def test_results_and_operands_that_are_their_own_arrays(name):
    (compilation,) = driver.load(Spec(CASES[name]))
    check_in_place(compilation.request.problem, compilation.uncompiled())


def check_in_place(problem, kernel):
    """Results that are an operand's own array are right."""
    assert {("a", problem.result.name), ("z", "t")} <= set(problem.in_place)
    given = verify.random_inputs(problem, 1)
    arrays = {array: value.copy() for array, value in given.items()}
    u = verify.poison(np.empty(problem.tensor("u").shape, numpy_dtype("f32")))
    outs = (arrays["a"], arrays["z"], u)
    assert kernel.emulate(*arrays.values(), out=outs, seed=1) is outs
    report = verify.check(problem, given, outs, arithmetic=kernel.manifest.arithmetic)
    assert report, report


@pytest.mark.parametrize(("name", "axes"), [
    (name, axes) for i, name in enumerate(CASES) for axes in ("h", "w", "hw") if axes != "hw" or i % 3 == 0
])  # fmt: skip
def test_results_of_one_row_or_one_column(name, axes):
    """A coordinate that is always 0 is in no address, and what lies beyond it must not be stored all the same."""
    text = CASES[name]
    for axis in axes:
        taps = int(re.search(rf"{'r' if axis == 'h' else 's'}=(\d+)", text)[1])
        text = re.sub(rf"\b{axis}=\d+", f"{axis}={1 if 'pad 1' in text else taps}", text)
    try:
        (compilation,) = driver.load(Spec(text))
        problem, kernel = compilation.request.problem, compilation.uncompiled()
    except SpecError as refused:
        pytest.skip(str(refused).splitlines()[0])
    check_in_place(problem, kernel)


@pytest.mark.parametrize("name", READ_SUMS)
def test_sums_of_what_is_read(name):
    check_sums(READ_SUMS[name])


@pytest.mark.parametrize("name", SUMMED)
def test_sums(name):
    """Over some dims and over all, beside other results."""
    assert check_sums(sums_spec(name))[-1].shape == ()


@pytest.mark.parametrize("name", SUMS_OF_IMAGES)
def test_sums_of_each_image(name):
    """The kernel adds up parts of them; sums of all images beside them, too."""
    (compilation,) = driver.load(Spec(SUMS_OF_IMAGES[name]))
    names = {w.name for w in compilation.plan.workspaces}
    assert {f"partial.{t.name}" for t in compilation.request.problem.sums} <= names
    assert not any(name.startswith("values") for name in names)
    check_sums(SUMS_OF_IMAGES[name])


@pytest.mark.parametrize("dims", ("p, q, n, k", "p, n, q, k=40 of 48", "n, q, p, k"))
@pytest.mark.parametrize("name", ("rows", "swap_ab, split_k"))
def test_sums_of_each_image_where_the_images_of_y_lie_otherwise(name, dims):
    """Pixels are counted image by image, however y has them."""
    text = SUMS_OF_IMAGES[name].replace("n, p, q, k]", f"{dims}]")
    (compilation,) = driver.load(Spec(text))
    assert "partial.s" in {w.name for w in compilation.plan.workspaces}
    check_sums(text)


@pytest.mark.parametrize(("split_k", "given", "fits"), [(1, 48, 16), (1, 128, 32), (2, 128, 64)])
def test_the_tile_that_a_hint_says_is_of_one_image_is(split_k, given, fits):
    text = """conv a {{ input x: f16[n=3, h=10, w=16, c=16]  filter w: f16[k=8, r=3, s=3, c=16]  pad 1
      output y: f16[n, p, q, k]  strategy tma_im2col {{ tile m={m}  swap_ab 1  split_k {split_k} }}
      epilogue {{ result s: f32[n, k]  s = acc  y = acc }} }}"""
    with pytest.raises(SpecError, match=f"do not divide an image's 160\n(.*\n)*.*hint: tile m={fits}\\b"):
        check_sums(text.format(m=given, split_k=split_k))
    check_sums(text.format(m=fits, split_k=split_k))


@hypothesis.settings(max_examples=12)
@hypothesis.given(
    sizes=st.tuples(*(st.integers(1, most) for most in (5, 9, 9, 5))),
    tile=st.sampled_from(["m=64 n=16", "m=128 n=24", "m=16 n=64 swap", "m=48 n=64 swap", "m=64 n=128 swap"]),
    more=st.sampled_from(["", "split_k 2", "cluster 2", "blocks 2"]),
)
def test_sums_of_each_image_of_any_size(sizes, tile, more):
    """Where 16 pixels may be of two images, every element's value is added up."""
    n, h, w, k = sizes
    shape, swapped, _ = tile.partition(" swap")
    swap_ab = "swap_ab 1" if swapped else ""
    text = f"""conv a {{ input x: f16[n={n}, h={h}, w={w}, c=16]  filter w: f16[k={8 * k}, r=3, s=3, c=16]  pad 1
      output y: f16[n, p, q, k]  strategy tma_im2col {{ tile {shape} k=16  {swap_ab}  {more} }}
      epilogue {{ result s: f32[n, k]  result all: f32[]  s = acc  all = acc  y = acc }} }}"""
    try:
        check_sums(text)
    except SpecError as refused:
        assert "E401" in str(refused)
        hypothesis.reject()


@pytest.mark.parametrize("strategy", [
    "depthwise { kernel depthwise_stream  math fma }", "depthwise { kernel depthwise_stream  math mma }",
    "tma_im2col { tile m=64 n=16 k=16 }", "tma_halo { swap_ab 1 }",
])  # fmt: skip
def test_a_sum_in_the_place_of_an_operand_that_is_loaded_once(strategy):
    """Threads keep the operand's channels though a sum may be its own array: it is written when all has been read."""
    groups, c = (16, "") if strategy.startswith("depthwise") else (1, ", c")
    text = f"""conv a {{ input x: f16[n=2, h=7, w=8, c=16]  filter w: f16[k=16, r=3, s=3{c}]  output y: f16[n, p, q, k]
      pad 1  groups {groups}  strategy {strategy}
      epilogue {{ operand b: f32[k]  result s: f32[k]  s = acc * b  y = acc + b }} }}"""
    (compilation,) = driver.load(Spec(text))
    problem, kernel = compilation.request.problem, compilation.uncompiled()
    assert ("b", "s") in problem.in_place
    assert re.search(r"channels of b\b|channel_b\[", kernel.source), kernel.source
    given = verify.random_inputs(problem, 1)
    arrays = {name: value.copy() for name, value in given.items()}
    outs = verify.poison(np.empty(problem.y.shape, numpy_dtype("f16"))), arrays["b"]
    kernel.emulate(*arrays.values(), out=outs, seed=1)
    report = verify.check(problem, given, outs, arithmetic=kernel.manifest.arithmetic)
    assert report, report


def check_sums(spec):
    """A spec's results, which are right, and the same bits whatever comes when."""
    (compilation,) = driver.load(Spec(spec))
    problem, kernel = compilation.request.problem, compilation.uncompiled()
    given = verify.random_inputs(problem, 1)
    outs = kernel.emulate(*given.values(), seed=1)
    assert [out.shape for out in outs] == [t.shape for t in problem.results]
    report = verify.check(problem, given, outs, arithmetic=kernel.manifest.arithmetic)
    assert report, report
    again = kernel.emulate(*given.values(), seed=2, sms=3)
    assert all((a == b).all() for a, b in zip(outs, again, strict=True))
    return outs


@pytest.mark.parametrize(
    "strategy",
    [
        "tma_im2col { tile m=128  consumers 2  schedule cooperative }",
        "tma_im2col { stream_k 1 }",
        "winograd { form fused }",
        "implicit_gemm",
        "direct",
    ],
)
def test_a_result_of_channels_alone_in_place(strategy):
    text = f"""conv a {{ input x: f16[n=1, h=1, w=1, c=32]  filter w: f16[k=72, r=3, s=3, c=32]  output y: f16[k]
      pad 1  epilogue {{ operand z: f16[k]  result t: f16[k]  t = acc + z  y = max(acc, 0) + t }}
      strategy {strategy} }}"""
    (compilation,) = driver.load(Spec(text))
    problem, kernel = compilation.request.problem, compilation.uncompiled()
    given = verify.random_inputs(problem, 1)
    for seed in range(4):
        arrays = {name: value.copy() for name, value in given.items()}
        outs = verify.poison(np.empty(problem.y.shape, numpy_dtype("f16"))), arrays["z"]
        kernel.emulate(*arrays.values(), out=outs, seed=seed)
        assert verify.check(problem, given, outs, arithmetic=kernel.manifest.arithmetic)


@pytest.mark.parametrize("further", ("f32[{channel}]", "f16[{dims}]", "f32[n, {channel}]"))
@pytest.mark.parametrize(("op", "made", "dims"), [("fprop", "y", "n, p, q, k"), ("dgrad", "x", "n, h, w, c")])
def test_further_results_of_one_row_by_tensor_cores(op, made, dims, further):
    result = further.format(dims=dims, channel=dims[-1])
    check_sums(f"""conv a {{ input x: f16[n=2, h=1, w=9, c=16]  filter w: f16[k=16, r=3, s=3]  output y: f16[n, p, q, k]
      pad 1  groups 16  op {op}  epilogue {{ result t: {result}  t = acc  {made} = relu(acc) }}
      strategy depthwise {{ kernel depthwise_stream  math mma }} }}""")
