"""BatchNorm's sums as results of convolutions, in training on a CPU: which are found, and that steps are torch's."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch import ops  # noqa: E402
from convgen.torch.asked import Forward, Summed  # noqa: E402
from convgen.torch.launch import Served  # noqa: E402
from convgen.torch.network import prepare, training  # noqa: E402
from convgen.torch.network.report import Row  # noqa: E402
from convgen.torch.network.timing import COMPUTED, Timer  # noqa: E402
from convgen.torch.network.trace import is_call  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
LAST = dict(memory_format=torch.channels_last)
CAST = torch.ops.prims.convert_element_type.default


class Taken:
    """Takes convgen for all that is asked, but for sums where they are slower."""

    def __init__(self, sums: bool = True) -> None:
        self._sums = sums

    def launch(self, asked):
        return None if isinstance(asked, Summed) and not self._sums else lambda *_: None

    def row(self, asked):
        if self.launch(asked) is None:
            return Row(asked.layer, "aten", 5.0, 3.0, why_not="tma_im2col is slower")
        return Row(asked.layer, "tma_im2col", fused=getattr(asked, "fused", ""))

    measure = row


class Block(nn.Module):
    """Two convolutions beside a shortcut, which may have one of its own."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k)
        self.b, self.norm_b = nn.Conv2d(k, k, 3, padding=1), nn.BatchNorm2d(k, momentum=0.3)
        self.short = nn.Identity() if c == k else nn.Sequential(nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k))

    def forward(self, x):
        made = self.norm_b(self.b(torch.relu(self.norm_a(self.a(x)))))
        return torch.relu(made + self.short(x))


@pytest.fixture
def graphs(monkeypatch):
    """The convolutions of each graph that is compiled for training; Inductor's part is left out."""
    found, take = [], training.take_convolutions

    def taken(graph, *others):
        rows = take(graph, *others)
        graph.lint()
        found.append([node for node in graph.nodes if "conv" in str(node.target) and node.op == "call_function"])
        return rows

    inner = lambda graph_module, inputs, **_: make_boxed_func(graph_module.forward)  # noqa: E731
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    monkeypatch.setattr(training, "take_convolutions", taken)
    monkeypatch.setattr(ops, "choices", Taken())
    torch._dynamo.reset()
    return found


def endings(nodes) -> list[str]:
    """Epilogues and sums of those that have sums."""
    return [f"{node.args[3]}: {node.args[4]}" for node in nodes if "sums" in str(node.target)]


def trained(model, step, x, steps: int = 3):
    """Losses of SGD under autocast, and then the model's result in eval mode."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = TF.cross_entropy(step(x).mean((2, 3)).float(), torch.arange(len(x)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return torch.tensor(losses), model.eval()(x)


def test_a_residual_network_trains_as_torchs_does(graphs):
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    model = nn.Sequential(*stem, Block(8, 16), Block(16, 16), Block(16, 16)).to(**LAST)
    x, other = torch.randn(6, 3, 12, 12).to(**LAST), copy.deepcopy(model)
    compiled = torch.compile(model, backend=ct.compile_graph, fullgraph=True)
    for mine, theirs in zip(trained(model, compiled, x), trained(other, other, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)
    for mine, theirs in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)
    forward, backward = graphs
    plain, with_bias = ": value square", "add: value square"
    assert endings(forward) == [plain, plain, with_bias, plain, *[plain, with_bias] * 2]
    # of blocks, the last first: inside, and where a block begins, whose shortcut's gradient is added
    assert endings(backward) == [
        "relu_backward: value product", "add relu_backward: value product",
        "relu_backward: value product", "add relu_backward: value product product",
        "relu_backward: value product", "add relu_backward: value product",
    ]  # fmt: skip
    assert "relu_backward sums: value product" in str(ct.reports()[-1])


ACTIVATIONS = {
    "hardtanh_backward_of_norm:0.0,6.0": nn.ReLU6,
    "silu_backward_of_norm": nn.SiLU,
    "hardswish_backward_of_norm": nn.Hardswish,
}


class Inverted(nn.Module):
    """An inverted bottleneck, perhaps gated, beside a shortcut."""

    def __init__(self, c: int, activation, gate: bool = False) -> None:
        super().__init__()
        depthwise = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c, bias=False)
        self.wide = nn.Sequential(nn.Conv2d(c, 2 * c, 1, bias=False), nn.BatchNorm2d(2 * c), activation())
        self.deep = nn.Sequential(depthwise, nn.BatchNorm2d(2 * c), activation())
        self.narrow = nn.Sequential(nn.Conv2d(2 * c, c, 1, bias=False), nn.BatchNorm2d(c))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * c, 2 * c, 1), nn.Sigmoid()) if gate else None

    def forward(self, x):
        y = self.deep(self.wide(x))
        return x + self.narrow(y if self.gate is None else y * self.gate(y))


@pytest.fixture
def before_2_13(graphs, monkeypatch):
    """Graphs as torch 2.9 to 2.12 give them: SiLU's gradient written with exp, and no rounding to 16 bits and back."""
    from torch._inductor.decomposition import decompositions

    def silu_backward(g, z):
        g, z, dtype = g.float(), z.float(), g.dtype
        gate = 1 / (1 + torch.exp(-z))
        return (g * gate * (1 + z * (1 - gate))).to(dtype)

    def taken(graph, *others, take=training.take_convolutions):
        for node in [node for node in graph.nodes if is_call(node, CAST) and is_call(node.args[0], CAST)]:
            node.args = (node.args[0].args[0], node.args[1])
        graph.eliminate_dead_code()
        return take(graph, *others)

    monkeypatch.setitem(decompositions, torch.ops.aten.silu_backward.default, silu_backward)
    monkeypatch.setattr(training, "take_convolutions", taken)


@pytest.mark.usefixtures("before_2_13")
@pytest.mark.parametrize("word", ACTIVATIONS)
def test_gradients_of_activations_in_older_torchs_graphs_give_sums(word, graphs):
    test_gradients_of_activations_behind_batchnorm_give_sums(word, False, False, graphs)


@pytest.mark.parametrize("word", ACTIVATIONS)
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("whole", [False, True])  # the model in bfloat16, without autocast
def test_gradients_of_activations_behind_batchnorm_give_sums(word, gate, whole, graphs):
    """Not those behind a gate, whose own gradient is a sum of the same dgrad."""
    torch.manual_seed(0)
    activation = ACTIVATIONS[word]
    stem = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), activation()
    model = nn.Sequential(*stem, Inverted(8, activation, gate), Inverted(8, activation), nn.Conv2d(8, 4, 1))
    for norm in (each for each in model.modules() if isinstance(each, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.uniform_(norm.bias, -1.0, 2.0)
    model, x = model.to(**LAST), torch.randn(4, 3, 12, 12).to(**LAST)
    exact = copy.deepcopy(model).double()
    model = model.bfloat16() if whole else model
    compiled, given = torch.compile(model, backend=ct.compile_graph), x.bfloat16() if whole else x
    found = []
    for one, read in ((compiled, given), (model, given), (exact, x.double())):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=one is not exact and not whole):
            one(read).mul(torch.linspace(-1, 1, 10)).square().sum().backward()
        found.append([p.grad.double() for p in (exact if one is exact else model).parameters()])
    mine, theirs, right = (torch.cat([grad.flatten() for grad in each]) for each in found)
    assert (mine - right).norm() <= 1.3 * (theirs - right).norm()
    plain = ": value product"  # behind no activation
    inverted = [f"{word}: value product_of_norm"] * 2
    assert endings(graphs[1]) == [
        plain, *inverted, f"add{plain}",
        *inverted[gate:], f"add {word}: value product_of_norm",
    ]  # fmt: skip


def _far_from_zero(layer) -> None:
    """Lets a layer of whole numbers that are not 0 give such numbers: rounding flips no relu behind BatchNorm."""
    weight = torch.zeros_like(layer.weight)
    for k, taps in enumerate(weight.flatten(1)):
        taps[(5 * k) % len(taps)] = (-1) ** k
    with torch.no_grad():
        layer.weight.copy_(weight)


CASES = {
    "affine": (dict(affine=False), {}, [": value square"] * 2, ["relu_backward: value product"]),
    "slower": ({}, dict(choices=Taken(sums=False)), [], []),
    "off": ({}, dict(options={"sums": False}), [], []),
    "frozen": ({}, dict(frozen=True), [": value square"], ["relu_backward: value product"]),
    "float32": ({}, dict(autocast=False), [], []),
    "contiguous": ({}, dict(contiguous=True), [], []),
    # so few values a channel that the backward pass computes their mean anew, by aten::var_mean
    "few": ({}, dict(size=(4, 3)), [": value square"] * 2, ["relu_backward: value"]),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_are_found_where_they_are(case, graphs, monkeypatch):
    norm, how, forward, backward = CASES[case]
    torch.manual_seed(1)  # of some draws, Inductor's bfloat16 alone is off by a fifth
    monkeypatch.setattr(ops, "choices", how.get("choices", Taken()))
    first, second = nn.BatchNorm2d(8, **norm), nn.BatchNorm2d(4, **norm)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), first, nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False), second)
    _far_from_zero(model[0])
    x = torch.randn(4, 4, *how.get("size", (6, 5))).sign() * torch.randint(1, 4, (4, 4, *how.get("size", (6, 5))))
    if not how.get("contiguous"):
        model, x = model.to(**LAST), x.to(**LAST)
    if how.get("frozen"):
        first.eval()
    compiled = torch.compile(model, backend=ct.compile_graph, options=how.get("options"))
    found = []
    for one in (compiled, model):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=how.get("autocast", True)):
            one(x).float().mul(torch.linspace(-1, 1, 4).view(4, 1, 1, 1)).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert (mine - theirs).norm() <= 0.05 * theirs.norm() + 1e-2  # bfloat16
    assert [endings(nodes) for nodes in graphs] == [forward, backward]
    slower = [
        row for report in list(ct.reports())[-2:] for row in report if "with sums: 5.0 us, for 3.0" in row.why_not
    ]
    assert len(slower) == (3 if case == "slower" else 0)


def test_sums_are_weighed_against_the_passes_that_they_spare(monkeypatch):
    """convgen's kernel and aten's without sums take 10 and 8 us, a copy 4: 2 for each tensor that need not be read.
    The launch that finishes sums takes 1."""
    us = {"convgen by k with sums": 13.0, "convgen by k": 10.0, "aten": 8.0, "copy": 4.0}
    serving = Served(print, kernel="k")
    monkeypatch.setattr(Timer, "__init__", lambda self: None)
    monkeypatch.setattr(Timer, "_us", lambda self, who, read, *_: 1.0 if read[0].dim() == 1 else us[who])
    monkeypatch.setattr(Forward, "served", lambda self: serving)
    monkeypatch.setattr("convgen.torch.network.timing.served", lambda *_: serving)
    monkeypatch.setattr(Summed, "served", lambda self: serving)
    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 1, 1)
    bare = Forward(x, w, [], "", (1, 1), (0, 0), (1, 1), 1)
    assert Summed(bare, [], "", "value square").times(Timer()) == (13.0, 8.0 + 2 + 1)
    large, mean = torch.randn(2, 8, 6, 6), torch.randn(1, 8, 1, 1)
    assert Summed(bare, [large, mean], "", "value product").times(Timer()) == (13.0, 8.0 + 4 + 1)
    masked = Summed(bare, [large, large, large, mean], "add relu_backward", "value product")
    assert masked.times(Timer()) == (13.0, 8.0 + 10 + 1)
    # what BatchNorm read is read for the activation, too, and again by the pass behind
    of_norm = Summed(bare, [large, *[mean] * 5], "silu_backward_of_norm", "value product_of_norm")
    assert of_norm.times(Timer()) == (13.0, pytest.approx(8.0 + 4 + 2 * COMPUTED["silu_backward_of_norm"] + 1))
    of_sum = Summed(bare, [large, large, *[mean] * 5], "add silu_backward_of_norm", "value product_of_norm")
    assert of_sum.times(Timer()) == (13.0, pytest.approx(8.0 + 8 + 2 * COMPUTED["silu_backward_of_norm"] + 1))


def test_a_channel_of_one_value_has_no_negative_variance(graphs):
    """Where the mean's square, rounded, exceeds the mean of squares."""
    layer = nn.Conv2d(4, 64, 1)
    nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.bias.copy_(torch.linspace(100, 999, 64))
    model = nn.Sequential(layer.half(), nn.BatchNorm2d(64)).to(**LAST)
    made = torch.compile(model, backend=ct.compile_graph)(torch.ones(3, 4, 7, 7).half().to(**LAST))
    assert endings(graphs[0]) == ["add: value square"] and made.isfinite().all()


# ---- inference: InstanceNorm's and GroupNorm's sums ------------------------------------------------


@pytest.fixture
def by_aten(monkeypatch):
    """What is left to Inductor runs by aten: to compile it takes seconds, and changes nothing of what is found."""
    monkeypatch.setattr(prepare, "compiled", lambda run, *_: run)


def normalized(rank: int, *norms: nn.Module, **options) -> nn.Module:
    """A convolution before each of the normalizations, with a relu behind."""
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    parts = [(layer(16, 16, 3, padding=1, **options), norm, nn.ReLU()) for norm in norms]
    return nn.Sequential(*(part for group in parts for part in group)).eval()


def randomized(model: nn.Module) -> nn.Module:
    """With parameters that no two channels have in common."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def of_images(report) -> list[bool]:
    return ["image_value image_square" in row.fused for row in report]


def accurate(model: nn.Module, fast, x) -> None:
    """No worse than the model itself by more than a third, both beside a float64 run."""
    right = copy.deepcopy(model).double()(x.double())
    with torch.no_grad():
        errors = [(found.double() - right).norm() / right.norm() for found in (fast(x), model(x))]
    assert errors[0] <= 1.3 * errors[1] + 1e-6, errors


@pytest.mark.parametrize(("rank", "dtype"), [(1, torch.bfloat16), (2, torch.float16), (3, torch.bfloat16)])
def test_statistics_of_each_image_come_from_the_convolution(rank, dtype):
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[rank - 1]
    norms = instance(16), instance(16, affine=True, eps=1e-3), nn.GroupNorm(4, 16), nn.GroupNorm(1, 16, affine=False)
    model = randomized(normalized(rank, *norms)).to(dtype)
    x = torch.randn(3, 16, *(8, 6, 5)[:rank]).to(dtype)
    with torch.no_grad():
        fast = ct.optimize(model, x)
        assert of_images(fast.report) == [True] * 4
        assert fast(x).stride() == model(x).stride()
    accurate(model, fast, x)


@pytest.mark.usefixtures("by_aten")
def test_statistics_with_a_residual_and_of_a_result_that_is_read_again():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
            self.first, self.second = nn.GroupNorm(4, 16), nn.GroupNorm(8, 16)

        def forward(self, x):
            y = x + self.a(x)
            return y + self.b(TF.silu(self.first(y))) * self.second(y)

    model = randomized(Block()).half().eval()
    x = torch.randn(2, 16, 8, 8).half()
    with torch.no_grad():
        fast = ct.optimize(model, x)
    assert of_images(fast.report) == [True, False]
    accurate(model, fast, x)


@pytest.mark.usefixtures("by_aten")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flat_images_have_no_variance(dtype):
    model = randomized(normalized(2, nn.InstanceNorm2d(16), padding_mode="reflect")).to(dtype)
    x = torch.full((2, 16, 8, 8), 0.7).to(dtype)
    with torch.no_grad():
        fast = ct.optimize(model, x)
        assert of_images(fast.report) == [True]
        assert fast(x).abs().max() <= 1e-3


@pytest.mark.usefixtures("by_aten")
@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(16), nn.GroupNorm(16, 16)], ids=["InstanceNorm", "GroupNorm"])
def test_images_of_one_step_or_two_are_not_blown_up(norm):
    """float32's sums of squares of such images have rounding errors as large as the variance, which may cancel it."""
    model = randomized(normalized(2, norm)).half()
    with torch.no_grad():
        model[0].bias.fill_(1000.0)
        x = torch.randn(4, 16, 8, 8).half() * 0.1
        fast = ct.optimize(model, x)
        assert of_images(fast.report) == [True]
        assert fast(x).abs().max() <= 2 * model(x).abs().max()


@pytest.mark.usefixtures("by_aten")
def test_images_as_channels_of_one_image():
    """As adaptive normalizations are often written: by reshape(), which is a copy and an unsafe view of it."""

    class Adaptive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.style = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(5, 32)

        def forward(self, x, style):
            y, (weight, bias) = self.conv(x), self.style(style).chunk(2, 1)
            n, k, *extents = y.shape
            as_one = y.reshape(1, n * k, *extents)
            made = TF.batch_norm(as_one, None, None, weight.reshape(-1), bias.reshape(-1), training=True)
            return made.reshape(n, k, *extents)

    model = randomized(Adaptive()).half().eval()
    x, style = torch.randn(3, 16, 8, 8).half(), torch.randn(3, 5).half()
    with torch.no_grad():
        fast = ct.optimize(model, (x, style))
        assert of_images(fast.report) == [True, False]  # the style's is a linear layer
        right = copy.deepcopy(model).double()(x.double(), style.double())
        errors = [(found.double() - right).norm() for found in (fast(x, style), model(x, style))]
    assert errors[0] <= 1.3 * errors[1]


class Means(nn.Module):
    """Squeeze and excitation, with the mean asked for in several ways."""

    def __init__(self, mean, norm=None) -> None:
        super().__init__()
        self.conv, self.mean, self.norm = nn.Conv2d(16, 16, 3, padding=1), mean, norm
        self.gate = nn.Linear(16, 16)

    def forward(self, x):
        y = TF.silu(self.conv(x))
        made = y * torch.sigmoid(self.gate(self.mean(y).flatten(1).to(y.dtype)))[:, :, None, None]
        return made if self.norm is None else made + self.norm(y)


@pytest.mark.usefixtures("by_aten")
@pytest.mark.parametrize(
    ("mean", "sums"),
    [
        (lambda y: y.mean((2, 3)), "image_value"),
        (lambda y: y.mean((-1, -2), keepdim=True), "image_value"),
        (lambda y: y.mean((2, 3), dtype=torch.float32), "image_value"),
        (nn.AdaptiveAvgPool2d(1), "image_value"),
        (lambda y: y.mean(3).mean(2), ""),
        (lambda y: y.mean((1, 2, 3), keepdim=True).expand(-1, 16, -1, -1), ""),
        (lambda y: y.mean((0, 2, 3)).expand(3, 16), ""),
    ],
)
def test_means_of_each_image_come_from_the_convolution(mean, sums):
    model, x = randomized(Means(mean)).half().eval(), torch.randn(3, 16, 8, 6).half()
    with torch.no_grad():
        fast = ct.optimize(model, x)
    (fused,) = (row.fused for row in fast.report if row.layer == "conv")
    assert fused == (f"add silu sums: {sums}" if sums else "add silu")
    accurate(model, fast, x)


@pytest.mark.usefixtures("by_aten")
def test_a_mean_comes_with_the_statistics_of_a_normalization():
    model = randomized(Means(nn.AdaptiveAvgPool2d(1), nn.GroupNorm(4, 16))).half().eval()
    x = torch.randn(3, 16, 8, 6).half()
    with torch.no_grad():
        fast = ct.optimize(model, x)
    assert of_images(fast.report) == [True, False]
    accurate(model, fast, x)


def test_kernels_with_sums_are_built_where_they_may_be_taken(monkeypatch):
    from convgen.torch.network import choice
    from convgen.torch.network.chains import chain_of
    from convgen.torch.network.trace import flat_graph

    built: list[str] = []

    def building(texts):
        built.extend(texts)
        return nullcontext()

    monkeypatch.setattr(choice, "prebuilding", building)
    monkeypatch.setattr(choice, "_aten_us", lambda *_: 1.0)
    model = normalized(2, nn.GroupNorm(4, 16)).half()
    x = torch.randn(2, 16, 8, 8).half().to(memory_format=torch.channels_last)
    names, weights = zip(*model.named_parameters(), strict=True)

    def function(x, *weights):
        return (torch.func.functional_call(model, dict(zip(names, weights, strict=True)), x),)

    graph = flat_graph(function, [x, *(weight.detach() for weight in weights)]).graph
    chains = [chain_of(node) for node in list(graph.nodes)]
    for sums, timed, found in ((True, True, 1), (False, True, 0), (True, False, 0)):
        built.clear()
        choice.Measured(measure=timed).prepare([chain for chain in chains if chain], sums)
        assert sum("result s1" in text for text in built) == found and built


@pytest.mark.usefixtures("by_aten")
def test_what_has_no_sums_of_images():
    class Both(nn.Module):
        """A concatenation reads the result, too."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)

        def forward(self, x):
            y = self.conv(x)
            return torch.cat([y, self.norm(y)], 1)

    x = torch.randn(2, 16, 8, 8)
    with torch.no_grad():
        for model, given in (
            (Both().half(), x.half()),
            (normalized(2, nn.GroupNorm(4, 16)), x),  # float32 has sums of its own precision
            (nn.Sequential(nn.ConvTranspose2d(16, 16, 2, 2), nn.InstanceNorm2d(16)).half(), x.half()),
            (nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16, track_running_stats=False)).half(), x.half()),
        ):
            fast = ct.optimize(model.eval(), given)
            assert not any(of_images(fast.report))
            accurate(model, fast, given)
        model = normalized(2, nn.GroupNorm(4, 16)).half()
        fast = ct.optimize(model, x.half(), inductor=False)  # the rest would be a pass for each function
        assert not any(of_images(fast.report))


def test_a_network_that_takes_strides_for_granted_keeps_its_normalizations():
    """Their results would lie otherwise."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.InstanceNorm2d(16)

        def forward(self, x):
            y = self.norm(self.conv(x))
            return torch.as_strided(y * 2, (2, 16, 4, 4), y.stride()) + 1

    model, x = Strided().half().eval(), torch.randn(2, 16, 8, 8).half()
    with torch.no_grad():
        fast = ct.optimize(model, x)
        assert [row.fused for row in fast.report] == ["add"] and "cannot be traced" not in str(fast.report)
    accurate(model, fast, x)


def test_images_of_one_channel_are_no_reason_to_keep_normalizations():
    """Their strides are written anew, as those of channels that are last: of medical images, say."""
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.ReLU()).half().eval()
    x = torch.randn(2, 1, 8, 8).half()
    with torch.no_grad():
        fast = ct.optimize(model, x)
        assert [row.fused for row in fast.report] == ["add sums: image_value image_square"]
    accurate(model, fast, x)


def test_statistics_are_measured_beside_a_pass_for_them(monkeypatch):
    """They are taken where the kernel with sums takes less than the one without and a pass that reads its result."""
    from convgen.torch.network.choice import Measured

    asked = Summed(Forward(*(torch.empty(1, 1, 1, 1) for _ in range(2)), [], "", (1, 1), (0, 0), (1, 1), 1), [], "", "")
    monkeypatch.setattr(Summed, "served", lambda self, tune=None: Served(lambda *_: None, kernel="tma_im2col"))
    monkeypatch.setattr(Timer, "passes", lambda self, asked, tensors: 4.0 * tensors)
    without = Row("conv", "winograd", 10.0, 12.0, "add", "GroupNorm needs sums over the result")
    for us, taken in ((13.0, True), (14.5, False)):
        monkeypatch.setattr(Timer, "with_sums", lambda self, asked, us=us: us)
        row = Measured().sums(asked, without)
        assert (row is not None) == taken
        if row:
            assert (row.kernel, row.us, row.aten_us, row.why_not) == ("tma_im2col", us, 16.0, "")
    assert Measured(measure=False).sums(asked, without) is None
