"""convgen.torch on a GPU: operators, networks, CUDA graphs, measured choices."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.ir.problem import Op  # noqa: E402
from convgen.planner import database  # noqa: E402
from convgen.torch.asked import Gradient  # noqa: E402
from convgen.torch.launch import served  # noqa: E402

nn, TF = torch.nn, torch.nn.functional
HALF = dict(device="cuda", dtype=torch.float16)
LAST = dict(memory_format=torch.channels_last)
pytestmark = pytest.mark.usefixtures("torch_cuda", "torch_draws")


def near(found, expected, tolerance: float = 2e-3) -> None:
    """By relative L2 error to a float64 result."""
    assert (found.double() - expected.double()).norm() <= tolerance * expected.double().norm()


def image(n: int = 2, c: int = 64, side: int = 14):
    return torch.randn(n, c, side, side, **HALF).to(**LAST)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
def test_functions_launch_convgens_kernels(dtype, channels_last):
    x, w, b = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((2, 16, 9, 10), (32, 16, 3, 3), (32,)))
    x = x.to(**LAST) if channels_last else x
    z = torch.randn_like(TF.conv2d(x, w, b))
    arguments = (x, w, [b.view(32, 1, 1), z], "add add relu", [1, 1], [0, 0], [1, 1], 1)
    assert served(*arguments).launch is not None, served(*arguments).why_not
    expected = torch.relu(TF.conv2d(x.double(), w.double(), b.double()) + z.double())
    found = ct.conv2d(x, w, b, residual=z, activation="relu")
    near(found, expected, 2e-2 if dtype is torch.bfloat16 else 2e-3)
    assert found.dtype is dtype and found.stride() == z.stride()


def test_operators_pass_opcheck():
    x, w = image(c=16, side=6).requires_grad_(), torch.randn(32, 16, 3, 3, **HALF, requires_grad=True)
    b = torch.randn(32, **HALF, requires_grad=True)
    geometry = [1, 1], [1, 1], [1, 1], 1
    # gradients of float16 differ by more than opcheck's tolerances between eager and traced code
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.convgen.conv.default, (x, w, b, *geometry), test_utils=tests)
    arguments = x.detach(), w.detach(), [b.detach().view(32, 1, 1)], "add relu", *geometry
    torch.library.opcheck(torch.ops.convgen.fused_conv.default, arguments)


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_are_those_of_cudnn_and_their_times_are_listed(channels_last):
    theirs = nn.Conv2d(16, 32, 3, padding=1).to(**HALF)
    ours = ct.Conv2d.from_module(theirs)
    x = torch.randn(2, 16, 9, 8, **HALF)
    x = (x.to(**LAST) if channels_last else x).requires_grad_()
    direction = torch.randn(2, 32, 9, 8, **HALF)
    inputs = x, theirs.weight, theirs.bias
    expected = torch.autograd.grad(theirs(x), inputs, direction)
    for mine, other in zip(torch.autograd.grad(ours(x), inputs, direction), expected, strict=True):
        near(mine, other)
        assert mine.stride() == other.stride()
    rows = [row for row in ct.gradients() if "(2, 16, 9, 8)" in row.layer]
    assert len(rows) >= 2 and all(row.us and row.aten_us for row in rows), str(ct.gradients())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("c", "k", "groups", "stride"), [(16, 32, 1, 1), (16, 32, 1, 2), (3, 64, 1, 2), (32, 32, 32, 1)]
)
def test_gradients_launch_convgens_kernels(dtype, c, k, groups, stride):
    x, w = (
        torch.randn(2, c, 12, 11, device="cuda").to(dtype),
        torch.randn(k, c // groups, 3, 3, device="cuda").to(dtype),
    )
    x, w = x.to(**LAST), w.to(**LAST)
    y = TF.conv2d(x, w, None, stride, 1, 1, groups)
    geometry = (stride, stride), (1, 1), (1, 1), groups
    for asked in (
        Gradient(Op.DGRAD, y, w, tuple(x.shape), *geometry),
        Gradient(Op.WGRAD, x, y, tuple(w.shape), *geometry),
    ):
        serving = asked.served()
        assert serving.launch is not None, serving.why_not
        found = serving.launch(*asked.reads, ())
        exact = asked._replace(first=asked.first.double(), second=asked.second.double()).by_aten()
        near(found, exact, 2e-2 if dtype is torch.bfloat16 else 2e-3)
        assert found.dtype is dtype and found.stride() == asked.by_aten().stride() == asked.empty().stride()


def test_quick_tuning_serves_all_later_calls(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")
    x, w = torch.randn(2, 48, 9, 8, **HALF).to(**LAST), torch.randn(40, 48, 3, 3, **HALF).to(**LAST)
    near(ct.conv2d(x, w, activation="relu", tune="quick"), torch.relu(TF.conv2d(x.double(), w.double())))
    measured = database.read_all(tmp_path / "tuning.sqlite")
    arguments = x, w, [], "relu", [1, 1], [0, 0], [1, 1], 1
    assert len(measured) >= 2 and served(*arguments).tuned
    model = nn.Sequential(nn.Conv2d(48, 56, 3), nn.SiLU()).to(**HALF).eval()
    fast = ct.optimize(model, x, tune="quick")
    near(fast(x), model(x))
    assert len(database.read_all(tmp_path / "tuning.sqlite")) > len(measured), str(fast.report)


def test_autocast_and_float32_weights():
    made = ct.Conv2d(16, 32, 3).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        assert made(torch.randn(2, 16, 8, 8, device="cuda")).dtype is torch.bfloat16


def test_unaligned_tensors_and_other_types_fall_back():
    w = torch.randn(32, 16, 3, 3, **HALF).to(**LAST)
    memory = torch.randn(2 * 16 * 8 * 8 + 1, **HALF)
    x = memory[1:].view(2, 8, 8, 16).permute(0, 3, 1, 2)  # two bytes off
    near(ct.conv2d(x, w), TF.conv2d(x.double(), w.double()))
    x = torch.randn(2, 16, 8, 8, device="cuda", dtype=torch.float64)
    near(ct.conv2d(x, w.double()), TF.conv2d(x, w.double()), 1e-12)


class Network(nn.Module):
    """A stem, a bottleneck with a residual, squeeze and excite, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        self.a = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.SiLU())
        self.b = nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64), nn.Hardswish()
        )
        self.gate, self.c = nn.Conv2d(64, 64, 1), nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = TF.max_pool2d(self.stem(x), 3, 2, 1)
        y = self.b(self.a(x))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return self.head(torch.relu(self.c(y) + x).mean((2, 3)))


@pytest.fixture(scope="module")
def network():
    return Network().to(**HALF).to(**LAST).eval()


@pytest.mark.parametrize("options", [{}, {"measure": False}, {"inductor": False}])
def test_an_optimized_network_is_right(network, options):
    x = image(4, 3, 64)
    fast = ct.optimize(network, x, **options)
    with torch.no_grad():
        exact = Network().cuda().double().eval()
        exact.load_state_dict(network.state_dict())
        near(fast(x), exact(x.double()), 1e-2)
    print(fast.report)
    assert len(fast.report) == 6
    if options.get("measure") is False:
        assert all(row.kernel != "aten" for row in fast.report)
    else:
        assert all(row.us and row.aten_us for row in fast.report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("measure", [False, True])
def test_upsampling_is_folded(dtype, measure):
    """With a bias, an activation and a residual behind it."""

    class Up(nn.Module):
        def __init__(self, c, k):
            super().__init__()
            self.conv, self.skip = nn.Conv2d(c, k, 3, padding=1), nn.Conv2d(c, k, 1)

        def forward(self, x):
            y = TF.silu(self.conv(TF.interpolate(x, scale_factor=2)))
            return y + TF.interpolate(self.skip(x), scale_factor=2, mode="bilinear")

    model = nn.Sequential(Up(64, 128), Up(128, 96)).cuda().to(dtype).to(**LAST).eval()
    x = torch.randn(2, 64, 12, 20, device="cuda").to(dtype).to(**LAST)
    fast = ct.optimize(model, x, measure=measure)
    print(fast.report)
    with torch.no_grad():
        exact = nn.Sequential(Up(64, 128), Up(128, 96)).cuda().double().eval()
        exact.load_state_dict(model.state_dict())
        expected, theirs = exact(x.double()), model(x)
        error = (theirs.double() - expected).norm() / expected.norm()
        near(fast(x), expected, 1.1 * error.item())
        model[1].conv.weight.mul_(0.5)
        near(fast(x), model(x), 4 * error.item())
    if not measure:
        assert [row.fused for row in fast.report if "silu" in row.fused] == ["upsampling folded; add silu add"] * 2


def test_transposed_convolutions_are_fused():
    model = nn.Sequential(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()).to(**HALF).eval()
    x = image()
    fast = ct.optimize(model, x, measure=False)
    with torch.no_grad():
        near(fast(x), copy.deepcopy(model).double()(x.double()))
    assert [row.fused for row in fast.report] == ["add relu"] and fast.report.rows[0].kernel.startswith("tma_im2col")


def test_an_optimized_network_is_captured_in_a_graph_and_follows_its_input(network):
    x = image(4, 3, 64)
    fast = ct.optimize(network, x)
    with torch.no_grad():
        fast(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fast(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        near(y, fast(x), 1e-6)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_the_backend_of_torch_compile(network, mode):
    x = image(4, 3, 64)
    compiled = torch.compile(network, backend=ct.compile_graph, fullgraph=True, mode=mode)
    with torch.no_grad():
        for given in (x, x, x, image(2, 3, 64)):
            near(compiled(given).clone(), network(given), 2e-2)


def test_changed_weights_are_noticed(network):
    x = image(4, 3, 64)
    fast = ct.optimize(network, x)
    with torch.no_grad():
        fast(x)
        network.a[0].weight.mul_(1.5)
        near(fast(x), network(x), 2e-2)


def test_other_streams_wait_for_weights_that_are_packed_anew():
    model, x = nn.Conv2d(64, 64, 3, padding=1).to(**HALF).eval(), image()
    with torch.no_grad():
        ready = ct.optimize(model, x)
        ready(x)
        model.weight.copy_(torch.randn_like(model.weight))
        expected = model(x)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(500_000_000)  # cycles
            ready(x)
        with torch.cuda.stream(second):
            found = ready(x)
        torch.cuda.synchronize()
    near(found, expected)


def test_weights_that_come_to_lie_where_others_were_are_noticed():
    """The allocator gives the second weight the memory that the first one left."""
    model, x = nn.Conv2d(64, 64, 3, **HALF).eval().requires_grad_(False), image()
    fast = ct.optimize(model, x, measure=False, inductor=False)
    for _ in range(3):
        for _ in range(2):
            model.weight.data = torch.randn_like(model.weight)
        near(fast(x), TF.conv2d(x.double(), model.weight.double(), model.bias.double()))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_launch_convgens_kernels(mode, channels_last):
    w = torch.randn(32, 16, 3, 3, **HALF, requires_grad=True)
    x = (
        image(c=16)
        .contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        .requires_grad_()
    )
    arguments = (x, w, [], "", [1, 1], [2, 1, 1, 2], [1, 1], 1, mode)
    assert served(*arguments).launch is not None, served(*arguments).why_not
    found = ct.conv2d(x, w, padding=((2, 1), (1, 2)), padding_mode=mode)
    exact, filters = (t.detach().double().requires_grad_() for t in (x, w))
    expected = TF.conv2d(TF.pad(exact, (1, 2, 2, 1), mode=mode), filters)
    near(found, expected)
    grad = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, w), grad), torch.autograd.grad(expected, (exact, filters), grad.double()),
        strict=True,
    ):  # fmt: skip
        near(mine, theirs)


def step(model, x, target, optimizer):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = TF.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


def trained(steps: int, captured: bool = False, prepare=None):
    """Losses of some steps of the network in bfloat16 with float32 weights; the last half under a CUDA graph."""
    torch.manual_seed(0)
    model = Network().cuda().to(**LAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(8, 3, 64, 64, device="cuda", generator=generator).to(**LAST)
    given = (prepare or (lambda m: m))(model), x, torch.arange(8, device="cuda") % 10, optimizer
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    losses = []
    with torch.cuda.stream(stream):
        losses += [step(*given).item() for _ in range(steps // 2 if captured else steps)]
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(*given)
        for _ in range(steps - steps // 2):
            graph.replay()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("measure", [False, True])
def test_a_training_step_is_served_whole_and_its_losses_are_torchs(measure):
    expected = trained(8)
    with ct.enabled(measure=measure) as serving:
        trained(2)
        serving.wait()
        trained(2)  # measures
        found = trained(8, captured=True)
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    rows = {row.layer.partition(" ")[0]: row for row in serving.report}
    assert {"dgrad", "wgrad"} <= set(rows)
    if measure:
        assert all(row.us and row.aten_us for row in serving.report), str(serving.report)
    else:
        assert all(row.kernel != "aten" for row in serving.report), str(serving.report)


@pytest.mark.parametrize("measure", [False, True])
def test_a_compiled_training_step_is_served_whole_and_its_losses_are_torchs(measure):
    torch._dynamo.reset()
    options = {"measure": measure}
    found = trained(8, captured=True, prepare=lambda m: torch.compile(m, backend=ct.compile_graph, options=options))
    torch.testing.assert_close(found, trained(8), rtol=3e-2, atol=3e-2)
    forward, backward = ct.reports()[-2:]
    assert (len(forward), len(backward)) == (5, 9), f"{forward}\n{backward}"
    if measure:
        assert all(row.us and row.aten_us for row in (*forward, *backward)), f"{forward}\n{backward}"


def test_a_training_step_is_compiled_with_cuda_graphs():
    torch._dynamo.reset()
    found = trained(8, prepare=lambda m: torch.compile(m, backend=ct.compile_graph, mode="reduce-overhead"))
    torch.testing.assert_close(found, trained(8), rtol=3e-2, atol=3e-2)


def test_transposed_convolutions_train_within_enabled():
    layer = nn.ConvTranspose2d(32, 16, 3, stride=2, padding=1, output_padding=1).to(**HALF).to(**LAST)
    x = image(c=32).requires_grad_()
    inputs = x, layer.weight, layer.bias
    expected = layer(x)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, inputs, direction)
    with ct.enabled(measure=False) as serving:
        for _ in range(2):
            found = layer(x)
            mine = torch.autograd.grad(found, inputs, direction)
            serving.wait()
    near(found, expected)
    for own, other in zip(mine, gradients, strict=True):
        near(own, other)
    assert len(serving.report) == 3 and all(row.kernel != "aten" for row in serving.report), str(serving.report)


def test_enabled_serves_models_as_they_are(network):
    x = image(4, 3, 64)
    with torch.no_grad():
        expected = network(x)
        with ct.enabled(measure=False) as serving:
            near(network(x), expected, 1e-6)  # aten, while kernels are built
            serving.wait()
            near(network(x), expected, 2e-2)
        assert any(row.kernel != "aten" for row in serving.report), str(serving.report)
        with ct.enabled() as serving:
            for _ in range(2):
                network(x)
                serving.wait()
            assert all(row.us and row.aten_us for row in serving.report), str(serving.report)


@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_weights_may_begin_anywhere(compiled):
    """Inductor's kernels rely on 16 bytes of what a graph holds."""
    parts = nn.Conv2d(8, 8, 3), nn.Flatten(), nn.LayerNorm(1024)
    model = nn.Sequential(*parts).cuda().half().eval()
    x = torch.randn(2, 8, 18, 10, device="cuda").half()
    torch.compiler.reset()
    model[2].weight.data = torch.randn(1025, device="cuda").half()[1:]
    made = torch.compile(model, backend=ct.compile_graph) if compiled else ct.optimize(model, x)
    for offset in (1, 0, 3, 1):
        model[2].weight.data = torch.randn(1032, device="cuda").half()[offset : offset + 1024]
        torch.testing.assert_close(made(x), model(x), rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_inductors_graphs_see_new_inputs_and_weights():
    parts = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.Flatten()
    model = nn.Sequential(*parts, nn.LayerNorm(16 * 8 * 8)).cuda().half().eval()
    x = torch.randn(2, 16, 8, 8, device="cuda").half()
    fast = ct.optimize(model, x, options={"triton.cudagraphs": True})
    for step in range(16):
        if step == 5:  # packed anew into the memory that the graph reads
            model[0].weight.mul_(1.5)
        if step == 8:  # which lies elsewhere, and is read as it lies
            model[5].weight.data = torch.rand_like(model[5].weight) + 0.5
        given = torch.randn(3 if step in (10, 11, 12) else 2, 16, 8, 8, device="cuda").half()
        torch.testing.assert_close(fast(given).clone(), model(given), rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_sizes_that_change_from_call_to_call():
    """The number of images that are chosen, as of objects in an image."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 3)

        def forward(self, x):
            return self.head(self.features(x).relu()[x.flatten(1).amax(1) > 0]).mean((2, 3))

    model = Chooses().cuda().half().eval()
    torch.compiler.reset()
    fast = torch.compile(model, backend=ct.compile_graph)
    for count in (3, 5, 2, 7, 4, 6, 9, 8, 11, 10, 12, 5):
        x = torch.randn(count + 1, 8, 12, 12, device="cuda").half()
        x[count] = -1
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_training_is_convgens_after_a_short_batch(mode):
    """From then on Dynamo has symbols for the number of images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to(device="cuda", **LAST)  # fmt: skip
    own, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend=ct.compile_graph, mode=mode)

    def gradients(net, function, x, target):
        net.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=net is not own):
            loss = TF.cross_entropy(function(x), target)
        loss.backward()
        return [p.grad.double() for p in net.parameters() if p.dim() > 1]

    for count in (8, 8, 8, 5, 8, 8, 5, 8):
        x, target = torch.randn(count, 8, 20, 20, device="cuda").to(**LAST), torch.randint(10, (count,), device="cuda")
        found, theirs, right = (
            gradients(*each, target) for each in ((model, compiled, x), (eager, eager, x), (own, own, x.double()))
        )
        for a, b, c in zip(found, theirs, right, strict=True):
            assert (a - c).norm() <= 2 * (b - c).norm() + 1e-2 * c.norm()
    rows = [row for report in list(ct.reports())[-4:] for row in report]
    assert rows and all("symbolic" not in row.why_not for row in rows)
    assert any(row.kernel != "aten" for row in rows)
