"""Training with convgen.torch on a CPU: which gradients are asked of convgen, and that steps are torch's."""

from __future__ import annotations

import copy
import re
import threading
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.diagnostics import ConvgenError  # noqa: E402
from convgen.ir.problem import Op  # noqa: E402
from convgen.runtime.errors import DriverError  # noqa: E402
from convgen.torch import aten, ops, override  # noqa: E402
from convgen.torch.asked import Forward, WithBias  # noqa: E402
from convgen.torch.choices import Choices  # noqa: E402
from convgen.torch.launch import Served  # noqa: E402
from convgen.torch.network import training  # noqa: E402
from convgen.torch.network.report import Row  # noqa: E402
from convgen.torch.network.timing import timed  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
LAST = dict(memory_format=torch.channels_last)


class All:
    """Launches whatever is asked, by aten, and remembers it."""

    def __init__(self, *_) -> None:
        self.asked = []

    def launch(self, asked):
        self.asked.append(asked)

        def call(first, second, operands):
            with timed():  # by aten itself, also within enabled()
                if isinstance(asked, Forward):
                    return aten.fused(first, second, operands, *asked[3:])
                if isinstance(asked, WithBias):
                    both = asked._replace(bare=asked.bare._replace(first=first, second=second))
                    return both.bare.by_aten(), both.sum()
                return asked._replace(first=first, second=second).by_aten()

        return call

    def close(self):
        pass

    def row(self, asked):
        return Row(asked.layer, "tma_im2col")

    measure = row

    @property
    def layers(self):
        return [asked.layer for asked in self.asked]


class Small(nn.Module):
    """A first layer, a block with a shortcut, and a head."""

    def __init__(self, conv=nn.Conv2d) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.a, self.b = conv(8, 8, 3, padding=1, groups=2), conv(8, 8, 1, bias=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.head((self.b(torch.relu(self.a(x))) + x).mean((2, 3)))


def losses(model, step=None, steps: int = 4):
    """Of SGD with momentum on the same images."""
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(4, 3, 12, 12, generator=generator).to(**LAST), torch.tensor([0, 1, 2, 3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = TF.cross_entropy((model if step is None else step)(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found[-1] < found[0]
    return found


def small(conv=nn.Conv2d):
    torch.manual_seed(0)
    return Small(conv).to(**LAST)


@pytest.fixture(scope="module")
def expected():
    return losses(small())


def near(found, right, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(right), rtol=tolerance, atol=tolerance)


def test_modules_train_as_torchs_do(expected):
    near(losses(small(ct.Conv2d)), expected)


def test_unmodified_models_train_as_before_and_every_gradient_is_asked_for(expected, monkeypatch):
    monkeypatch.setattr(override, "Choices", All)
    with ct.enabled() as serving:
        near(losses(small()), expected)
    x8, w8, w3, w1 = (4, 8, 6, 6), (8, 4, 3, 3), (8, 3, 3, 3), (8, 8, 1, 1)
    layers = serving._choices.layers
    assert len(layers) == 8 * len(expected)
    assert layers[:8] == [
        f"(4, 3, 12, 12) by {w3}", f"{x8} by {w8}", f"{x8} by {w1}",
        f"dgrad of {x8} by {w1}", f"wgrad of {x8} by {w1}",
        f"dgrad of {x8} by {w8}", f"wgrad of {x8} by {w8}, and the bias",
        f"wgrad of (4, 3, 12, 12) by {w3}",
    ]  # fmt: skip


def test_a_context_may_be_entered_again_and_decorates(monkeypatch):
    monkeypatch.setattr(override, "Choices", All)
    layer, x, context = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 6, 6), ct.enabled()
    for _ in range(2):
        with context as serving, context as within:
            near(context(layer)(x), layer(x))
        assert within is serving and len(serving._choices.asked) == 2
    layer(x)
    assert len(serving._choices.asked) == 2
    with pytest.raises(ConvgenError, match="measure is of type Conv2d: expected True or False"):
        ct.enabled(layer)


@pytest.mark.parametrize("frozen", ["", "weight", "input", "bias", "weight and input"])
def test_operators_ask_for_the_gradients_that_are_needed(frozen, monkeypatch):
    asked = All()
    monkeypatch.setattr(ops, "choices", asked)
    cuda = torch.library.Library("convgen", "IMPL")  # what the operators do on a GPU
    try:
        cuda.impl("conv_input", lambda *a: ops._gradient_on_gpu(ops.of_input(*a)), "CPU")
        cuda.impl("conv_weight", lambda *a: ops._gradient_on_gpu(ops.of_weight(*a)), "CPU")
        cuda.impl("conv_weight_bias", lambda *a: ops._with_bias_on_gpu(WithBias(ops.of_weight(*a))), "CPU")
        given = {"input": torch.randn(2, 4, 6, 5).to(**LAST), "weight": torch.randn(8, 4, 3, 3), "bias": torch.randn(8)}
        wanted = [t.requires_grad_() for name, t in given.items() if name not in frozen]
        y = ct.conv2d(**given, padding=1)
        direction = torch.randn(y.shape)  # contiguous
        found = torch.autograd.grad(y, wanted, direction)
    finally:
        cuda._destroy()
    for mine, theirs in zip(found, torch.autograd.grad(TF.conv2d(**given, padding=1), wanted, direction), strict=True):
        near(mine, theirs, 1e-4)
    kinds = [Op.DGRAD] * ("input" not in frozen)
    kinds += [Op.WGRAD if frozen == "bias" else "and the bias"] * ("weight" not in frozen)
    assert ["and the bias" if isinstance(a, WithBias) else a.op for a in asked.asked] == kinds
    tangents = [a.reads[a.layer.startswith("wgrad")] for a in asked.asked]
    assert all(t.is_contiguous(**LAST) for t in tangents) and len({t.data_ptr() for t in tangents}) == bool(kinds)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("output_padding", [0, 1, 2])
def test_transposed_convolutions_and_their_gradients_are_asked_for(output_padding, bias, monkeypatch):
    monkeypatch.setattr(override, "Choices", All)
    layer = nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding, dilation=3, groups=2, bias=bias)
    x = torch.randn(2, 4, 5, 4, requires_grad=True)
    right = layer(x)
    direction = torch.randn_like(right)
    inputs = x, *layer.parameters()
    gradients = torch.autograd.grad(right, inputs, direction)
    with ct.enabled() as serving:
        found = layer(x)
        near(found, right)
        for mine, theirs in zip(torch.autograd.grad(found, inputs, direction), gradients, strict=True):
            near(mine, theirs, 1e-4)
    asked = serving._choices.asked
    kinds = [(one.epilogue, one.transposed) if isinstance(one, Forward) else one.op for one in asked]
    forward = ("add", True) if bias else Op.DGRAD
    # with so much output padding that a further window fits, it is no gradient of a convolution
    assert kinds == ([forward, ("", False), Op.WGRAD] if output_padding < 2 else [])


def test_the_page_s_training_steps_run(monkeypatch):
    """Inductor's part is left out, as below, and the backend that an installation registers is named."""
    inner = lambda graph_module, inputs, **_: make_boxed_func(graph_module.forward)  # noqa: E731
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    text = (Path(__file__).parents[2] / "docs" / "from_pytorch.md").read_text().partition("## Training")[2]
    eager, compiled = re.findall(r"```python\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    torch.manual_seed(1)  # a step may be too long for other images
    found = {"ct": ct}
    exec(eager, found)
    assert len(found["serving"].report) == 7  # of each layer, of its filters, of these with the bias; and of an input
    first = found["loss"].item()
    exec(compiled.replace('backend="convgen"', "backend=ct.compile_graph"), found)
    assert found["loss"].item() < first


@pytest.fixture
def graphs(monkeypatch):
    """The operators of each graph that is compiled for training, after convgen's were put in."""
    found, take = [], training.take_convolutions

    def taken(graph, *others):
        rows = take(graph, *others)
        names = [str(node.target) for node in graph.nodes if node.op == "call_function" and "conv" in str(node.target)]
        found.append([name.removesuffix(".default") for name in names])
        return rows

    monkeypatch.setattr(training, "take_convolutions", taken)
    return found


@pytest.mark.parametrize("inductor", [False, True])
def test_compiled_steps_have_convgens_operators(expected, graphs, inductor, monkeypatch):
    """Inductor's part is left out: its C++ compiler takes long."""
    monkeypatch.setattr(ops, "choices", All())
    inner = lambda graph_module, inputs, **_: make_boxed_func(graph_module.forward)  # noqa: E731
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    torch._dynamo.reset()
    model = small()
    compiled = torch.compile(model, backend=ct.compile_graph, fullgraph=True, options={"inductor": inductor})
    near(losses(model, compiled), expected)
    assert graphs[0] == ["convgen.conv"] * 3
    assert sorted(graphs[1]) == ["convgen.conv_input"] * 2 + ["convgen.conv_weight"] * 3
    forward, backward = list(ct.reports())[-2:]
    assert (len(forward), len(backward)) == (3, 5) and "backward pass" in str(backward)


def test_a_compiled_step_keeps_what_aten_computes_faster(graphs, monkeypatch):
    class Some(All):
        def launch(self, asked):
            return super().launch(asked) if getattr(asked, "op", None) is Op.WGRAD else None

    monkeypatch.setattr(ops, "choices", Some())
    torch._dynamo.reset()
    layer, x = nn.Conv2d(4, 8, 3).to(**LAST), torch.randn(2, 4, 6, 6).to(**LAST).requires_grad_()
    inputs = x, *layer.parameters()
    expected = torch.autograd.grad(layer(x).square().sum(), inputs)
    compiled = torch.compile(layer, backend=ct.compile_graph, options={"inductor": False})
    for mine, theirs in zip(torch.autograd.grad(compiled(x).square().sum(), inputs), expected, strict=True):
        near(mine, theirs, 1e-4)
        assert mine.stride() == theirs.stride()
    assert graphs == [["aten.convolution"], ["aten.convolution_backward", "convgen.conv_weight"]]


@pytest.mark.parametrize("output_padding", [0, 1])
def test_compiled_transposed_convolutions(graphs, output_padding, monkeypatch):
    monkeypatch.setattr(ops, "choices", All())
    torch._dynamo.reset()
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=output_padding).to(**LAST)
    x = torch.randn(2, 4, 5, 5).to(**LAST).requires_grad_()
    inputs = x, *layer.parameters()
    expected = torch.autograd.grad(layer(x).square().sum(), inputs)
    compiled = torch.compile(layer, backend=ct.compile_graph, options={"inductor": False})
    for mine, theirs in zip(torch.autograd.grad(compiled(x).square().sum(), inputs), expected, strict=True):
        near(mine, theirs, 1e-4)
    assert graphs == [["convgen.conv_input"], ["convgen.conv_weight", "convgen.conv"]]


@pytest.mark.parametrize("inductor", [False, True])
def test_backward_passes_of_compiled_autograd_have_convgens_operators(expected, graphs, inductor, monkeypatch):
    """Torch gives what these read in a list.  Inductor's part is left out."""
    monkeypatch.setattr(ops, "choices", All())
    inner = lambda graph_module, inputs, **_: make_boxed_func(graph_module.forward)  # noqa: E731
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    torch._dynamo.reset()
    model, options = small(), {"inductor": inductor}
    compiler = torch.compile(backend=ct.compile_graph, options=options)
    with torch._dynamo.compiled_autograd._enable(compiler):
        near(losses(model, torch.compile(model, backend=ct.compile_graph, options=options)), expected)
    assert sorted(graphs[-1]) == ["convgen.conv_input"] * 2 + ["convgen.conv_weight"] * 3
    assert "of a backward pass" in str(ct.reports()[-1])


@pytest.mark.parametrize("inductor", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_compiled_optimizer_s_step_is_taken_once(kind, inductor, monkeypatch):
    """Weights are no arguments of its graph.  Inductor's part is left out."""
    inner = lambda graph_module, inputs, **_: make_boxed_func(graph_module.forward)  # noqa: E731
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    torch._dynamo.reset()
    options = dict(momentum=0.9) if kind == "SGD" else dict(amsgrad=True)
    x, model = torch.randn(2, 4, 6, 6), nn.Conv2d(4, 8, 3)
    other = copy.deepcopy(model)
    ready = ct.optimize(model.eval(), x, inductor=False)
    optimizers = [getattr(torch.optim, kind)(m.parameters(), lr=0.1, **options) for m in (model, other)]
    step = torch.compile(optimizers[0].step, backend=ct.compile_graph, options={"inductor": inductor})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(4):
            for each, take, optimizer in zip((model, other), (step, optimizers[1].step), optimizers, strict=True):
                optimizer.zero_grad()
                each(x).square().mean().backward()
                take()
            near(model.weight, other.weight, 1e-3)
            near(ready(x), other(x).detach(), 1e-3)


def test_a_checkpoint_is_computed_again_with_batch_norm():
    torch._dynamo.reset()
    layers = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    x = torch.randn(2, 4, 6, 6)

    def step(x):
        return torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=False).square().sum()

    expected = torch.autograd.grad(step(x), list(layers.parameters()))
    compiled = torch.compile(step, backend=ct.compile_graph, options={"inductor": False})
    for mine, theirs in zip(torch.autograd.grad(compiled(x), list(layers.parameters())), expected, strict=True):
        near(mine, theirs, 1e-4)


@pytest.mark.parametrize(("batches", "why_not"), [((2,), "channels are not last"), ((2, 3, 4), "symbolic")])
def test_a_compiled_step_says_what_it_leaves_to_inductor(batches, why_not, graphs):
    torch._dynamo.reset()
    layer = nn.Conv2d(4, 8, 3)
    compiled = torch.compile(layer, backend=ct.compile_graph, dynamic=len(batches) > 1, options={"inductor": False})
    for count in batches:
        compiled(torch.randn(count, 4, 6, 6)).sum().backward()
    assert layer.weight.grad is not None and all(why_not in row.why_not for row in ct.reports()[-1])
    assert graphs == [["aten.convolution"], ["aten.convolution_backward"]] * len(batches)


def test_many_calls_may_come_before_a_backward_pass():
    torch._dynamo.reset()
    cell = torch.compile(nn.Conv2d(4, 4, 3, padding=1), backend=ct.compile_graph, options={"inductor": False})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            state = torch.randn(2, 4, 6, 6)
            for _ in range(20):
                state = cell(state).tanh()
            state.sum().backward()
    assert not any("under torch.no_grad()" in str(each.message) for each in seen)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("passes", [0, 1])
def test_gradients_that_nobody_takes_are_told_of_once(passes, dynamic):
    torch._dynamo.reset()
    layer = torch.compile(nn.Conv2d(4, 8, 3), backend=ct.compile_graph, dynamic=dynamic, options={"inductor": False})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(20):
            result = layer(torch.randn(2, 4, 6, 6)).sum()
            if i == 4 and passes:
                result.backward()
    hints = [each for each in seen if "under torch.no_grad()" in str(each.message)]
    assert len(hints) == 1 - passes and all(each.filename == __file__ for each in hints)


def test_a_pass_that_begins_at_another_result_takes_gradients():
    """The first result may be a view of what was given, from where no pass leads back."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            h = self.body(x)
            torch._dynamo.graph_break()
            return h.flatten(2), self.head(h)

    torch._dynamo.reset()
    both = torch.compile(Both(), backend=ct.compile_graph, options={"inductor": False})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(12):
            features, y = both(torch.randn(2, 3, 6, 6))
            y.square().mean().backward()
            del features, y
    assert not [each for each in seen if "under torch.no_grad()" in str(each.message)]


def test_a_backward_pass_leaves_nothing_behind():
    x, w = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3, requires_grad=True)
    held = torch.relu(x)
    gone = weakref.ref(held)
    loss = ct.conv2d(held, w).sum()
    del held
    assert gone() is not None  # for the filters' gradient
    loss.backward()
    assert gone() is None
    held = torch.relu(x.requires_grad_())
    gone = weakref.ref(held)
    loss = ct.conv2d(held, w.detach()).sum()
    del held
    assert gone() is None  # nobody needs it


def test_autocast_trains_float32_weights():
    weights = []
    for conv in (nn.Conv2d, ct.Conv2d):
        torch.manual_seed(0)
        layer, x = conv(4, 8, 3), torch.randn(2, 4, 6, 6)
        with torch.autocast("cpu", torch.bfloat16):
            layer(x).float().square().sum().backward()
        weights.append(layer.weight.grad)
        assert layer.weight.grad.dtype is torch.float32
    near(*weights, 2e-2)


# ---- choices ------------------------------------------------------------------------------------


class OnGpu:
    is_cuda = True


class Kind:
    """Something to be asked for."""

    reads = (OnGpu(), OnGpu())
    layer, fused = "a layer", ""

    def __init__(self, key: str = "", serving: Served | None = None) -> None:
        self.key, self._serving, self.built = key, serving or Served(lambda *_: None, kernel="tma_wgrad"), 0

    def served(self) -> Served:
        self.built += 1
        return self._serving


@pytest.fixture
def clock(monkeypatch):
    """Microseconds (convgen's, aten's) that are measured, and whether a graph is captured."""

    class Clock:
        us, measured, capturing = (1.0, 2.0), 0, False

        def times(self, timer, asked):
            self.measured += 1
            if isinstance(self.us, Exception):
                raise self.us
            return self.us

    made = Clock()
    monkeypatch.setattr(Kind, "times", lambda asked, timer: made.times(timer, asked), raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    return made


def test_the_faster_one_is_taken_and_kept(clock):
    chosen, faster, slower = Choices(), Kind("a"), Kind("b")
    assert chosen.launch(faster) is faster.served().launch
    clock.us = 3.0, 2.0
    assert chosen.launch(slower) is None and chosen.launch(faster) is not None
    assert clock.measured == 2
    assert [(row.kernel, row.us, row.aten_us, row.why_not) for row in chosen.report] == [
        ("tma_wgrad", 1.0, 2.0, ""),
        ("aten", 3.0, 2.0, "tma_wgrad is slower"),
    ]
    assert Choices(measure=False).launch(slower) is not None


def test_what_was_taken_unmeasured_is_measured_when_that_is_asked_for(clock):
    chosen, faster, slower = Choices(), Kind("a"), Kind("b")
    for kind in (faster, slower):
        chosen.take(kind)
        assert chosen.launch(kind) is not None and chosen.row(kind).us is None
    clock.capturing = True
    chosen.measure(faster)
    assert not clock.measured
    clock.capturing = False
    chosen.measure(faster)
    clock.us = 3.0, 2.0
    chosen.measure(slower)
    chosen.measure(faster)  # known by now
    assert clock.measured == 2
    assert chosen.launch(faster) is not None and chosen.launch(slower) is None
    assert [chosen.row(kind).us for kind in (faster, slower)] == [1.0, 3.0]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: out of memory"),  # as making a stream does
        DriverError("cuModuleLoadData: the CUDA driver says CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"),
    ],
)
def test_what_is_not_served_or_cannot_be_timed_is_atens_with_the_reason(clock, error):
    chosen = Choices()
    assert chosen.launch(Kind("a", Served(None, "c is 3"))) is None
    clock.us = error
    assert chosen.launch(Kind("b")) is None
    assert [row.why_not for row in chosen.report] == ["c is 3", "there was no memory to time it"]


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("none is left")])
def test_aten_is_timed_while_kernels_are_built(clock, monkeypatch, error):
    class Recipe:
        def __init__(self, text):
            self.convolution, self.text = self, text

    class Asked(Kind):
        def recipe(self):
            if self.key == "refused":
                raise ConvgenError("no")
            return Recipe(f"conv {self.key}")

    done = []

    @contextmanager
    def building(texts):
        done.append(texts)
        yield
        done.append("built")

    def time_aten(asked, timer):
        done.append(asked.key)
        if error:
            raise error

    monkeypatch.setattr(training, "prebuilding", building)
    monkeypatch.setattr(Asked, "aten_us", time_aten, raising=False)
    chosen, asked = Choices(), [Asked("a"), Asked("refused", Served(None, "no")), Asked("b")]
    training._decide(asked, chosen, measure=True, tune=None)
    assert done == [["conv a", "conv b"], "a", "b", "built"]
    assert [row.us for row in chosen.report] == [1.0, None, 1.0]
    training._decide(asked, chosen, measure=True, tune=None)  # they are known
    assert done[4:] == [["conv a", "conv b"], "built"]


def test_another_error_of_timing_is_raised(clock):
    clock.us = RuntimeError("an illegal memory access")
    with pytest.raises(RuntimeError, match="illegal"):
        Choices().launch(Kind("a"))


def test_a_capture_takes_what_is_known_and_decides_nothing(clock):
    chosen, known, new = Choices(), Kind("a"), Kind("b")
    chosen.launch(known)
    clock.capturing = True
    assert chosen.launch(known) is not None and chosen.launch(new) is None
    assert (new.built, clock.measured) == (0, 1)
    clock.capturing = False
    assert chosen.launch(new) is not None


def test_kernels_are_built_aside_where_there_are_builders(clock):
    class Builders:
        def submit(self, task):
            self.task, self.future = task, Future()
            return self.future

    builders = Builders()
    chosen, kind = Choices(builders=builders), Kind()
    assert chosen.launch(kind) is None and chosen.launch(kind) is None and not clock.measured
    builders.future.set_result(builders.task())
    chosen.wait()
    assert chosen.launch(kind) is not None and kind.built == 1


def test_what_memory_was_short_for_is_asked_for_again(clock):
    chosen, kind = Choices(), Kind(serving=Served(None, "out of memory", for_now=True))
    assert chosen.launch(kind) is None and chosen.row(kind).why_not == "out of memory"
    kind._serving = Served(lambda *_: None, kernel="tma_wgrad")
    assert chosen.launch(kind) is not None and chosen.row(kind).kernel == "tma_wgrad"


def test_nothing_is_built_behind_the_end(clock):
    """Neither what waits for a builder nor what is asked for by a thread that is still inside."""
    builders, busy = ThreadPoolExecutor(1), threading.Event()
    builders.submit(busy.wait, 60)
    chosen, waiting, late = Choices(builders=builders), Kind("waiting"), Kind("late")
    assert chosen.launch(waiting) is None
    chosen.close()
    chosen.wait()
    assert chosen.launch(waiting) is None and chosen.launch(late) is None
    busy.set()
    assert (waiting.built, late.built) == (0, 0)


def test_threads_decide_a_kind_once(clock):
    chosen, kind, found = Choices(), Kind(), []
    threads = [threading.Thread(target=lambda: found.append(chosen.launch(kind))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (kind.built, clock.measured) == (1, 1) and None not in found and len(found) == 8


@pytest.mark.parametrize(
    ("options", "failing", "tried"),
    [
        ({}, False, [True, True]),  # of the two passes
        ({"combo_kernels": False}, False, [False, False]),
        ({}, True, [True, False, True, False]),
    ],
)
def test_small_kernels_are_launched_together_where_inductor_can(options, failing, tried, monkeypatch):
    """And what is cheap to compute is computed again."""
    from torch._inductor import compile_fx, config

    found, inner = [], compile_fx.compile_fx_inner

    def compiled(module, *arguments, **facts):
        assert (config.realize_reads_threshold, config.realize_opcount_threshold) == (12, 60)
        found.append(config.combo_kernels)
        if failing and config.combo_kernels:
            module.graph.erase_node(next(reversed(list(module.graph.nodes))))  # it may change what it is given
            raise RuntimeError("these kernels cannot be combined")
        return inner(module, *arguments, **facts)

    monkeypatch.setattr(compile_fx, "compile_fx_inner", compiled)
    torch._dynamo.reset()  # of the same graph with other options
    torch.manual_seed(0)
    layer, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    torch.compile(layer, backend=ct.compile_graph, options=options)(x).sum().backward()
    assert config.realize_reads_threshold == 4
    made = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x).sum().backward()
    assert found == tried
    for gradient, parameter in zip(made, layer.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
