"""The cost models of the Hopper kernels: bounded by the hardware, never rewarding more work, and quick to ask."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from effort import calls
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import PROBLEMS, TARGET, laid_out, serves, some_options

from convgen.frontend import load
from convgen.ir.problem import ConvProblem
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.kernels.depthwise_stream.config import Config as StreamConfig
from convgen.kernels.depthwise_stream.kernel import held
from convgen.kernels.depthwise_stream.maths import layout_of
from convgen.kernels.parts import cost
from convgen.kernels.parts.formula_cost import formula_instructions
from convgen.kernels.parts.hopper import launch_blocks, launch_registers
from convgen.planner import choose, untuned
from convgen.targets import TARGETS, Target

BOTH = ("tma_im2col", "tma_halo")
#: Of an H200 (NVIDIA's data sheet): dense f16 operations, and bytes of device memory, a microsecond.
PEAK_OPERATIONS, PEAK_BYTES = 989.5e6, 4.8e6
#: Room for rounding, where two times may be equal.
NEARLY = 1 - 1e-9


def estimate(strategy: str, problem: ConvProblem, options: Options, sms: int = TARGET.sms) -> float:
    return strategies.STRATEGIES[strategy].estimate(problem, replace(TARGET, gpu=replace(TARGET.gpu, sms=sms)), options)


def resized(problem: ConvProblem, **factors: int) -> ConvProblem:
    """The problem with n, c or k times something."""
    sizes = {dim: getattr(problem, dim) * factor for dim, factor in factors.items()}
    tensors = {
        role: replace(t, extents=tuple(sizes.get(d, e) for d, e in zip(t.dims, t.extents, strict=True)))
        for role in ("x", "w", "y")
        for t in (problem.tensor(role),)
    }
    return replace(problem, epilogue=None, **sizes, **tensors)  # type: ignore[arg-type]


@st.composite
def cases(draw, strategy: str) -> tuple[ConvProblem, Options]:
    """A problem, from tiny to large, and all options of one way to compute it, by the kernel of that name."""
    problem = resized(draw(PROBLEMS[strategy]), n=draw(st.sampled_from((1, 8, 300))), c=draw(st.sampled_from((1, 5))))
    options = draw(some_options(strategy, kernel=strategy))
    if not serves(problem, strategy, options):
        options = {}
        assume(serves(problem, strategy, options))
    return problem, strategies.STRATEGIES[strategy].plan(problem, TARGET, options).options


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_estimate_beats_the_hardware(strategy: str, data: st.DataObject) -> None:
    problem, options = data.draw(cases(strategy))
    us = estimate(strategy, problem, options)
    assert math.isfinite(us)
    assert us > max(2 * problem.macs / PEAK_OPERATIONS, problem.min_bytes / PEAK_BYTES)
    assert us > 1, "a launch alone"


#: What a model may say that several times a problem takes of its time.  Of 10,000 draws towards less, the least were
#: 0.97, 0.85 and 0.87.
LEAST = {"n": 0.9, "c": 0.75, "k": 0.75}


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), dim=st.sampled_from("nck"), factor=st.sampled_from((3, 5)))
def test_more_of_a_problem_takes_no_less_time(strategy: str, data: st.DataObject, dim: str, factor: int) -> None:
    """By odd factors, which leave the alignment of rows as it is, and nearly: models are sums of fitted terms, each of
    which may shrink where a problem grows.  Of 8 channels, several taps ask for one line of the filters, and wait for
    one another; of more channels, fewer do.  Who waits longer for filters waits less for a halo tile."""
    problem, options = data.draw(cases(strategy))
    more = resized(problem, **{dim: factor})
    assume(serves(more, strategy, options))
    assert estimate(strategy, more, options) >= LEAST[dim] * estimate(strategy, resized(problem), options)


def test_tiles_that_fill_a_cluster_up_ask_for_no_filters() -> None:
    """A cluster of four has a tile of 16 channels, or three of 48: as many blocks ask for a line of the filters."""
    options = {"tile.m": 64, "tile.n": 16, "tile.k": 64, "stages": 4, "consumers": 1, "order": "channels_inner",
               "blocks": 1, "k_blocks": 2, "split_k": 2, "cluster": 4, "multicast": "a", "group_pack": 2}  # fmt: skip
    one, three = (make("fprop", 1, 48, k, (3, 2, 1), (3, 2, 1), groups=2) for k in (16, 48))
    assert estimate("tma_im2col", three, options) >= estimate("tma_im2col", one, options)


#: Of networks: dense, pointwise and depthwise layers, forward and backward.
SHARED_OUT = {
    "3x3": make("fprop", 8, 256, 256, (56, 56), (3, 3), pad=1),
    "1x1": make("fprop", 8, 1024, 2048, (14, 14), (1, 1)),
    "groups": make("fprop", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    "depthwise": make("fprop", 8, 144, 144, (56, 56), (3, 3), pad=1, groups=144),
    "depthwise wgrad": make("wgrad", 8, 144, 144, (56, 56), (3, 3), pad=1, groups=144),
    "dgrad": make("dgrad", 8, 256, 256, (56, 56), (3, 3), pad=1),
    "f32": make("fprop", 8, 256, 256, (56, 56), (3, 3), pad=1, dtype="f32"),
    "f32 depthwise": make("fprop", 8, 144, 144, (56, 56), (3, 3), pad=1, groups=144, dtype="f32"),
}


@pytest.mark.costly
@pytest.mark.parametrize("layer", SHARED_OUT)
@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_no_choice_beats_the_roofline_of_its_target(target: Target, layer: str) -> None:
    """By more than the tenth by which fitted rates exceed those of a large copy and a large product."""
    for n in (8, 64):
        problem = SHARED_OUT[layer].with_images(n)
        choice = untuned(problem, target, "auto", {})
        us = choice.strategy.estimate(problem, target, choice.options)
        memory, products = target.gpu.memory, target.gpu.multiply(problem.reads[0].dtype, choice.options.get("math"))
        least = 1e6 * max(problem.min_bytes / memory.per_second, 2 * problem.macs / products.per_second)
        assert 0.05 < least / us < 1.10


def test_the_longest_phase_of_a_strided_dgrad_takes_its_time() -> None:
    """On a mean of no tap and one, not half of the time of its one tap."""
    strided = make("dgrad", 1, 64, 8192, (16, 16), (1, 1), stride=2)
    phase = make("dgrad", 1, 64, 8192, (8, 8), (1, 1))
    tile = {"tile.m": 64, "tile.n": 64, "tile.k": 64, "consumers": 1, "k_blocks": 1, "split_k": 1, "stream_k": 0}
    assert estimate("tma_im2col", strided, tile) > 0.9 * estimate("tma_im2col", phase, tile)


#: A layer whose results are many, and its sums short.
SHALLOW = """conv shallow {{
  input x: f16[n=64, h=56, w=56, c=16]
  filter w: f16[k=384, r=3, s=3, c=16]
  output y: {dtype}[n, p, q, k]
  pad 1
  epilogue {{ y = {value} }}
}}"""


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("tma_im2col", {"schedule": "pingpong"}),
        ("tma_im2col", {"schedule": "cooperative"}),
        ("tma_halo", {}),
        ("implicit_gemm", {"kernel": "mma_gemm"}),
        ("implicit_gemm", {"kernel": "stem_wgmma"}),
    ],
)
def test_functions_take_their_time(strategy: str, options: Options) -> None:
    """float32 results get erff, whose instructions take longer than all that the layer reads, multiplies and writes."""
    us = {}
    for value in ("acc", "relu(acc)", "gelu(acc)"):
        problem = load(SHALLOW.format(dtype="f32", value=value))[0].problem
        us[value] = cost.functions(problem) * problem.y.size / TARGET.sms / cost.CYCLES
    assert us["acc"] == us["relu(acc)"] == 0
    assert us["gelu(acc)"] <= estimate(strategy, problem, options)
    narrow = load(SHALLOW.format(dtype="f16", value="gelu(acc)"))[0].problem
    assert cost.functions(narrow) < cost.functions(problem) / 2


def test_rows_touch_the_lines_that_they_cross() -> None:
    for row, pitch in ((128, 128), (128, 192), (64, 80), (16, 16), (128, 1488), (96, 96)):
        starts = range(0, 128 * pitch, pitch)
        assert cost.lines(row, pitch) == sum((s + row - 1) // 128 - s // 128 + 1 for s in starts) / len(starts)


@pytest.mark.parametrize("strategy", BOTH)
def test_ragged_rows_take_longer(strategy: str) -> None:
    """The same tiles and steps: pixels of 56 channels begin inside a sector of L2."""
    options = {"tile.k": 64}
    times = [estimate(strategy, make("fprop", 64, c, 64, (56, 56), (3, 3), pad=1), options) for c in (56, 64)]
    assert times[0] > times[1]


@pytest.mark.parametrize("dim", "ck")
def test_gathered_pixels_that_begin_inside_a_sector_take_longer(dim: str) -> None:
    """Of x and of y, more than what there is more of."""
    tile = {"kernel": "mma_gemm", "tile.m": 64, "tile.n": 64, "tile.k": 64, "split_k": 1}
    sizes = [{"c": 64, "k": 64} | {dim: size} for size in (64, 56)]
    times = [estimate("implicit_gemm", make("fprop", 8, s["c"], s["k"], (56, 56)), tile) for s in sizes]
    assert times[1] > 1.1 * times[0]


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), sms=st.integers(8, TARGET.sms))
def test_fewer_multiprocessors_take_no_less_time(strategy: str, data: st.DataObject, sms: int) -> None:
    """But for a third: fewer of them get more of the device memory's rate each, and crowd less about the same lines."""
    problem, options = data.draw(cases(strategy))
    assert estimate(strategy, problem, options, sms) >= 0.67 * estimate(strategy, problem, options)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_deeper_pipelines_take_no_more_time(strategy: str, data: st.DataObject) -> None:
    problem, options = data.draw(cases(strategy))
    depth = int(options["stages"])
    shallow, deep = ({**options, "stages": n} for n in ((depth - 1, depth) if depth > 2 else (depth, depth + 1)))
    assume(serves(problem, strategy, shallow) and serves(problem, strategy, deep))
    if options.get("split_k", 1) != 1:
        return  # its sums wait for the stages' place where these leave no room
    assert NEARLY * estimate(strategy, problem, deep) <= estimate(strategy, problem, shallow)


@pytest.mark.parametrize("kernel", ("depthwise_direct", "depthwise_stream"))
@settings(max_examples=25, deadline=None)
@given(
    c=st.sampled_from((8, 40, 96, 768)),
    size=st.integers(7, 60),
    filter=st.sampled_from((1, 3, 5, 7)),
    stride=st.integers(1, 2),
    factor=st.sampled_from((3, 5, 100)),
    sms=st.integers(8, TARGET.sms),
)
def test_depthwise_estimates(kernel: str, c: int, size: int, filter: int, stride: int, factor: int, sms: int) -> None:
    """The same of one configuration of either kernel."""
    problem = make("fprop", 2, c, c, (size, size), (filter, filter), stride, filter // 2, groups=c)
    assume(serves(problem, "depthwise", {"kernel": kernel}))
    options = strategies.STRATEGIES["depthwise"].plan(problem, TARGET, {"kernel": kernel}).options
    us = estimate("depthwise", problem, options)
    assert max(problem.min_bytes / PEAK_BYTES, 1) < us < math.inf
    assert estimate("depthwise", resized(problem, n=factor), options) >= NEARLY * us
    assert estimate("depthwise", problem, options, sms) >= 0.9 * us


def test_thread_tiles_do_without_the_vectors_that_meet_in_banks() -> None:
    """Eight channels a thread took 1.5 to 2 times as long where filters wait in shared memory (results/)."""
    problem = make("fprop", 64, 144, 144, (56, 56), (3, 3), pad=1, groups=144)
    tile = {"kernel": "depthwise_direct", "tile.p": 4, "tile.q": 2, "threads": 256}
    four, eight = (estimate("depthwise", problem, {**tile, "vector": v}) for v in (4, 8))
    assert eight > 1.3 * four


STREAM = {
    "kernel": "depthwise_stream", "math": "fma", "tile.p": 2, "tile.q": 7, "vector": 2, "slice": 64,
    "strip": 28, "band": 2, "stages": 7, "threads": 128, "blocks": 2,
}  # fmt: skip


def test_blocks_that_come_unevenly_take_longer() -> None:
    """Two blocks a multiprocessor that could hold three, the next launch's among them: 7.5 us for 5.5 (results/)."""
    problem = make("fprop", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=128)
    plans = {n: strategies.STRATEGIES["depthwise"].plan(problem, TARGET, {**STREAM, "stages": n}) for n in (7, 8, 12)}
    room = {stages: held(plan.layout) for stages, plan in plans.items()}  # type: ignore[arg-type]
    assert room == {7: 4, 8: 3, 12: 2}
    seven, eight, twelve = (estimate("depthwise", problem, {**STREAM, "stages": stages}) for stages in room)
    assert eight > 1.25 * seven and seven < twelve < eight


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(5, 40), filter=st.sampled_from((1, 3, 5)), stride=st.integers(1, 2), pad=st.integers(0, 3),
    band=st.integers(1, 9), parts=st.integers(1, 3),
)  # fmt: skip
def test_bytes_outside_x_are_those_of_its_boxes_less_those_that_are_needed(
    size: int, filter: int, stride: int, pad: int, band: int, parts: int
) -> None:
    assume(pad < filter and stride <= filter)
    problem = make("fprop", 1, 32, 32, (size, size), (filter, filter), stride, pad, groups=32)
    q = problem.output[1]
    config = StreamConfig("fma", 1, 4, 2, 32, -(-q // parts), band, 8, 256, 1)
    layout = layout_of(problem, TARGET, config)
    bands, strips = layout.p_tiles, layout.strips
    rows = range(-pad, (bands + layout.slabs - 1) * layout.step - pad)
    outside = 0
    for strip in range(strips):
        first = strip * config.strip * stride - pad
        needed = range(first, first + (config.strip - 1) * stride + filter)
        columns = range(first, first + layout.width)
        outside += sum(not (0 <= h < size and 0 <= w < size and w in needed) for h in rows for w in columns)
    assert layout.outside_bytes * bands * strips == pytest.approx(outside * 64, abs=1e-6)


#: Of the networks in specs/: first, wide, narrow, strided and pointwise layers.
LAYERS = {
    "few channels": make("fprop", 64, 64, 64, (224, 224), (3, 3), pad=1),
    "middle": make("fprop", 64, 256, 256, (14, 14), (3, 3), pad=1),
    "deep": make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1),
    "strided": make("fprop", 64, 256, 256, (14, 14), (3, 3), stride=4, pad=1),
    "stepping": make("fprop", 64, 128, 128, (56, 56), (3, 3), stride=4, pad=1),
    "pointwise": make("fprop", 64, 1024, 2048, (14, 14), (1, 1), stride=2),
    "sound": make("fprop", 64, 32, 32, (65536,), (3,), pad=5, dilation=5),
    "large filter": make("fprop", 64, 16, 64, (224, 224), (7, 7), stride=2, pad=3),
}
#: Function calls that a choice may take, since a compilation asks each strategy once a layer: 0.1 s or so. Calls are
#: counted because seconds are another number on a busy machine.
LONGEST_CHOICE = 225_000


#: Layers that step over pixels, a tile of theirs and its microseconds on an H200, back to back.
STEPPING = [
    (make("fprop", 64, 256, 512, (56, 56), (1, 1), stride=2), {"tile.m": 128, "tile.n": 192, "swap_ab": 0}, 26.9),
    (make("fprop", 64, 128, 128, (112, 112), (3, 3), stride=4, pad=1), {"tile.m": 64, "tile.n": 128}, 33.1),
    (make("fprop", 64, 256, 256, (56, 56), (3, 3), stride=4, pad=1), {"tile.m": 192, "tile.n": 128}, 23.6),
    (make("fprop", 64, 64, 64, (56, 56), (3, 3), stride=4, pad=1), {"tile.m": 64, "tile.n": 64}, 5.9),
]


@pytest.mark.parametrize(("problem", "tile", "us"), STEPPING)
def test_pixels_that_no_window_has_cost_nothing(problem: ConvProblem, tile: Options, us: float) -> None:
    """The device memory does not read them; all of x was counted once, 1.3 to 1.7 times these."""
    assert 0.85 < estimate("tma_im2col", problem, tile) / us < 1.15


#: So many channels that L2 loses a tap's pixels before the next tap meets them.  On an H100 the first took 210 us by
#: channels inner, 148 by taps inner, 246 by an even share of all k loops; the second 102, 93 and 109.
WIDE = {
    "34x34x976": make("fprop", 37, 976, 72, (34, 34), (3, 3), pad=1),
    "41x41x968": make("fprop", 24, 968, 208, (41, 41), (7, 1), stride=2, pad=((3, 3), (0, 0))),
}


def config_of(problem: ConvProblem) -> str:
    """What tma_im2col would take where nothing is tuned."""
    choice = untuned(problem, TARGET, "tma_im2col", {})
    return str(choice.strategy.plan(problem, TARGET, choice.options).config)


@pytest.mark.parametrize("layer", WIDE)
def test_taps_are_inner_where_l2_loses_pixels(layer: str) -> None:
    config = config_of(WIDE[layer])
    assert "order taps_inner" in config and "stream_k" not in config


def test_channels_are_inner_where_l2_still_has_pixels() -> None:
    """Tiles of several output channels share 1,280 channels of 32 x 32 pixels; either order took 308 us."""
    assert "order" not in config_of(make("fprop", 8, 1280, 1280, (32, 32), (3, 3), pad=1))


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_choice_is_quick(strategy: str, layer: str) -> None:
    serves(LAYERS[layer], strategy, {})  # what is kept from layer to layer
    assert calls(lambda: serves(replace(LAYERS[layer], name="anew"), strategy, {})) < LONGEST_CHOICE


#: Of networks, too: groups and depthwise layers, and gradients, which every strategy is asked for.
CHOSEN = {
    "dense": make("fprop", 8, 2560, 1280, (16, 16), (3, 3), pad=1),
    "groups": make("fprop", 64, 256, 256, (56, 56), (3, 3), pad=1, groups=32),
    "groups, dgrad": make("dgrad", 64, 256, 256, (56, 56), (3, 3), pad=1, groups=32),
    "groups, wgrad": make("wgrad", 64, 256, 256, (56, 56), (3, 3), pad=1, groups=32),
    "depthwise": make("fprop", 64, 384, 384, (14, 14), (3, 3), pad=1, groups=384),
    "depthwise, dgrad": make("dgrad", 64, 144, 144, (33, 33), (3, 3), pad=1, groups=144),
    "depthwise, wgrad": make("wgrad", 64, 144, 144, (33, 33), (3, 3), pad=1, groups=144),
    "strided dgrad": make("dgrad", 64, 256, 256, (28, 28), (3, 3), stride=2, pad=1),
    "wgrad": make("wgrad", 64, 256, 256, (14, 14), (3, 3), pad=1),
    "dynamic": replace(make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1), dynamic=("n",)),
    "depthwise, dynamic": replace(
        make("fprop", 8, 128, 128, (56, 56), (3, 3), stride=2, pad=1, groups=128), dynamic=("n",)
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("layer", CHOSEN)
def test_a_choice_among_all_strategies_is_quick(layer: str) -> None:
    untuned(CHOSEN[layer], TARGET, "auto", {})  # what is kept from layer to layer
    assert calls(lambda: untuned(replace(CHOSEN[layer], name="anew"), TARGET, "auto", {})) < LONGEST_CHOICE


@pytest.mark.parametrize(
    ("layer", "strategy"),
    [
        ("few channels", "tma_halo"),
        ("deep", "tma_im2col"),
        ("pointwise", "tma_im2col"),
        ("stepping", "tma_im2col"),
    ],
)
def test_auto_takes_the_kernel_that_measurements_favor(
    layer: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few channels are bound by L2 under im2col, many channels leave no room for resident weights; a stride beyond the
    filter leaves nothing to keep."""
    monkeypatch.setattr("convgen.planner.database.ranked", lambda *_, **__: iter(()))
    choice = choose(LAYERS[layer], TARGET, "auto", {})
    assert choice.strategy.name == strategy, choice.reason


#: ResNet-50 in planes, at 64 images: what was measured to be fastest on an H200, and whether x is laid out anew.
IN_PLANES: dict[str, tuple[ConvProblem, str, bool]] = {
    "stem": (make("fprop", 64, 3, 64, (224, 224), (7, 7), stride=2, pad=3), "implicit_gemm", False),
    "1x1": (make("fprop", 64, 256, 64, (56, 56), (1, 1)), "tma_im2col", False),
    "1x1 of odd planes": (make("fprop", 64, 2048, 512, (7, 7), (1, 1)), "tma_im2col", True),
    "1x1, stride 2": (make("fprop", 64, 256, 512, (56, 56), (1, 1), stride=2), "tma_im2col", True),
    "3x3": (make("fprop", 64, 256, 256, (14, 14), (3, 3), pad=1), "tma_im2col", True),
    "3x3, few channels": (make("fprop", 64, 64, 64, (56, 56), (3, 3), pad=1), "tma_halo", True),
}


@given(target=st.sampled_from(list(TARGETS.values())), warps=st.integers(1, 32), registers=st.integers(1, 300))
def test_so_many_blocks_have_registers_and_no_more(target: Target, warps: int, registers: int) -> None:
    blocks = launch_blocks(target, 32 * warps, registers)
    assert not blocks or launch_registers(target, 32 * warps, blocks) >= registers
    assert launch_registers(target, 32 * warps, blocks + 1) < registers


@pytest.mark.parametrize("name", IN_PLANES)
def test_auto_prepares_planes_where_that_wins(name: str) -> None:
    problem, strategy, copied = IN_PLANES[name]
    problem = laid_out(problem, x="nchw", w="kcrs", y="nkpq")
    chosen = untuned(problem, TARGET, "auto", {})
    assert chosen.strategy.name == strategy
    plan = chosen.strategy.plan(problem, TARGET, chosen.options)
    assert ("workspace.x" in {w.name for w in plan.workspaces}) == copied


@pytest.mark.parametrize("math", ["fma", "mma"])
def test_an_epilogue_of_depthwise_layers_costs_what_it_computes(math: str) -> None:
    plain = make("dgrad", 64, 144, 144, (28, 28), (3, 3), pad=1, groups=144, dtype="bf16")
    z = "operand z: bf16[n, h, w, c]  result s: f32[c]"
    formulas = [
        "x = acc",
        f"{z}  g = select(z > 0, acc, 0)  s = g  x = g",
        f"{z}  e = sigmoid(z)  g = acc * e * (1 + z * (1 - e))  s = g  x = g",
        f"{z}  e = sigmoid(z)  g = acc * e * (1 + z * (1 - e)) / (1 + z * z)  s = g  x = g",
    ]
    texts = [str(plain).replace("op dgrad", f"epilogue {{ {formula} }} op dgrad") for formula in formulas]
    problems = [load(text)[0].problem for text in texts]
    counted = [formula_instructions(p) for p in problems]
    times = [estimate("depthwise", p, {"kernel": "depthwise_stream", "math": math}) for p in problems]
    assert counted == sorted(counted) and counted[0] == 0 and counted[2] > 3 * counted[1]
    assert times == sorted(times) and times[3] > times[1] > times[0]
