"""What `explain` says: its figures, its formulas, who serves and who does not, and how it is set."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, problems
from rich.console import Console

from convgen import driver
from convgen.explain import explain, formulas
from convgen.ir import epilogue as ep
from convgen.ir.plan import Fill, Gemm, Launch, Param, Plan, TensorMap, Workspace, stated
from convgen.ir.problem import Padding
from convgen.ir.tensor import Tensor
from convgen.kernels import strategies
from convgen.kernels.base import Obstacle
from convgen.spec import Spec
from convgen.targets import TARGETS
from convgen.units import duration, si


@dataclass
class FakeStrategy:
    """Serves, or has the given obstacles; remembers what it was asked."""

    name: str
    against: tuple[Obstacle, ...] = ()
    summary: str = "a strategy for tests"
    options: tuple = ()
    asked: list = field(default_factory=list)

    def obstacles(self, problem, target, options):
        self.asked.append((problem, target, options))
        return list(self.against)

    def plan(self, problem, target, options):
        return replace(plan(problem), us=12.5)


def registry():
    against = (Obstacle("groups 2 are too many", "one group"), Obstacle("the weather"))
    return {"willing": FakeStrategy("willing"), "unable": FakeStrategy("unable", against)}


def test_one_block_is_no_blocks():
    assert str(Launch("f", (1, 1, 1), 128, ())) == "f: 1 block of 128 threads"
    assert str(Launch("f", (1, 2, 1), 128, ())) == "f: 1 x 2 blocks of 128 threads"


def plan(problem):
    """Every kind of step, and a tensor map of each mode."""
    im2col = TensorMap(
        "x", "im2col", "f16", (64, 14, 14, 8), (128, 1792, 25088), (1, 2, 2, 1),
        lower=(-1, -1), upper=(-1, -1), channels=64, pixels=128, swizzle=128,
    )  # fmt: skip
    tiled = TensorMap("w", "tiled", "f16", (64, 9, 64), (128, 1152), (1, 1, 1), box=(64, 1, 64), swizzle=128)
    params = (Param("x_map", "tensor_map", "x", im2col), Param("w_map", "tensor_map", "w", tiled))
    launch = Launch(
        "convgen_example", (132, 1, 1), 384, (*params, Param("y", "pointer", "y")), 196608, cluster=2, persistent=True
    )
    gemm = Gemm("x", "w", "y", 128, 64, 576, False, True, 576, 576, 64, "f16", "f16", batch=2)
    return Plan(
        problem, TARGETS["sm_90a"], "willing", "tile 128x64x64, 5 stages", (Fill("scratch"), launch, gemm),
        (Workspace("scratch", 1 << 20),), "measured", ("a note",),
    )  # fmt: skip


def biased():
    """y = relu(acc + b), b by output channel."""
    b = Tensor("b", "operand", "f32", ("k",), (64,))
    value = ep.Call("relu", (ep.Binary("+", ep.Acc(), ep.OperandRef("b")),))
    return ep.Epilogue((b,), (ep.Assignment("y", value),))


CASES = {
    "fprop_3x3_strided": make(
        n=8, c=64, k=64, input=(14, 14), stride=2, pad=1, epilogue=biased(), name="fprop_3x3_strided"
    ),
    "dgrad_3d_grouped": make(
        "dgrad", n=2, c=8, k=12, input=(5, 6, 7), filter=(1, 3, 2), stride=(1, 2, 3), dilation=(1, 2, 1),
        pad=(0, (2, 1), (0, 1)), groups=2, name="dgrad_3d_grouped",
    ),
    "im2col_of_one_image": make(
        "im2col", c=20, input=(14, 14), filter=(5, 5), pad=2, lowered="c*r*s,p*q", name="im2col_of_one_image"
    ),
}  # fmt: skip


# ---- goldens -----------------------------------------------------------------------------------


GOLDENS = Path(__file__).parent / "maps"


@pytest.mark.parametrize("name", list(CASES))
def test_text(name, golden):
    problem = CASES[name]
    chosen = plan(problem) if name == "fprop_3x3_strided" else None
    golden.check(GOLDENS / f"{name}.txt", str(explain(problem, chosen, registry())))


def test_no_text_is_left_over(golden):
    golden.only(GOLDENS, [f"{name}.txt" for name in CASES])


# ---- figures -----------------------------------------------------------------------------------


def test_roofline():
    bound = str(explain(make(n=8, c=256, k=256, input=(14, 14), pad=1)))
    assert "1.85 GFLOP" in bound  # 2 * 8*14*14 * 256 * 9 * 256
    assert "At least 2.34 us, bound by arithmetic" in bound  # over 790 TFLOP/s
    moved = str(explain(make(n=8, c=64, k=64, input=(56, 56), filter=(1, 1))))
    assert "6.43 MB" in moved  # 2 * (2 * 8*56*56*64 + 64*64)
    assert "At least 1.5 us, bound by memory" in moved  # over 4.3 TB/s
    lowering = str(explain(make("im2col", c=3, lowered="c*r*s,p*q")))
    assert "no arithmetic" in lowering


def test_figures_are_rounded_before_they_get_a_prefix():
    text = str(explain(make(n=3, c=3, k=1, input=(111111,), filter=(1,))))
    assert "x: f16[n=3, w=111111, c=3], 2 MB" in text  # 1,999,998 bytes
    text = str(explain(make(n=8, c=4096, k=4096, input=(64, 64), pad=1, dtype="f32")))
    assert re.search(r"multiply and add +9.9 TFLOP .* [\d.]+ ms", text) and not re.search(r"\de\+\d", text)


@given(st.floats(1, 1e40), st.sampled_from(["B", "FLOP"]))
def test_figures_have_three_digits_and_no_exponent(value, unit):
    shown = si(value, unit)
    number, prefixed = shown.split(" ")
    prefix = prefixed.removesuffix(unit)
    size = 1000.0 ** (" kMGTPEZYRQ".index(prefix) if prefix else 0)
    assert float(number) * size == pytest.approx(value, rel=0.00501)
    assert "e" not in number and (float(number) < 1000 or prefix == "Q")


@given(st.floats(1e-9, 1e5))
def test_times_have_three_digits_and_no_exponent(seconds):
    number, unit = duration(seconds).split(" ")
    assert float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=0.00501)
    assert "e+" not in number and (float(number) < 1000 or unit == "s")


def test_a_matrix_of_each_image():
    shown = str(explain(make("im2col", n=3, c=4, lowered="n,c*r*s,p*q")))
    assert "image   n" in shown and "offset of m" in shown


@settings(max_examples=40, deadline=None)
@given(problems(work=600, paddings=tuple(Padding)))
def test_every_formula_is_there_and_none_grows(problem):
    found = formulas(problem)
    names = [f.name for f in found]
    assert len(set(names)) == len(names)
    for tensor in (*problem.reads, problem.result):
        assert f"offset of {tensor.name}" in names
    for f in found:
        assert f.operations_after <= f.operations_before, f


def test_conditions_that_hold_always_are_said_to():
    rows = {f.name: f for f in formulas(make(input=(8, 8), pad=(1, 0), c=2, k=2))}
    assert (rows["x has h"].after, rows["x has h"].operations_after) == ("h >= 0 and h < 8", 2)
    assert (rows["x has w"].after, rows["x has w"].operations_after) == ("always", 0)
    rows = {f.name: f for f in formulas(make("dgrad", input=(8, 8), pad=((1, 0), 0), stride=(2, 1), c=2, k=2))}
    assert rows["p is whole"].after.endswith("% 2 == 0")
    assert rows["q is whole"].after == "always"


@pytest.mark.parametrize(
    ("problem", "over"),
    [
        (make(c=8, k=8), "x"),
        (make("wgrad", c=8, k=8), "x"),
        (make("dgrad", c=8, k=8), "y"),
        (make("dgrad", c=8, k=8, input=(6, 6), stride=2), ""),  # has a box a phase
        (make(c=3, k=8), ""),  # 6 bytes a pixel
        (make("im2col", c=8, lowered="p*q,c*r*s"), ""),
    ],
)
def test_tensor_map_where_there_is_one(problem, over):
    text = str(explain(problem))
    assert (f"TMA im2col over {over}" in text) if over else ("TMA im2col" not in text)


# ---- strategies --------------------------------------------------------------------------------


def test_every_obstacle_is_named():
    text = str(explain(make(), strategies=registry()))
    assert "willing   yes      12.5 us    1.05 MB  a strategy for tests" in text
    assert "unable    no                           groups 2 are too many (one group)" in text
    assert "                                       the weather" in text


def test_what_a_strategy_serves_names_every_operator():
    unfold = "input x: f16[n=8, c=24, h=12, w=12] filter w: f16[r=5, s=5] lowered m: f16[rows, cols] op im2col"
    (asked,) = driver.load(Spec(f"conv unfold {{ {unfold} }}", target="sm_90a"))
    text = str(asked.explain())
    assert "op im2col is not served; fprop and wgrad are, and dgrad except for a slice" in text
    assert "op im2col is not served; fprop is, and dgrad except for a slice" in text  # tma_halo
    assert "op im2col is not served; fprop, dgrad and wgrad are" in text


def test_a_request_brings_its_options_and_target():
    @dataclass
    class Request:
        problem: object
        strategy: str
        options: dict
        target: str | None

    known = registry()
    text = str(explain(Request(make(), "unable", {"stages": 5}, "sm_80"), strategies=known))
    assert known["unable"].asked == [(make(), TARGETS["sm_80"], {"stages": 5})]
    assert known["willing"].asked == [(make(), TARGETS["sm_80"], {})]
    assert "Strategies on sm_80" in text


# ---- setting -----------------------------------------------------------------------------------


def test_rich_shows_the_same_cells():
    explanation = explain(CASES["fprop_3x3_strided"], plan(CASES["fprop_3x3_strided"]), registry())
    console = Console(file=io.StringIO(), width=400, no_color=True)
    console.print(explanation)
    shown = console.file.getvalue()
    for table in explanation.tables:
        assert table.title in shown
        for row in table.rows:
            assert all(cell in shown for cell in row), row


def test_rich_is_imported_when_asked_for():
    code = "import sys, convgen.explain; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("math", "rate", "products"),
    [("tf32x3", "132 TFLOP/s", "3 tf32 products"), ("tf32", "395 TFLOP/s", "1 tf32 product")],
)
def test_the_roofline_of_f32_is_that_of_the_products_that_stand_for_one(math: str, rate: str, products: str) -> None:
    problem = make("fprop", 8, 64, 64, (28, 28), (3, 3), pad=1, dtype="f32")
    chosen = strategies.STRATEGIES["implicit_gemm"].plan(problem, TARGETS["sm_90a"], {"math": math})
    text = str(explain(problem, chosen))
    assert rate in text and f"{products} each, at half of the 16-bit rate" in text


GOLDEN_SPECS = sorted((Path(__file__).parents[2] / "specs" / "golden").glob("*.conv"))


@pytest.mark.parametrize("path", GOLDEN_SPECS, ids=lambda path: path.stem)
def test_all_options_in_a_spec_ask_for_the_same_plan(path):
    """The configuration leaves out defaults, which a search need not choose."""
    text = path.read_text(encoding="utf-8")
    convolutions = driver.load(Spec(text, str(path), {}))
    if len(convolutions) > 1:
        pytest.skip("several convolutions")
    plan = convolutions[0].plan
    block = f"strategy {plan.strategy} {{ {stated(plan.options)} }}"
    pinned, count = re.subn(r"\bstrategy \w+(\s*\{[^}]*\})?", block, text, count=1)
    if not count:
        pinned = text.rstrip().removesuffix("}") + f"  {block}\n}}\n"
    (again,) = driver.load(Spec(pinned, str(path), {}))
    assert (again.plan.strategy, again.plan.options) == (plan.strategy, plan.options)
    shown = dict(plan.rows)
    assert shown.get("all options", shown["configuration"]) == stated(plan.options)
