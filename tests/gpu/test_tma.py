"""tma_im2col and tma_halo on a GPU: schedules over many tiles, random problems, layers; order, graphs, chains."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import gpu_runs
import pytest
from gpu_tma import check, many_images
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import make
from tma_specs import (
    EPILOGUES,
    PLAIN,
    RESIDENT,
    SCHEDULES,
    SEEDS,
    STREAMS,
    TARGET,
    WIDE_SPLITS,
    dgrad_problems,
    kernel,
    laid_out,
    serves,
    some_options,
    spec,
    typed,
)

from convgen.ir import verify
from convgen.ir.problem import ConvProblem, Padding
from convgen.kernels import strategies
from convgen.kernels.base import Options
from convgen.runtime.kernel import Kernel
from convgen.targets import Target

cupy = pytest.importorskip("cupy")
BOTH = ("tma_im2col", "tma_halo")


@pytest.fixture(autouse=True)
def _needs_wgmma(target: Target) -> None:
    if target != TARGET:
        pytest.skip(f"these kernels are for {TARGET}, this GPU is for {target}")


# ---- right results -----------------------------------------------------------------------------------

#: Thousands of tiles of 64 pixels by 16 channels, with tails in all three directions.
LARGE = make("fprop", 33, 72, 200, (29, 27), (3, 3), pad=1)
LARGE_ODD = make("fprop", 33, 72, 199, (29, 27), (3, 3), pad=1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str, seed: int) -> None:
    problem = LARGE_ODD if list(SCHEDULES).index(name) % 3 == 2 else LARGE
    check(spec(problem, "tma_im2col", {**PLAIN, "tile.n": 16, **SCHEDULES[name]}, "residual"), seed)


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", RESIDENT)
def test_resident(name: str, op: str, seed: int) -> None:
    c, k = (72, 40) if op == "fprop" else (40, 24)
    problem = make(op, 33, c, k, (29, 27), (3, 3), pad=1)
    check(spec(problem, "tma_im2col", {**PLAIN, **RESIDENT[name], "resident": 1}), seed)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_resident_in_parts(schedule: str, groups: int, seed: int) -> None:
    problem = make("fprop", 33, 72, 72, (29, 27), (3, 3), pad=1, groups=groups)
    part: Options = {"tile.n": 48, "group_pack": 2} if groups > 1 else {"tile.n": 24}
    options: Options = {"tile.m": 64, "tile.k": 64, "consumers": 1 + (schedule == "pingpong"), "schedule": schedule}
    check(spec(problem, "tma_im2col", {**PLAIN, **part, **options, "resident": 1}), seed)


@pytest.mark.parametrize("channels", [120, 136, 216, 248])
def test_pixels_that_end_inside_a_sector_are_stored_whole(channels: int, seed: int) -> None:
    problem = make("fprop", 33, 72, channels, (29, 27), (1, 1))
    for options in ({"tile.m": 64, "consumers": 1, "resident": 1}, {"tile.m": 128, "consumers": 2}):
        check(spec(problem, "tma_im2col", {**PLAIN, "tile.n": channels, "tile.k": 32, **options}, "residual"), seed)


@pytest.mark.parametrize("images", [1, 33])
@pytest.mark.parametrize("name", STREAMS)
def test_stream(name: str, images: int, seed: int) -> None:
    problem = make("fprop", images, 72, 200, (29, 27), (3, 3), pad=1)
    check(spec(problem, "tma_im2col", {**PLAIN, **STREAMS[name], "stream_k": 1}, "residual"), seed)


@pytest.mark.parametrize("name", WIDE_SPLITS)
def test_wide_split(name: str, seed: int) -> None:
    check(spec(LARGE, "tma_im2col", {**PLAIN, **WIDE_SPLITS[name]}, "residual"), seed)


#: In planes: of 16 bytes and odd ones; 1x1, which is multiplied as it lies, and whose every second pixel is.
PLANES: dict[str, ConvProblem] = {
    name: laid_out(made, x="nchw", w="kcrs", y="nkpq")
    for name, made in {
        "3x3": make("fprop", 33, 72, 200, (28, 24), (3, 3), pad=1),
        "3x3, odd": make("fprop", 33, 75, 199, (29, 27), (3, 3), pad=1),
        "1x1": make("fprop", 33, 576, 200, (28, 24), (1, 1)),
        "1x1, stride 2": make("fprop", 33, 570, 200, (29, 28), (1, 1), stride=2),
    }.items()
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("layer", PLANES)
def test_planes(layer: str, name: str, seed: int) -> None:
    options = {**PLAIN, "tile.n": 16, **SCHEDULES[name]}
    if serves(PLANES[layer], "tma_im2col", options):  # 1x1 has too few steps for some
        check(spec(PLANES[layer], "tma_im2col", options, "other order"), seed)


@pytest.mark.parametrize("cluster", [2, 4])
def test_slices_behind_the_last_pixel(cluster: int, seed: int) -> None:
    """Of one image, whose first pixel behind it no load may begin at."""
    problem = make("fprop", 1, 24, 80, (9, 10), (3, 3), pad=1)
    options = {**PLAIN, "tile.m": 64, "tile.n": 16, "cluster": cluster, "multicast": "a"}
    check(spec(problem, "tma_im2col", options), seed)


#: Thousands of tiles of phases of several lengths, and of none; x by vectors of channels, by elements, as float32.
STRIDED_DGRADS: dict[str, ConvProblem] = {
    "3x3": make("dgrad", 33, 136, 200, (29, 27), (3, 3), stride=2, pad=1),
    "1x1": make("dgrad", 33, 136, 200, (29, 28), (1, 1), stride=2),
    "4x4": make("dgrad", 17, 72, 264, (32, 30), (4, 4), stride=2, pad=1),
    "stride above the filter": make("dgrad", 33, 72, 72, (41, 40), (2, 3), stride=(3, 4), pad=((1, 0), 1)),
    "dilated": make("dgrad", 33, 72, 72, (31, 30), (3, 3), stride=(2, 3), dilation=(3, 2), pad=2),
    "one axis": make("dgrad", 16, 256, 512, (1000,), (20,), stride=10, pad=5),
    "three axes": make("dgrad", 5, 40, 72, (9, 14, 13), (3, 3, 3), stride=2, pad=1),
    "odd channels": make("dgrad", 33, 3, 64, (57, 56), (7, 7), stride=2, pad=3),
    "float32": typed(make("dgrad", 33, 72, 72, (29, 27), (3, 3), stride=2, pad=1), x="f32"),
}
_BRANCH = "operand g: f16[n, {dims}, c]  operand b: f32[c]  operand m: s8[n, {dims}, c]  x = select(m > 0, acc + g, b)"


@pytest.mark.parametrize("epilogue", ["", _BRANCH], ids=["", "branch and mask"])
@pytest.mark.parametrize("name", STRIDED_DGRADS)
def test_strided_dgrad(name: str, epilogue: str, seed: int) -> None:
    """The first candidates, and one of each schedule."""
    problem = STRIDED_DGRADS[name]
    text = epilogue.format(dims=", ".join(problem.spatial.input))
    candidates = strategies.STRATEGIES["tma_im2col"].candidates(problem, TARGET)
    kinds = {(c["schedule"], c["swap_ab"], c["cluster"]): c for c in reversed(candidates)}
    for options in kinds.values():
        # fewer stages may fit beside an operand's tiles
        check(spec(problem, "tma_im2col", {k: v for k, v in options.items() if k != "stages"}, text), seed)


#: Groups of ResNeXt, packed and whole; of unequal channels; in planes; beyond a tile of either operand; with a stride.
GROUPED_DGRADS: dict[str, ConvProblem] = {
    **{
        f"{c}_{size}": make("dgrad", 9, c, c, (size, size), (3, 3), pad=1, groups=32)
        for c, size in ((128, 56), (256, 28), (512, 14), (1024, 7))
    },
    "unequal": make("dgrad", 9, 48, 96, (29, 28), (3, 2), pad=((2, 0), 1), groups=6),
    "planes": laid_out(make("dgrad", 9, 64, 32, (29, 28), (3, 3), pad=1, groups=4), x="nchw", w="kcrs", y="nkpq"),
    "wide": make("dgrad", 5, 400, 272, (15, 14), (3, 3), pad=2, dilation=2, groups=2),
    **{
        f"{c}_{size}, strided": make("dgrad", 9, c, c, (size, size), (3, 3), stride=2, pad=1, groups=32)
        for c, size in ((256, 56), (512, 28), (1024, 14))
    },
    "groups of 24": make("dgrad", 9, 216, 216, (29, 28), (3, 3), pad=1, groups=9),
    "groups of 24, strided": make("dgrad", 9, 216, 216, (29, 28), (3, 3), stride=2, pad=1, groups=9),
    "groups of 4": make("dgrad", 9, 48, 12, (29, 28), (3, 3), stride=2, pad=1, groups=3),
    "strided, unequal": make("dgrad", 9, 48, 96, (29, 28), (3, 2), stride=(2, 3), pad=((2, 0), 1), groups=6),
    "strided, 2 filters a channel": make("dgrad", 9, 64, 128, (29, 28), (3, 3), stride=2, pad=1, groups=64),
}


@pytest.mark.parametrize("name", GROUPED_DGRADS)
def test_grouped_dgrad(name: str, seed: int) -> None:
    """The first candidate with an epilogue, and one for each number of packed groups."""
    problem = GROUPED_DGRADS[name]
    check(spec(problem, "tma_im2col", {}, _BRANCH.format(dims=", ".join(problem.spatial.input))), seed)
    candidates = strategies.STRATEGIES["tma_im2col"].candidates(problem, TARGET)
    for options in {c["group_pack"]: c for c in reversed(candidates)}.values():
        check(spec(problem, "tma_im2col", options), seed)


HALO_DGRADS: dict[str, ConvProblem] = {
    "few channels": make("dgrad", 9, 64, 64, (57, 56), (3, 3), pad=1),
    "streamed": make("dgrad", 9, 256, 264, (29, 28), (3, 3), pad=1),
    "one axis": make("dgrad", 9, 40, 72, (3000,), (5,), pad=2, dilation=2),
    "odd channels": make("dgrad", 9, 72, 19, (57, 56), (5, 3), pad=(2, 1)),
    "groups of 56": make("dgrad", 9, 224, 224, (29, 28), (3, 3), pad=1, groups=4),
    "phases": make("dgrad", 9, 64, 64, (57, 56), (3, 3), 2, 1),
    "phases, groups": make("dgrad", 9, 72, 72, (57, 56), (3, 3), 2, 1, groups=3),
    "phases, one axis": make("dgrad", 9, 40, 72, (3000,), (9,), 4, pad=4),
}


@pytest.mark.parametrize("name", HALO_DGRADS)
def test_dgrad_by_halo(name: str, seed: int) -> None:
    """One of each kind of the candidates, and the first with an epilogue."""
    problem = HALO_DGRADS[name]
    check(spec(problem, "tma_halo", {}, _BRANCH.format(dims=", ".join(problem.spatial.input))), seed)
    candidates = strategies.STRATEGIES["tma_halo"].candidates(problem, TARGET)
    kinds = {(c["schedule"], c["swap_ab"], c["weight_stages"], c["images"]): c for c in reversed(candidates)}
    for options in kinds.values():
        check(spec(problem, "tma_halo", options), seed)


@settings(max_examples=25, deadline=None)
@given(problem=dgrad_problems(pixels=3000, strided=True), seed=SEEDS)
def test_any_strided_dgrad(problem: ConvProblem, seed: int) -> None:
    check(spec(problem, "tma_im2col", {}), seed)


@pytest.mark.parametrize("strategy", BOTH)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=SEEDS, epilogue=st.sampled_from(sorted(EPILOGUES)))
def test_any_problem(strategy: str, data: st.DataObject, seed: int, epilogue: str) -> None:
    problem, options = data.draw(many_images(strategy)), data.draw(some_options(strategy))
    assume(serves(problem, strategy, options))
    check(spec(problem, strategy, options, epilogue), seed)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("padding", [p for p in Padding if p is not Padding.ZERO])
def test_padding(padding: Padding, strategy: str, layout: str, seed: int) -> None:
    """The launch before the kernel pads x, of channels that it fills up as well."""
    pads = ((2, 1), (0, 3))
    for c, stride in ((72, 1), (75, 2)):
        problem = make("fprop", 33, c, 200, (29, 27), (3, 3), stride, pads, padding=padding)
        check(spec(laid_out(problem, x=layout), strategy, {}, "residual"), seed)


#: Layers at their sizes; of each, the first candidates and some others.
LAYERS: dict[str, tuple[str, ConvProblem]] = {
    "resnet50/res3_3x3": ("tma_im2col", make("fprop", 8, 128, 128, (28, 28), (3, 3), pad=1)),
    "resnet50/res4_1x1_in": ("tma_im2col", make("fprop", 8, 512, 256, (28, 28), (1, 1))),
    "resnet50/res5_3x3": ("tma_im2col", make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1, dtype="bf16")),
    "vgg16/conv1_2": ("tma_halo", make("fprop", 4, 64, 64, (224, 224), (3, 3), pad=1)),
    "googlenet/3a_5x5": ("tma_halo", make("fprop", 32, 16, 32, (28, 28), (5, 5), pad=2)),
    "resnet50/res2_3x3 in planes": (
        "tma_halo",
        laid_out(make("fprop", 8, 64, 64, (56, 56), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
    ),
    "resnet50/res5_3x3 in planes": (
        "tma_im2col",
        laid_out(make("fprop", 8, 512, 512, (7, 7), (3, 3), pad=1), x="nchw", w="kcrs", y="nkpq"),
    ),
    "resnext50/res2_3x3": ("tma_halo", make("fprop", 8, 128, 128, (56, 56), (3, 3), pad=1, groups=32)),
    "resnext50/res3_3x3_s2": ("tma_im2col", make("fprop", 8, 256, 256, (56, 56), (3, 3), 2, 1, groups=32)),
    "regnet_y_8gf/14x14": ("tma_halo", make("fprop", 8, 896, 896, (14, 14), (3, 3), pad=1, groups=16)),
    "resnext50/res5_3x3": ("tma_halo", make("fprop", 8, 1024, 1024, (7, 7), (3, 3), pad=1, groups=32)),
    "image_vae/c128_k3_r3": ("tma_halo", make("fprop", 1, 128, 3, (512, 512), (3, 3), pad=1)),
    "hifi_gan/c32_k1_r7": ("tma_halo", make("fprop", 1, 32, 1, (65536,), (7,), pad=3)),
    "unet3d/c64_k32_r3": ("tma_halo", make("fprop", 1, 64, 32, (64, 64, 64), (3, 3, 3), pad=1)),
    "resnet50/res3_3x3_s2": ("tma_halo", make("fprop", 8, 128, 128, (56, 56), (3, 3), stride=2, pad=1)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates(layer: str, seed: int) -> None:
    strategy, problem = LAYERS[layer]
    offered = strategies.STRATEGIES[strategy].candidates(problem, TARGET)  # type: ignore[attr-defined]
    for options in [offered[0], *random.Random(seed).sample(offered, min(3, len(offered)))]:
        check(spec(problem, strategy, options, "bias f32"), seed)


@pytest.mark.usefixtures("much_memory")
@pytest.mark.parametrize(("dtype", "layout"), [("f16", "npqk"), ("f16", "kpqn"), ("f32", "npqk")])
def test_more_than_2_to_the_31_outputs(dtype: str, layout: str, seed: int) -> None:
    """Stored by TMA, and element by element; some of the images are compared."""

    def of_images(n: int) -> ConvProblem:
        return laid_out(typed(make("fprop", n, 8, 1024, (32, 32), (1, 1)), y=dtype), y=layout)

    problem = of_images(2049)
    arrays = gpu_runs.inputs(problem, seed)
    out = verify.poison(cupy.empty(problem.y.shape, "f2" if dtype == "f16" else "f4"))
    kernel(spec(problem, "tma_im2col", {}))(*arrays.values(), out=out)
    for n in (0, 1023, 1024, 2048):
        image = {"x": arrays["x"][n : n + 1], "w": arrays["w"]}
        report = verify.check(of_images(1), image, out.take(cupy.arange(n, n + 1), axis=layout.index("n")), xp=cupy)
        assert report, f"{report}\nseed {seed}, image {n}\n{problem}"


# ---- order: graphs, chains ---------------------------------------------------


#: A layer whose output another can read, by several kernels; tanh keeps a long chain in range.
LINK = "operand b: f32[k]  y = tanh(acc * 0.05 + b)"
IMAGES = make("fprop", 4, 64, 64, (14, 14), (3, 3), pad=1)
POINTWISE = make("fprop", 4, 64, 64, (14, 14), (1, 1))
LINKS: tuple[tuple[ConvProblem, str, Options], ...] = (
    (IMAGES, "tma_im2col", {**PLAIN, "tile.m": 64, "tile.n": 64, "consumers": 1}),
    (IMAGES, "tma_halo", {}),
    (POINTWISE, "tma_im2col", {}),
    (laid_out(IMAGES, w="kcrs"), "tma_im2col", {}),
    (IMAGES, "tma_im2col", {**PLAIN, "tile.m": 64, "tile.n": 32, "consumers": 1, "split_k": 4}),
    (IMAGES, "tma_im2col", {"schedule": "pingpong", "tile.m": 64, "tile.n": 32}),
    (IMAGES, "tma_halo", {"weight_stages": 4}),
    (laid_out(IMAGES, w="rsck"), "tma_halo", {}),
    (IMAGES, "tma_im2col", {**PLAIN, "tile.m": 64, "tile.n": 16, "consumers": 1, "blocks": 2}),
)
LENGTH = 20


@pytest.fixture
def chain(seed: int) -> tuple[Sequence[Kernel], Sequence[dict[str, object]]]:
    """Kernels that read each other's results, and what else each of them reads."""
    kernels = [kernel(spec(*LINKS[i % len(LINKS)], LINK)) for i in range(len(LINKS))]
    chosen = [kernels[i % len(kernels)] for i in range(LENGTH)]
    return chosen, [gpu_runs.inputs(k.plan.problem, seed + i) for i, k in enumerate(chosen)]  # type: ignore[union-attr]


def run_chain(chain, buffers: Sequence[object], between: Callable[[], None] = lambda: None) -> object:
    """The last result; buffers are used in turn, so that one is written while its last reader may still run."""
    x = chain[1][0]["x"]
    for i, (made, arrays) in enumerate(zip(*chain, strict=True)):
        x = made(x, arrays["w"], b=arrays["b"], out=buffers[i % len(buffers)])
        between()
    return x


def fresh_buffers(count: int) -> list[object]:
    return [gpu_runs.poisoned(IMAGES.y) for _ in range(count)]


def test_a_chain_of_dependent_launches_is_in_order(chain) -> None:
    """Each kernel starts before the one before it has ended, and waits for what it reads."""
    assert all(launch.dependent for made in chain[0] for launch in made.plan.launches)
    expected = run_chain(chain, fresh_buffers(LENGTH), cupy.cuda.Device().synchronize).copy()  # type: ignore[attr-defined]
    assert cupy.isfinite(expected).all() and float(abs(expected).max()) > 0
    for count in (LENGTH, 3, 2):
        for _ in range(5):
            assert (run_chain(chain, fresh_buffers(count)) == expected).all(), f"{count} buffers"


def test_a_chain_is_captured_in_a_graph(chain) -> None:
    buffers = fresh_buffers(2)
    expected = run_chain(chain, buffers).copy()  # type: ignore[attr-defined]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        last = run_chain(chain, buffers)
        graph = stream.end_capture()
        for _ in range(3):
            for buffer in buffers:
                verify.poison(buffer)
            graph.launch(stream)
        stream.synchronize()
        assert (last == expected).all()
        x = chain[1][0]["x"]
        x *= -1
        graph.launch(stream)
        stream.synchronize()
        assert not (last == expected).all(), "a graph reads its inputs when it is launched"
