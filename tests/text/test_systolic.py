"""The systolic array: the examples of Zhou et al. (2021), figures 10 and 11, element by element, and its timing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.cli import main
from convgen.ir.problem import ConvProblem
from convgen.reproduce import find
from convgen.spec import Spec
from convgen.systolic.array import PortConflict, SystolicArray
from convgen.systolic.machine import Machine
from convgen.systolic.schedule import NotModeled, Shape, auto_tiles, passes, shape_of
from convgen.systolic.timing import simulate

ROOT = Path(__file__).parents[2]
SMALL = Machine(array=4, word=2)


def problem(n=2, c=4, h=5, k=4, r=3, more="") -> ConvProblem:
    spec = f"""conv layer {{
      input  x: f16[n={n}, h={h}, w={h}, c={c}]
      filter w: f16[k={k}, r={r}, s={r}, c={c}]
      output y: f16[n, p, q, k]
      {more}
    }}"""
    return driver.load(Spec(spec))[0].request.problem


def numbered(p: ConvProblem) -> np.ndarray:
    """x (n, c, h, w) whose elements name themselves: the digits are row, column, channel, image, from 1."""
    n, c, h, w = np.indices((p.n, p.c, *p.input)) + 1
    return 1000.0 * h + 100 * w + 10 * c + n


def drawn(p: ConvProblem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, whose sums are exact."""
    random = np.random.default_rng(seed)
    return random.integers(-4, 5, (p.n, p.c, *p.input)) * 1.0, random.integers(-4, 5, (p.k, p.c, *p.filter)) * 1.0


def convolution(p: ConvProblem, x: np.ndarray, w: np.ndarray, taps: list[tuple[int, int]]) -> np.ndarray:
    """The part of y (n, k, p, q) that these taps give."""
    pads = [(0, 0), (0, 0), *zip(p.pad_lo, (64, 64), strict=True)]
    x, y = np.pad(x, pads), np.zeros((p.n, p.k, *p.output))
    for r, s in taps:
        i, j = np.ogrid[: p.output[0], : p.output[1]]
        read = x[:, :, i * p.stride[0] + r * p.dilation[0], j * p.stride[1] + s * p.dilation[1]]
        y += np.einsum("nchw,kc->nkhw", read, w[:, :, r, s])
    return y


def all_taps(p: ConvProblem) -> list[tuple[int, int]]:
    return [(r, s) for r in range(p.filter[0]) for s in range(p.filter[1])]


# ---- figure 10: one tap, 4 channels, 4 x 4 PEs, words of 2 images --------------------------------


def test_figure_10_the_memories():
    p = problem()
    array = SystolicArray(p, SMALL, numbered(p), np.zeros((4, 4, 3, 3)))
    array.load(next(passes(shape_of(p), SMALL, 1)))
    for channel, memory in enumerate(array.memories):
        words = [list(word) for word in memory.inputs.values()]
        pixels = [(h, w) for h in (1, 2, 3) for w in (1, 2, 3)]  # of tap <1, 1>: rows and columns 1 to 3
        assert words == [[1000 * h + 100 * w + 10 * (channel + 1) + n for n in (1, 2)] for h, w in pixels]
    assert list(array.memories[0].inputs.values())[6].tolist() == [3111, 3112]  # (3,1,1,1) and (3,1,1,2)


def test_figure_10_rows_read_while_columns_write(seed):
    p = problem()
    x, w = drawn(p, seed)
    array = SystolicArray(p, SMALL, x, w)
    one = next(passes(shape_of(p), SMALL, 1))
    array.load(one)
    array.execute(one)
    stream = 9 * 2
    for i, memory in enumerate(array.memories):
        reads = [cycle for cycle, use in memory.uses.items() if use == "read"]
        writes = [cycle for cycle, use in memory.uses.items() if use == "write"]
        assert reads == list(range(i, i + stream, 2))  # a cycle behind the row above, every second cycle
        assert writes == list(range(i + 5, i + 5 + stream, 2))
    for cycle in range(8, 18):  # all are busy: rows 1 and 3 read while columns 2 and 4 write, and the other way round
        uses = [memory.uses.get(cycle) for memory in array.memories]
        assert uses == (["read", "write"] * 2 if cycle % 2 == 0 else ["write", "read"] * 2)
    assert array.cycles == stream + 2 * 4 - 1
    assert (array.result() == convolution(p, x, w, [(0, 0)])).all()


def test_the_page_shows_what_the_ports_do():
    p = problem()
    array = SystolicArray(p, SMALL, numbered(p), np.zeros((4, 4, 3, 3)))
    one = next(passes(shape_of(p), SMALL, 1))
    array.load(one)
    array.execute(one)
    page = (ROOT / "docs" / "systolic.md").read_text(encoding="utf-8")
    for i, memory in enumerate(array.memories):
        uses = "".join(memory.uses.get(cycle, ".")[0] for cycle in range(array.cycles))
        assert f"memory {i + 1} {uses.rstrip('.')}" in page


# ---- figure 11: taps <1, 1> and <1, 2> at once, 2 channels ---------------------------------------


def test_figure_11_two_taps_share_the_rows(seed):
    p = problem(c=2)
    shape = shape_of(p)
    assert auto_tiles(shape, SMALL) == 2
    one = next(passes(shape, SMALL, 2))
    assert one.rows == (((0, 0), 0), ((0, 0), 1), ((0, 1), 0), ((0, 1), 1))
    array = SystolicArray(p, SMALL, numbered(p), np.zeros((4, 2, 3, 3)))
    array.load(one)
    first, shifted = (list(array.memories[i].inputs.values()) for i in (0, 2))
    assert [list(word) for word in first[1:3]] == [list(word) for word in shifted[:2]]  # both hold a channel
    assert first[0].tolist() == [1111, 1112] and shifted[0].tolist() == [1211, 1212]

    x, w = drawn(p, seed)
    array = SystolicArray(p, SMALL, x, w)
    array.load(one)
    array.execute(one)
    assert (array.result() == convolution(p, x, w, [(0, 0), (0, 1)])).all()


def test_figure_11_halves_the_passes(seed):
    p = problem(c=2)
    x, w = drawn(p, seed)
    single, double = SystolicArray(p, SMALL, x, w), SystolicArray(p, SMALL, x, w)
    assert (single.convolve(tiles=1) == double.convolve()).all()
    assert (double.result() == convolution(p, x, w, all_taps(p))).all()
    assert (single.cycles, double.cycles) == (9 * 25, 5 * 25)


# ---- any convolution -----------------------------------------------------------------------------


@given(
    words=st.integers(1, 2), c=st.integers(1, 9), h=st.integers(3, 6), k=st.integers(1, 6), r=st.integers(1, 3),
    stride=st.integers(1, 3), pad=st.integers(0, 2), word=st.sampled_from([2, 4]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25)
def test_any_convolution_of_whole_words(words, c, h, k, r, stride, pad, word, seed):
    p = problem(words * word, c, h, k, r, f"stride {stride} pad {pad}")
    x, w = drawn(p, seed)
    array = SystolicArray(p, Machine(array=4, word=word), x, w)
    assert (array.convolve() == convolution(p, x, w, all_taps(p))).all()


def test_words_of_one_image_meet_at_the_port(seed):
    p = problem(n=1)
    with pytest.raises(PortConflict, match="a read meets a write"):
        SystolicArray(p, SMALL, *drawn(p, seed)).convolve()


# ---- timing --------------------------------------------------------------------------------------


def test_the_model_counts_the_cycles_of_the_array(seed):
    """With off-chip memory that takes no time: the passes back to back, and what fills and empties the array."""
    p = problem(n=4, c=8, k=8)
    machine = Machine(array=4, word=4, dram=1e30)
    array = SystolicArray(p, machine, *drawn(p, seed))
    array.convolve()
    count = len(list(passes(shape_of(p), machine, 1)))
    assert count == 9 * 2 * 2
    assert simulate(shape_of(p), machine).cycles == pytest.approx(array.cycles - (count - 1) * (2 * 4 - 1))


def test_time_has_its_lower_bounds():
    shape, machine = Shape(8, 256, 256, 28 * 28, (3, 3)), Machine()
    found = simulate(shape, machine)
    assert found.macs == 8 * 784 * 256 * 256 * 9
    assert found.utilization <= 1 and found.bandwidth <= machine.dram and found.port_use <= 1
    assert simulate(shape, Machine(dram=1e9)).cycles > 10 * found.cycles


def values(experiment: str, series: str) -> list[float]:
    return next(list(s.values) for s in find(experiment).run().series if s.name == series)


def test_the_stride_changes_little():
    for one, two, four in zip(*(values("tpu-stride", f"stride {s}") for s in (1, 2, 4)), strict=True):
        assert 0.9 * one < two <= one and 0.9 * one < four <= two


def test_merging_taps_takes_memory_in_proportion_and_gains_less_and_less():
    workspace, cycles = values("tpu-tiles", "workspace"), values("tpu-tiles", "cycles")
    assert workspace == [workspace[0] * tiles for tiles in range(1, 10)]
    assert cycles[0] - cycles[1] > cycles[1] - cycles[2] > cycles[2] - cycles[3]


def test_a_larger_array_is_faster_and_used_less():
    used, speed = values("tpu-array", "utilization"), values("tpu-array", "TFLOPS")
    assert used == sorted(used, reverse=True) and speed == sorted(speed)
    assert used[3] == pytest.approx(used[2] / 2, rel=0.1)  # 256 beside 128


def test_ports_are_idle_half_of_the_time_at_words_of_8():
    idle = values("tpu-word", "ports idle")
    assert idle[2] < 50 < idle[3] and idle == sorted(idle)


def test_products_of_matrices_come_near_the_peak():
    used = values("tpu-gemm", "utilization")
    assert used == sorted(used) and used[-1] > 99


# ---- the command ---------------------------------------------------------------------------------


def test_simulate_shows_every_convolution(capsys):
    assert main(["simulate", "specs/vgg16.conv", "--array", "128", "--word", "8", "--tiles", "auto"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 9 + 1 and lines[1].split()[:2] == ["conv1_1", "3"]
    assert lines[-1].startswith("all: ") and "128 x 128" in lines[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--word", "7"], "word 7: its elements must divide the array's 128 rows"),
        (["--array", "1"], "argument --array: '1' is not a whole number from 2 to 4096"),
        (["--word", "0"], "argument --word: '0' is not a whole number from 1 to 4096"),
        (["--tiles", "3", "--only", "conv1_2"],
         "conv1_2: tiles 3: 1 to 2 are possible, for 64 channels and 9 taps on 128 rows\nhint: `auto` "),
        (["--array", "1000000000"], "'1000000000' is not a whole number from 2 to 4096"),
        (["--tiles", "some"], "'some' is neither a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated(arguments, message, capsys):
    assert main(["simulate", "specs/vgg16.conv", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("h=100000, w=100000, c=64", "a: 47302260 steps are too many to simulate: "),
        ("h=8, w=8, c=1000000", "9000000 rows of the filter are too many to simulate: "),
    ],
)
def test_what_would_never_end_is_refused(sizes, message, tmp_path, capsys):
    path = tmp_path / "large.conv"
    path.write_text(
        f"conv a {{ input x: f16[n=1, {sizes}] filter w: f16[k=64, r=3, s=3, c] output y: f16[n, p, q, k] pad 1 }}"
    )
    assert main(["simulate", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_what_is_not_modeled_is_a_fault_of_the_spec(tmp_path, capsys):
    path = tmp_path / "reflect.conv"
    path.write_text(
        "conv a { input x: f16[n=1, h=8, w=8, c=8] filter w: f16[k=8, r=3, s=3, c=8] output y: f16[n, p, q, k] "
        "pad 1 reflect }"
    )
    assert main(["simulate", str(path)]) == 1
    assert "padding of reflect is not modeled, only zeros" in capsys.readouterr().err


def test_it_takes_no_choice_of_a_kernel(capsys):
    for option in (["--strategy", "direct"], ["--target", "sm_80"]):
        assert main(["simulate", "specs/vgg16.conv", *option]) == 2
        assert f"unrecognized arguments: {' '.join(option)}" in capsys.readouterr().err


def test_only_fprop_is_modeled():
    spec = Spec(f"{problem()}".replace("op fprop", "op wgrad"))
    with pytest.raises(NotModeled, match="op wgrad is not modeled, only fprop"):
        shape_of(driver.load(spec)[0].request.problem)


def test_only_zeros_are_modeled_around_the_input():
    with pytest.raises(NotModeled, match="padding of reflect is not modeled, only zeros"):
        shape_of(problem(more="pad 1 reflect"))
