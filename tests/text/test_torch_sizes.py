"""Networks within which sizes depend on data, as the number of objects in an image does."""

from __future__ import annotations

import copy
import warnings
from collections import deque

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import backend, sizes, training_sizes  # noqa: E402

pytestmark = pytest.mark.costly
COUNTS = (7, 3, 5, 2, 9, 4, 11, 6, 13, 8, 12, 10)


class Detector(nn.Module):
    """A head of convolutions for the images that are chosen, and boxes of what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x):
        chosen = x.flatten(1).amax(1) > 0
        found = self.head(self.features(x).relu()[chosen]).mean((2, 3))
        corners = found[found[:, 0] > -1e3]
        return corners.sin() * 2, corners.sum()


def images(count: int):
    """So many that are chosen, and one that is not."""
    x = torch.randn(count + 1, 3, 8, 8)
    x[count] = -1
    return x


@pytest.mark.parametrize("inductor", [False, True])
def test_graphs_of_sizes_that_change_are_prepared_for_a_few(inductor, monkeypatch):
    reports = deque()
    monkeypatch.setattr(backend, "_reports", reports)
    monkeypatch.setattr(sizes, "AT_ONCE", 1)
    torch.compiler.reset()
    model = Detector().eval()
    fast = torch.compile(model, backend=ct.compile_graph, options={"inductor": inductor})
    with torch.no_grad():
        for count in COUNTS[: 3 if inductor else 6]:
            x = images(count)
            for made, own in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-4)
    # Dynamo compiles some graphs twice, for the first sizes and then for symbols
    of_convolutions = [report for report in reports if report.rows]
    assert 0 < len(of_convolutions) <= 2 * (1 + sizes.AT_ONCE)
    assert len(reports) - len(of_convolutions) <= 4


@pytest.mark.parametrize("first_is_fake", [False, True])
def test_what_cannot_be_prepared_is_no_kind(first_is_fake, monkeypatch):
    """Memory that was short once, or fake tensors, say nothing of later sizes."""
    prepared = []

    def prepare_or_not(*arguments):
        prepared.append(arguments)
        if len(prepared) == 1:
            raise torch.OutOfMemoryError("there was none")
        return make(*arguments)

    make = backend.Prepared
    monkeypatch.setattr(backend, "Prepared", prepare_or_not)
    torch.compiler.reset()
    convolution = nn.Conv2d(3, 4, 3).eval()
    fast = torch.compile(convolution, backend=ct.compile_graph, dynamic=True, options={"inductor": False})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if first_is_fake:
            with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
                fast(torch.randn(2, 3, 6, 6))
            prepared.append(())
        for count in (2, 3, 4):
            x = torch.randn(count, 3, 7, 7)
            torch.testing.assert_close(fast(x), convolution(x), rtol=1e-4, atol=1e-4)
    assert len(prepared) == 1 + sizes.AT_ONCE


def test_sizes_that_inductor_does_not_compile_for_are_left_to_aten(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no code for these")

    monkeypatch.setattr(backend, "for_any_sizes", lambda function, options: fails)
    torch.compiler.reset()
    fast = torch.compile(lambda x: x.sin() * 2, backend=ct.compile_graph, dynamic=True)
    with torch.no_grad():
        near = {n: fast(torch.full((n, 3), 0.5)) for n in (4,)}
        with pytest.warns(UserWarning, match="leaves a graph to aten, for sizes that change"):
            near[5] = fast(torch.full((5, 3), 0.5))
        near[6] = fast(torch.full((6, 3), 0.5))
    for n, found in near.items():
        torch.testing.assert_close(found, torch.full((n, 3), 0.5).sin() * 2)


def test_parts_of_a_model_are_prepared_for_a_few_sizes(monkeypatch):
    monkeypatch.setattr("convgen.torch.network.optimize.MOST_KINDS", 3)
    model = Detector().eval()
    with pytest.warns(UserWarning, match="its parts are optimized"):
        fast = ct.optimize(model, images(1), inductor=False)
        for count in COUNTS[:6]:
            x = images(count)
            with torch.no_grad():
                for made, own in zip(fast(x), model(x), strict=True):
                    torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-4)
    assert len(fast._parts["head"]._prepared) == 3


class Classifier(nn.Module):
    """What a step may meet: sums over the batch, sizes that the code computes with, a number of the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x, scale):
        y = self.second(self.norm(self.first(x)).relu())
        flat = y.flatten(2).reshape(x.shape[0], 8, -1).mean(2) * scale
        return self.last(flat) / x.shape[0], x.shape[0] + 1


def steps(model, compiled, batches, scales):
    """Losses and gradients of steps, and the number of images that the model gives."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count, scale in zip(batches, scales, strict=True):
        x = torch.randn(count, 3, 9, 9, generator=torch.Generator().manual_seed(count))
        optimizer.zero_grad()
        result, number = compiled(x.to(memory_format=torch.channels_last), scale)
        loss = result.square().sum()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), torch.tensor(number), *[p.grad.clone() for p in model.parameters()]]


def trained(batches, scales, **options):
    """Compares steps with the model's own, and gives the reports."""
    torch.manual_seed(0)
    torch.compiler.reset()
    own = Classifier().to(memory_format=torch.channels_last)
    other = copy.deepcopy(own)
    compiled = torch.compile(other, backend=ct.compile_graph, options=options)
    for found, right in zip(steps(other, compiled, batches, scales), steps(own, own, batches, scales), strict=True):
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(own.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inductor", [False, True])
def test_the_last_batch_of_an_epoch_leaves_training_to_convgen(inductor, monkeypatch):
    """Dynamo has symbols for sizes from there on, for which convgen has no kernels."""
    reports = deque()
    monkeypatch.setattr(backend, "_reports", reports)
    batches = (4, 4, 3, 4, 3, 4)
    trained(batches, [0.5] * len(batches), inductor=inductor)
    reasons = {row.why_not for report in reports for row in report}
    assert reasons == {"not on a GPU"}
    # a forward and a backward pass of 4 images, and of 3 and 4 where Dynamo has symbols
    assert len(reports) == 6


def test_training_for_many_sizes_compiles_for_a_few(monkeypatch):
    reports = deque()
    monkeypatch.setattr(backend, "_reports", reports)
    monkeypatch.setattr(sizes, "MOST_KINDS", 3)
    batches = (3, 4, 5, 6, 7, 8, 5, 6, 7, 4)
    trained(batches, [0.5] * len(batches), inductor=False)
    symbolic = ["symbolic" in report.rows[0].why_not for report in reports]
    # 3 images; 4 and 5, then any number; 5 again
    assert symbolic == [False] * 6 + [True] * 2 + [False] * 2


def test_numbers_that_change_from_step_to_step():
    trained((4, 4, 3, 4, 5, 6), (0.5, 0.25, 1.5, 0.125, 2.0, 0.75), inductor=False)


def test_training_that_does_not_compile_for_fixed_sizes_does_for_any(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no numbers here")

    monkeypatch.setattr(training_sizes, "with_numbers", fails)
    with pytest.warns(UserWarning, match="leaves a graph to Inductor, for sizes that change.*no numbers here"):
        trained((4, 3, 4, 3), [0.5] * 4, inductor=False)


def test_what_a_checkpoint_computes_again_goes_the_way_that_it_went_before():
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    torch.compiler.reset()
    compiled = torch.compile(block, backend=ct.compile_graph, options={"inductor": False})
    for count in (2, 3, 4, 5, 6, 5, 6, 7):
        x = torch.randn(count, 3, 8, 8, requires_grad=True)
        found = torch.autograd.grad(torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False).sin().sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(block(x).sin().sum(), x), rtol=1e-4, atol=1e-5)


def test_training_for_sizes_that_torch_does_not_compile_is_left_to_aten():
    def fails(graph_module, inputs):
        raise RuntimeError("no code for these")

    layer = nn.Conv2d(3, 4, 3)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend=ct.compile_graph, dynamic=True, options={"inductor": False})
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        patch.setattr(training_sizes.TrainingOfAnySizes, "_with_symbols", lambda *arguments: fails(*arguments[1:]))
        for count in (2, 3, 4, 5):
            x = torch.randn(count, 3, 8, 8)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    told = [each for each in seen if "leaves a graph to aten, for sizes that change" in str(each.message)]
    assert len(told) == 1


def test_numbers_of_a_checkpoint_are_numbers():
    """Dynamo passes floats as tensors, and the checkpoint's own graph asks for them."""

    def trained(backend, **options):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

        def step(x):
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().sum()

        compiled = torch.compile(step, backend=backend, dynamic=True, **options)
        for count in (2, 3):
            compiled(torch.randn(count, 3, 8, 8)).backward()
        return [model[0].weight.grad, model[1].running_mean, model[1].running_var]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = trained(ct.compile_graph, options={"inductor": False})
    torch.testing.assert_close(made, trained("aot_eager"), rtol=1e-4, atol=1e-4)
