"""Networks on a CPU: the graph is rewritten as on a GPU, the operators are aten's functions, the results stay."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import random
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from nearness import near  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch.launch import Served, recipe  # noqa: E402
from convgen.torch.network import backend, choice, constants, prepare, timing  # noqa: E402
from convgen.torch.network.chains import chain_of  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call, value_of  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn
TF = nn.functional


def trained(model: nn.Module) -> nn.Module:
    """With BatchNorms that do something, for inference."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_var, 0.5, 2)
            for tensor in (module.running_mean, module.weight, module.bias):
                nn.init.uniform_(tensor, -1, 1)
    return model.eval()


def conv_bn(c: int, k: int, taps: int = 1, **options) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, k, taps, padding=taps // 2, bias=False, **options), nn.BatchNorm2d(k))


class Bottleneck(nn.Module):
    """ResNet's."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.a, self.b, self.c = conv_bn(c, k // 4), conv_bn(k // 4, k // 4, 3, stride=stride), conv_bn(k // 4, k)
        self.down = conv_bn(c, k, stride=stride) if stride > 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.c(self.relu(self.b(self.relu(self.a(x)))))
        y += self.down(x)
        return self.relu(y)


class Inverted(nn.Module):
    """EfficientNet's: expand, depthwise, squeeze and excite, project."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_bn(c, 4 * c), conv_bn(4 * c, 4 * c, 3, groups=4 * c)
        self.squeeze, self.excite = nn.Conv2d(4 * c, c, 1), nn.Conv2d(c, 4 * c, 1)
        self.project = conv_bn(4 * c, c)

    def forward(self, x):
        y = TF.silu(self.depthwise(TF.hardswish(self.expand(x))))
        y = y * torch.sigmoid(self.excite(TF.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y)


class Dense(nn.Module):
    """DenseNet's: BatchNorm and relu stand before the convolutions."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.a = nn.BatchNorm2d(c), conv_bn(c, 16)
        self.b = nn.Conv2d(16, 8, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.b(torch.relu(self.a(torch.relu(self.norm(x)))))], 1)


class ConvNext(nn.Module):
    """ConvNeXt's: linear layers over channels that are last, a scale, a residual."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.a, self.b = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.randn(c, 1, 1))

    def forward(self, x):
        y = self.b(TF.gelu(self.a(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return x + self.scale * y.permute(0, 3, 1, 2)


class Encoder(nn.Module):
    """A transformer's: torch's attention has the sequence first, where its linear layers read what lies otherwise."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2))
        self.attention = nn.MultiheadAttention(c, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Inception(nn.Module):
    """Branches that are joined."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.a, self.b = conv_bn(c, 8), nn.Sequential(conv_bn(c, 4), nn.ReLU(), conv_bn(4, 8, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(c, 8))

    def forward(self, x):
        return torch.cat([TF.relu6(branch(x)) for branch in (self.a, self.b, self.pool)], 1)


class Classifier(nn.Module):
    """A network whose flattening is a view: channels last must not break it."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 16, 3, 2, 1), nn.Sequential(*blocks)
        self.head = nn.LazyLinear(10)

    def forward(self, x):
        return self.head(TF.dropout(torch.flatten(self.blocks(TF.leaky_relu(self.stem(x), 0.1)), 1), training=False))


NETWORKS = {
    "resnet": lambda: Classifier(Bottleneck(16, 32, 2), Bottleneck(32, 32)),
    "efficientnet": lambda: Classifier(Inverted(16), Inverted(16)),
    "densenet": lambda: Classifier(Dense(16), Dense(24)),
    "inception": lambda: Classifier(Inception(16), Inception(24)),
    "convnext": lambda: Classifier(ConvNext(16), ConvNext(16)),
}
#: What is fused into each convolution, in the order of the network; the classifier's linear layer comes last.
FUSED = {
    "resnet": [
        "add leaky_relu:0.1",
        "add relu",
        "add relu",
        "add add relu",
        "add",
        "add relu",
        "add relu",
        "add add relu",
    ],
    "efficientnet": [
        "add leaky_relu:0.1",
        *["add hardswish", "add silu", "add silu", "add sigmoid", "before: mul; add add"] * 2,
    ],
    "densenet": ["add leaky_relu:0.1", *["before: mul add relu; add relu", ""] * 2],
    "convnext": ["add leaky_relu:0.1", *["add", "add gelu", "add mul add"] * 2],
    "inception": [
        "add leaky_relu:0.1",
        *["add hardtanh:0.0,6.0", "add relu", "add hardtanh:0.0,6.0", "add hardtanh:0.0,6.0"] * 2,
    ],
}


def network(name: str, x: torch.Tensor) -> nn.Module:
    made = NETWORKS[name]()
    made(x)  # so that it knows its sizes
    return trained(made)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_stay_right_and_everything_is_fused(name):
    x = torch.randn(2, 3, 16, 16)
    model = network(name, x)
    with torch.no_grad():
        expected = model(x)
    fast = ct.optimize(model, x, inductor=False)
    near(fast(x), expected)
    assert [row.fused for row in fast.report] == [*FUSED[name], "add"]
    count = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) - 2 * (name == "densenet")
    notes = [f"{count} BatchNorms are folded into the convolutions before them"] * (count > 0)
    notes += ["2 concatenations are written in place"] * (name in ("densenet", "inception"))
    notes += ["aten computes it on the CPU: move the model and its inputs to a GPU"]
    assert fast.report.notes == notes
    compiled = torch.compile(model, backend=ct.compile_graph, fullgraph=True, options={"inductor": False})
    with torch.no_grad():
        near(compiled(x), expected)
    assert list(ct.reports()[-1]) == list(fast.report)


def test_inductor_compiles_the_rest():
    x = torch.randn(2, 3, 16, 16)
    model = network("resnet", x)
    with torch.no_grad():
        near(ct.optimize(model, x)(x), model(x))


@pytest.mark.parametrize("training", [False, True])
def test_inductor_keeps_what_it_compiles_for_this_convgen(training, monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    from convgen.torch.network import inductor

    def prepare_and_run() -> str:
        """What became of the graphs in Inductor's cache: all hits, or all misses."""
        torch._dynamo.reset()
        counters.clear()
        x = torch.randn(2, 3, 8, 8)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardswish())
        if training:
            result = torch.compile(model, backend=ct.compile_graph)(x)
            result.sum().backward()
        else:
            result = ct.optimize(model.eval(), x)(x)
        near(result, model(x))
        (outcome,) = {name for name in counters["inductor"] if name.startswith("fxgraph_cache")}
        return outcome.removeprefix("fxgraph_cache_")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert [prepare_and_run(), prepare_and_run()] == ["miss", "hit"]
    monkeypatch.setattr(inductor, "schema_digest", lambda: "of another convgen")
    assert [prepare_and_run(), prepare_and_run()] == ["miss", "hit"]


@pytest.mark.parametrize("compiled", [False, True], ids=["optimize", "compile"])
def test_inductor_compiles_for_the_sizes_that_are(compiled):
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    def call():
        with torch.no_grad():
            return torch.compile(model, backend=ct.compile_graph)(x) if compiled else ct.optimize(model, x)(x)

    torch._dynamo.reset()
    # torch 2.13 cannot compare the strides of a strided convolution's result if the sizes are symbols
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3, 2)).eval()
    x = torch.randn(2, 3, 9, 9)
    with config.patch(force_disable_caches=True):
        result, sources = run_and_get_code(call)
    near(result, model(x))
    assert sources and not re.search(r"\bk?s\d+\b", "".join(sources))


class Endless:
    """An argument of an operator, as Inductor has them in a deep network of residual blocks."""

    def __str__(self) -> str:
        raise AssertionError("printed")


@pytest.mark.parametrize("training", [False, True])
def test_inductor_does_not_print_graphs(training, monkeypatch):
    from torch._inductor import compile_fx
    from torch._inductor.exc import OperatorIssue

    printed = []
    real = compile_fx.compile_fx_inner

    def tell() -> None:
        printed.append(OperatorIssue.operator_str("another's", [Endless()], {}))

    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda *args, **facts: tell() or real(*args, **facts))
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    if training:
        torch.compile(model, backend=ct.compile_graph)(x).sum().backward()
    else:
        monkeypatch.setattr("torch._inductor.compile", lambda run, *_: tell() or run)
        ct.optimize(model.eval(), x)(x)
    assert printed and all("another" in text for text in printed)
    assert "convgen.fused_conv" in OperatorIssue.operator_str(torch.ops.convgen.fused_conv.default, [Endless()], {})
    with pytest.raises(AssertionError, match="printed"):
        OperatorIssue.operator_str("another's", [Endless()], {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_loses_no_more_than_torch_does(dtype):
    x = torch.randn(32, 3, 16, 16)
    model = network("resnet", x)
    with torch.no_grad():
        half = model.to(dtype)
        exact = copy.deepcopy(half).double()(x.to(dtype).double())
        torchs = half(x.to(dtype)).double() - exact
        ours = ct.optimize(half, x.to(dtype), inductor=False)(x.to(dtype)).double() - exact
    assert ours.norm() < 1.5 * torchs.norm()


class TestWeights:
    @pytest.fixture
    def model(self):
        return network("resnet", torch.randn(2, 3, 16, 16))

    @pytest.mark.parametrize("compiled", [False, True])
    def test_changed_weights_are_noticed(self, model, compiled):
        x = torch.randn(2, 3, 16, 16)
        if compiled:
            fast = torch.compile(model, backend=ct.compile_graph, options={"inductor": False})
        else:
            fast = ct.optimize(model, x, inductor=False)
        with torch.no_grad():
            fast(x)
            model.stem.weight.mul_(2)
            near(fast(x), model(x))
            model.blocks[0].a[1].running_mean.add_(1)
            near(fast(x), model(x))
            model.head.weight.data = model.head.weight.data.clone() + 1
            near(fast(x), model(x))
            other = network("resnet", x)
            model.load_state_dict(other.state_dict())
            near(fast(x), other(x))

    def test_writes_that_torch_does_not_count_need_a_refresh(self):
        model, x = trained(conv_bn(4, 6, 3)), torch.randn(2, 4, 8, 8)
        fast = ct.optimize(model, x, inductor=False)
        model[0].weight.data.mul_(2)
        fast.refresh()
        near(fast(x), model(x))

    def test_modules_that_share_code_keep_their_own_weights(self):
        blocks = [trained(Bottleneck(16, 16)) for _ in range(2)]
        x = torch.randn(1, 16, 8, 8)
        with torch.no_grad():
            fast = [torch.compile(b, backend=ct.compile_graph, options={"inductor": False}) for b in blocks]
            for _ in range(2):
                for block, made in zip(blocks, fast, strict=True):
                    near(made(x), block(x))

    def test_copies_prepare_themselves(self, model):
        x = torch.randn(2, 3, 16, 16)
        fast = ct.optimize(model, x, inductor=False)
        for made in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
            near(made(x), fast(x))

    def test_weights_have_the_names_of_the_models(self, model):
        x = torch.randn(2, 3, 16, 16)
        fast, other = ct.optimize(model, x, inductor=False), copy.deepcopy(model)
        assert fast.state_dict().keys() == model.state_dict().keys()
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1.25)
        fast.load_state_dict(other.state_dict())
        near(fast(x), other(x))
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
        model.load_state_dict(fast.state_dict())
        around, plain = nn.Sequential(fast), nn.Sequential(copy.deepcopy(model))
        assert around.state_dict().keys() == plain.state_dict().keys()
        around.load_state_dict(plain.state_dict())
        with pytest.raises(RuntimeError, match="Unexpected key"):
            fast.load_state_dict(other.state_dict() | {"another.weight": torch.zeros(1)})


def test_other_shapes_and_layouts_prepare_themselves():
    model = trained(nn.Sequential(conv_bn(3, 8, 3), nn.ReLU()))
    x = torch.randn(2, 3, 8, 8)
    fast = ct.optimize(model, x, inductor=False)
    compiled = torch.compile(model, backend=ct.compile_graph, options={"inductor": False})
    with torch.no_grad():
        for other in (
            x,
            x[:1],
            torch.randn(3, 3, 9, 10),
            x.contiguous(memory_format=torch.channels_last),
            x[:, :, ::2],
        ):
            near(fast(other), model(other))
            near(compiled(other), model(other))


def test_arguments_and_results_of_any_structure():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.offset = nn.Conv2d(3, 4, 3), torch.randn(4, 1, 1)

        def forward(self, x, scale, *, mask=None, twice=False):
            y = self.conv(x["image"]) * scale + self.offset
            y = y if mask is None else y * mask
            return {"y": [y + y if twice else y, x["image"].shape[0]], "x": torch.relu(y)}

    model = Model().eval()
    x = {"image": torch.randn(2, 3, 8, 8)}
    fast = ct.optimize(model, (x, 0.5), inductor=False)
    with torch.no_grad():
        for keywords in ({}, {"mask": torch.randn(6, 6)}, {"twice": True, "mask": None}):
            found, expected = fast(x, 0.5, **keywords), model(x, 0.5, **keywords)
            near(found["y"][0], expected["y"][0])
            near(found["x"], expected["x"])
            assert found["y"][1] == 2


def test_what_is_given_may_be_a_result():
    """Encoders return the image with its features."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return x, x[:, 1:].flatten(1), y, y.detach(), y.clone(), self.conv.bias

    model, x = Model().eval(), torch.randn(2, 3, 8, 8)
    fast = ct.optimize(model, x, inductor=False)
    near(fast(x), model(x))
    assert [row.fused for row in fast.report] == ["add"]


class Shuffle(nn.Module):
    """ShuffleNet's block: what is shuffled has channels first; `view` of the result wants the layout that it had."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_bn(8, 16, groups=2), conv_bn(16, 16, 3, groups=16)
        self.pad, self.project = nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        y = TF.relu(self.expand(x))
        y = y.view(-1, 2, 8, 6, 6) + torch.tensor([1.0, 2.0])[:, None, None, None]
        y = y.transpose(1, 2).reshape(-1, 16, 6, 6)
        a, b = self.depthwise(y).view(-1, 2, 8, 6, 6).transpose(1, 2).reshape(y.shape).chunk(2, 1)
        return TF.relu(self.project(self.pad(a)) + b).view(x.shape[0], -1)


@pytest.mark.parametrize("compiled", [False, True])
def test_convolutions_read_channels_last(compiled, monkeypatch):
    read = []
    monkeypatch.setattr(
        choice.OnCpu,
        "choose",
        lambda self, chain, layer, choose=choice.OnCpu.choose: (
            read.append(value_of(chain.x)) or choose(self, chain, layer)
        ),
    )
    model, x = trained(Shuffle()), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        if compiled:
            fast = torch.compile(model, backend=ct.compile_graph, fullgraph=True, options={"inductor": False})
        else:
            fast = ct.optimize(model, x, inductor=False)
        near(fast(x), model(x))
    assert len(read) == 3 and all(v.is_contiguous(memory_format=torch.channels_last) for v in read)
    report = ct.reports()[-1] if compiled else fast.report
    assert [row.fused for row in report] == ["add relu", "add", "add add relu"]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_images_of_one_channel_lie_as_torchs(rank):
    """Nothing but strides says whether their channel is last, and views behind the first layer need to know."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    flat = nn.Sequential(conv(1, 4, 3), nn.ReLU(), nn.GroupNorm(4, 4), nn.Flatten(), nn.Linear(4 * 4**rank, 3)).eval()
    deep = nn.Sequential(conv(1, 4, 3), nn.ReLU(), conv(4, 4, 3), nn.Flatten(2)).eval()
    torch.compiler.reset()
    for model in (flat, deep):
        x = torch.randn(2, 1, *[6] * rank)
        with torch.no_grad():
            near(ct.optimize(model, x, inductor=False)(x), model(x))
            compiled = torch.compile(model, backend=ct.compile_graph, fullgraph=True, options={"inductor": False})
            near(compiled(x), model(x))


def test_views_of_arguments_stay_views():
    """Between Dynamo's graphs, where somebody may write to them."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, bias=False)

        def forward(self, x):
            view, y, rows = x[1:, 1:3], torch.relu(self.conv(x)), self.conv.weight[1].flatten(1)
            torch._dynamo.graph_break()
            return y.sum() + view.add_(1).sum() + x.sum() + rows.sum()

    model, x = Model().eval(), torch.randn(2, 4, 6, 6)
    compiled = torch.compile(model, backend=ct.compile_graph, options={"inductor": False})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in (1, 2):
            ours, theirs = x[:1].repeat(3, 1, 1, 1)[1:] * scale, x[:1].repeat(2, 1, 1, 1) * scale
            near(compiled(ours), model(theirs))
            assert torch.equal(ours, theirs)
    assert "relu" in [row.fused for report in ct.reports() for row in report]
    assert not [w for w in caught if "alias inputs" in str(w.message)]


@pytest.mark.parametrize(("name", "failing"), [("densenet", 0.0), ("efficientnet", 0.0), ("efficientnet", 0.3)])
def test_networks_stay_right_whatever_is_fastest(name, failing, monkeypatch):
    """With one image, on a machine where each candidate serves, and times are as they come, where there is memory."""
    draws = random.Random(0)

    class Drawn:
        def fused(self, *_, **__):
            if draws.random() < failing:
                raise RuntimeError("CUDA error: out of memory")
            return draws.random()

        def aten(self, *_, **__):
            return 1.5 * self.fused()

        def release(self):
            pass

    def served(*arguments, **_):
        recipe(*arguments)
        return Served(lambda *_: None, kernel="a kernel")

    def chooser():
        made = choice.Measured(measure=False)
        made._timer = Drawn()
        return made

    monkeypatch.setattr(choice, "served", served)
    monkeypatch.setattr(choice, "prebuilding", lambda texts: contextlib.nullcontext())
    monkeypatch.setattr(prepare, "OnCpu", chooser)
    x = torch.randn(1, 3, 16, 16)
    model = network(name, x)
    fast = ct.optimize(model, x, inductor=False)
    near(fast(x), model(x).detach())
    assert {row.kernel for row in fast.report} == {"a kernel", "aten"}
    assert ("there was no memory to time it" in {row.why_not for row in fast.report}) == (failing > 0)


def test_a_graph_of_no_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = torch.compile(lambda n: torch.arange(n) * 2, backend=ct.compile_graph, options={"inductor": False})
        assert made(3).tolist() == [0, 2, 4]


def test_constants_of_the_code_stay():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None] + torch.arange(4)[:, None, None]

    model, x = Model().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        near(ct.optimize(model, x, inductor=False)(x), model(x))
        near(torch.compile(model, backend=ct.compile_graph, options={"inductor": False})(x), model(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_threads_may_bring_new_shapes_at_once(compiled):
    model = nn.Sequential(conv_bn(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3))
    trained(model)
    if compiled:
        fast = torch.compile(model, backend=ct.compile_graph, options={"inductor": False})
    else:
        fast = ct.optimize(model, torch.randn(1, 4, 8, 8), inductor=False)

    def differs(n: int) -> bool:
        x = torch.ones(1 + n % 4, 4, 8, 8)
        with torch.no_grad():
            return not all(torch.allclose(fast(x), model(x), atol=1e-4) for _ in range(3))

    with ThreadPoolExecutor(6) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any(pool.map(differs, range(6)))
    torch._dynamo.reset()  # it compiles a function a few times only, and other tests have Sequential's, too


def test_a_compiled_model_runs_while_another_thread_traces():
    traces, goes_on = threading.Event(), threading.Event()

    @torch.library.custom_op("convgen_tests::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @waits.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        if torch.fx._symbolic_trace.is_fx_tracing() and x.shape[0] > 1:
            traces.set()
            assert goes_on.wait(600)
        return torch.empty_like(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return waits(self.conv(x))

    model = Model().eval()
    fast = torch.compile(model, backend=ct.compile_graph, options={"inductor": False}, dynamic=False)
    known, other = torch.randn(1, 3, 5, 5), torch.randn(2, 3, 5, 5)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        fast(known)
        traced = pool.submit(torch.no_grad()(fast), other)
        try:
            assert traces.wait(600)
            near(fast(known), model(known))
        finally:
            goes_on.set()
        near(traced.result(), model(other))


def test_autocast_is_part_of_what_is_prepared():
    model = trained(nn.Sequential(conv_bn(4, 6, 3), nn.ReLU()))
    x = torch.randn(2, 4, 8, 8)
    fast = ct.optimize(model, x, inductor=False)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = fast(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert fast(x).dtype is torch.float32


def test_arguments_that_nobody_can_tell_apart_go_to_the_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x, scale):
            return self.conv(x) * scale[0]

    model, x = Model().eval(), torch.randn(1, 3, 5, 5)
    fast = ct.optimize(model, (x, bytearray(b"2")), inductor=False)
    for scale in (2, 3):
        torch.testing.assert_close(fast(x, bytearray([scale])), model(x, [scale]))


def test_what_is_no_module_is_refused():
    with pytest.raises(ConvgenError, match="the model is of type function"):
        ct.optimize(lambda x: x, torch.randn(1))


def test_wrong_arguments_are_no_reason_to_leave_a_model_as_it_is():
    model, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 8, 8)
    for wrong in (None, "x", x.numpy()):
        with pytest.raises(ConvgenError, match="without a tensor\nhint: pass a tensor, a tuple"):
            ct.optimize(model, wrong)
    own = "convgen's own, `measure`, `inductor` and `tune`, are keywords of `optimize`; the backend takes them"
    with pytest.raises(ConvgenError, match=f"Inductor has no option 'nonsense'\n.*{own}"):
        ct.optimize(model, x, options={"nonsense": True})
    with pytest.raises(ConvgenError, match="inductor is 'no': expected True or False"):
        ct.optimize(model, x, inductor="no")


def test_a_model_in_training_mode_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(ConvgenError, match="training mode"):
        ct.optimize(model, torch.randn(1, 3, 8, 8))
    with pytest.raises(ConvgenError, match="for inference"):
        ct.optimize(model.eval(), torch.randn(1, 3, 8, 8), inductor=False).train()
    fast = ct.optimize(model, torch.randn(1, 3, 8, 8), inductor=False)
    model.train()
    with pytest.raises(ConvgenError, match="training mode"):
        fast(torch.randn(1, 3, 8, 8))


def test_what_cannot_be_traced_runs_as_it_is():
    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    x = torch.ones(1, 3, 4, 4)
    with pytest.warns(UserWarning, match="leaves the model as it is"):
        fast = ct.optimize(nn.Sequential(Branches()).eval(), x, inductor=False)
    assert torch.equal(fast(x), x + 1) and torch.equal(fast(-x), -x - 1)
    assert "nothing was optimized" in str(fast.report)


class Detector(nn.Module):
    """As many results as there are bright pixels, of an image that is written into; and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 8, 3), nn.ReLU())
        self.backbone.stride = 2  # what detectors' backbones tell
        self.heads = nn.ModuleList([nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)])
        self.box = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh())
        self.register_buffer("calls", torch.zeros(()))
        self.largest = 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        self.largest = max(self.largest, x.shape[2])
        features = self.backbone(x.sub_(0.5)) * scale
        scores, boxes = (head(features) for head in self.heads)
        bright = boxes.movedim(1, -1)[scores[:, 0] >= scores[:, 0].median()]
        if bright.mean().item() > 1e3:
            bright = bright * 2
        return {
            "boxes": self.box(bright[:: self.backbone.stride].T[None]),
            "calls": self.calls.clone(),
            "largest": self.largest,
        }


def test_parts_of_what_cannot_be_traced_are_optimized(monkeypatch):
    monkeypatch.setattr("convgen.torch.network.optimize.MOST_KINDS", 2)
    model, right = (trained(Detector()) for _ in range(2))
    right.load_state_dict(model.state_dict())
    with pytest.warns(
        UserWarning, match=r'its parts are optimized at their first call(.|\n)*hint: .*backend="convgen"'
    ):
        fast = ct.optimize(model, torch.randn(1, 3, 9, 9), inductor=False)
    for size in range(9, 13):  # more kinds than a part is prepared for
        x = torch.randn(1, 3, size, 9)
        with torch.no_grad():
            near(fast(x.clone(), scale=2.0), right(x.clone(), scale=2.0))
    assert "backbone: 1 BatchNorm is folded" in str(fast.report) and all(len(n) < 300 for n in fast.report.notes)
    layers = {row.layer: row.fused for row in fast.report}
    assert layers == {"backbone.0.0": "add relu", "heads.0": "add", "heads.1": "add", "box.0": "add tanh"}
    assert model.calls == 4 and not fast._model.state_dict().keys() ^ right.state_dict().keys()
    with torch.no_grad():
        model.heads[1].bias.add_(1)
        model.backbone[0][0].weight = nn.Parameter(torch.zeros_like(model.backbone[0][0].weight))
        near(fast(x.clone()), copy.deepcopy(model)(x.clone()) | {"calls": model.calls})
    assert "backbone" in str(copy.deepcopy(fast)._model)


def test_the_backend_is_registered():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (target,) = re.findall(r"\[project.entry-points.torch_dynamo_backends\]\nconvgen = \"(.*)\"", text)
    assert target == "convgen.torch:compile_graph"
    for found in entry_points(group="torch_dynamo_backends", name="convgen"):  # where it is installed
        assert found.load() is ct.compile_graph


def test_a_checkout_that_is_not_installed_registers_the_backend(monkeypatch):
    registry = torch._dynamo.backends.registry
    for known in ("_BACKENDS", "_COMPILER_FNS"):
        monkeypatch.setattr(registry, known, {})
    monkeypatch.setattr(backend, "entry_points", lambda **_: ())
    for _ in range(2):
        backend.register()
    assert registry.lookup_backend("convgen") is ct.compile_graph


# ---- chains -------------------------------------------------------------------------------------

CHAINS = {
    "add hardtanh:0.0,6.0": lambda t, o: TF.relu6(t),
    "add clamp_min:0.5": lambda t, o: t.clamp(min=0.5),
    "add clamp_max:0.5": lambda t, o: t.clamp_max(0.5),
    "add clamp:-1.0,0.5": lambda t, o: t.clamp(-1, 0.5),
    "add elu:0.5": lambda t, o: TF.elu(t, 0.5),
    "add gelu": lambda t, o: TF.gelu(t),
    "add gelu_tanh": lambda t, o: TF.gelu(t, approximate="tanh"),
    "add hardsigmoid": lambda t, o: TF.hardsigmoid(t),
    "add silu": lambda t, o: t * torch.sigmoid(t),
    "add softplus": lambda t, o: TF.softplus(t),
    "add mish": lambda t, o: TF.mish(t),
    "add tanh mul:0.5 add:1.0": lambda t, o: torch.tanh(t) / 2 + 1,
    "add mul add": lambda t, o: o[:, :, :1, :1] * t + o,
    "add sub relu": lambda t, o: TF.relu(t - o),
    "add mul:-1.0 add": lambda t, o: o - t,
    "add sigmoid mul:-1.0 add:1.0": lambda t, o: 1 - torch.sigmoid(t),
    "add mul:-1.0 relu": lambda t, o: TF.relu(-t),
    "add prelu": lambda t, o: TF.prelu(t, o[0, :, 0, 0]),
    "add elu:1.6732632423543772 mul:1.0507009873554805": lambda t, o: TF.selu(t),
    "add mul:2.0 elu:1.0 mul:0.5": lambda t, o: TF.celu(t, 0.5),
    "add mul:2.0 softplus mul:0.5": lambda t, o: TF.softplus(t, 2),
    "add hardswish": lambda t, o: t * (TF.relu6(t + 3) / 6),
    "add hardswish mul:0.75": lambda t, o: (t + 3).clamp(0, 6) * t / 8,
    "add mul:1.5 silu mul:0.6666666666666666": lambda t, o: t * torch.sigmoid(1.5 * t),
    "add mish relu": lambda t, o: TF.relu(torch.tanh(TF.softplus(t)) * t),
    "add": lambda t, o: t * torch.sigmoid(0 * t),
    "add gelu tanh": lambda t, o: torch.tanh(0.5 * t * (1 + torch.erf(t / math.sqrt(2)))),
    "add gelu add": lambda t, o: t * (torch.erf(t * 0.70710678) + 1.0) / 2 + o,
    "add gelu_tanh relu": lambda t, o: TF.relu(
        0.5 * t * (1 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * torch.pow(t, 3))))
    ),
    "add gelu_tanh mul:2.0": lambda t, o: t * (1 + torch.tanh(t * 0.7978845608 * (1 + 0.044715 * t * t))),
    "add silu mul:0.5": lambda t, o: t / (1 + torch.exp(-t)) / 2,
    "add sigmoid": lambda t, o: 1 / (1 + torch.exp(-t)),
    "add mish mul:-1.0": lambda t, o: -t * torch.tanh(torch.log(1 + torch.exp(t))),
    "add relu mul:2.0": lambda t, o: 2 * torch.where(t <= 0, 0.0, t),
    "add relu tanh": lambda t, o: torch.tanh(torch.where(t < 0, torch.zeros_like(t), t)),
    "add relu sigmoid": lambda t, o: torch.sigmoid(torch.maximum(t, torch.zeros_like(t))),
    "add relu elu:1.0": lambda t, o: TF.elu(t * (t > 0).float()),
    "add relu add": lambda t, o: t.masked_fill(t < 0, 0) + o,
    "add leaky_relu:0.2": lambda t, o: torch.max(t, 0.2 * t),
    "add leaky_relu:0.1 mul:2.0": lambda t, o: torch.where(t >= 0, t, 0.1 * t) * 2,
    "add leaky_relu:0.25": lambda t, o: torch.relu(t) - 0.25 * torch.relu(-t),
    "add softsign": lambda t, o: TF.softsign(t),
    "add clamp_min:0.0": lambda t, o: TF.threshold(t, 0, 0),
    "add relu square": lambda t, o: torch.relu(t) ** 2,
    "add square": lambda t, o: t * t,
    "add tanh mul:2.0 add": lambda t, o: (u := torch.tanh(t)) + u + o,
    "add tanh square mul:2.0": lambda t, o: (u := torch.tanh(t).square()) + u,
    "add exp": lambda t, o: t.exp(),
    "add abs sqrt": lambda t, o: t.abs() ** 0.5,
    "add maximum minimum": lambda t, o: torch.minimum(torch.max(t, o), o + 1),
    "add div": lambda t, o: t / (o * o + 1),
    "add tanh relu": lambda t, o: torch.relu(torch.tanh(t / 1 + 0) * 1.0),
    "add add tanh": lambda t, o: torch.tanh(TF.dropout(TF.dropout(t, training=False) + o, training=False)),
    "add tanh mul:1e-06 mul:1000000.0": lambda t, o: torch.tanh(t).mul(1e-6).mul(1e6),
    "add sigmoid mul:2.0": lambda t, o: torch.sigmoid(t) * 1e-6 * 2e6,
    "add silu mul:3.0": lambda t, o: t * torch.sigmoid(t) * 1e-6 * 3e6,
    "add relu clamp_max:100.0": lambda t, o: torch.relu(t).clamp(max=100),
    "add relu mul:3.0": lambda t, o: 3 * t * (1 - (t < 0).float()),
    "add leaky_relu:0.5": lambda t, o: t * ((t > 0) + 0.5 * (t <= 0)),
    "add softplus mul:2.0": lambda t, o: 2 * (torch.log1p(torch.exp(-t.abs())) + t.clamp(min=0)),
    "add mul:0.0 mul:2.0": lambda t, o: t * 0 * 2,
    "add relu": lambda t, o: (lambda u: u - u)(TF.relu(t)),
    "add silu relu": lambda t, o: TF.relu(TF.silu(t)).flatten(2),
    "add tanh": lambda t, o: torch.tanh(t).softmax(1),
    "add mul:3.0": lambda t, o: (t * 3)[:, 1:],
}


#: What looks like an activation, and is none.
NO_CHAINS = (
    lambda t, o: 0.5 * t * (1 + torch.erf(t)),
    lambda t, o: 0.5 * t * (1 + torch.erf(t / math.sqrt(2))) * torch.erf(o + t / math.sqrt(2)),
    lambda t, o: 0.5 * t * (1 + torch.erf(o * t)),
    lambda t, o: t * torch.tanh(t),
    lambda t, o: torch.where(t > 0.5, t, 0.0),
    lambda t, o: torch.where(t > 0.2, t, torch.zeros_like(t)),
    lambda t, o: torch.where(t > 0.1, t, 0.2 * t),
    lambda t, o: t * (t > 0.1),
    lambda t, o: t * (2 * t + 0.3 > 0.5).float(),
    lambda t, o: t * (t.clamp(min=0.1) > 0.2),
    lambda t, o: torch.where(t > 0.1, torch.where(t < 0.11, 0.0, t), t.clamp(min=0)),
    lambda t, o: t * torch.sigmoid(100 * t),
    lambda t, o: torch.exp(-((100 * (t - 0.1)) ** 2)) + t.clamp(min=0),
    lambda t, o: 1 / (1e16 * (t - 0.1) ** 2 + 1) + t.clamp(min=0),
    lambda t, o: (1 / t).clamp(-100, 100),  # beyond, a result is as good as its last bits
    lambda t, o: torch.where(t > 0, t, o),
    lambda t, o: TF.threshold(t, 0, 1),
    lambda t, o: t.sin(),
    lambda t, o: t * torch.sigmoid(t).flip(2),
    lambda t, o: t * torch.maximum(t > 0, t > 1) + torch.minimum(t > 0, t > -1) * o,
)


class Followed(nn.Module):
    """A convolution, and a function of its result."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x, o):
        return self.function(self.conv(x), o)


@pytest.mark.parametrize(("fused", "function"), [*CHAINS.items(), *(("add", f) for f in NO_CHAINS)])
def test_chains_end_where_an_epilogue_must(fused, function):
    model, x, o = Followed(function).eval(), 3 * torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6, 6)
    fast = ct.optimize(model, (x, o), inductor=False)
    with torch.no_grad():
        near(fast(x, o), model(x, o))
    assert [row.fused for row in fast.report] == [fused]


@settings(max_examples=20, deadline=None)
@given(
    knot=st.floats(1e-6, 1e6) | st.floats(-1e6, -1e-6),
    slope=st.floats(0.01, 7) | st.floats(-7, -0.01),
    compare=st.sampled_from(["gt", "ge", "lt", "le"]),
    below=st.sampled_from([0.0, 0.2]),
)
def test_an_activation_s_knot_is_seen_wherever_it_is(knot, slope, compare, below):
    def function(x, w):
        y = TF.conv2d(x, w)
        return (torch.where(getattr(torch, compare)(slope * y, slope * knot), y, below * y),)

    graph = flat_graph(function, [torch.randn(1, 2, 3, 3), torch.randn(2, 2, 1, 1)]).graph
    (chain,) = [found for node in graph.nodes if (found := chain_of(node))]
    assert not chain.steps


@pytest.mark.parametrize("fused", ["add gelu tanh", "add relu tanh", "add relu mul:2.0"])
def test_activations_are_known_whatever_the_default_device(fused):
    """A GPU, say, where the rest of a program makes its tensors."""
    model, x, o = Followed(CHAINS[fused]).eval(), 3 * torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6, 6)
    with torch.device("meta"):
        fast = ct.optimize(model, (x, o), inductor=False)
    near(fast(x, o), model(x, o))
    assert [row.fused for row in fast.report] == [fused]


def test_an_epilogue_is_rounded_once():
    x, scale = torch.randn(1, 8, 16, 16).half(), 1.7
    epilogue = f"mul:{scale} silu mul:{1 / scale}"
    found = torch.ops.convgen.fused_conv(
        x, torch.eye(8)[..., None, None].half(), [], epilogue, [1, 1], [0, 0], [1, 1], 1
    )
    expected = x.double() * torch.sigmoid(scale * x.double())
    assert ((found - expected).abs() <= expected.abs() * (2**-11 + 1e-6) + 2**-25).all()


# ---- choosing -----------------------------------------------------------------------------------


@dataclass
class Times:
    """In the place of the timer: microseconds by the epilogue's steps, and aten's."""

    by_epilogue: dict[str, float]
    by_aten: float

    def fused(self, arguments, left, source=None, opens=False):
        us = self.by_epilogue[arguments[3]]
        return us if left is None else us + 10 * left

    def aten(self, arguments, left, linear=False, source=None, opens=False):
        return self.by_aten if left is None else self.by_aten + 10 * left

    def copy(self, tensor):
        return 4


@pytest.mark.parametrize(
    ("by_epilogue", "aten", "chosen"),
    [
        ({"add": 5, "add add relu": 20}, 10, "add add relu"),  # 20 before 5 + two reads, and before 10 + two
        ({"add": 5, "add add relu": 26}, 10, "add"),
        ({"add": 9, "add add relu": 40}, 8, None),
    ],
)
def test_the_fastest_end_of_a_chain_is_taken(monkeypatch, by_epilogue, aten, chosen):
    def function(x, w, b, z):
        return (torch.relu(TF.conv2d(x, w, b) + z),)

    graph = flat_graph(
        function, [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 6, 6)]
    )
    (node,) = [n for n in graph.graph.nodes if is_call(n, torch.ops.aten.convolution.default)]
    serving = Served(lambda *_: None, kernel="a kernel")
    monkeypatch.setattr(choice, "served", lambda *_, **__: serving)
    measured = choice.Measured(measure=False)
    measured._timer = Times(by_epilogue, aten)
    chain = chain_of(node)
    found = measured.choose(chain, "layer")
    assert (found.end and chain.epilogue(found.end)) == chosen
    assert found.row.kernel == ("a kernel" if chosen else "aten")
    assert found.row.why_not == ("" if chosen else "a kernel is slower")


@pytest.mark.parametrize(
    ("others", "by_epilogue", "aten", "chosen"),
    [
        (False, {"add": 8, "add add relu": 11}, 10, "add"),  # 11 beside 8 + a read, and 10 + a read
        (False, {"add": 11, "add add relu": 11}, 10, "add add relu"),
        (False, {"add": 12, "add add relu": 13}, 10, None),
        (True, {"add": 12, "add add relu": 13}, 10, "add add relu"),  # 10 + a read and a write
    ],
)
def test_a_normalization_takes_what_is_left_on_its_way(monkeypatch, others, by_epilogue, aten, chosen):
    def function(x, w, b, z):
        y = torch.relu(TF.conv2d(x, w, b) + z)
        normalized = TF.layer_norm(y.permute(0, 2, 3, 1), (4,))
        return (normalized, y) if others else (normalized,)

    graph = flat_graph(
        function, [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 6, 6)]
    )
    (node,) = [n for n in graph.graph.nodes if is_call(n, torch.ops.aten.convolution.default)]
    monkeypatch.setattr(choice, "served", lambda *_, **__: Served(lambda *_: None, kernel="a kernel"))
    measured = choice.Measured(measure=False)
    measured._timer = Times(by_epilogue, aten)
    chain = chain_of(node)
    found = measured.choose(chain, "layer")
    assert (found.end and chain.epilogue(found.end)) == chosen


@pytest.mark.parametrize(("others", "taken"), [([], "add sigmoid"), ([torch.randn(1, 4, 1, 1)], "add")])
def test_a_bias_as_large_as_the_result_is_no_reason_to_stop(monkeypatch, others, taken):
    """Of squeeze and excite, with one image."""

    def function(x, w, b, *others):
        y = TF.conv2d(x, w, b)
        return (y + others[0] if others else torch.sigmoid(y),)

    graph = flat_graph(function, [torch.randn(1, 8, 1, 1), torch.randn(4, 8, 1, 1), torch.randn(4), *others])
    (chain,) = [found for node in graph.graph.nodes if (found := chain_of(node))]
    monkeypatch.setattr(choice, "served", lambda *_, **__: Served(lambda *_: None))
    measured = choice.Measured(measure=False)
    measured._timer = Times({"add": 1, "add sigmoid": 1, "add add": 25}, 30)
    assert measured.choose(chain, "layer").row.fused == taken


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Zero", "Constant", "Reflection", "Replication"])
def test_padding_before_a_convolution_is_the_convolution_s(kind, rank):
    """Asymmetric, and beside padding of zeros that the convolution has itself."""
    amounts = (0, 1, 1, 1, 2, 0)[: 2 * rank]
    pad = getattr(nn, f"{kind}Pad{rank}d")(amounts, *[0.0] * (kind == "Constant"))
    own = 1 if kind in ("Zero", "Constant") else 0
    model = nn.Sequential(pad, getattr(nn, f"Conv{rank}d")(4, 6, 3, padding=own), nn.ReLU()).eval()
    x = torch.randn(2, 4, *[5] * rank)
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert fast.report.rows[0].fused == "add relu"


@pytest.mark.parametrize(
    "pad",
    [
        nn.ConstantPad2d(1, 0.5), nn.ZeroPad2d((-1, 1, 0, 0)), nn.ConstantPad3d((0, 0, 0, 0, 1, 1), 0.0),
        nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 1, padding=1)),
    ],
)  # fmt: skip
def test_padding_that_a_convolution_has_not_stays(pad):
    model = nn.Sequential(pad, nn.Conv2d(6 if isinstance(pad, nn.ConstantPad3d) else 4, 6, 3), nn.ReLU()).eval()
    x = torch.randn(2, 6 if isinstance(pad, nn.Sequential) else 4, 6, 6)
    torch.testing.assert_close(ct.optimize(model, x, inductor=False)(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("amounts", "mode", "own", "padding"),
    [
        ((0, 1, 2, 0), "constant", (0, 1), [2, 1, 0, 2]), ((1, 1), "constant", 1, [1, 2]),
        ((1, 1, 1, 1), "reflect", 0, [1, 1]), ((0, 1, 1, 2), "replicate", 0, [1, 0, 2, 1]),
        ((1, 1, 1, 1), "reflect", (0, 1), [0, 1]),  # zeros beside the mirror
    ],
)  # fmt: skip
def test_chains_know_the_padding(amounts, mode, own, padding):
    tensors = torch.randn(2, 4, 6, 6), torch.randn(6, 4, 3, 3)
    graph = flat_graph(lambda x, w: (TF.conv2d(TF.pad(x, amounts, mode), w, padding=own),), tensors).graph
    (chain,) = [found for node in graph.nodes if (found := chain_of(node))]
    outside = "zeros" if mode == "constant" or own else mode
    assert (chain.padding, chain.padding_mode) == (padding, outside)


def test_the_report_of_nothing_is_a_sentence():
    assert str(ct.Report()) == "nothing was optimized: there are no convolutions"
    assert str(ct.Report(notes=["its parts are"])) == "its parts are" and "<table" not in ct.Report()._repr_html_()


def test_the_report_is_a_table():
    report = ct.Report([ct.Row("stem", "tma_im2col: 128x64", 3.25, 5.0, "add relu")], ["1 BatchNorm is folded"])
    assert str(report).splitlines() == [
        "layer  kernel              us   aten us  fused     why not",
        "stem   tma_im2col: 128x64  3.2  5.0      add relu",
        "1 BatchNorm is folded",
    ]


def test_linear_layers_of_sequences_are_fused(monkeypatch):
    """Attention's first one, too, of which torch makes products with the weights expanded to a batch."""
    model, x = nn.Sequential(Encoder(16), Encoder(16)).eval(), torch.randn(3, 7, 16)
    graphs = []
    monkeypatch.setattr("convgen.torch.network.prepare.compiled", lambda run, *_: graphs.append(run) or run)
    fast = ct.optimize(model, x)
    with torch.no_grad():
        near(fast(x), model(x))
    assert [(row.layer.partition(".")[2], row.fused) for row in fast.report] == 2 * [
        ("attention.in_proj", "add"),
        ("attention.out_proj", "add add"),
        ("mlp.0", "add gelu"),
        ("mlp.2", "add add"),
    ]
    packed = [buffer for _, buffer in graphs[0].named_buffers()]
    assert sum(b.numel() for b in packed) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("shape", [(3, 7, 16), (2, 3, 5, 16), (2, 3, 4, 5, 16)], ids=len)
@pytest.mark.parametrize("swapped", [False, True], ids=["in order", "swapped"])
def test_linear_layers_of_every_rank(shape, swapped):
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 16)

        def forward(self, x):
            y = x.transpose(0, 1) if swapped else x
            return torch.relu(self.b(torch.relu(self.a(y)))) + y

    model, x = Swapped().eval(), torch.randn(shape)
    fast = ct.optimize(model, x)
    with torch.no_grad():
        near(fast(x), model(x))
        assert fast(x).stride() == model(x).stride()
    assert [row.fused for row in fast.report] == ["add relu", "add relu add"]


def test_two_views_of_one_result_meet():
    class Symmetric(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.a(x)
            y = torch.relu(y.transpose(1, 2) + y)
            z = self.b(y.transpose(1, 2)).transpose(1, 2)
            return y * torch.sigmoid(z) + z.transpose(0, 1)

    model, x = Symmetric().eval(), torch.randn(8, 8, 8)
    with torch.no_grad():
        near(ct.optimize(model, x)(x), model(x))


def test_linear_layers_that_convgen_does_not_take_stay_linear_layers(monkeypatch):
    monkeypatch.setattr(choice.OnCpu, "choose", lambda _, chain, __: choice.Choice(chain, None, ct.Row("", "aten")))
    model, x = ConvNext(16).eval(), torch.randn(2, 16, 8, 8)
    graphs = []
    monkeypatch.setattr("convgen.torch.network.prepare.compiled", lambda run, *_: graphs.append(run) or run)
    with torch.no_grad():
        near(ct.optimize(model, x)(x), model(x))
    calls = [node.target for node in graphs[0].graph.nodes]
    assert calls.count(torch.ops.aten.convolution.default) == 1 and calls.count(torch.ops.aten.linear.default) == 2


POINTWISE = [1, 1], [0, 0], [1, 1], 1


class Clock:
    """In the place of a GPU: each launch takes a microsecond."""

    captures, releases, free = 0, 0, 1 << 40

    def free_bytes(self):
        return self.free

    def stream(self):
        return contextlib.nullcontext()

    def capture(self, body):
        type(self).captures += 1
        body()
        return object()

    def replay(self, graph, times):
        return [0.001] * times

    def environment(self):
        return {"gpu": "a clock"}

    def release(self):
        type(self).releases += 1


@pytest.mark.parametrize(
    ("free", "rotated", "expected"), [(1 << 40, 150e6, 32), (20 << 20, 150e6, 9), (0, 150e6, 2), (1 << 40, 1e6, 1)]
)
def test_buffers_take_half_of_the_memory_that_is_free(monkeypatch, tmp_path, free, rotated, expected):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    sets = []

    def capture(run, number, backend):
        sets.append(number)
        return timing.measure.Captured(None, 1, 1.0, run)

    monkeypatch.setattr(timing, "TorchBackend", Clock)
    monkeypatch.setattr(timing, "_machines", {})
    monkeypatch.setattr(Clock, "free", free)
    monkeypatch.setattr(timing.measure, "capture", capture)
    monkeypatch.setattr(timing.measure, "ROTATED_BYTES", rotated)
    x, w = torch.empty(1, 8, 128, 128), torch.empty(8, 8, 1, 1)
    assert timing.Timer().aten((x, w, [], "", [1, 1], [0, 0], [1, 1], 1), None) > 0
    assert sets == [expected]  # of a megabyte, and the filters


def test_times_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timing, "TorchBackend", Clock)
    monkeypatch.setattr(timing, "_machines", {})
    monkeypatch.setattr(timing.measure, "REPLAY_MS", 0.01)
    called = []
    serving = Served(lambda x, w, o: called.append(o) or TF.conv2d(x, w), kernel="a kernel")
    monkeypatch.setattr(timing, "served", lambda *_, **__: serving)
    x, w, z = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 1, 1), torch.empty(1).expand(2, 4, 8, 8)
    arguments = x, w, [z], "add", [1, 1], [0, 0], [1, 1], 1
    captured = []
    for _ in range(2):
        timer = timing.Timer()
        assert timer.fused(arguments, None) > 0 and timer.fused(arguments, 2) > 0
        assert timer.aten(arguments, 1) > 0 and timer.aten(arguments, None, linear=True) > 0
        assert timer.fused(arguments, None, gated=True) > 0 and timer.aten(arguments, None, gated=True) > 0
        source = torch.empty(2, 3, 4, 4)  # upsampled before
        assert timer.fused(arguments, None, source) > 0 and timer.aten(arguments, None, False, source) > 0
        captured.append(Clock.captures)
    assert captured[0] == captured[1] >= 8 and called[0][0].shape == (2, 4, 8, 8)
    timer.fused((*arguments[:3], "add relu", *arguments[4:]), None)
    assert Clock.captures > captured[1]
    serving = replace(serving, kernel="the kernel that tuning found")
    captured.append(Clock.captures)
    assert timer.fused(arguments, None) > 0 and Clock.captures > captured[2]


@pytest.mark.parametrize(
    ("owner", "switch", "value"),
    [
        (torch.backends.cudnn, "benchmark", True),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ],
)
def test_times_by_other_switches_of_torch_are_measured_anew(owner, switch, value, monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timing, "TorchBackend", Clock)
    monkeypatch.setattr(timing, "_machines", {})
    monkeypatch.setattr(timing.measure, "REPLAY_MS", 0.01)
    arguments = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 1, 1), [], "", [1, 1], [0, 0], [1, 1], 1
    timing.Timer().aten(arguments, None, linear=True)
    before, was = Clock.captures, getattr(owner, switch)
    setattr(owner, switch, value)
    try:
        timing.Timer().aten(arguments, None, linear=True)
        measured = Clock.captures
        timing.Timer().aten(arguments, None, linear=True)
    finally:
        setattr(owner, switch, was)
    assert before < measured == Clock.captures


def test_what_measuring_took_is_given_back_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timing, "TorchBackend", Clock)
    monkeypatch.setattr(timing, "_machines", {})
    monkeypatch.setattr(timing.measure, "REPLAY_MS", 0.01)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(Clock, "releases", 0)
    for expected in (1, 1):  # the second one finds times on disk
        timer = timing.Timer()
        for pixels in (4, 5):
            timer.aten((torch.empty(1, 3, pixels, pixels), torch.empty(4, 3, 1, 1), [], "", *POINTWISE), None)
        timer.release()
        timer.release()
        assert Clock.releases == expected


def test_numbers_that_change_from_call_to_call_are_told_of_once():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 1)

        def forward(self, x, t):
            return self.layer(x) * t

    model, x = Scaled().eval(), torch.randn(1, 3, 4, 4)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ready = ct.optimize(model, (x, 0), inductor=False)
        for t in range(12):
            torch.testing.assert_close(ready(x, t), model(x, t))
        assert [
            str(each.message).splitlines()[1] for each in seen if "only in Python numbers" in str(each.message)
        ] == ["hint: pass a number that changes from call to call as a tensor"]
        for n in range(2, 14):
            ready(torch.randn(n, 3, 4, 4), 0)
        assert len([each for each in seen if "only in Python numbers" in str(each.message)]) == 1


def test_weights_that_a_capture_packs_are_packed_again_behind_it(monkeypatch):
    """The capture only records it: a call before its first replay would read the old ones."""
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval(), torch.randn(1, 3, 4, 4)
    with torch.no_grad():
        ready = ct.optimize(model, x, inductor=False)
        model[0].weight.mul_(2)
        with monkeypatch.context() as capture:
            capture.setattr(constants, "torch_is_capturing", lambda: True)
            capture.setattr(constants.Packed, "_hold", lambda *_: None)  # recorded, and not done
            ready(x)
        torch.testing.assert_close(ready(x), model(x))
