"""convgen.torch's functions and modules on a CPU: aten's results, and good manners towards the rest of torch."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from nearness import near  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen import ConvgenError  # noqa: E402
from convgen.torch import launch  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
TF = torch.nn.functional
LAST = dict(memory_format=torch.channels_last)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_functions_are_torchs(rank, padding):
    x, w, b = torch.randn(2, 4, *[6] * rank), torch.randn(6, 2, *[2] * rank), torch.randn(6)
    expected = getattr(TF, f"conv{rank}d")(x, w, b, padding=padding, groups=2)
    near(getattr(ct, f"conv{rank}d")(x, w, b, padding=padding, groups=2), expected)
    near(getattr(ct, f"conv{rank}d")(x[0], w, b, padding=padding, groups=2), expected[0])


@pytest.mark.parametrize("record", [False, True])
def test_residual_and_activation(record):
    x, w, b, z = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(2, 4, 1, 1)
    w.requires_grad_(record)
    found = ct.conv2d(x, w, b, residual=z, activation=("leaky_relu", 0.2))
    near(found, TF.leaky_relu(TF.conv2d(x, w, b) + z, 0.2))
    assert found.requires_grad is record


MODES = ["zeros", "reflect", "replicate", "circular"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [[1, 1], [0, 1, 1, 1], [2, 0, 0, 3], [0, 0]])
def test_gradients_of_first_and_second_order(padding, mode):
    kinds = dict(dtype=torch.float64, requires_grad=True)
    tensors = torch.randn(2, 4, 5, 6, **kinds), torch.randn(6, 2, 3, 3, **kinds), torch.randn(6, **kinds)

    def conv(x, w, b):
        return torch.ops.convgen.conv(x, w, b, [1, 2], padding, [1, 1], 2, mode)

    # fast: along one direction in all elements at once, which is drawn
    assert torch.autograd.gradcheck(conv, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(conv, tensors, fast_mode=True)


@pytest.mark.costly
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("padding", [[1, 1], [0, 1, 1, 1], [2, 0, 0, 1, "reflect"]])
def test_operators_pass_opcheck(channels_last, padding):
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(6, 2, 3, 3, requires_grad=True), torch.randn(6, requires_grad=True)
    x = (x.to(**LAST) if channels_last else x).requires_grad_()
    *padding, mode = padding if "reflect" in padding else [*padding, "zeros"]
    geometry = [1, 2], padding, [1, 1], 2, mode
    torch.library.opcheck(torch.ops.convgen.conv.default, (x, w, b, *geometry))
    if not channels_last:
        torch.library.opcheck(torch.ops.convgen.conv.default, (x, w, None, *geometry))
    x, w, b = x.detach(), w.detach(), b.detach()
    z = torch.ops.convgen.conv(x, w, None, *geometry)
    arguments = x, w, [b.view(6, 1, 1), z], "add silu add clamp:-1.0,1.0", *geometry
    torch.library.opcheck(torch.ops.convgen.fused_conv.default, arguments)


def test_operators_of_gradients_pass_opcheck():
    x, w = torch.randn(2, 4, 5, 6).to(**LAST).requires_grad_(), torch.randn(6, 2, 3, 3, requires_grad=True)
    geometry = [1, 2], [2, 0, 0, 1], [1, 1], 2, "reflect"
    y = torch.ops.convgen.conv(x, w, None, *geometry).detach().requires_grad_()
    of_weight = x, y, list(w.shape)
    of_all = {"conv_input": (y, w, list(x.shape)), "conv_weight": of_weight, "conv_weight_bias": of_weight}
    for operator, arguments in of_all.items():
        torch.library.opcheck(getattr(torch.ops.convgen, operator).default, (*arguments, *geometry))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("w_last", [False, True])
def test_channels_are_last_where_torchs_are(x_last, w_last, channels):
    x, w = torch.randn(2, channels, 5, 6), torch.randn(4, channels, 3, 3)
    x, w = x.to(**LAST) if x_last else x, w.to(**LAST) if w_last else w
    assert ct.conv2d(x, w).stride() == TF.conv2d(x, w).stride()
    x, w = torch.randn(2, channels, 5), torch.randn(4, channels, 3)
    assert ct.conv1d(x, w).stride() == TF.conv1d(x, w).stride()


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_autocast_pads_as_torchs_modules_do(mode):
    """Torch's functions for some of these modes give float32 under a CPU's autocast."""
    theirs = torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode)
    ours, x = ct.Conv2d.from_module(theirs), torch.randn(2, 4, 6, 6)
    gradients = []
    for layer in (theirs, ours):
        image = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(image)
            assert y.dtype is torch.bfloat16
            y.sum().backward()
        gradients.append((y, image.grad))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-2)


def test_autocast_casts_as_for_torchs_convolutions():
    x, w = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert ct.conv2d(x, w, activation="relu").dtype is torch.bfloat16


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(padding="same", dilation=2),
        *[dict(padding=p, padding_mode=m) for m in MODES[1:] for p in (1, "same")],
    ],
)
def test_modules_take_torchs_modules_over(rank, options):
    theirs = getattr(torch.nn, f"Conv{rank}d")(4, 6, 3, groups=2, **options)
    ours = getattr(ct, f"Conv{rank}d").from_module(theirs)
    x = torch.randn(2, 4, *[7] * rank)
    near(ours(x), theirs(x))
    assert ours.weight is theirs.weight and ours.state_dict().keys() == theirs.state_dict().keys()
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        near(made(x), theirs(x))
    ours(x).sum().backward()
    assert theirs.weight.grad is not None


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_batches_may_be_absent_or_empty(rank, mode):
    theirs = getattr(torch.nn, f"Conv{rank}d")(4, 6, 3, padding=1, padding_mode=mode)
    ours = getattr(ct, f"Conv{rank}d").from_module(theirs, activation="relu")
    for shape in ((4, *[5] * rank), (0, 4, *[5] * rank)):
        x, given = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
        expected, found = torch.relu(theirs(x)), ours(given)
        near(found, expected)
        gradients = torch.autograd.grad(expected.sum(), (x, *theirs.parameters()))
        for mine, other in zip(torch.autograd.grad(found.sum(), (given, *ours.parameters())), gradients, strict=True):
            near(mine, other)
        with torch.no_grad():
            near(ours(x), expected)


def test_padding_that_cannot_be_is_refused():
    x, w = torch.randn(1, 2, 3, 4), torch.randn(2, 2, 3, 3)
    with pytest.raises(ConvgenError, match="padding_mode is 'mirror': expected 'zeros', 'reflect'"):
        ct.conv2d(x, w, padding=1, padding_mode="mirror")
    with pytest.raises(ConvgenError, match="axis H: padding 3 by 'reflect' of 3 pixels: expected at most 2"):
        ct.conv2d(x, w, padding=3, padding_mode="reflect")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(input=np.zeros((1, 3, 5, 5))), "input is of type ndarray: expected a torch.Tensor"),
        (dict(weight=None), "weight is of type NoneType"),
        (dict(bias=1.0), "bias is of type float"),
        (dict(input=torch.zeros(5, 5)), "input has shape (5, 5) and weight (4, 3, 3, 3): expected weight of 4 axes"),
        (dict(weight=torch.zeros(4, 3, 3)), "expected weight of 4 axes, and input of as many, or of one less"),
        (dict(bias=torch.zeros(4, 1)), "bias has shape (4, 1): expected 4 values"),
        (dict(bias=torch.zeros(5)), "bias has shape (5,): expected 4 values"),
        (
            dict(bias=torch.zeros(4, dtype=torch.complex64)),
            "bias has elements of torch.complex64, input of",
        ),
        (
            dict(residual=torch.zeros(2, 4, 3, 3)),
            "residual has shape (2, 4, 3, 3): it does not broadcast",
        ),
        (dict(groups="3"), "groups is '3': expected a whole number"),
        (dict(padding_mode=["zeros"]), "padding_mode is ['zeros']: expected 'zeros', 'reflect'"),
        (dict(residual=torch.zeros(1, 1, 4, 3, 3)), "it does not broadcast to (1, 4, 3, 3)"),
    ],
)
def test_mistakes_are_named(arguments, message):
    good = dict(input=torch.zeros(1, 3, 5, 5), weight=torch.zeros(4, 3, 3, 3))
    with pytest.raises(ConvgenError, match=re.escape(message)):
        ct.conv2d(**(good | arguments))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64, torch.int64])
def test_types_that_convgen_does_not_serve_are_torchs(dtype):
    x, w, b = (torch.randint(-4, 5, shape).to(dtype) for shape in ((2, 3, 5, 6), (4, 3, 3, 3), (4,)))
    assert torch.equal(ct.conv2d(x, w, b, padding=(1, 0)), TF.conv2d(x, w, b, padding=(1, 0)))
    assert torch.equal(ct.conv2d(x, w, padding=((1, 0), (0, 0))), TF.conv2d(TF.pad(x, (0, 0, 1, 0)), w))


@pytest.mark.parametrize(
    ("input", "weight", "options"),
    [
        ((1, 3, 4, 5), (5, 3, 7, 6), {}),
        ((1, 3, 4, 5), (5, 3, 3, 3), {"dilation": [4, 1], "padding": [2, 0]}),
        ((1, 3, 4, 5), (5, 4, 3, 3), {}),
        ((1, 4, 4, 5), (6, 2, 3, 3), {"groups": 3}),
        ((1, 4, 4, 5), (5, 2, 3, 3), {"groups": 2}),
        ((1, 4, 4, 5), (5, 2, 3, 3), {"groups": 0}),
    ],
)
def test_tensors_without_data_are_refused_as_those_with(input, weight, options):
    with pytest.raises(RuntimeError) as expected:
        TF.conv2d(torch.ones(input), torch.ones(weight), **options)
    said = str(expected.value).replace("[[", "[").replace("]]", "]")
    x, w = torch.ones(input, device="meta"), torch.ones(weight, device="meta")
    for activation in (None, "relu"):
        with pytest.raises(RuntimeError, match=re.escape(said)):
            ct.conv2d(x, w, activation=activation, **options)


def test_transposed_convolutions_without_data_are_refused_as_those_with():
    x, w, geometry = torch.ones(1, 3, 4, 4), torch.ones(4, 5, 3, 3), ([1, 1], [0, 0], [1, 1], 1, "zeros", True)
    for device in ("cpu", "meta"):
        with pytest.raises(RuntimeError, match=r"transposed=1, .* input\[1, 3, 4, 4\] to have 4 channels, but got 3"):
            torch.ops.convgen.fused_conv(x.to(device), w.to(device), [], "relu", *geometry)


@pytest.mark.parametrize("padding", [0, "same"])
def test_mkldnn_s_tensors_stay_mkldnn_s(padding):
    x, layer = torch.randn(2, 4, 6, 7), ct.Conv2d(4, 4, 3, padding=padding, activation="relu")
    for module in (layer, layer.requires_grad_(False)):
        found = module(x.to_mkldnn())
        assert found.is_mkldnn
        near(found.to_dense(), layer(x))
    w = layer.weight
    near(ct.conv2d(x.to_mkldnn(), w, residual=x.to_mkldnn(), padding=1).to_dense(), TF.conv2d(x, w, padding=1) + x)


def test_tensors_without_data_have_shapes():
    assert ct.Conv2d(3, 4, 3, activation="relu", device="meta")(torch.empty(2, 3, 5, 6, device="meta")).shape == (
        2,
        4,
        3,
        4,
    )


class Scaled(torch.nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


def hooked():
    module = torch.nn.Conv2d(3, 4, 3)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (torch.nn.Linear(3, 4), "the module is of type Linear: expected a torch.nn.Conv2d"),
        (torch.nn.ConvTranspose2d(3, 4, 3), "the module is of type ConvTranspose2d"),
        (torch.nn.Conv1d(3, 4, 3), "the module is of type Conv1d"),
        (torch.nn.LazyConv2d(4, 3), "the module has no weights yet"),
        (Scaled(3, 4, 3), "Scaled overrides forward, which would be lost"),
        (hooked(), "the module has hooks, which would be lost"),
        (
            torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(3, 4, 3)),
            "weight is computed on each access",
        ),
    ],
)
def test_modules_that_would_compute_something_else_are_refused(module, message):
    with pytest.raises(ConvgenError, match=message):
        ct.Conv2d.from_module(module)
    assert ct.Conv2d.from_module(ct.Conv2d(3, 4, 3)).weight.shape == (4, 3, 3, 3)


def test_a_module_with_an_activation_shows_it():
    made = ct.Conv2d(3, 4, 3, activation="relu")
    assert "activation='relu'" in repr(made) and (made(torch.randn(1, 3, 5, 5)) >= 0).all()
    with pytest.raises(ConvgenError, match="there is no activation 'rleu'"):
        ct.Conv2d(3, 4, 3, activation="rleu")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_modules_name_their_parameters(rank):
    theirs, ours = (getattr(of, f"Conv{rank}d") for of in (torch.nn, ct))
    expected = [*inspect.signature(theirs).parameters.values()]
    found = [*inspect.signature(ours).parameters.values()]
    assert found[:-2] == expected and [p.name for p in found[-2:]] == ["activation", "tune"]
    made = torch.nn.utils.skip_init(ours, 3, 4, 3, activation="relu")
    assert made.weight.device.type == "cpu" and made.activation == "relu"
    with pytest.raises(TypeError, match="unexpected keyword argument 'strides'"):
        ours(3, 4, 3, strides=2)


def test_a_subclass_has_parameters_of_its_own():
    class Square(ct.Conv2d):
        def __init__(self, width: int) -> None:
            super().__init__(width, width, 3, padding=1)

    assert list(inspect.signature(Square).parameters) == ["width"] and Square(4).weight.shape == (4, 4, 3, 3)


def test_a_module_of_convgen_s_own_keeps_its_activation_and_tuning():
    made = ct.Conv2d(3, 4, 3, activation=("leaky_relu", 0.2), tune="quick")
    again = ct.Conv2d.from_module(made)
    x = torch.randn(1, 3, 5, 5)
    near(again(x), made(x))
    assert again.activation == made.activation and again.tune == "quick"
    assert ct.Conv2d.from_module(made, activation="relu").activation == "relu"


class Kernel:
    """In the place of one that is built."""

    def __init__(self, asked) -> None:
        self.manifest = SimpleNamespace(strategy="direct", config=f"tuned: {asked[2]}")

    workspace_bytes = 0

    def prepared(self, device):
        return {}


def test_the_first_call_that_asks_for_it_tunes_the_kernel_of_all(monkeypatch):
    asked = []
    monkeypatch.setattr(launch, "kernel_of", lambda key: asked.append(key[2]) or Kernel(key))
    monkeypatch.setattr(launch, "_SERVED", {})
    captured = [True, False, False]
    monkeypatch.setattr(launch, "capturing", lambda: captured.pop(0))
    x, w = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3)
    arguments = x, w, [], "relu", [1, 1], [0, 0], [1, 1], 1
    found = [launch.served(*arguments, tune=tune).kernel for tune in (None, None, "quick", "quick", None, "quick")]
    assert found == ["direct: tuned: None"] * 3 + ["direct: tuned: quick"] * 3 and asked == [None, "quick"]
    unserved = x.long(), *arguments[1:]
    assert launch.served(*unserved, tune="quick") is launch.served(*unserved, tune="quick")


#: An address of memory that a kernel has itself.
OWN = 256


class Counting(Kernel):
    """Which remembers the launch of the addresses that it is called with, as a kernel does."""

    def __init__(self, asked) -> None:
        super().__init__(asked)
        self.called, self.enqueued, self.scratch = [], [], []
        self.enqueues: dict = {}

    def prepared(self, device):
        return self.enqueues

    def __call__(self, *arrays, out, workspace):
        addresses = tuple(array.data_ptr() for array in (*arrays, out))
        self.called.append([array.is_contiguous() for array in (*arrays, out)])
        self.scratch.append(workspace)
        scratch = (OWN if workspace is None else workspace.data_ptr(),) if self.workspace_bytes else ()
        self.enqueues[(7, *addresses, *scratch)] = lambda: self.enqueued.append(addresses)


@pytest.fixture
def kernel(monkeypatch):
    made = Counting((None, None, None))
    monkeypatch.setattr(launch, "kernel_of", lambda key: made)
    monkeypatch.setattr(launch, "_SERVED", {})
    monkeypatch.setattr(launch, "TORCH_TENSORS", SimpleNamespace(reading=SimpleNamespace(current=lambda device: 7)))
    return made


def channels_last(*tensors):
    return (tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors)


def test_a_call_of_known_addresses_is_enqueued_at_once(kernel):
    x, w, z, out = channels_last(
        torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 3, 4), torch.empty(2, 4, 3, 4)
    )
    run = launch.served(x, w, [z], "add", [1, 1], [0, 0], [1, 1], 1, out=out).launch
    for _ in range(3):
        assert run(x, w, [z], out) is out
    assert len(kernel.called) == 1
    assert all(kernel.called[0])
    assert kernel.enqueued == [tuple(t.data_ptr() for t in (x, w, z, out))] * 2
    assert kernel.scratch == [None]


def test_scratch_memory_is_torch_s_but_where_a_stream_is_captured(kernel, monkeypatch):
    kernel.workspace_bytes, captured = 1000, []
    driver = SimpleNamespace(is_capturing=lambda stream: stream != 7 or bool(captured))
    monkeypatch.setattr(launch.cuda, "driver", lambda: driver)
    x, w = channels_last(torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3))
    run = launch.served(x, w, [], "", [1, 1], [0, 0], [1, 1], 1).launch
    results = [run(x, w, []) for _ in range(2)]
    assert [(s.dtype, s.numel()) for s in kernel.scratch] == [(torch.uint8, 1000)] * 2
    run(x, w, [], results[0])  # which may have the memory of the first call, or another
    captured.append("a graph")
    for _ in range(2):
        run(x, w, [], results[0])
    assert kernel.scratch[-2:] == [None, None]


def test_tuning_is_an_option_everywhere():
    x, made = torch.randn(1, 3, 5, 5), ct.Conv2d(3, 4, 3, activation="relu", tune="quick")
    near(ct.conv2d(x, made.weight, made.bias, activation="relu", tune="quick"), made(x))
    near(ct.optimize(made.eval(), x, inductor=False, tune="quick")(x), made(x))
    options = {"inductor": False, "tune": "quick"}
    with torch.no_grad():
        near(torch.compile(made, backend=ct.compile_graph, fullgraph=True, options=options)(x), made(x))
    assert "activation='relu', tune='quick'" in repr(made) and ct.Conv2d.from_module(made, tune="quick").tune == "quick"
    for wrong in (
        lambda: ct.Conv2d(3, 4, 3, tune="slow"),
        lambda: ct.conv2d(x, made.weight, tune="slow"),
        lambda: ct.optimize(made, x, tune="slow"),
        lambda: ct.compile_graph(None, (), options={"tune": "slow"}),
    ):
        with pytest.raises(ConvgenError, match="unknown tuning 'slow'"):
            wrong()


def test_modules_can_be_exported():
    made = ct.Conv2d(3, 4, 3, activation="relu").eval()
    x = torch.randn(2, 3, 5, 6)
    with torch.no_grad():
        program = torch.export.export(made, (x,))
    assert torch.ops.convgen.fused_conv.default in [node.target for node in program.graph.nodes]
    near(program.module()(x), made(x))


def test_modules_compile_without_graph_breaks():
    made, x = ct.Conv2d(3, 4, 3, activation="relu"), torch.randn(2, 3, 5, 6)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    near(compiled(x), made(x))
    compiled(x).sum().backward()
    assert made.weight.grad is not None


class TestEnabled:
    def test_a_model_is_no_argument(self):
        model = torch.nn.Conv2d(3, 4, 3)
        with pytest.raises(ConvgenError, match="measure is of type Conv2d"), ct.enabled(model):
            pass

    def test_results_stay_and_reasons_are_told(self):
        model, x = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 6)
        expected = model(x)
        with ct.enabled() as serving:
            assert torch.equal(model(x), expected)
            model(x).sum().backward()
            torch.nn.ConvTranspose2d(3, 4, 3)(x)
            with ct.enabled() as inner:
                assert inner is serving
        assert [(row.layer, row.why_not) for row in serving.report] == [
            ("(2, 3, 5, 6) by (4, 3, 3, 3)", "not on a GPU"),
            ("wgrad of (2, 3, 5, 6) by (4, 3, 3, 3), and the bias", "not on a GPU"),
            ("wgrad of (2, 3, 5, 6) by (4, 3, 3, 3)", "not on a GPU"),
            ("transposed (2, 3, 5, 6) by (3, 4, 3, 3)", "not on a GPU"),
        ]
        model(x[:1])
        assert len(serving.report) == 4


# ---- torch's transforms --------------------------------------------------------------------------------

OURS = {
    "conv": lambda x, w: ct.conv2d(x, w, padding=1),
    "activation": lambda x, w: ct.conv2d(x, w, activation="silu"),
}
TORCHS = {"conv": lambda x, w: TF.conv2d(x, w, padding=1), "activation": lambda x, w: TF.silu(TF.conv2d(x, w))}
TRANSFORMS = {
    "jvp": lambda f, x, w: torch.func.jvp(f, (x, w), (x + 1, w - 1))[1],
    "grad": lambda f, x, w: torch.func.grad(lambda v: f(x, v).square().sum())(w),
    "jacrev": lambda f, x, w: torch.func.jacrev(lambda v: f(x, v).sum((0, 2, 3)))(w),
    "jacfwd": lambda f, x, w: torch.func.jacfwd(lambda v: f(x, v).sum((0, 2, 3)))(w),
    "vmap": lambda f, x, w: torch.vmap(lambda v: f(v, w))(torch.stack([x, x + 1])),
    "a gradient for each image": lambda f, x, w: torch.vmap(
        torch.func.grad(lambda v, one: f(one[None], v).square().sum()), (None, 0)
    )(w, x),
    "trace": lambda f, x, w: torch.jit.trace(f, (x, w))(x + 1, w),
}


@pytest.mark.parametrize("case", OURS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_transforms_are_torchs(transform, case):
    x, w = torch.randn(2, 3, 6, 7, dtype=torch.float64), torch.randn(4, 3, 3, 2, dtype=torch.float64)
    found, expected = (TRANSFORMS[transform](fs[case], x, w) for fs in (OURS, TORCHS))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("recorded", (False, True))
def test_tangents_go_through_layers(recorded):
    layer, x = ct.Conv2d(3, 4, 3, activation="relu"), torch.randn(2, 3, 6, 7)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), torch.set_grad_enabled(recorded):
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(layer(dual)).tangent
        expected = forward_ad.unpack_dual(torch.relu(torch.nn.Conv2d.forward(_plain(layer), dual))).tangent
    torch.testing.assert_close(found, expected)


def _plain(layer):
    made = torch.nn.Conv2d(3, 4, 3)
    made.weight, made.bias = layer.weight, layer.bias
    return made


@pytest.mark.parametrize("recorded", (False, True))
def test_a_result_has_the_input_s_type(recorded):
    x, w, wide = torch.randn(1, 3, 6, 6).half(), torch.randn(4, 3, 3, 3).half(), torch.randn(4, 4)
    assert ct.conv2d(x, w.requires_grad_(recorded), residual=wide).dtype is torch.float16


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": "same"}, {"padding": 2, "padding_mode": "reflect"}, {"padding": 1, "padding_mode": "circular"}],
    ids=str,
)
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
def test_a_traced_layer_takes_other_sizes_and_does_not_warn(options):
    layer = ct.Conv2d(3, 4, 3, activation="relu", **options).requires_grad_(False)

    def net(x, z):
        return ct.conv2d(layer(x), layer.weight[:, :1], padding=[(0, 2), (1, 1)], groups=4, residual=z)

    traced = torch.jit.trace(net, (torch.randn(2, 3, 6, 7), torch.randn(4, 1, 1)))
    with pytest.raises(ConvgenError, match="residual has shape"):
        torch.jit.trace(net, (torch.randn(2, 3, 6, 7), torch.randn(5, 1, 1)))
    x, z = torch.randn(1, 3, 9, 8), torch.randn(4, 1, 1)
    near(traced(x, z), net(x, z))


def test_torch_fx_traces_layers_and_functions():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.weight = ct.Conv2d(3, 4, 3, activation="relu"), torch.nn.Parameter(torch.randn(2, 4, 1, 1))

        def forward(self, x):
            return ct.conv2d(self.layer(x), self.weight, stride=2)

    model, x = Net(), torch.randn(2, 3, 6, 7)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [ct.conv2d, ct.conv2d]
    torch.testing.assert_close(traced(x), model(x))


def test_subclasses_of_tensors_stay_what_they_are():
    class Own(torch.Tensor):
        pass

    x, w = torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3)
    found = ct.conv2d(x.as_subclass(Own), w, activation="relu")
    assert type(found) is Own
    torch.testing.assert_close(found.as_subclass(torch.Tensor), ct.conv2d(x, w, activation="relu"))
