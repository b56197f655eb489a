"""`dynamic n h w`: sizes that remember how they follow, specs that have them, sources and manifests that do."""

from __future__ import annotations

import ast
import copy
import operator
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from dynamic_problems import all_sizes, at, manifest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen
from convgen import driver, frontend, planner
from convgen.diagnostics import SpecError
from convgen.ir import integer
from convgen.ir.estimates import between
from convgen.ir.formula import number
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem
from convgen.ir.size import BadFormula, Size, divisor, evaluate, of_dim, short
from convgen.kernels import strategies
from convgen.planner import classes
from convgen.planner.database import Tuned
from convgen.runtime import artifacts, host, saved
from convgen.runtime.dynamic import joined
from convgen.runtime.errors import WrongArguments, WrongShape, WrongType
from convgen.runtime.kernel import Kernel
from convgen.runtime.manifest import Manifest, ManifestError
from convgen.spec import Spec
from convgen.targets import TARGETS

SPEC = """
let n = 2
let h = 8
conv layer {{
  input  x: f16[n, h, w=9, c=16]
  filter w: f16[k=8, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  stride h=2 w=1
  {setting}
  epilogue {{
    operand b: f32[k]
    operand z: f16[n, p, q, k]
    y = relu(acc + b + z)
  }}
  op {op}
  strategy direct
  target sm_90a
}}
"""


def compilation(setting: str = "dynamic n h w", op: str = "fprop", **defines: int) -> driver.Compilation:
    text = SPEC.format(setting=setting, op=op)
    if op != "fprop":
        text = re.sub(r"epilogue \{.*?\n  \}", "", text, flags=re.DOTALL)
    (found,) = driver.load(Spec(text, defines=defines))
    return found


# ---- sizes -----------------------------------------------------------------------------------------

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod}
DIMS = ("n", "h", "w", "p")
LEAVES = st.sampled_from(DIMS) | st.integers(1, 64)
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(sorted(SIGNS)), inner, inner), max_leaves=8)
SIZES = st.fixed_dictionaries({dim: st.integers(1, 300) for dim in DIMS})


def made(tree, leaf):
    if not isinstance(tree, tuple):
        return leaf(tree)
    sign, *inner = tree
    return SIGNS[sign](*(made(part, leaf) for part in inner))


@given(TREES, SIZES, SIZES)
def test_a_size_follows_from_others_as_its_formula_says(tree, written, sizes):
    def value(of):
        return made(tree, lambda leaf: of.get(leaf, leaf))

    try:
        traced = made(tree, lambda leaf: Size(written[leaf], leaf) if leaf in DIMS else leaf)
        expected, later = value(written), value(sizes)
    except ZeroDivisionError:
        return
    assert int(traced) == expected
    if isinstance(traced, Size):
        assert evaluate(traced.formula, sizes) == evaluate(short(traced.formula), sizes) == later
        symbols = {integer.Extent(dim): size for dim, size in sizes.items()}
        assert integer.evaluate(number(traced), symbols) == later
        assert pickle.loads(pickle.dumps(traced)) == traced


@pytest.mark.parametrize("value", [1, 14, 64])
def test_code_decides_by_a_size_only_what_holds_for_others(value: int):
    n, h = Size(value, "n"), Size(value, "h")
    assert n > 1 and n != 1 and n != value and n % 8 != 0 and n
    assert n != h and n * h == h * n and hash(n * h) == hash(h * n) and n + n == 2 * n


@pytest.mark.parametrize(
    "text", ["__import__('os')", "n ** 2", "n.real", "n[0]", "True", "1.5", "c", "n if h else w", "~n", "n := 1", ""]
)
def test_a_formula_is_arithmetic_of_dims_and_nothing_else(text: str):
    with pytest.raises(BadFormula):
        evaluate(text, {"n": 1, "h": 1, "w": 1})


# ---- specs -----------------------------------------------------------------------------------------


def test_the_canonical_spec_says_it():
    problem = compilation().request.problem
    (again,) = frontend.load(str(problem))
    assert problem.dynamic == ("n", "h", "w") and again.problem == problem
    for words in ("dynamic w, n", "dynamic w\n n", "dynamic\n w,\n n"):
        assert compilation(words).request.problem.dynamic == ("n", "w")
    assert problem.static == compilation("").request.problem


@pytest.mark.parametrize(
    "text",
    [
        "let dynamic = 2 conv dynamic { input dynamic: f16[n=dynamic, h=8, w=8, c=4] filter w: f16[k=4, r=3, s=3, c=2]"
        " output y: f16[n, p, q, k] groups dynamic stride dynamic pad h=dynamic w=1 dilation (dynamic) }",
        "let dynamic = 2 conv a { input x: f16[n=2, h=8, w=8, c=4] filter w: f16[k=4, r=3, s=3, c=4]"
        " output dynamic: f16[n, p, q, k] pad dynamic zero epilogue { dynamic = acc } }",
    ],
)
def test_elsewhere_the_word_is_a_name(text: str):
    other = text.replace("dynamic", "other")
    (named,), (expected,) = frontend.load(text), frontend.load(other)
    assert str(named.problem) == str(expected.problem).replace("other", "dynamic")


@pytest.mark.parametrize(
    ("setting", "op", "message"),
    [
        ("dynamic n c", "fprop", "`c` cannot be dynamic"),
        ("dynamic p", "fprop", "`p` cannot be dynamic"),
        ("dynamic n d", "fprop", "`d` cannot be dynamic"),
        ("dynamic n h n", "fprop", "`n` is listed twice"),
        ("dynamic N", "fprop", "did you mean `n`?"),
        ("dynamic n reflect", "fprop", "`reflect` cannot be dynamic"),
        ("dynamic n", "transposed", "`op transposed` needs fixed sizes"),
    ],
)
def test_what_cannot_be_dynamic(setting: str, op: str, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        compilation(setting, op)


def errors(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        driver.load(Spec(text))
    return [d.code for d in caught.value.diagnostics]


def test_other_errors_hide_nothing_of_it():
    settings = "dynamic k foo  pad 1 reflect  epilogue { result s: f32[k]  s = acc  y = bar(acc) }"
    text = (
        "conv a {{ input x: f16[n=1, h=8, w=8, c=8] filter w: f16[k=8, r=3, s=3, c={}] output y: f16[n, p, q, k] {} }}"
    )
    assert errors(text.format(4, settings)) == ["E208", "E217", "E217", "E217", "E302"]
    settings = settings.replace("k foo  pad 1 reflect", "n h")
    assert errors(text.format(4, settings)) == ["E208", "E217", "E302"]


def test_of_a_dim_that_is_written_wrong_nothing_is_said_here():
    text = "conv a {{ input x: f16[{}, h=8, w=8, c=8] filter w: f16[k=8, r=3, s=3, c=8] output y: f16[n, p, q, k] {} }}"
    assert errors(text.format("m=1, f=3", "dynamic n d")) == ["E203", "E203"]
    results = "dynamic w  epilogue { result s: f16[n, p, qq, k]  s = acc  y = acc }"
    assert errors(text.format("n=1", results)) == ["E203"]


def test_sums_need_fixed_sizes():
    text = SPEC.format(setting="dynamic n", op="fprop").replace("y = relu", "result s: f32[k]\n s = acc\n y = relu")
    with pytest.raises(SpecError, match="`s` is summed over `n`, which therefore must be fixed"):
        driver.load(Spec(text))


@pytest.mark.parametrize(
    ("op", "declared"),
    [
        ("wgrad", "result s: f32[k]  result t: f32[c]  s = acc  t = acc * acc  w = acc"),
        ("wgrad", "result s: f32[n, k]  s = y  w = acc"),
        ("dgrad", "result s: f32[c]  result t: f32[]  s = w  t = w  x = acc"),
    ],
)
def test_sums_over_other_dims_leave_sizes_to_calls(op: str, declared: str):
    """A filter has c and k, as the images and the output do, but none of their pixels."""
    text = SPEC.format(setting="dynamic n", op=op)
    (made,) = driver.load(Spec(re.sub(r"epilogue \{[^}]*\}", f"epilogue {{ {declared} }}", text)))
    assert made.request.problem.dynamic == ("n",) and made.request.problem.sums


def test_kernels_of_fixed_sizes_say_so():
    fixed = replace(compilation().spec, text=compilation().spec.text.replace("strategy direct", "strategy im2col"))
    other = "leave `dynamic` out, or take another strategy: .*`direct` serve it"
    with pytest.raises(SpecError, match=f"(?s)kernel im2col is compiled for fixed sizes.*{other}"):
        _ = driver.load(fixed)[0].choice


@pytest.mark.parametrize("fill", ["reflect", "replicate", "circular"])
def test_padding_that_repeats_pixels_needs_fixed_sizes(fill: str):
    with pytest.raises(SpecError, match=f"padding by `{fill}` needs fixed sizes") as raised:
        driver.load(Spec(compilation().spec.text.replace("pad 1", f"pad 1 {fill}")))
    assert len(raised.value.diagnostics) == 1


# ---- kernels ---------------------------------------------------------------------------------------


def kernel_text(source: str) -> str:
    return source[source.index("// ---- kernel") :]


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_the_source_of_direct_does_not_depend_on_the_written_sizes(op: str):
    sources = {kernel_text(compilation(op=op, n=n, h=h).source) for n, h in ((2, 8), (1, 1), (3, 64))}
    assert len(sources) == 1


#: Options of tma_im2col, and what a spec says besides.
CONFIGURATIONS = {
    "cooperative": {"tile.m": 128, "tile.n": 8, "consumers": 2, "schedule": "cooperative", "swap_ab": 0},
    "pingpong": {"tile.m": 64, "tile.n": 8, "consumers": 2, "schedule": "pingpong", "swap_ab": 0, "raster": 3},
    "channels as rows": {"tile.m": 48, "tile.n": 64, "consumers": 1, "schedule": "cooperative", "swap_ab": 1},
    "cluster": {"tile.m": 64, "tile.n": 16, "consumers": 1, "schedule": "cooperative", "swap_ab": 0, "cluster": 2,
                "multicast": "b"},
    "shared pixels": {"tile.m": 64, "tile.n": 8, "consumers": 1, "schedule": "cooperative", "swap_ab": 0, "cluster": 2,
                      "multicast": "a"},
    "split": {"tile.m": 64, "tile.n": 16, "consumers": 1, "schedule": "cooperative", "swap_ab": 0, "split_k": 2},
}  # fmt: skip
ALL = {"stages": 3, "order": "channels_inner", "blocks": 1, "k_blocks": 1, "split_k": 1, "cluster": 1, "multicast": "a",
       "raster": 1, "stream_k": 0, "group_pack": 1, "tile.k": 16}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "pointwise"), [*((name, False) for name in CONFIGURATIONS), ("pingpong", True), ("channels as rows", True)]
)
def test_the_source_of_tma_im2col_does_not_depend_on_the_written_sizes(name: str, pointwise: bool):
    sources = set()
    for n, h in ((2, 8), (1, 1), (3, 64)):
        problem = compilation(n=n, h=h).request.problem
        if pointwise:
            problem = one_tap(problem)
        made = plan(problem, "tma_im2col", **{**ALL, **CONFIGURATIONS[name]})
        sources.add(kernel_text(strategies.STRATEGIES["tma_im2col"].render(made)))
    assert len(sources) == 1


def one_tap(problem: ConvProblem) -> ConvProblem:
    """The same with a filter of 1x1, no stride and no padding."""
    text = re.sub(r"(stride|pad) .*", "", str(problem)).replace("r=3, s=3", "r=1, s=1")
    (request,) = frontend.load(re.sub(r"(output y|operand z): f16\[.*\]", r"\1: f16[n, p, q, k]", text))
    return request.problem


@pytest.mark.parametrize("channels", ["c=16", "c=3"])
def test_the_source_of_mma_gemm_does_not_depend_on_the_written_sizes(channels: str):
    sources = set()
    for n, h in ((2, 8), (1, 1), (3, 64)):
        (request,) = frontend.load(compilation(n=n, h=h).spec.text.replace("c=16", channels), defines={"n": n, "h": h})
        made = plan(request.problem, "implicit_gemm", **MMA)
        sources.add(kernel_text(strategies.STRATEGIES["implicit_gemm"].render(made)))
    assert len(sources) == 1


#: Options of mma_gemm.
MMA = {"kernel": "mma_gemm", "tile.m": 32, "tile.n": 16, "tile.k": 32, "warps.m": 2, "warps.n": 1, "stages": 3,
       "split_k": 1, "blocks": 2}  # fmt: skip
EVERY = {
    "direct": ("direct", {"tile": 1}),
    "mma_gemm": ("implicit_gemm", MMA),
    **{name: ("tma_im2col", {**ALL, **options}) for name, options in CONFIGURATIONS.items()},
}


@pytest.mark.parametrize("name", EVERY)
def test_a_manifest_at_some_sizes_is_that_of_the_kernel_compiled_for_them(name: str):
    problem = compilation().request.problem
    strategy, options = EVERY[name]
    found = manifest(plan(problem, strategy, **options))
    assert Manifest.from_json(found.to_json()) == found
    for sizes in ({"n": 1, "h": 3, "w": 7}, {"n": 40, "h": 31, "w": 1}, {"n": 2, "h": 8, "w": 9}):
        sizes = all_sizes(problem, sizes)
        made, expected = found.at(sizes), manifest(plan(at(problem, sizes), strategy, **options))
        assert (made.reads, made.operands, made.result) == (expected.reads, expected.operands, expected.result)
        (launch,), (other,) = made.steps, expected.steps
        ints = {p.name: p.value for p in launch.params if p.kind == "int"}
        assert replace(launch, params=tuple(p for p in launch.params if p.kind != "int")) == other
        assert ints == {dim.upper(): size for dim, size in sizes.items()}
        assert not any(isinstance(number, Size) for number in (made.macs, *launch.grid, *made.result.extents))


def plan(problem: ConvProblem, name: str, **options: int | str) -> Plan:
    found = strategies.STRATEGIES[name]
    assert not found.obstacles(problem, TARGETS["sm_90a"], options)
    return found.plan(problem, TARGETS["sm_90a"], options)


def test_a_formula_in_a_manifest_is_checked():
    text = manifest(compilation().plan).to_json()
    formula = re.search(r'"formula": ("[^"]*n \* p[^"]*")', text)
    assert formula and ast.literal_eval(formula[1])
    with pytest.raises(ManifestError, match="divides by zero"):
        Manifest.from_json(text.replace(formula[1], '"n // (h - h)"'))
    with pytest.raises(ManifestError, match="not a formula"):
        Manifest.from_json(text.replace(formula[1], "\"__import__('os')\""))


class Shaped:
    """An array's shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_sizes_that_the_kernel_does_not_reach():
    kernel = compilation().uncompiled()
    assert kernel.at(n=5).manifest.result.shape == (5, 4, 9, 8)
    assert kernel.at(n=5) is kernel.at(h=8, w=9, n=5)
    with pytest.raises(WrongShape, match="elements of x; it goes up to"):
        kernel.at(n=10**8)
    with pytest.raises(WrongShape, match="h is 0; it must be from 1"):
        kernel.at(h=0)
    with pytest.raises(WrongArguments, match="h is of type float: expected a whole number"):
        kernel.at(h=2.5)
    with pytest.raises(WrongArguments, match="h is of type ndarray: expected a whole number"):
        kernel.at(h=np.array([2, 3]))
    with pytest.raises(WrongType, match="x is of type NoneType: expected an array"):
        kernel.emulate(*[None] * 4)
    with pytest.raises(WrongArguments, match="at cannot choose p"):
        kernel.at(p=3)
    with pytest.raises(host.NoHostProgram, match="fixed sizes"):
        host.program(kernel.manifest)


def test_a_kernel_of_several_classes_takes_the_nearest():
    made = compilation()
    kernels = [made.planned_for(n).uncompiled() for n in (1, 8, 64)]
    kernel = joined(kernels)
    assert [int(k.manifest.result.extents[0]) for k in kernel.classes] == [1, 8, 64]
    for sizes, n in (
        ({"n": 1}, 1), ({"n": 2}, 1), ({"n": 3}, 8), ({"n": 22}, 8), ({"n": 23}, 64), ({"n": 10**5}, 64),
        ({"n": 1, "h": 64}, 8),
    ):  # fmt: skip
        digest = kernels[(1, 8, 64).index(n)].manifest.digest
        assert kernel.at(**sizes).manifest.digest == digest, sizes
    for again in (pickle.loads(pickle.dumps(kernel)), copy.copy(kernel)):
        assert again.at(n=60).manifest == kernel.at(n=60).manifest


def test_classes_differ_in_sizes_alone():
    fixed, other = compilation("").uncompiled(), compilation("dynamic n").uncompiled()
    with pytest.raises(WrongArguments, match="layer has fixed sizes"):
        joined([compilation().uncompiled(), fixed])
    with pytest.raises(WrongArguments, match="differ in more than the sizes"):
        joined([compilation().uncompiled(), other])
    text = compilation().spec.text
    for images in ((0,), (1, "8"), "n", 4, np.ones((2, 2)), range(1, 1), range(5, 1), []):
        with pytest.raises(driver.UsageError, match="give the numbers of images that calls will have"):
            convgen.compile(text, images=images)
    with pytest.raises(driver.UsageError, match="layer: its number of images is fixed"):
        convgen.compile(text.replace("dynamic n h w", "dynamic h"), images=(1, 8))


def test_a_call_takes_the_class_of_the_least_estimate():
    made = compilation()
    plans = [made.planned_for(n).plan for n in (4, 16)]
    times = [((1, 1.0), (4, 2.0), (8, 9.0), (12, 13.0)), ((1, 3.0), (8, 3.0), (12, 3.0))]
    small, large = (
        Kernel(artifacts.uncompiled("", replace(plan, estimates=of))) for plan, of in zip(plans, times, strict=True)
    )
    kernel = joined([small, large])
    taken = {n: kernel.class_at(n=n).manifest.written["n"] for n in (1, 4, 5, 7, 8, 12, 10**5)}
    assert taken == {1: 4, 4: 4, 5: 16, 7: 16, 8: 16, 12: 16, 10**5: 16}
    assert kernel.class_at(n=1, h=16).manifest.written["n"] == 4  # as many pixels as 2 images
    assert kernel.class_at(n=1, h=48).manifest.written["n"] == 16
    assert kernel.at(n=5).manifest.digest == large.manifest.digest
    again = saved.restore(saved.files(kernel._artifacts))
    assert again.class_at(n=5).manifest == large.manifest


def test_what_was_planned_for_a_size_serves_it_whatever_the_model_says():
    made = compilation()
    slow, quick = (replace(made.planned_for(n).plan, estimates=((1, us),)) for n, us in ((4, 9.0), (16, 1.0)))
    kernel = joined([Kernel(artifacts.uncompiled("", plan)) for plan in (slow, quick)])
    assert [kernel.class_at(n=n).manifest.written["n"] for n in (3, 4, 5)] == [16, 4, 16]


def test_a_class_that_does_not_go_as_far_is_passed_over():
    made = compilation()
    narrow, wide = (made.planned_for(n).plan for n in (4, 16))
    narrow = replace(narrow, estimates=((1, 1.0),), limits=(replace(narrow.limits[0], most=10**6),))
    kernel = joined([Kernel(artifacts.uncompiled("", plan)) for plan in (narrow, replace(wide, estimates=((1, 2.0),)))])
    assert [kernel.class_at(n=n).manifest.written["n"] for n in (100, 10**5)] == [4, 16]
    with pytest.raises(WrongShape, match="it goes up to"):
        kernel.class_at(n=10**8)
    limit = replace(narrow.limits[0], most=narrow.limits[0].size // narrow.problem.n * 10)
    plans = replace(narrow, limits=(limit,)), wide
    shown = joined([Kernel(artifacts.uncompiled("", plan)) for plan in plans]).explain()
    assert re.findall(r"^(\S+) +n=(\d+)", shown, re.MULTILINE) == [("1-10", "4"), ("11-128", "16")]


def test_images_that_one_plan_does_not_go_up_to_have_another():
    """Of one configuration, which counts in 32 bits where the numbers of the spec fit them."""
    text = compilation("dynamic n").spec.text.replace("strategy direct", "strategy direct { tile 1 }")
    few, many = 10**6, 10**8
    (made,) = driver.load(Spec(text, images=(few, many)))
    assert [int(own.request.problem.n) for own in made.classes] == [few, many]
    assert [int(made.class_at(n).request.problem.n) for n in (2, few, 5 * few)] == [few, few, many]
    (made,) = driver.load(Spec(text, images=(few, 5 * few, many)))
    assert re.search(rf"^{5 * few}, {many} +n={5 * few}", str(made.explain()), re.MULTILINE)


def test_images_that_no_kernel_serves_are_refused_in_a_sentence():
    text = compilation("dynamic n").spec.text.replace("strategy direct", "strategy implicit_gemm")
    (made,) = driver.load(Spec(text, images=(1, 10**8)))
    with pytest.raises(driver.UsageError, match=r"^layer: no kernel for 100000000 images: .*\nhint: use fewer images"):
        _ = made.classes
    (made,) = driver.load(Spec(text.replace("implicit_gemm", "im2col"), images=(1, 8)))
    with pytest.raises(SpecError, match="im2col cannot serve layer"):
        _ = made.classes


@pytest.mark.parametrize(
    "images, wanted",
    [
        (range(1, 65), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
        ((64, 1, 8, 8), (1, 8, 64)),
        (range(9, 29), (9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28)),
    ],
)
def test_the_roundest_numbers_of_images_are_compared(images, wanted):
    assert classes.compared(images) == wanted


def test_classes_are_chosen_by_how_far_they_are_behind():
    plan = compilation().plan

    def plans(times: dict[int, str]) -> dict[int, Plan]:
        """Of a configuration each."""
        found = {}
        for n, row in times.items():
            estimates = tuple(zip((1, 2, 4, 8, 16, 32), map(float, row.split()), strict=False))
            found[n] = replace(plan, config=f"for {n}", estimates=estimates)
        return found

    steep, flat = "1 2 4 8 16 32", "4 4 4 4 8 16"
    assert classes.chosen(plans({1: steep, 2: steep, 4: flat, 8: flat, 16: flat, 32: flat}), range(1, 33)) == (1, 4)
    assert classes.chosen(plans({1: flat, 8: flat}), (1, 8)) == (1,)
    assert classes.chosen(plans({8: flat}), (8,)) == (8,)
    unknown = plans(dict.fromkeys((1, 2, 4, 8, 16, 32), ""))
    assert len(classes.chosen(unknown, range(1, 33))) == 4
    same = dict.fromkeys(unknown, unknown[1])  # which have one code
    assert classes.chosen(same, range(1, 33)) == (1,)


def test_the_numbers_of_images_give_classes():
    """Of a convolution whose plans for one image and for many differ."""
    text = compilation().spec.text.replace("strategy direct", "strategy implicit_gemm { kernel mma_gemm }")
    text = text.replace("c=16", "c=64").replace("k=8", "k=64")
    (few,), (many,) = (driver.choose_all(Spec(text, images=images)) for images in (np.array([1]), {512, 1}))
    assert [int(c.request.problem.n) for c in few.classes] == [1]
    assert [int(c.request.problem.n) for c in many.classes] == [1, 512]
    slow, quick = (between(c.plan.estimates, 512) for c in many.classes)
    assert slow > quick > 0


def test_a_saved_kernel_keeps_its_classes(tmp_path):
    made = compilation()
    kernel = joined([made.planned_for(n).uncompiled() for n in (2, 32)])
    kernel.save(tmp_path / "kernel")
    again = convgen.load(tmp_path / "kernel")
    assert [k.manifest for k in again.classes] == [k.manifest for k in kernel.classes]
    assert again.at(n=30).manifest.digest == kernel.classes[1].manifest.digest


def test_auto_takes_the_fastest_measured_kernel_that_serves(monkeypatch):
    rows = {
        "im2col": Tuned("im2col", {}, 3.0, "NVIDIA H200"),
        "tma_im2col": Tuned("tma_im2col", {"tile.m": 64, "tile.n": 16}, 5.0, "NVIDIA H200"),
        "direct": Tuned("direct", {"tile": 2}, 50.0, "NVIDIA H200"),
    }
    monkeypatch.setattr(
        "convgen.planner.database.ranked", lambda *asked: filter(None, [rows.get(asked[3] or "im2col")])
    )
    problem = compilation().request.problem
    choice = planner.choose(problem, TARGETS["sm_90a"], "auto", {})
    assert (choice.strategy.name, choice.options) == ("tma_im2col", {"tile.m": 64, "tile.n": 16})
    assert "5.0 us" in choice.reason
    assert planner.choose(problem.static, TARGETS["sm_90a"], "auto", {}).strategy.name == "im2col"


def test_sizes_of_dgrad_follow_from_its_result_or_from_windows_one_pixel_apart():
    y, w, x = Shaped(3, 4, 7, 8), Shaped(8, 3, 3, 16), Shaped(3, 8, 7, 16)
    gradient = compilation(op="dgrad").uncompiled()
    assert gradient._for((y, w), x) is gradient.at(n=3, h=8, w=7)
    with pytest.raises(WrongArguments, match="h does not follow from the arguments"):
        gradient._for((y, w), None)
    text = compilation(op="dgrad").spec.text.replace("stride h=2", "stride h=1").replace("pad 1", "pad h=(0, 1) w=2")
    kernel = driver.load(Spec(text))[0].uncompiled()
    assert kernel._for((y, w), None) is kernel.at(n=3, h=5, w=5)


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.tuples(st.sampled_from("+-*/%"), st.integers(1, 12)), max_size=5),
    widths=st.lists(st.integers(1, 400), min_size=1, max_size=20),
)
def test_what_is_sure_to_divide_a_size_divides_it(parts: list[tuple[str, int]], widths: list[int]) -> None:
    """Also where most widths make it 0: an output of a window that is larger than the image."""
    made = of_dim(187, "w")
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
    for sign, other in parts:
        made = apply[sign](made, other)
    for width in widths:
        assert evaluate(made.formula, {"w": width}) % divisor(made) == 0
    assert divisor((of_dim(187, "w") - 11) // 11 + 1) == 1
    assert divisor(of_dim(4, "w") * 8 + 4) == 4
