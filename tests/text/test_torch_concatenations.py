"""Concatenations of convolutions' results, written in place: which ones, and that results stay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network.concatenations import in_place  # noqa: E402
from convgen.torch.network.inductor import compiled  # noqa: E402
from convgen.torch.network.prepare import texts_of_slices  # noqa: E402
from convgen.torch.network.trace import flat_graph  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
Tensor = torch.Tensor


def conv(x: Tensor, k: int) -> Tensor:
    """A convolution by convgen's operator, of filters that are the same each time."""
    taps = torch.arange(k * x.shape[1], dtype=x.dtype).remainder(7).sub(3).view(k, x.shape[1], 1, 1)
    return torch.ops.convgen.fused_conv(x, taps, [], "relu", [1, 1], [0, 0], [1, 1], 1)


def pooled(x: Tensor) -> Tensor:
    """Four channels, which are cheap to copy."""
    return TF.max_pool2d(x[:, :4], 3, 1, 1)


def branches(x):
    """GoogLeNet's."""
    return torch.cat([conv(x, 8), conv(conv(x, 4), 12), TF.max_pool2d(x, 3, 1, 1)], 1)


def dense(x):
    """DenseNet's: a list that grows."""
    features = [conv(x, 8)]
    for _ in range(3):
        features.append(conv(conv(torch.cat(features, 1), 16), 4))
    return torch.cat(features, 1)


def nested(x):
    """The same, each on top of the one before, of which an average is taken as well."""
    first = x = conv(x, 8)
    for _ in range(3):
        x = torch.cat([x, conv(conv(x, 16), 4)], 1)
    return x + first.mean(1, keepdim=True)


def skip(x):
    """U-Net's: what is halved and what comes back."""
    y = conv(x, 8)
    up = TF.interpolate(conv(TF.max_pool2d(y, 2), 8), scale_factor=2)
    return conv(torch.cat([up, y], 1), 8)


def upsampled(x):
    """Which can be had of a slice."""
    y = conv(x, 8)
    return torch.cat([y, pooled(x)], 1), TF.interpolate(y, scale_factor=2)


def viewed(x):
    """A view cannot be had of a slice."""
    y = conv(x, 8)
    return torch.cat([y, pooled(x)], 1), y.view(2, 8, -1)


def returned(x):
    """A result of the graph is packed."""
    y = conv(x, 8)
    return torch.cat([y, pooled(x)], 1), y


def crossed(x):
    """Each tensor has one place."""
    a, b, c = conv(x, 8), conv(x, 4), conv(x, 12)
    return torch.cat([a, b], 1), torch.cat([b, c], 1)


def twice(x):
    y = conv(x, 8)
    return torch.cat([y, y], 1)


def rows(x):
    return torch.cat([conv(x, 8), conv(x, 8)], 2)


def odd(x):
    """Slices begin at multiples of 16 bytes."""
    return torch.cat([x[:, :3], conv(x, 9)], 1)


def mostly_copied(x):
    return torch.cat([x, x * 2, conv(x, 8)], 1)


def parts(x):
    """Res2Net's: the first part of the channels passes by."""
    first, second, third = conv(x, 12).split(4, 1)
    y = conv(second, 4)
    return torch.cat([first, y, conv(third + y, 4)], 1)


def passed_by(x):
    """ShuffleNet's half: Inductor makes one pass of the concatenation and the shuffle behind it."""
    a, b = conv(x, 16).chunk(2, 1)
    return torch.cat([a, conv(b, 8)], 1)


@pytest.mark.parametrize(
    ("function", "cats", "writes", "copies"),
    [
        (branches, 0, 2, 1), (dense, 0, 4, 0), (nested, 0, 4, 0), (skip, 0, 1, 1), (upsampled, 0, 1, 1),
        (viewed, 1, 0, 0), (returned, 1, 0, 0), (crossed, 0, 3, 1), (twice, 1, 0, 0), (rows, 1, 0, 0), (odd, 1, 0, 0),
        (mostly_copied, 1, 0, 0), (parts, 0, 2, 1), (passed_by, 1, 0, 0),
    ],
)  # fmt: skip
def test_what_is_written_in_place(function: Callable[..., object], cats: int, writes: int, copies: int) -> None:
    x = torch.randint(-3, 4, (2, 16, 4, 4)).float().to(memory_format=torch.channels_last)

    def results(*given: Tensor) -> tuple[Tensor, ...]:
        made = function(*given)
        return made if isinstance(made, tuple) else (made,)

    expected = results(x)
    graph_module = flat_graph(results, [x])
    before = Counter(str(node.target) for node in graph_module.graph.nodes)["aten.cat.default"]
    count = in_place(graph_module.graph, inductor=False)
    graph_module.graph.lint()
    graph_module.recompile()
    found = Counter(str(node.target) for node in graph_module.graph.nodes)
    assert (found["aten.cat.default"], before - count) == (cats, cats)
    assert (found["convgen.fused_conv_into.default"], found["convgen.copy_into.default"]) == (writes, copies)
    texts = texts_of_slices(graph_module.graph)
    assert sum(re.search(r"output y: .* of \d+\]", text) is not None for text in texts) == writes
    for ours, theirs in zip(graph_module(x), expected, strict=True):
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def sppf(x):
    """YOLO's: of pools, each of the one before."""
    y = conv(x, 8)
    first = TF.max_pool2d(y, 3, 1, 1)
    second = TF.max_pool2d(first, 3, 1, 1)
    return conv(torch.cat([y, first, second], 1), 8)


def interpolated(x):
    """A U-Net's, with bilinear interpolation."""
    y = conv(x, 8)
    up = TF.interpolate(conv(TF.max_pool2d(y, 2), 12), scale_factor=2, mode="bilinear")
    return conv(torch.cat([up, y], 1), 8)


def read_after(x):
    """What the first part's readers see stays its own, and is read as a slice."""
    pool = TF.max_pool2d(x, 3, 1, 1)
    y = torch.cat([conv(x, 8), pool], 1)
    return conv(y, 8), conv(pool * 2, 4), pool.mean((2, 3))


def added_to(x):
    """A pass's result is a result of the graph, too: it is copied."""
    pool = TF.max_pool2d(x, 3, 1, 1)
    return torch.cat([conv(x, 24), pool], 1), pool


@pytest.mark.parametrize(
    ("function", "images"),
    [
        (branches, 1), (dense, 1), (skip, 2), (parts, 2), (sppf, 1), (interpolated, 2), (read_after, 2), (added_to, 2),
        (mostly_copied, 1),
    ],
)  # fmt: skip
def test_passes_of_inductor_write_where_results_belong(function, images, monkeypatch) -> None:
    """Besides concatenations, Inductor has memory for what convolutions read and for results alone, and no operator
    copies."""
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    x = torch.randint(-3, 4, (2, 16, 4, 4)).float().to(memory_format=torch.channels_last)

    def results(*given: Tensor) -> tuple[Tensor, ...]:
        made = function(*given)
        return made if isinstance(made, tuple) else (made,)

    graph_module = flat_graph(results, [x])
    in_place(graph_module.graph, inductor=True)
    graph_module.recompile()
    written: list[str] = []
    found = _run_and_get_code(lambda: compiled(graph_module, [x], {})(x), written)
    for ours, theirs in zip(found, results(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert "copy_into.default(" not in written[0]
    # an Inductor before 2.13 may keep interpolated images for themselves (2.11 does)
    kept = int(function is interpolated and torch.__version__ < (2, 13))
    assert images <= len(re.findall(r"= empty_strided_cpu\(\(2, \d+, [2-9]", written[0])) <= images + kept


def _run_and_get_code(function, written: list[str]):
    from torch._inductor.utils import run_and_get_code

    made, code = run_and_get_code(function)
    written += code
    return made


class Block(nn.Module):
    """DenseNet's, with convolutions that have an epilogue."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(16 + 8 * i) for i in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(2))

    def forward(self, x):
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = torch.cat([x, torch.relu(convolution(torch.relu(norm(x))))], 1)
        return x


@pytest.mark.parametrize("inductor", [False, True])
def test_a_block_of_densenet(inductor: bool) -> None:
    model, x = Block().eval(), torch.randn(2, 16, 6, 6)
    fast = ct.optimize(model, x, inductor=inductor)
    assert fast.report.notes[0] == "2 concatenations are written in place"
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("first", [0, 8, 12])
@pytest.mark.parametrize("channels", [8, 12, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_slices_are_copied_to_the_bit(dtype, channels, first):
    """In words where channels are whole ones, and else element by element; nothing beside the slice changes."""
    whole = torch.randn(2, 64, 3, 5).to(dtype).to(memory_format=torch.channels_last)
    part = torch.randn(2, channels, 3, 5).to(dtype).to(memory_format=torch.channels_last)
    part[0, :, 0, 0], part[1, 0, 1, 2], part[1, 1, 1, 2] = torch.nan, -0.0, torch.inf
    right = torch.cat([whole[:, :first], part, whole[:, first + channels :]], 1)
    torch.ops.convgen.copy_into(whole[:, first : first + channels], part)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[whole.itemsize]
    assert torch.equal(whole.view(bits), right.view(bits))
    for given in (part.contiguous(), part.transpose(2, 3).contiguous().transpose(2, 3)):  # laid out otherwise
        to = torch.zeros_like(part)
        torch.ops.convgen.copy_into(to, given)
        assert torch.equal(to.nan_to_num(7.0), part.nan_to_num(7.0))
