"""BatchNorm's sums as results of convolutions, on a GPU: the operators, and training steps that take them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch import summed  # noqa: E402

nn, TF = torch.nn, torch.nn.functional
LAST = dict(memory_format=torch.channels_last)
pytestmark = pytest.mark.usefixtures("torch_cuda", "torch_draws")


@pytest.fixture(autouse=True)
def _fresh(torch_cuda):
    torch._dynamo.reset()


def near(found, expected, tolerance: float) -> None:
    """By relative L2 error to a float64 result."""
    assert (found.double() - expected.double()).norm() <= tolerance * expected.double().norm()


def image(c: int, dtype, n: int = 4, side: int = 28):
    return torch.randn(n, c, side, side, device="cuda", dtype=dtype).to(**LAST)


LAYERS = [(64, 256, 1, 1), (64, 64, 3, 1), (128, 128, 3, 2), (24, 40, 3, 1), (3, 64, 7, 2)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_statistics_of_a_convolution(layer, dtype):
    c, k, taps, stride = layer
    x, w = image(c, dtype), (torch.randn(k, c, taps, taps, device="cuda") / c**0.5).to(dtype).to(**LAST)
    bias = torch.randn(k, 1, 1, device="cuda").to(dtype)
    geometry = [stride] * 2, [taps // 2] * 2, [1, 1], 1
    asked = summed.of_convolution(x, w, [bias], "add", "value square", *geometry)
    assert asked.served().launch is not None, asked.served().why_not
    y, total, squares = torch.ops.convgen.conv_sums(x, w, [bias], "add", "value square", *geometry)
    right = TF.conv2d(x.double(), w.double(), bias.double().flatten(), stride, taps // 2)
    near(y, right, 1e-2)
    near(squares, right.square().sum((0, 2, 3)), 1e-4)
    assert (total - right.sum((0, 2, 3))).abs().max() <= 1e-4 * right.abs().sum((0, 2, 3)).max()
    again = torch.ops.convgen.conv_sums(x, w, [bias], "add", "value square", *geometry)
    assert all(torch.equal(a, b) for a, b in zip(again, (y, total, squares), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS[:-1], ids=str)
@pytest.mark.parametrize("epilogue", ["", "add relu_backward"])
def test_sums_of_a_gradient(layer, dtype, epilogue):
    c, k, taps, stride = layer
    read, saved, branch, x = (image(c, dtype) for _ in range(4))
    w = (torch.randn(k, c, taps, taps, device="cuda") / k**0.5).to(dtype).to(**LAST)
    geometry = [stride] * 2, [taps // 2] * 2, [1, 1], 1
    grad = torch.randn_like(torch.ops.convgen.conv(x, w, None, *geometry))
    mean = torch.randn(1, c, 1, 1, device="cuda")
    operands = [*([branch] if "add" in epilogue else []), *([saved] if epilogue else []), read, mean]
    arguments = grad, w, operands, epilogue, "value product", list(x.shape), *geometry
    assert (asked := summed.of_input(*arguments)).served().launch is not None, asked.served().why_not
    g, total, product = torch.ops.convgen.conv_input_sums(*arguments)
    right = torch.nn.grad.conv2d_input(x.shape, w.double(), grad.double(), stride, taps // 2)
    right = right + branch.double() if "add" in epilogue else right
    right = torch.where(saved > 0, right, 0) if epilogue else right
    near(g, right, 1e-2)
    products = right * (read.double() - mean)
    for found, terms in ((total, right), (product, products)):
        assert (found - terms.sum((0, 2, 3))).abs().max() <= 1e-4 * terms.abs().sum((0, 2, 3)).max()


GRADIENTS = {
    "hardtanh_backward_of_norm:0.0,6.0": lambda g, z: torch.where((z <= 0) | (z >= 6), 0, g),
    "silu_backward_of_norm": torch.ops.aten.silu_backward,
    "hardswish_backward_of_norm": torch.ops.aten.hardswish_backward,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS[:-1], ids=str)
@pytest.mark.parametrize("word", GRADIENTS)
def test_sums_behind_an_activation_of_batchnorm(layer, dtype, word):
    c, k, taps, stride = layer
    read, x = image(c, dtype), image(c, dtype)
    w = (torch.randn(k, c, taps, taps, device="cuda") / k**0.5).to(dtype).to(**LAST)
    geometry = [stride] * 2, [taps // 2] * 2, [1, 1], 1
    grad = torch.randn_like(torch.ops.convgen.conv(x, w, None, *geometry))
    mean, scale, weight, bias = (torch.randn(*size, c, 1, 1, device="cuda") for size in ((1,), (1,), (), ()))
    operands = [read, mean, scale, weight, bias, mean]
    arguments = grad, w, operands, word, "value product_of_norm", list(x.shape), *geometry
    assert (asked := summed.of_input(*arguments)).served().launch is not None, asked.served().why_not
    g, total, product = torch.ops.convgen.conv_input_sums(*arguments)
    right = torch.nn.grad.conv2d_input(x.shape, w.double(), grad.double(), stride, taps // 2)
    right = GRADIENTS[word](right, ((read.float() - mean) * scale * weight + bias).double())
    near(g, right, 1e-2)
    for found, terms in ((total, right), (product, right * (read.double() - mean))):
        assert (found - terms.sum((0, 2, 3))).abs().max() <= 1e-4 * terms.abs().sum((0, 2, 3)).max()


class Block(nn.Module):
    """A bottleneck, whose shortcut may have a convolution of its own."""

    def __init__(self, c: int, k: int, stride: int = 1, **norm) -> None:
        super().__init__()
        self.a, self.norm_a = nn.Conv2d(c, 64, 1, bias=False), nn.BatchNorm2d(64, **norm)
        self.b, self.norm_b = nn.Conv2d(64, 64, 3, stride, 1, bias=False), nn.BatchNorm2d(64, **norm)
        self.c, self.norm_c = nn.Conv2d(64, k, 1, bias=False), nn.BatchNorm2d(k, **norm)
        self.short = nn.Identity()
        if c != k or stride > 1:
            self.short = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k, **norm))

    def forward(self, x):
        y = torch.relu(self.norm_b(self.b(torch.relu(self.norm_a(self.a(x))))))
        return torch.relu(self.norm_c(self.c(y)) + self.short(x))


class Network(nn.Module):
    def __init__(self, **norm) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64, **norm), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        blocks = Block(64, 128, **norm), Block(128, 128, **norm), Block(128, 256, 2, **norm)
        self.body, self.head = nn.Sequential(*stem, *blocks), nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def trained(dtype, prepare, steps: int = 5, frozen: bool = False, **norm):
    """Losses of some steps, the buffers then, and what eval mode gives."""
    torch.manual_seed(0)
    model = Network(**norm).cuda().to(**LAST)
    if frozen:
        model.body[1].eval()
    step, optimizer = prepare(model), torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    x, target = torch.randn(16, 3, 112, 112, device="cuda").to(**LAST), torch.arange(16, device="cuda") % 10
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype):
            loss = TF.cross_entropy(step(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    buffers = copy.deepcopy(dict(model.named_buffers()))
    with torch.no_grad():
        return torch.tensor(losses), buffers, model.eval()(x)


CASES = {
    "bfloat16": (torch.bfloat16, {}),
    "float16, momentum and eps": (torch.float16, dict(momentum=0.3, eps=1e-3)),
    "frozen, not affine": (torch.bfloat16, dict(frozen=True, affine=False)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_with_sums_is_torchs(case):
    dtype, how = CASES[case]
    options = {"measure": False}
    losses, buffers, y = trained(dtype, lambda m: torch.compile(m, backend=ct.compile_graph, options=options), **how)
    fused = [row.fused for report in ct.reports()[-2:] for row in report if "sums" in row.fused]
    assert len(fused) >= 18 + (not how.get("frozen")), "\n".join(map(str, ct.reports()[-2:]))
    right, theirs, expected = trained(dtype, lambda m: m, **how)
    torch.testing.assert_close(losses, right, rtol=3e-2, atol=3e-2)
    assert buffers.keys() == theirs.keys()
    for name, found in buffers.items():
        if name.endswith("num_batches_tracked"):
            assert torch.equal(found, theirs[name])
        else:
            near(found, theirs[name], 5e-2)
    near(y, expected, 2e-1)


def test_sums_are_measured_and_the_report_has_the_times():
    losses, *_ = trained(torch.bfloat16, lambda m: torch.compile(m, backend=ct.compile_graph))
    reports = ct.reports()[-2:]
    assert all(row.us and row.aten_us for report in reports for row in report), "\n".join(map(str, reports))
    right, *_ = trained(torch.bfloat16, lambda m: torch.compile(m, backend=ct.compile_graph, options={"sums": False}))
    assert not any("sums" in row.fused for report in ct.reports()[-2:] for row in report)
    torch.testing.assert_close(losses, right, rtol=3e-2, atol=3e-2)
    print(*reports, sep="\n")


# ---- inference: sums of each image ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_sums_of_each_image(layer, dtype):
    """Of what is stored, rounded."""
    c, k, taps, stride = layer
    x, w = image(c, dtype, side=32), (torch.randn(k, c, taps, taps, device="cuda") / c**0.5).to(dtype).to(**LAST)
    bias = torch.randn(k, 1, 1, device="cuda").to(dtype)
    arguments = x, w, [bias], "add relu", "image_value image_square", [stride] * 2, [taps // 2] * 2, [1, 1], 1
    y, total, squares = torch.ops.convgen.conv_sums(*arguments)
    right = TF.conv2d(x.double(), w.double(), bias.double().flatten(), stride, taps // 2).relu()
    near(y, right, 1e-2)
    near(total, y.double().sum((2, 3)), 1e-6)
    near(squares, y.double().square().sum((2, 3)), 1e-6)
    again = torch.ops.convgen.conv_sums(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(again, (y, total, squares), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalizations_read_sums_of_each_image(dtype, monkeypatch):
    from convgen.torch.network.choice import Measured
    from convgen.torch.network.report import Row

    def taken(self, asked, without):  # whatever is faster
        serving = asked.served()
        assert serving.launch is not None, serving.why_not
        return Row(without.layer, serving.kernel, 1.0, 2.0, asked.fused)

    monkeypatch.setattr(Measured, "sums", taken)
    norms = nn.InstanceNorm2d(64), nn.GroupNorm(8, 64), nn.InstanceNorm2d(64, affine=True), nn.GroupNorm(1, 64)
    parts = [(nn.Conv2d(64, 64, 3, padding=1), norm, nn.SiLU()) for norm in norms]
    model = nn.Sequential(*(part for group in parts for part in group)).cuda().to(dtype).to(**LAST).eval()
    x = image(64, dtype, side=32)
    with torch.no_grad():
        fast = ct.optimize(model, x, measure=False)
        assert all("image_value" in row.fused for row in fast.report), str(fast.report)
        right = copy.deepcopy(model).double()(x.double())
        errors = [((found.double() - right).norm() / right.norm()).item() for found in (fast(x), model(x))]
    assert errors[0] <= 1.2 * errors[1], errors
